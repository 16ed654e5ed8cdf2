"""Links over real sockets, under asyncio and uvloop: what only the buffers of a kernel show."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, cast

import pytest
import uvloop

from maitred.errors import ConnectionLost, ProtocolViolation
from maitred.protocol.frames import (
    ANSWER,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    Opcode,
    encode_frame,
)
from maitred.protocol.refusals import decode_error, encode_error
from maitred.wire.caller import Caller
from maitred.wire.link import Link

BOUND_SECONDS = 20.0
LIMIT = 2**20
TURN = 64

Run = Callable[[Coroutine[Any, Any, None]], None]


def run_on(make: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            await main

    with asyncio.Runner(loop_factory=make) as runner:
        failures: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _, context: failures.append(context))
        runner.run(bounded())
        assert not failures


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return cast("Run", partial(run_on, request.param))


class Server(Link):
    """Says everything back."""

    def __init__(self, turn_frames: int = TURN) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, FrameDecoder(REQUEST, LIMIT), RESPONSE, turn_frames)
        self.served = 0
        self.log: list[Server] = []
        self.stalled = asyncio.Event()
        self.went_on = asyncio.Event()
        self.lost = asyncio.Event()

    def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
        self.served += len(frames)
        self.log.append(self)
        for frame in frames:
            self.send(0, frame.stream, frame.opcode + ANSWER, frame.body)

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:
        self.send(0, stream, Opcode.ERROR, encode_error(problem))
        self.finish()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled.set()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.went_on.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self.closing = True
        self.lost.set()


async def served(server: Server) -> socket.socket:
    """The server on one end of a pair of sockets; the other end is ours."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - its only argument
    await asyncio.get_running_loop().connect_accepted_socket(lambda: server, theirs)
    return ours


async def read_all(ours: socket.socket, size: int | None = None) -> bytes:
    """So many bytes, or everything until the other end has nothing more to say."""
    loop = asyncio.get_running_loop()
    read = bytearray()
    while size is None or len(read) < size:
        data = await loop.sock_recv(ours, 65_536)
        if not data:
            assert size is None, "it ended early"
            break
        read += data
    return bytes(read)


