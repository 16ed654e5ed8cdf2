"""The gateways and workers of the scenario of queries, as users run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - handlers are inspected
from typing import TYPE_CHECKING, Final

from msgspec import msgpack

from maitred.client.query_gateway import QueryGateway, Whole
from maitred.dispatch.ask import Ask
from maitred.errors import DeadlineExceeded, MaitredError
from maitred.protocol.queries import QUERIES_UNDER_WAY
from maitred.protocol.rows import as_array
from maitred.settings import Querying as QueryingSettings
from maitred.settings import WorkerSettings
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.people import KeptGuest, WorkerGuest
from maitred.simulation.scenarios.queries_record import QueryStory

if TYPE_CHECKING:
    from maitred.app.app import App
    from maitred.simulation.hosts import Host
    from maitred.simulation.scenarios.people import NodeHosts
    from maitred.simulation.scenarios.queries_record import QueryRecord

NAMESPACE: Final = "market"
QUOTES: Final = "quotes"
TICKS: Final = "ticks"
"""The second queue streams; both are served by the same slots."""

LATE_SECONDS: Final = 1.0
"""An answer may come this long after its deadline, because the event loop was busy; not later."""

SKEW_SECONDS: Final = 12 * 3600.0
"""The most that the clock of a gateway or a worker is wrong, either way; another with each life."""

CALM_PAUSE_SECONDS: Final = 2.0
"""Longest time between two queries of a gateway once it is calm."""

PORTIONS: Final = 8
"""How often a stream pauses, however many rows it has; each pause sends its rows."""

QUERYING: Final = QueryingSettings(
    ping_seconds=0.5,
    hung_seconds=1.5,
    dial_seconds=1.0,
    unreachable_seconds=2.0,
    window_bytes=64 * 1024,
)


class GatewayHost(KeptGuest):
    """Asks queries, leaves some of them, and tells the record what it heard."""

    skew_seconds = SKEW_SECONDS

    def __init__(
        self, host: Host, node: NodeHosts, record: QueryRecord, *, plain: bool, hurries: bool
    ) -> None:
        super().__init__(host, node, record)
        self.record = record
        self.plain = plain
        """Whether no caller leaves its query, and no query has a priority."""
        self.hurries = hurries
        """Whether some callers ask not to be queued."""
        self.pause_seconds = 0.5 if plain else 0.3
        """Longest time between two queries."""
        self.querying: QueryGateway | None = None
        self.calm = False
        """Ask for nothing that takes long."""
        self._asking = True

    def calm_down(self) -> None:
        """Ask less from now on, and nothing that takes long."""
        self.calm = True
        self.pause_seconds = CALM_PAUSE_SECONDS

    def stop(self) -> None:
        self._asking = False

    def gone(self, name: str) -> None:
        self.querying = None
        self.record.gateway_gone(name, asyncio.get_running_loop().time())

    async def main(self, name: str) -> None:
        app = self.app_of(NAMESPACE)
        client = await self.connected(app)
        querying = QueryGateway(
            client, QUERYING, self.host.surroundings, self.record.log(), name=name
        )
        self.querying = querying
        async with self.cut_now_and_then():
            waiting: dict[asyncio.Task[None], None] = {}
            while self._asking:
                task = asyncio.ensure_future(self._ask(querying, name))
                waiting[task] = None
                for over in [one for one in waiting if one.done()]:
                    del waiting[over]
                    over.result()
                await asyncio.sleep(self.random.random() * self.pause_seconds)
            for task in waiting:
                await task
        left = [row for row in querying.table.rows() if row.status in QUERIES_UNDER_WAY]
        if left:
            raise Violation(f"Every query was answered, and the table has {left}")
        await querying.close()
        await self.leave(app)

    async def _ask(self, querying: QueryGateway, name: str) -> None:
        random, loop = self.random, asyncio.get_running_loop()
        now = loop.time()
        # A slot that comes for a query whose time was just over goes to the next one of the same
        # gateway, before its turn: where the order is checked, no query runs out of time.
        seconds = 600.0 if self.plain else random.choice((0.05, 0.3, 1.0, 5.0, 20.0, 60.0))
        if self.calm:  # each should be answered, on the slowest path as well
            seconds = max(seconds, 20.0)
        story = self.record.asked(
            QueryStory(
                number=0,
                gateway=name,
                priority=2 if self.plain else random.choice((2, 2, 0, 4)),
                idempotent=not self.plain and random.random() < 0.3,
                rows=0 if self.plain else random.choice((0, 0, 1, 5, 200)),
                runs_seconds=self._draw_run_seconds(),
                asked_at=now,
                deadline=now + seconds,
            )
        )
        ask = Ask(
            namespace=NAMESPACE,
            queue=TICKS if story.rows else QUOTES,
            payload=msgpack.encode([story.number]),
            deadline=story.deadline,
            priority=story.priority,
            idempotent=story.idempotent,
            rows=random.random() < 0.8,
        )
        if self.hurries and random.random() < 0.1:
            ask.do_not_queue = True
        leaving = None
        if not self.plain and not self.calm and random.random() < 0.25:
            leaving = random.choice((0.0, 0.001, 0.1, 1.0))
        try:
            running = querying.begin(ask)
        except MaitredError as problem:
            self.record.answered(story, problem.code)
            return
        if leaving is not None:
            loop.call_later(leaving, self._leave, story, running.cancel)
        try:
            async with asyncio.timeout_at(story.deadline + LATE_SECONDS):
                outcome = await self._outcome(story, running)
        except DeadlineExceeded as problem:
            outcome = problem.code
        except TimeoutError:
            raise self.record.violation(story, "was never answered") from None
        except MaitredError as problem:
            outcome = problem.code
        if outcome == "deadline-exceeded" and loop.time() < story.deadline - 0.01:
            raise self.record.violation(story, f"was over at {loop.time()}, before its time")
        self.record.answered(story, outcome)
        if story.cancelled_at is None and outcome != "done":
            story.cancelled_at = loop.time()  # the caller that was told so has left

    def _draw_run_seconds(self) -> float:
        """Draw how long a query runs. Trouble meets long queries, so many are long, except where
        the order is checked."""
        random = self.random
        long_probability = 0.0 if self.calm else 0.1 if self.plain else 0.3
        if random.random() >= long_probability:
            return random.choice((0.0, 0.0, 0.001, 0.05))
        return random.choice((0.5, 2.0) if self.plain else (0.5, 2.0, 6.0))

    def _leave(self, story: QueryStory, cancel: object) -> None:
        if story.outcome is None:
            story.cancelled_at = asyncio.get_running_loop().time()
            cancel()  # type: ignore[operator]

    async def _outcome(self, story: QueryStory, running: object) -> str:
        answer = await running.answer()  # type: ignore[attr-defined]
        if isinstance(answer, Whole):
            result = msgpack.decode(answer.body)
            wanted = [story.number] * story.rows if story.rows else story.number
            if result != wanted:
                raise self.record.violation(story, f"has the result {result!r}")
            return "done"
        rows = 0
        async for chunk in answer:
            for value in msgpack.decode(as_array(chunk), type=list[int]):
                if value != story.number:
                    raise self.record.violation(story, f"got a row of another query: {value}")
                rows += 1
            if self.random.random() < 0.1:
                await asyncio.sleep(0.01)
        if rows != story.rows:
            raise self.record.violation(story, f"got {rows} rows and no error")
        return "done"


class QueryWorkerHost(WorkerGuest):
    """A worker that serves both queues with the same slots."""

    skew_seconds = SKEW_SECONDS

    def __init__(self, host: Host, node: NodeHosts, record: QueryRecord, *, slots: int) -> None:
        super().__init__(host, node, record, slots=slots)
        self.record = record
        self.listens = True
        """Whether gateways can connect to the worker directly."""

    def gone(self, name: str) -> None:
        super().gone(name)
        self.record.worker_gone(name, asyncio.get_running_loop().time())

    async def main(self, name: str) -> None:
        app = self.app_of(NAMESPACE)
        self._add_handlers(app, name)
        client = await self.connected(app)
        settings = WorkerSettings(
            slots=self.slots,
            offer_seconds=10.0,
            attend_seconds=1.0,
            drain_seconds=5.0,
            host=self.host.address if self.listens else None,
            public_without_tls=True,
        )
        secret = self.random.randbytes(16)
        await self.serve(app, client, settings, name=name, secret=secret)

    def _add_handlers(self, app: App, name: str) -> None:
        loop = asyncio.get_running_loop()
        record, slots = self.record, self.slots

        @app.handler(QUOTES)
        async def quotes(number: int) -> int:
            story = record.stories[number]
            run = record.begins(number, name, slots, loop.time())
            completed = False
            try:
                await asyncio.sleep(story.runs_seconds)
                completed = True
            finally:
                record.ends(number, run, loop.time(), completed=completed)
            return number

        @app.handler(TICKS)
        async def ticks(number: int) -> AsyncIterator[int]:
            story = record.stories[number]
            run = record.begins(number, name, slots, loop.time())
            completed = False
            try:
                portions = min(story.rows, PORTIONS)
                for row in range(story.rows):
                    if story.runs_seconds and row * portions % story.rows < portions:
                        await asyncio.sleep(story.runs_seconds / portions)
                    yield number
                completed = True
            finally:
                record.ends(number, run, loop.time(), completed=completed)
