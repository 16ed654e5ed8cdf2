"""The connections on which queries travel, under arbitrary bytes, both ends of them.

At a worker's listener, a gateway says them: nothing runs without a proof and a reservation, every
query gets one last word, and when the gateway is gone every slot is free. At a gateway, a worker
says them: nothing but HELLO is sent to one that proves nothing, and every query ends once.

Challenges and secrets are zeros here, so that inputs can hold proofs that are right.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator  # noqa: TC003 - a handler's annotations are read
from random import Random
from typing import TYPE_CHECKING, Any, Final

import uvloop

from fuzz.quiet_log import QuietLog
from fuzz.reference import cut, frames_of
from fuzz.transport import FakeTransport
from fuzz.violated import require
from maitred import App
from maitred.client.address import parse_address, settings_of
from maitred.client.client import AsyncClient
from maitred.client.query_gateway import QueryGateway
from maitred.client.worker_link import WorkerLink
from maitred.dispatch.ask import Ask
from maitred.errors import InvalidArgument, MaitredError, Unavailable
from maitred.protocol.frames import (
    ANSWER,
    EVENT_STREAM,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Frame,
    Opcode,
    encode_frame,
)
from maitred.protocol.queries import Allocate, Allocated, Allocation
from maitred.protocol.query_link import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    Greeting,
    Hello,
    Load,
    Proof,
    QueryEnd,
    RunQuery,
    encode_greeting,
    encode_hello,
    encode_load,
    encode_proof,
    encode_query_end,
    encode_run,
    session_proof,
)
from maitred.protocol.refusals import decode_error, encode_error
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import DONE, FAILED, Failure, Reserved
from maitred.settings import Querying as QueryingSettings
from maitred.settings import WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.gateway_link import GatewayLink
from maitred.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.dispatch.effects import NodeRequest, Told
    from maitred.protocol.messages import AnyRequest

FRAME_BYTES: Final = 4_096
SECRET: Final = bytes(16)
SESSION: Final = session_of_secret(SECRET)
CHALLENGE: Final = bytes(16)
QUEUES: Final = ("echo", "rows", "hang")
TOKENS: Final = tuple(bytes([number]) * 16 for number in (1, 2, 3))
"""Reservations, one for each queue; others are unknown."""

_TURNS: Final = 12
"""Of the loop, in which handlers answer."""
_MANY_TURNS: Final = 2_000
_NO_LIMIT: Final = 2**31 - 1


def _request(stream: int, opcode: int, body: bytes) -> bytes:
    return encode_frame(REQUEST, 0, stream, opcode, body)


def _answer(stream: int, opcode: int, body: bytes) -> bytes:
    return encode_frame(RESPONSE, 0, stream, opcode, body)


HELLO: Final = _request(0, Opcode.HELLO, encode_hello(Hello(CHALLENGE)))
_PROOF: Final = session_proof("gateway", SESSION, CHALLENGE)
PROVE: Final = _request(0, Opcode.PROVE, encode_proof(Proof(_PROOF, "gateway", FRAME_BYTES)))
GREETING: Final = _answer(
    0,
    Opcode.HELLO + ANSWER,
    encode_greeting(Greeting(session_proof("worker", SESSION, CHALLENGE), CHALLENGE)),
)

GATEWAY_SAYS: Final[tuple[tuple[int, bytes], ...]] = (
    *(
        (Opcode.RUN, encode_run(RunQuery(token, 1, 1_000, 64, b"\x91\xa1x")))
        for token in (*TOKENS, bytes(16))
    ),
    (Opcode.RUN, encode_run(RunQuery(TOKENS[1], 1, 0, 0, b"\x90", rows=False))),
    (Opcode.CREDIT, b"\0\0\0\x40"),
    (Opcode.CANCEL, b""),
    (Opcode.RELEASE, TOKENS[2]),
    (Opcode.PING, b"there?"),
    (Opcode.HELLO, encode_hello(Hello(CHALLENGE))),
    (Opcode.LOAD, b""),
)
"""What a gateway says after its proof. New ones come at the end: inputs choose them by number."""

_LOAD: Final = Load(1, 4, 1, 0, 0.01, 1)

WORKER_SAYS: Final[tuple[tuple[int, bytes], ...]] = (
    (Opcode.RUN + ANSWER, encode_query_end(QueryEnd(DONE, b"\x01"))),
    (Opcode.RUN + ANSWER, encode_query_end(QueryEnd(DONE, b"\xc0", streamed=True, rows=2))),
    (
        Opcode.RUN + ANSWER,
        encode_query_end(QueryEnd(FAILED, encode_query_end(Failure("KeyError", "x", "")))),
    ),
    (Opcode.RUN + ANSWER, encode_query_end(QueryEnd(DONE, b"\x01", load=_LOAD))),
    (
        Opcode.RUN + ANSWER,
        encode_query_end(QueryEnd(DONE, b"\x01", again=TOKENS[0], again_seconds=1.0)),
    ),
    (Opcode.ROWS + ANSWER, b"\x01\x02\xa1x"),
    (Opcode.ERROR, encode_error(Unavailable("This worker takes no more queries."))),
    (Opcode.LOAD + ANSWER, encode_load(_LOAD)),
    (Opcode.PING + ANSWER, b""),
    (Opcode.HELLO + ANSWER, GREETING[HEADER_BYTES:]),
    (Opcode.SUPPORTED, b""),
)
"""The same for a worker."""


def composed(
    data: bytes, parts: tuple[tuple[int, bytes], ...], frame: Callable[[int, int, bytes], bytes]
) -> bytes:
    """Three bytes a frame: which one, its stream, and what to alter in its body."""
    frames = []
    for at in range(0, len(data) - 2, 3):
        chosen, where, change = data[at : at + 3]
        opcode, body = parts[chosen % len(parts)]
        if change and body:
            spot = change % len(body)
            body = body[:spot] + bytes((data[at // 3],)) + body[spot + 1 :]
        frames.append(frame(where & 0x07 if where < 0xE0 else EVENT_STREAM, opcode, body))
    return b"".join(frames)


def an_app() -> App:
    app = App("fuzz")

    @app.handler("echo")
    async def echo(text: str) -> str:
        return text

    @app.handler("rows")
    async def rows(count: str) -> AsyncIterator[str]:
        for _ in range(3):
            yield count * 20

    @app.handler("hang")
    async def hang(text: str) -> str:
        await asyncio.sleep(_MANY_TURNS)
        return text

    return app


class LinkWorld:
    """A loop with a client that is connected to nothing, for both ends of a link."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[str] = []
        self.log = QuietLog()
        self.surroundings = Surroundings(lambda: 1_000_000.0, Random(1), bytes)
        self.app = an_app()
        self.client = self.loop.run_until_complete(self._connecting_to_nothing())

    async def _connecting_to_nothing(self) -> AsyncClient:
        address = parse_address("maitred://192.0.2.2")
        return AsyncClient(address, settings_of(address, {}), self.surroundings)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def check(self, transport: FakeTransport) -> None:
        """Nothing has failed that nobody was told of."""
        problems = self.failures + self.log.problems + transport.problems
        self.failures, self.log.problems = [], []
        require(not problems, f"{problems}")


