"""A small pipelined request/response service, written as production code would be.

It is what the `streams` scenario runs, and it knows nothing of the simulation: protocols and
transports, one connection with many requests under way, reconnecting with backoff, a deadline for
each request. A frame is a length, a number of the frame on its connection (which shows lost or
doubled bytes), a request id, and a payload with its checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from typing import TYPE_CHECKING, Final, cast

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.surroundings import Surroundings

_HEADER: Final = struct.Struct("!IIQI")
FRAME_MAX_BYTES: Final = 1 << 20


class RequestFailed(Exception):
    """No answer: the connection was lost, or there was none, or the deadline came first."""


class FrameProtocol(asyncio.Protocol):
    """Frames over a byte stream, and a check of everything a stream promises."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self._received = bytearray()
        self._frames_in = 0
        self._frames_out = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.transport is not None:
            raise Violation("connection_made was called twice.")
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any reason will do
        self.lost += 1
        if self.lost > 1:
            raise Violation("connection_lost was called twice.")
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.lost:
            raise Violation("Bytes came after connection_lost.")
        self._received += data
        for request_id, payload in self._complete_frames():
            self.frame_received(request_id, payload)

    def frame_received(self, request_id: int, payload: bytes) -> None:
        """Take a complete frame; a subclass implements it."""
        raise NotImplementedError

    def send(self, request_id: int, payload: bytes) -> None:
        """Write one frame, unless the connection is closing."""
        if self.transport is None or self.transport.is_closing():
            return
        checksum = zlib.crc32(payload)
        header = _HEADER.pack(len(payload), self._frames_out, request_id, checksum)
        self._frames_out += 1
        self.transport.write(header)
        self.transport.write(payload)

    def _complete_frames(self) -> Iterator[tuple[int, bytes]]:
        received = self._received
        while len(received) >= _HEADER.size:
            size, number, request_id, checksum = _HEADER.unpack_from(received)
            if size > FRAME_MAX_BYTES or number != self._frames_in:
                raise Violation(f"Frame {self._frames_in} came as frame {number} of {size} bytes.")
            if len(received) < _HEADER.size + size:
                return
            payload = bytes(received[_HEADER.size : _HEADER.size + size])
            del received[: _HEADER.size + size]
            if zlib.crc32(payload) != checksum:
                raise Violation(f"The bytes of frame {number} are not those that were sent.")
            self._frames_in += 1
            yield request_id, payload


class ServerProtocol(FrameProtocol):
    """Answers each frame with its payload reversed, some of them later than others."""

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__()
        self._random = surroundings.random

    def frame_received(self, request_id: int, payload: bytes) -> None:
        answer = payload[::-1]
        if self._random.random() < 0.5:
            self.send(request_id, answer)
        else:
            delay = self._random.random() * 0.05
            asyncio.get_running_loop().call_later(delay, self.send, request_id, answer)


async def serve(surroundings: Surroundings, port: int) -> None:
    """Run a server process."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ServerProtocol(surroundings), None, port)
    async with server:
        await server.serve_forever()


class ClientProtocol(FrameProtocol):
    """The client's end, which matches answers with requests."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, None] = {}

    def ask(self, request_id: int, payload: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future gets its answer."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting[request_id] = answer
        self._asked[request_id] = None
        self.send(request_id, payload)
        return answer

    def frame_received(self, request_id: int, payload: bytes) -> None:
        if request_id not in self._asked:
            raise Violation(f"Request {request_id} was never sent or is answered twice.")
        del self._asked[request_id]
        answer = self.waiting.get(request_id)
        if answer is not None and not answer.done():
            answer.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(RequestFailed(f"The connection was lost: {exc}"))
        self.closed.set_result(None)


class PipelinedClient:
    """One connection, kept up by `run`; any number of requests at a time."""

    connect_timeout_seconds: Final = 3.0
    backoff_min_seconds: Final = 0.05
    backoff_max_seconds: Final = 1.0

    def __init__(self, surroundings: Surroundings, address: str, port: int) -> None:
        self._surroundings = surroundings
        self._address = address
        self._port = port
        self._protocol: ClientProtocol | None = None
        self._next_id = 0
        self.protocols: list[ClientProtocol] = []
        """The protocols of all connections so far, for checks."""

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        backoff = self.backoff_min_seconds
        try:
            while True:
                protocol = await self._connect()
                if protocol is not None:
                    backoff = self.backoff_min_seconds
                    self._protocol = protocol
                    await protocol.closed
                    self._protocol = None
                await asyncio.sleep(backoff * (0.5 + self._surroundings.random.random()))
                backoff = min(backoff * 2.0, self.backoff_max_seconds)
        finally:
            if self._protocol is not None and self._protocol.transport is not None:
                self._protocol.transport.abort()

    async def request(self, payload: bytes, timeout_seconds: float) -> bytes:
        """Return the answer; raise `RequestFailed` at the deadline at the latest."""
        protocol = self._protocol
        if protocol is None:
            raise RequestFailed("There is no connection.")
        self._next_id += 1
        request_id = self._next_id
        try:
            async with asyncio.timeout(timeout_seconds):
                await protocol.writable.wait()
                return await protocol.ask(request_id, payload)
        except TimeoutError:
            # Silence may mean a half-open connection, which nothing but a new one repairs.
            if protocol.transport is not None:
                protocol.transport.abort()
            raise RequestFailed("The deadline came first.") from None
        finally:
            protocol.waiting.pop(request_id, None)

    async def _connect(self) -> ClientProtocol | None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a timeout is one of them
            async with asyncio.timeout(self.connect_timeout_seconds):
                _, protocol = await loop.create_connection(self._made(), self._address, self._port)
                return protocol
        return None

    def _made(self) -> Callable[[], ClientProtocol]:
        def make() -> ClientProtocol:
            protocol = ClientProtocol()
            self.protocols.append(protocol)
            return protocol

        return make
