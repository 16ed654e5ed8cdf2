"""A node that has slots to give, and workers that can be told what to do; both fake, on real
sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

from maitred.errors import Cancelled, DeadlineExceeded
from maitred.protocol.frames import (
    ANSWER,
    EVENT_STREAM,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    Opcode,
)
from maitred.protocol.messages import encode
from maitred.protocol.queries import (
    Allocate,
    Allocated,
    Allocation,
    Member,
    Order,
    Relay,
    Relayed,
    Report,
    Reported,
    Roster,
    SheddingTerms,
    Subscribe,
    Suspect,
    Suspected,
    Watch,
    Watched,
)
from maitred.protocol.query_link import (
    Greeting,
    Load,
    QueryEnd,
    RunQuery,
    decode_hello,
    decode_proof,
    decode_run,
    session_proof,
)
from maitred.protocol.refusals import encode_error
from maitred.protocol.tasks import DONE, FAILED, Failure
from maitred.wire.link import Link
from tests.client.nodes import HOST, RunningNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from maitred.errors import MaitredError

QUERY_END = Opcode.RUN + ANSWER
ROWS = Opcode.ROWS + ANSWER


class FakeDoor(Link):
    """One link at the worker's end."""

    def __init__(self, worker: FakeWorker) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, FrameDecoder(REQUEST, 2**24), RESPONSE, 256)
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.worker.links.append(self)
        self.worker.tell()

    def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
        for frame in frames:
            self.worker.frame(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closing = True
        self.worker.lost.append(self)
        self.worker.tell()


class FakeRun:
    """A query that a fake worker has."""

    def __init__(self, link: FakeDoor, stream: int, message: RunQuery) -> None:
        self.link = link
        self.stream = stream
        self.message = message
        self.cancelled = False
        self.credit = 0

    @property
    def arguments(self) -> Any:  # noqa: ANN401
        return msgpack.decode(self.message.payload)

    def rows(self, *rows: object) -> None:
        self.link.send(0, self.stream, ROWS, b"".join(map(msgpack.encode, rows)))

    def chunk(self, body: bytes) -> None:
        self.link.send(0, self.stream, ROWS, body)

    def end(
        self,
        how: int = DONE,
        value: object = None,
        *,
        streamed: bool = False,
        load: Load | None = None,
        again: bytes = b"",
    ) -> None:
        query_end = QueryEnd(how, msgpack.encode(value), streamed, load=load, again=again)
        query_end.again_seconds = 60.0 if again else 0.0
        self.link.send(0, self.stream, QUERY_END, encode(query_end))

    def fail(self, kind: str, message: str, traceback: str = "") -> None:
        self.end(FAILED, Failure(kind, message, traceback))

    def refuse(self, problem: MaitredError) -> None:
        self.link.send(0, self.stream, Opcode.ERROR, encode_error(problem))


class FakeWorker:
    """Answers at once with its arguments, unless `serve` says otherwise."""

    def __init__(self, number: int = 1) -> None:
        self.session = bytes([number]) * 16
        self.name = f"worker-{number}"
        self.address = ""
        self.links: list[FakeDoor] = []
        self.lost: list[FakeDoor] = []
        self.runs: list[FakeRun] = []
        self.released: list[bytes] = []
        self.pings = 0
        self.answers_pings = True
        self.greets_as = self.session
        self.greets = True
        self.serve: Callable[[FakeRun], None] = lambda fake_run: fake_run.end(
            DONE, fake_run.arguments
        )
        self.news = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeDoor(self), HOST, 0)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def report(self, load: Load) -> None:
        """To everybody who is connected."""
        for link in self.links:
            if not link.closing:
                link.send(0, EVENT_STREAM, Opcode.LOAD + ANSWER, encode(load))

    def kill(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self.links:
            if not link.closing:
                link.abort()

    def frame(self, link: FakeDoor, frame: Frame) -> None:
        if frame.opcode == Opcode.HELLO:
            proof = session_proof("worker", self.greets_as, decode_hello(frame.body).challenge)
            if self.greets:
                greeting = Greeting(proof, bytes(16))
                link.send(0, 0, Opcode.HELLO + ANSWER, encode(greeting))
        elif frame.opcode == Opcode.PROVE:
            proof = session_proof("gateway", self.session, bytes(16))
            assert decode_proof(frame.body).proof == proof
        elif frame.opcode == Opcode.RUN:
            fake_run = FakeRun(link, frame.stream, decode_run(frame.body))
            self.runs.append(fake_run)
            self.serve(fake_run)
        elif frame.opcode == Opcode.PING:
            self.pings += 1
            if self.answers_pings:
                link.send(0, frame.stream, Opcode.PING + ANSWER, frame.body)
        elif frame.opcode == Opcode.RELEASE:
            self.released.append(frame.body)
        elif frame.opcode == Opcode.CANCEL:
            self._of(link, frame).cancelled = True
        elif frame.opcode == Opcode.CREDIT:
            self._of(link, frame).credit += int.from_bytes(frame.body)
        self.tell()

    def _of(self, link: FakeDoor, frame: Frame) -> FakeRun:
        return next(
            one for one in reversed(self.runs) if one.link is link and one.stream == frame.stream
        )

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    async def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await self.news.wait()


class FakeFloor(RunningNode):
    """A node with one shard, whose slots are those of fake workers: as many as anybody wants."""

    def __init__(self, *workers: FakeWorker, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(1, **settings)
        self.workers = list(workers)
        self.asked: list[Allocate] = []
        self.suspected: list[bytes] = []
        self.refused: list[Suspect] = []
        self.tokens = 0
        self.most: int | None = None
        """Slots in one answer, at most."""
        self.open = asyncio.Event()
        """While it is not set, nobody gets a slot."""
        self.open.set()
        self.problems: list[MaitredError] = []
        """Raised, one after the other, instead of answering."""
        self.direct = True
        self.relayed: list[Relay] = []
        self.relay: Callable[[Relay], Awaitable[Relayed]] | None = None
        self.orders: list[Order] = []
        self.reports: list[Report] = []
        self.stopped = 0
        self.before: Callable[[Any], Awaitable[Any]] | None = None
        self.policy = ""
        """Of every queue; gateways subscribe if it is not empty."""
        self.shedding = SheddingTerms()
        self.slots = 4
        """Of each worker, on the roster."""
        self.version = 1
        self.idle_users: list[str] = []
        """For these the policy is `idle`."""
        self.subscribed: list[Subscribe] = []
        self.roster_problems: list[MaitredError] = []
        self.absent: list[FakeWorker] = []
        """Not on the roster."""
        self._changed = asyncio.Event()

    def change(self) -> None:
        """The roster is another one now."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def start(self, *numbers: int) -> None:
        await super().start(*numbers)
        for worker in self.workers:
            if not worker.address and self.direct:
                await worker.start()
        for shard in self.shards:
            shard.handlers |= {
                Opcode.ALLOCATE: self._allocate,
                Opcode.SUBSCRIBE: self._subscribe,
                Opcode.SUSPECT: self._suspect,
                Opcode.RELAY: self._relay,
                Opcode.WATCH: self._watch,
                Opcode.REPORT: self._report,
            }

    async def _allocate(self, message: Allocate) -> Allocated:
        self.asked.append(message)
        if self.before is not None:
            await self.before(message)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        if self.problems:
            raise self.problems.pop(0)
        count = message.slots if self.most is None else min(self.most, message.slots)
        return Allocated([self.allocation() for _ in range(count)], policy=self.policy)

    async def _subscribe(self, message: Subscribe) -> Roster:
        self.subscribed.append(message)
        if self.roster_problems:
            raise self.roster_problems.pop(0)
        while message.version == self.version and message.user not in self.idle_users:
            await self._changed.wait()
        members = [
            Member(one.session, one.name, one.address, self.slots, self.token(one, message.user))
            for one in self.workers
            if one not in self.absent
        ]
        if not self.policy or message.user in self.idle_users:
            return Roster(self.version, "idle", [], self.shedding)
        return Roster(self.version, self.policy, members, self.shedding)

    def token(self, worker: FakeWorker, user: str = "") -> bytes:
        """The pass to a worker."""
        return (worker.session[:8] + b"pass" + user.encode()).ljust(16, b".")[:16]

    def allocation(self) -> Allocation:
        worker = self.workers[self.tokens % len(self.workers)]
        self.tokens += 1
        return Allocation(0, self.tokens.to_bytes(16), worker.session, worker.name, worker.address)

    async def _suspect(self, message: Suspect) -> Suspected:
        if message.refused:
            self.refused.append(message)
            await self.open.wait()
            return Suspected(0)
        self.suspected.append(message.worker_session)
        return Suspected(1)

    async def _relay(self, message: Relay) -> Relayed:
        self.relayed.append(message)
        if message.stop:
            raise Cancelled("Stopped.")
        assert self.relay is not None
        return await self.relay(message)

    async def _watch(self, message: Watch) -> Watched:
        if self.orders:
            orders, self.orders = self.orders, []
            return Watched(orders)
        await asyncio.sleep(message.timeout_milliseconds / 1000)
        return Watched()

    async def _report(self, message: Report) -> Reported:
        self.reports.append(message)
        return Reported()


@asynccontextmanager
async def floor(
    count: int = 1,
    **settings: Any,  # noqa: ANN401 - of the node
) -> AsyncIterator[tuple[FakeFloor, list[FakeWorker]]]:
    workers = [FakeWorker(number + 1) for number in range(count)]
    async with FakeFloor(*workers, **settings) as node:
        try:
            yield node, workers
        finally:
            for worker in workers:
                worker.kill()


async def expired(
    ask: Callable[[float], Awaitable[object]], reached: Callable[[DeadlineExceeded], object]
) -> DeadlineExceeded:
    """Return what a caller hears whose deadline passes after the query has `reached` its handler.

    How long that takes is the machine's affair: a deadline that passed before was too short.
    """
    seconds = 0.05
    while True:
        with pytest.raises(DeadlineExceeded) as told:
            await ask(seconds)
        if reached(told.value):
            return told.value
        seconds *= 2


async def until(condition: Callable[[], object], seconds: float = 30, pause: float = 0.001) -> None:
    """Looks again and again, for what tells nobody; without a pause, in every turn of the loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(pause)