_worlds: list[LinkWorld] = []


def _run(examined: Callable[[LinkWorld], Coroutine[Any, Any, None]]) -> None:
    """In one world for all inputs: making it costs more than an input."""
    if not _worlds:
        _worlds.append(LinkWorld())
    world = _worlds[0]
    try:
        world.loop.run_until_complete(examined(world))
    except BaseException:
        # The next input finds a world of its own, not what is left of this one.
        _worlds.clear()
        for task in asyncio.all_tasks(world.loop):
            task.cancel()
        world.loop.run_until_complete(asyncio.sleep(0))
        world.loop.close()
        raise


async def deliver(
    link: GatewayLink | WorkerLink, transport: FakeTransport, pieces: list[bytes]
) -> None:
    """As a transport does: nothing is delivered while reading is paused."""
    for piece in [*pieces, b""]:
        for _ in range(_MANY_TURNS):
            if link.closing or transport.reading:
                break
            transport.peer_catches_up()
            await asyncio.sleep(0)
        require(link.closing or transport.reading, "it never reads again")
        if piece and not link.closing:
            link.data_received(piece)


# A worker's listener


def examine_worker_link(pattern: int, data: bytes) -> None:
    """What a gateway says: as it is, or after HELLO and PROVE, or well-formed frames after that."""
    if pattern & 1:
        data = HELLO + PROVE + (data if pattern & 2 else composed(data, GATEWAY_SAYS, _request))
    proved = data.startswith(HELLO + PROVE)
    _run(lambda world: _at_a_worker(world, pattern >> 2, data, proved=proved))


