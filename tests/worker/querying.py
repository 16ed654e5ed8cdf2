"""What tests of queries need: a node that reserves slots by hand, and a gateway on a bare link."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from maitred.protocol.frames import ANSWER, REQUEST, RESPONSE, Frame, FrameDecoder, Opcode
from maitred.protocol.query_link import (
    CREDIT,
    Greeting,
    Hello,
    Proof,
    QueryEnd,
    RunQuery,
    decode_greeting,
    decode_query_end,
    encode_hello,
    encode_proof,
    encode_run,
    session_proof,
)
from maitred.protocol.tasks import Failure, Offer, Offered, Reserved
from maitred.protocol.worker_address import parse_worker_address
from maitred.wire.caller import error_of
from maitred.wire.link import Link
from tests.app.fake_node import FakeNode
from tests.node.in_process import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.errors import MaitredError, ProtocolViolation
    from maitred.worker.worker import Worker

PATIENCE_SECONDS = 30
WINDOW = 4 * 2**20
CHALLENGE = b"gateway's choice"

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode
read_failure = msgspec.msgpack.Decoder(Failure).decode


class ReservingNode(FakeNode):
    """Answers offers with the reservations that the test makes."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever a fake node takes
        super().__init__(**options)
        self.tokens = 0
        self.to_reserve: dict[str, list[Reserved]] = {}

    def token(self) -> bytes:
        self.tokens += 1
        return self.tokens.to_bytes(16, "big")

    def reserve(self, queue: str, token: bytes | None = None, **terms: Any) -> bytes:  # noqa: ANN401
        """The next offer for the queue is answered with it."""
        token = self.token() if token is None else token
        reserved = Reserved(
            0,
            token,
            terms.get("user", "ann"),
            terms.get("reservation_seconds", 5.0),
            terms.get("run_seconds", 60.0),
            terms.get("result_bytes", 2**20),
            terms.get("stream_bytes", 0),
            terms.get("again_seconds", 0.0),
            terms.get("tracebacks", True),
            terms.get("proof", b""),
        )
        self.to_reserve.setdefault(queue, []).append(reserved)
        self.partition(queue).tell()
        return token

    async def _offer(self, message: Offer) -> Offered:
        partition = self.partition(message.queue, message.partition)
        waiting = self.to_reserve.setdefault(message.queue, [])
        loop = asyncio.get_running_loop()
        end = loop.time() + message.timeout_milliseconds / 1000 - 0.02
        while not waiting and not partition.waiting and loop.time() < end:
            try:
                async with asyncio.timeout_at(end):
                    await partition.changed.wait()
            except TimeoutError:
                break
        if not waiting:
            return await super()._offer(message)
        taken, waiting[:] = waiting[: message.slots], waiting[message.slots :]
        return Offered([], self.lease_seconds, 0, 0.0, None, taken)


class RawGateway(Link):
    """Says what it is told to, and keeps what it hears."""

    def __init__(self) -> None:
        super().__init__(
            asyncio.get_running_loop(), FrameDecoder(RESPONSE, 256 * 2**20), REQUEST, 256
        )
        self.heard: dict[int, asyncio.Queue[Frame]] = {}
        self.lost = asyncio.Event()
        self.next_stream = 0

    def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
        for frame in frames:
            self._queue(frame.stream).put_nowait(frame)

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:
        raise AssertionError(problem, stream)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closing = True
        self.lost.set()

    def eof_received(self) -> None:
        self.lost.set()

    def _queue(self, stream: int) -> asyncio.Queue[Frame]:
        return self.heard.setdefault(stream, asyncio.Queue())

    async def hear(self, stream: int) -> Frame:
        """The next frame on that stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._queue(stream).get()

    async def gone(self) -> None:
        """Until the worker has closed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.lost.wait()

    # Saying

    def say(self, stream: int, opcode: int, body: bytes = b"") -> None:
        self.send(0, stream, opcode, body)
        self.flush()

    async def hello(self, session: bytes, **fields: Any) -> Greeting:  # noqa: ANN401 - of a proof
        """Say who is meant, and prove that we know the session."""
        self.say(0, Opcode.HELLO, encode_hello(Hello(CHALLENGE)))
        frame = await self.hear(0)
        if frame.opcode == Opcode.ERROR:
            raise error_of(frame)
        assert frame.opcode == Opcode.HELLO + ANSWER
        greeting = decode_greeting(frame.body)
        assert greeting.proof == session_proof("worker", session, CHALLENGE)
        proof = session_proof("gateway", session, greeting.challenge)
        self.say(0, Opcode.PROVE, encode_proof(Proof(proof, **fields)))
        return greeting

    def run(
        self,
        token: bytes,
        *args: object,
        named: dict[str, object] | None = None,
        timeout: float = 30.0,
        window: int = WINDOW,
        rows: bool = True,
        payload: bytes | None = None,
        sequence: int = 7,
        lost: list[bytes] | None = None,
    ) -> int:
        """Ask; returns the stream."""
        self.next_stream += 1
        if payload is None:
            payload = encode(args if named is None else named)
        message = RunQuery(token, sequence, round(timeout * 1000), window, payload, rows, lost=lost)
        self.say(self.next_stream, Opcode.RUN, encode_run(message))
        return self.next_stream

    def credit(self, stream: int, size: int) -> None:
        self.say(stream, Opcode.CREDIT, CREDIT.pack(size))

    async def over(self, stream: int) -> QueryEnd:
        """The last frame; raises the error if it is one. Rows before it are a mistake."""
        frame = await self.hear(stream)
        if frame.opcode == Opcode.ERROR:
            raise error_of(frame)
        assert frame.opcode == Opcode.RUN + ANSWER, frame
        return decode_query_end(frame.body)

    async def result(self, stream: int) -> Any:  # noqa: ANN401 - what the handler returned
        query_end = await self.over(stream)
        assert query_end.how == 0, read_failure(query_end.body)
        return decode(query_end.body)

    async def failure(self, stream: int) -> Failure:
        return read_failure((await self.over(stream)).body)

    async def error(self, stream: int) -> MaitredError:
        frame = await self.hear(stream)
        assert frame.opcode == Opcode.ERROR, frame
        return error_of(frame)


@asynccontextmanager
async def a_gateway(worker: Worker, *, hello: bool = True) -> AsyncIterator[RawGateway]:
    """Connected to the worker."""
    await until(lambda: bool(worker.address))
    address = parse_worker_address(worker.address)
    _, link = await asyncio.get_running_loop().create_connection(
        RawGateway, address.host or "127.0.0.1", address.port
    )
    try:
        if hello:
            await link.hello(worker._session, name="gw", frame_bytes=2**28)
        yield link
    finally:
        link.transport.abort()
