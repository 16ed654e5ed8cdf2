"""A client that does as it is told: frames, or bytes that are none, one at a time.

The real client would never send most of what a node has to withstand. This one keeps no state, so
that a test says all that goes over the wire. Every wait has a bound.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Self

from maitred.protocol import cql
from maitred.protocol.frames import (
    ANSWER,
    CUSTOM_PAYLOAD,
    HEADER,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.messages import (
    Echo,
    Echoed,
    HomeHint,
    ShardStatus,
    Status,
    decode_answer,
    encode,
    without_home,
)
from maitred.protocol.refusals import decode_error

if TYPE_CHECKING:
    import ssl

    from maitred.errors import MaitredError

PATIENCE_SECONDS = 30.0
"""A test that waits longer for one thing has found a hang, also on a busy machine."""


def options(stream: int = 0) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.OPTIONS, b"")


def startup(version: str | None = "1", stream: int = 0, **more: str) -> bytes:
    chosen = {"CQL_VERSION": "3.0.0", **more}
    if version is not None:
        chosen["MAITRED_VERSION"] = version
    return encode_frame(REQUEST, 0, stream, Opcode.STARTUP, cql.encode_startup(chosen))


def credentials(user: str, secret: str, stream: int = 0) -> bytes:
    body = cql.encode_credentials(user, secret)
    return encode_frame(REQUEST, 0, stream, Opcode.AUTH_RESPONSE, body)


def register(*events: str, stream: int = 0) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.REGISTER, cql.encode_register(events))


def query(statement: str, stream: int = 0) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.QUERY, cql.encode_query(statement))


def echo(
    queue: str,
    payload: bytes = b"hello",
    *,
    stream: int = 0,
    hold: int = 0,
    timeout: int = 60_000,
    namespace: str = "n",
    partition: int = 0,
    flags: int = 0,
) -> bytes:
    message = Echo(namespace, queue, 1, partition, timeout, payload, hold)
    return encode_frame(REQUEST, flags, stream, Opcode.ECHO, encode(message))


def status(shard: int, *, stream: int = 0, timeout: int = 60_000) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.STATUS, encode(Status(shard, timeout)))


def cancel(stream: int) -> bytes:
    return encode_frame(REQUEST, 0, stream, Opcode.CANCEL, b"")


def error_in(frame: Frame) -> MaitredError:
    """The typed error that the frame carries."""
    assert frame.opcode == Opcode.ERROR, frame
    return decode_error(frame.body)


def echoed_in(frame: Frame) -> Echoed:
    """The answer to an echo, whoever gave it."""
    assert frame.opcode == Opcode.ECHO + ANSWER, _shown(frame)
    body = without_home(frame.body)[1] if frame.flags & CUSTOM_PAYLOAD else frame.body
    answer = decode_answer(Opcode.ECHO, body)
    assert isinstance(answer, Echoed)
    return answer


def status_in(frame: Frame) -> ShardStatus:
    assert frame.opcode == Opcode.STATUS + ANSWER, _shown(frame)
    body = without_home(frame.body)[1] if frame.flags & CUSTOM_PAYLOAD else frame.body
    answer = decode_answer(Opcode.STATUS, body)
    assert isinstance(answer, ShardStatus)
    return answer


def home_in(frame: Frame) -> HomeHint | None:
    """Where the key lives, if the answer says so."""
    return without_home(frame.body)[0] if frame.flags & CUSTOM_PAYLOAD else None


def _shown(frame: Frame) -> object:
    return decode_error(frame.body) if frame.opcode == Opcode.ERROR else frame


class RawClient:
    """One connection to a shard."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        receive_buffer_bytes: int | None = None,
        host: str = "127.0.0.1",
    ) -> Self:
        """Connect; a small receive buffer makes a client that does not read felt early."""
        made = socket.socket()
        try:
            made.setblocking(False)  # noqa: FBT003 - its only argument
            if receive_buffer_bytes is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.get_running_loop().sock_connect(made, (host, port))
                name = "localhost" if tls else None
                reader, writer = await asyncio.open_connection(
                    sock=made, ssl=tls, server_hostname=name, limit=64 * 1024
                )
        except BaseException:
            made.close()
            raise
        return cls(reader, writer)

    # Saying

    def write(self, data: bytes) -> None:
        """Send bytes, as they are."""
        self.writer.write(data)

    async def drained(self) -> None:
        """Until the system has taken what was written."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.writer.drain()

    # Hearing

    async def frame(self) -> Frame:
        """The next frame; raises `IncompleteReadError` or `ConnectionError` at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            header = await self.reader.readexactly(HEADER_BYTES)
            version, flags, stream, opcode, length = HEADER.unpack(header)
            assert version == RESPONSE, header
            return Frame(flags, stream, opcode, await self.reader.readexactly(length))

    async def frames(self, count: int) -> dict[int, Frame]:
        """So many answers, by stream; no stream may be answered twice."""
        answers: dict[int, Frame] = {}
        for _ in range(count):
            frame = await self.frame()
            assert frame.stream not in answers, f"two answers on stream {frame.stream}"
            answers[frame.stream] = frame
        return answers

    async def ask(self, request: bytes) -> Frame:
        """Send one frame and await the answer to it."""
        self.write(request)
        frame = await self.frame()
        assert frame.stream == HEADER.unpack_from(request)[2], _shown(frame)
        return frame

    async def last_words(self) -> MaitredError:
        """The error after which the node closes."""
        problem = error_in(await self.frame())
        await self.ended()
        return problem

    async def ended(self) -> None:
        """Until the node has closed, having said nothing more."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                rest = await self.reader.read(1)
            except ConnectionError:
                return
        assert rest == b"", f"there was more to read: {rest!r}"

    async def cut_off(self) -> None:
        """Until the node has closed, whatever it said before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while await self.reader.read(64 * 1024):
                    pass
            except ConnectionError:
                pass

    async def lives(self) -> None:
        """The connection still answers."""
        assert (await self.ask(options(stream=32_000))).opcode == Opcode.SUPPORTED

    # Beginning and end

    async def handshake(
        self, user: str | None = None, secret: str = "", version: str | None = "1"
    ) -> Self:
        """Until READY."""
        answer = await self.ask(startup(version))
        if user is None:
            assert answer.opcode == Opcode.READY, _shown(answer)
        else:
            assert answer.opcode == Opcode.AUTHENTICATE, _shown(answer)
            answer = await self.ask(credentials(user, secret))
            assert answer.opcode == Opcode.AUTH_SUCCESS, _shown(answer)
        return self

    def reset(self) -> None:
        """Vanish: the node sees a reset, or a sudden end."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()