async def _at_a_worker(world: LinkWorld, pattern: int, data: bytes, *, proved: bool) -> None:
    settings = WorkerSettings(slots=4, limit="slots", link_frame_bytes=FRAME_BYTES)
    handlers: list[Any] = list(world.app.handlers.values())
    surroundings = world.surroundings
    worker = Worker(world.client, handlers, settings, "w", surroundings, world.log, SECRET)
    worker._supply = lambda: None  # type: ignore[method-assign]  # noqa: SLF001 - nobody to offer to
    now = world.loop.time()
    for served, token in zip(worker._served, TOKENS, strict=True):  # noqa: SLF001
        terms = Reserved(0, token, "ann", 5.0, 60.0, 1_000, 200, 5.0)
        worker.querying.reserved(served, terms, now)
    link = GatewayLink(worker._listener)  # noqa: SLF001
    transport = FakeTransport(link, peer_reads=not pattern & 0x20)
    link.connection_made(transport)
    await deliver(link, transport, cut(data, pattern & 0x1F))
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    require(link.ready or not proved, "a good proof does not count")
    require(not link.ready or _PROOF in data, "somebody is let in without a proof")
    limit = FRAME_BYTES if link.ready else HELLO_BYTES
    waiting = link.decoder.waiting_bytes
    # With more than one frame in a read, the rest waits for its turn.
    require(link.closing or waiting <= HEADER_BYTES + max(limit, len(data)), "too much is held")
    link.flush()
    _check_said(transport, data, ready=link.ready)
    link.connection_lost(None)
    for token in TOKENS:
        worker.querying.release(token)
    for _ in range(_MANY_TURNS):
        if not worker.statistics.busy:
            break
        await asyncio.sleep(0)
    require(not worker.statistics.busy, "a slot is lost")
    require(not worker.querying.running and not link.streams, "a query is left")
    for part in (
        worker._heartbeats,  # noqa: SLF001
        worker._pauses,  # noqa: SLF001
        worker.querying,
        worker.capacity,
    ):
        part.stop()
    worker._slots.threads.shutdown(wait=False)  # noqa: SLF001
    listener = worker._listener  # noqa: SLF001
    if listener._sweep is not None:  # noqa: SLF001
        listener._sweep.cancel()  # noqa: SLF001
    world.check(transport)


def _check_said(transport: FakeTransport, data: bytes, *, ready: bool) -> None:
    answers = _frames(transport)
    if not ready:
        said = [answer.opcode for answer in answers]
        require(said in ([], [_HELLO], [_ERROR], [_HELLO, _ERROR]), f"said to a stranger: {said}")
    ends = Counter(
        answer.stream
        for answer in answers
        if answer.opcode == _QUERY_END
        or (answer.opcode == _ERROR and answer.stream != EVENT_STREAM)
    )
    asked = Counter(request.stream for request in frames_of(data, REQUEST, FRAME_BYTES))
    asked[0] += 1  # where a stranger is refused
    for stream, count in ends.items():
        require(count <= asked[stream], f"too many last words on {stream}")