def questions(count: int, size: int) -> bytes:
    return b"".join(
        encode_frame(REQUEST, 0, at % 32_768, Opcode.ECHO, at.to_bytes(4, "big") * (size // 4))
        for at in range(count)
    )


def answers(count: int, size: int) -> bytes:
    return b"".join(
        encode_frame(
            RESPONSE, 0, at % 32_768, Opcode.ECHO + ANSWER, at.to_bytes(4, "big") * (size // 4)
        )
        for at in range(count)
    )


def test_a_peer_that_does_not_read_is_not_read_and_loses_nothing(run: Run) -> None:
    count, size = 4_000, 2_000

    async def main() -> None:
        server = Server()
        with await served(server) as ours:
            asking = asyncio.ensure_future(
                asyncio.get_running_loop().sock_sendall(ours, questions(count, size))
            )
            await server.stalled.wait()
            # The buffers of the kernel are full: unless reading stops, all of it is served at once.
            stalled_at = server.served
            assert stalled_at < count
            assert not asking.done()
            assert server.unsent_bytes < 8 * TURN * (HEADER_BYTES + size)
            expected = answers(count, size)
            assert await read_all(ours, len(expected)) == expected
            await asking
            assert server.went_on.is_set()
            assert server.served == count
        await server.lost.wait()

    run(main())


def test_another_connection_is_served_between_the_turns_of_a_busy_one(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        busy, modest = Server(turn_frames=1), Server()
        modest.log = busy.log
        with await served(busy) as flood, await served(modest) as trickle:
            # Small enough for one read, and thousands of turns.
            flood.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
            data = questions(3_000, 4)
            await loop.sock_sendall(flood, data)
            await loop.sock_sendall(trickle, questions(1, 4))
            reading = asyncio.ensure_future(read_all(flood, len(answers(3_000, 4))))
            assert await read_all(trickle, len(answers(1, 4))) == answers(1, 4)
            before = busy.log.index(modest)
            assert before < 1_000, "it had to wait for all the others"
            assert await reading == answers(3_000, 4)
        await busy.lost.wait()
        await modest.lost.wait()

    run(main())


def test_the_last_words_arrive_although_much_was_not_read(run: Run) -> None:
    """Closing with something unread resets the connection, and takes the last words with it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)  # noqa: FBT003 - its only argument
        server = Server()
        with listener, socket.socket() as ours:
            ours.setblocking(False)  # noqa: FBT003 - its only argument
            await loop.sock_connect(ours, listener.getsockname())
            theirs, _ = await loop.sock_accept(listener)
            # All of it is there before the first byte is looked at.
            await loop.sock_sendall(ours, questions(2, 4) + b"rubbish" + bytes(100_000))
            await loop.connect_accepted_socket(lambda: server, theirs)
            await loop.sock_sendall(ours, bytes(500_000))
            decoder = FrameDecoder(RESPONSE, LIMIT)
            decoder.feed(await read_all(ours))
            *before, last = decoder.take(10)
            assert [frame.stream for frame in before] == [0, 1]
            assert last.opcode == Opcode.ERROR
            assert decode_error(last.body).code == "unsupported-version"
            assert not server.lost.is_set()
        await server.lost.wait()

    run(main())


class Answered:
    """One answer to come."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    def answered(self, frame: Frame) -> None:
        self.future.set_result(frame)

    def expired(self) -> None:
        self.future.set_exception(TimeoutError("expired"))

    def lost(self, problem: Exception | None) -> None:
        self.future.set_exception(problem or ConnectionLost("closed"))


async def connected(server: Server) -> Caller:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    await loop.connect_accepted_socket(lambda: server, theirs)
    _, caller = await loop.connect_accepted_socket(lambda: Caller(loop, LIMIT, 1_000), ours)
    return caller


def test_a_thousand_questions_find_their_answers(run: Run) -> None:
    async def main() -> None:
        server = Server()
        caller = await connected(server)
        for _ in range(3):
            waiting = []
            for at in range(1_000):
                receiver = Answered()
                body = at.to_bytes(2, "big") * 1_000
                caller.ask(Opcode.ECHO, body, receiver, inf)
                waiting.append((receiver, body))
            for receiver, body in waiting:
                assert (await receiver.future).body == body
        assert caller.in_flight == 0
        caller.finish()
        await server.lost.wait()

    run(main())


def test_a_deadline_passes_in_real_time_too(run: Run) -> None:
    """Loops round their timers; none may leave a request that never expires."""

    class Mute(Server):
        def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
            self.opcodes = [*getattr(self, "opcodes", ()), *(frame.opcode for frame in frames)]
            if Opcode.CANCEL in self.opcodes:
                self.stalled.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = Mute()
        caller = await connected(server)
        receiver = Answered()
        start = loop.time()
        caller.ask(Opcode.ECHO, b"", receiver, start + 0.02)
        with pytest.raises(TimeoutError, match="expired"):
            await receiver.future
        assert loop.time() - start >= 0.018
        await server.stalled.wait()
        assert server.opcodes == [Opcode.ECHO, Opcode.CANCEL]
        caller.abort()
        await server.lost.wait()

    run(main())


@pytest.mark.parametrize("end", ["abort", "close"])
def test_those_who_wait_learn_of_the_end(run: Run, end: str) -> None:
    class Deaf(Server):
        def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002 - it is deaf
            getattr(self.transport, end)()

    async def main() -> None:
        server = Deaf()
        caller = await connected(server)
        receivers = [Answered() for _ in range(5)]
        for receiver in receivers:
            caller.ask(Opcode.ECHO, b"", receiver, inf)
        for receiver in receivers:
            with pytest.raises(ConnectionError):
                await receiver.future
        assert caller.closing
        await server.lost.wait()

    run(main())


def test_what_is_said_after_the_last_words_hurts_nobody(run: Run) -> None:
    async def main() -> None:
        server = Server()
        with await served(server) as ours:
            server.send(0, 1, Opcode.READY, b"")
            server.finish()
            server.send(0, 2, Opcode.READY, b"")
            assert await read_all(ours) == encode_frame(RESPONSE, 0, 1, Opcode.READY, b"")
        await server.lost.wait()

    run(main())
