"""The least that an echo with our frames can be, on both ends: what a node is measured against.

The server reads frames, decodes the message with msgspec, encodes the answer, writes all answers of
a read at once. No handshake, no limits, no routing, no permissions, no deadlines. The client keeps
a number of requests in flight and does nothing else.

`python -m benchmarks.bare_echo [path of a Unix socket]` is the server; it prints its port.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, cast

import msgspec
import uvloop

from maitred.protocol.cql import encode_startup
from maitred.protocol.frames import ANSWER, HEADER, HEADER_BYTES, REQUEST, RESPONSE, Opcode
from maitred.protocol.messages import Echo, Echoed

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_MILLISECONDS = 60_000

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Echo).decode
_decode_answer = msgspec.msgpack.Decoder(Echoed).decode


class Server(asyncio.Protocol):
    """One connection of the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, size, answers = 0, len(data), []
        while size - at >= HEADER_BYTES:
            _, _, stream, opcode, length = HEADER.unpack_from(data, at)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            message = _decode_request(data[at + HEADER_BYTES : end])
            body = _encode(Echoed(message.payload, 0))
            answers.append(HEADER.pack(RESPONSE, 0, stream, opcode + ANSWER, len(body)) + body)
            at = end
        self.rest = data[at:]
        self.transport.write(b"".join(answers))


async def serve(path: str | None) -> None:
    """On a port, and if a path is given on that as well."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    if path is not None:
        await loop.create_unix_server(Server, path)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Load(asyncio.Protocol):
    """Keeps `in_flight` requests under way until `total` are answered."""

    def __init__(
        self, targets: Sequence[tuple[str, int]], payload: bytes, in_flight: int, total: int
    ) -> None:
        self._targets = targets
        self._payload = payload
        self._in_flight = in_flight
        self._left = total
        self._unanswered = total
        self._number = 0
        self._rest = b""
        self._sent_at = 0.0
        self.latencies: list[float] = []
        """Seconds, if one is in flight at a time."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.ready, self.done):
            if not future.done():
                future.set_exception(exc or ConnectionError("closed"))
                future.exception()  # whoever waits sees it; nobody has to

    def shake_hands(self) -> None:
        """Before a node takes requests."""
        body = encode_startup({"CQL_VERSION": "3.0.0", "MAITRED_VERSION": "1"})
        self.transport.write(HEADER.pack(REQUEST, 0, 0, Opcode.STARTUP, len(body)) + body)

    def start(self) -> None:
        self._sent_at = time.perf_counter()
        self._left -= self._in_flight
        self.transport.write(b"".join(map(self._request, range(self._in_flight))))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size, requests = 0, len(data), []
        while size - at >= HEADER_BYTES:
            _, flags, stream, opcode, length = HEADER.unpack_from(data, at)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            body = data[at + HEADER_BYTES : end]
            at = end
            if opcode == Opcode.READY:
                self.ready.set_result(None)
                continue
            assert opcode == Opcode.ECHO + ANSWER, body
            if not flags:  # else a custom payload precedes the answer
                assert _decode_answer(body).payload == self._payload
            self._unanswered -= 1
            if self._in_flight == 1:
                now = time.perf_counter()
                self.latencies.append(now - self._sent_at)
                self._sent_at = now
            if self._left > 0:
                self._left -= 1
                requests.append(self._request(stream))
        self._rest = data[at:]
        if requests:
            self.transport.write(b"".join(requests))
        if self._unanswered == 0 and not self.done.done():
            self.done.set_result(None)

    def _request(self, stream: int) -> bytes:
        queue, partition = self._targets[self._number]
        self._number = (self._number + 1) % len(self._targets)
        body = _encode(Echo("shop", queue, 1, partition, TIMEOUT_MILLISECONDS, self._payload))
        return HEADER.pack(REQUEST, 0, stream, Opcode.ECHO, len(body)) + body


class Client(asyncio.Protocol):
    """The least that a client with `await` can be: a future for each request, writes gathered."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._waiting: dict[int, asyncio.Future[Echoed]] = {}
        self._free = list(range(1_024))
        self._gathered: list[bytes] = []
        self._rest = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def echo(self, queue: str, partition: int) -> Echoed:
        stream = self._free.pop()
        future: asyncio.Future[Echoed] = self._loop.create_future()
        self._waiting[stream] = future
        body = _encode(Echo("shop", queue, 1, partition, TIMEOUT_MILLISECONDS, self._payload))
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(HEADER.pack(REQUEST, 0, stream, Opcode.ECHO, len(body)) + body)
        return await future

    def _flush(self) -> None:
        self.transport.write(b"".join(self._gathered))
        self._gathered.clear()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            _, _, stream, _, length = HEADER.unpack_from(data, at)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            self._waiting.pop(stream).set_result(_decode_answer(data[at + HEADER_BYTES : end]))
            self._free.append(stream)
            at = end
        self._rest = data[at:]


async def load(
    port: int,
    targets: Sequence[tuple[str, int]],
    *,
    payload: bytes,
    in_flight: int,
    total: int,
    handshake: bool,
) -> tuple[float, list[float]]:
    """Seconds that the requests took, and how long each one took if one is in flight."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(
        lambda: Load(targets, payload, in_flight, total), "127.0.0.1", port
    )
    if handshake:
        protocol.shake_hands()
        await protocol.ready
    started = time.perf_counter()
    protocol.start()
    await protocol.done
    seconds = time.perf_counter() - started
    transport.close()
    return seconds, protocol.latencies


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