_HELLO: Final = Opcode.HELLO + ANSWER
_ERROR: Final = int(Opcode.ERROR)
_QUERY_END: Final = Opcode.RUN + ANSWER


def _frames(transport: FakeTransport) -> list[Frame]:
    written = bytes(transport.written)
    answers = frames_of(written, RESPONSE, _NO_LIMIT)
    size = sum(HEADER_BYTES + len(answer.body) for answer in answers)
    require(size == len(written), "what was written is no frames")
    for answer in answers:
        if answer.opcode == _ERROR:
            require(decode_error(answer.body).code != "internal-error", "a fault of ours")
    return answers


# The gateway's end


def examine_gateway_link(pattern: int, data: bytes) -> None:
    """What a worker says: as it is, or after a greeting, or well-formed frames after that."""
    if pattern & 1 and not pattern & 2:
        data = composed(data, WORKER_SAYS, _answer)
    _run(lambda world: _at_a_gateway(world, pattern >> 2, data, greets=bool(pattern & 1)))


class _Answered:
    """A request that was answered already."""

    def take_back(self) -> None:
        pass


class _WithoutNode(QueryGateway):
    """Has a slot of one worker for every query, and no node that relays."""

    ended = 0

    def link_ended(self, link: WorkerLink, now: float, *, hung: bool) -> None:
        self.ended += 1
        super().link_ended(link, now, hung=hung)

    def ask_node(  # type: ignore[override]
        self,
        message: AnyRequest,
        seconds: float,  # noqa: ARG002
        told: Told,
        *,
        patient: bool,  # noqa: ARG002
        first: object = None,  # noqa: ARG002
    ) -> NodeRequest:
        if not isinstance(message, Allocate):
            raise InvalidArgument("There is no node to relay it.")
        slots = [Allocation(0, TOKENS[0], SESSION, "w", "")] * message.slots
        self.loop.call_soon(told, Allocated(slots), self.loop.time())
        return _Answered()


async def _at_a_gateway(world: LinkWorld, pattern: int, data: bytes, *, greets: bool) -> None:
    settings = QueryingSettings(window_bytes=64 * 1024)
    querying = _WithoutNode(world.client, settings, world.surroundings, world.log)
    querying._watches = True  # noqa: SLF001 - there is no node to tell of it
    link = WorkerLink(
        world.loop,
        SESSION,
        querying,
        settings=settings,
        frame_bytes=FRAME_BYTES,
        name="gateway",
        challenge=bytes(CHALLENGE_BYTES),
    )
    transport = FakeTransport(link, peer_reads=True)
    link.connection_made(transport)
    if greets:
        link.data_received(GREETING)
        require(link.greeted.done(), "a good greeting is not taken")
    outcomes: list[object] = []
    if greets:
        querying.links.opened((SESSION, ""), link)
        for number in range(3):
            ask = Ask(
                namespace="fuzz",
                queue="echo",
                payload=b"\x90",
                deadline=world.loop.time() + 60.0,
                rows=number != 1,
                idempotent=number == 0,
            )
            querying.begin(ask).then(outcomes.append)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    await deliver(link, transport, cut(data, pattern & 0x1F))
    for _ in range(2):
        await asyncio.sleep(0)
    if not link.greeted.done() or link.greeted.exception() is not None:
        require(bytes(transport.written) == HELLO, "more than HELLO was said to a stranger")
    if not link.closing:
        link.connection_lost(None)
    require(querying.ended == 1, f"the link ended {querying.ended} times")
    require(not link.streams, "a query waits for an answer on a link that is gone")
    await querying.close()  # what waits for another try is told so
    if greets:
        require(len(outcomes) == 3, f"{len(outcomes)} of 3 queries have an outcome")
        for outcome in outcomes:
            if isinstance(outcome, MaitredError):
                require(outcome.code != "internal-error", f"a fault of ours: {outcome}")
    require(not querying.under_way, "a query is left")
    world.check(transport)
