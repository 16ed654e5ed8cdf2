"""The surroundings of a dispatcher as a test has them: everything that it does is written down."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from maitred.client.queues import QueueView
from maitred.dispatch.ask import Ask
from maitred.dispatch.dispatcher import Dispatcher
from maitred.dispatch.pending_query import PendingQuery
from maitred.errors import Cancelled, MaitredError, Unavailable
from maitred.protocol.queries import Allocation
from maitred.protocol.query_link import RunQuery, decode_run
from maitred.settings import Querying

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.effects import AnswerReceiver, Carrier, ConnectionWaiter
    from maitred.routing.names import QueueId
    from maitred.settings import QueryLimits


class RecordedQuery(PendingQuery):
    """A query whose caller keeps what it is handed."""

    rows: list[bytes]
    outcome: bytes | MaitredError | None

    def __init__(self, dispatcher: Dispatcher, ask: Ask, now: float) -> None:
        super().__init__(dispatcher, ask, now, now)
        self.rows = []
        self.outcome = None

    def hand_rows(self, chunk: bytes) -> None:
        assert self.outcome is None, "rows after the end"
        self.rows.append(chunk)

    def hand_answer(
        self,
        body: bytes,
        problem: MaitredError | None,
        *,
        drop_rows: bool = False,  # noqa: ARG002
    ) -> None:
        assert self.outcome is None, "a second end"
        assert self.over
        self.outcome = body if problem is None else problem


class NodeRequest:
    """A request that waits at the node."""

    def __init__(self, message: Any, told: Callable[[Any, float], None]) -> None:  # noqa: ANN401
        self.message = message
        self.told = told
        self.taken_back = False

    def take_back(self) -> None:
        self.taken_back = True


class WorkerLink:
    """A connection to a worker."""

    frame_bytes = 2**20
    relays = False

    def __init__(self, world: RecordedEffects, session: bytes) -> None:
        self.world = world
        self.session = session
        self.streams: dict[int, AnswerReceiver | None] = {}
        self.closed = False

    def run(self, receiver: AnswerReceiver, body: bytes, now: float) -> int:
        if self.closed:
            raise Unavailable("The connection to the worker is closed.")
        message = decode_run(body)
        self.world.run(receiver, message, now)
        stream = len(self.world.runs)
        self.streams[stream] = receiver
        return stream

    def stop(
        self,
        stream: int,
        receiver: AnswerReceiver,
        now: float,  # noqa: ARG002
        heir: AnswerReceiver | None = None,
    ) -> None:
        if self.streams.get(stream) is receiver:
            self.streams[stream] = heir
            self.world.stopped.append(stream)

    def taken(self, stream: int, size: int, now: float) -> None:
        """Nothing is held back here."""

    def release(self, token: bytes) -> None:
        self.world.use(token, "released")


class RecordedEffects:
    """Carries nothing out by itself; a test says what comes of it."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        limits = cast("Callable[[str], QueryLimits | None] | None", settings.pop("limits", None))
        random = Random(7)
        self.now = 100.0
        self.random = random
        self.dispatcher = Dispatcher(
            Querying(**settings),
            effects=self,
            session=bytes(16),
            name="test",
            frame_bytes=2**20,
            backoff=(0.05, 2.0),
            random=random,
            new_view=lambda queue: QueueView(queue, "weighted", random),
            limits=limits,
        )
        self.links: dict[bytes, WorkerLink] = {}
        self.dials: list[tuple[Allocation, ConnectionWaiter]] = []
        self.requests: list[NodeRequest] = []
        self.told_node: list[tuple[Any, Callable[[bool], None] | None]] = []
        self.alarms: list[Any] = []
        self.acts: list[Callable[[float], None]] = []
        self.tokens = 0
        self.used: dict[bytes, str] = {}
        """By reservation: how it was used, once."""
        self.runs: list[tuple[AnswerReceiver, RunQuery]] = []
        self.stopped: list[int] = []
        self.hanging: list[bytes] = []
        self.drains = 0
        self.away: MaitredError | None = None

    # What is done to it

    def ask(self, queue: str = "q", seconds: float = 10.0, **fields: Any) -> RecordedQuery:  # noqa: ANN401
        """Begin a query; an error that refuses it at once is its outcome, too."""
        ask = Ask(
            namespace="n", queue=queue, payload=b"\x90", deadline=self.now + seconds, **fields
        )
        query = RecordedQuery(self.dispatcher, ask, self.now)
        try:
            self.dispatcher.begin(query, self.now)
        except MaitredError as problem:
            if query.outcome is None:
                query.outcome = problem
        self.settle()
        return query

    def settle(self) -> None:
        """The turn of the loop is over."""
        while self.acts:
            acts, self.acts = self.acts, []
            for act in acts:
                act(self.now)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.alarms if one.at <= end and not one.cancelled]:
            first = min(due, key=lambda one: one.at)
            self.alarms.remove(first)
            self.now = max(self.now, first.at)
            first.act(self.now)
            self.settle()
        self.now = end

    def answer(self, request: NodeRequest, outcome: object) -> None:
        """The node answers."""
        self.requests.remove(request)
        if request.taken_back and isinstance(outcome, MaitredError):
            outcome = Cancelled("Taken back.")
        request.told(outcome, self.now)
        self.settle()

    def allocation(self, session: bytes, address: str = "h:1") -> Allocation:
        self.tokens += 1
        return Allocation(0, self.tokens.to_bytes(16), session, session.hex()[:4], address)

    def link(self, session: bytes) -> WorkerLink:
        """Open a connection to a worker."""
        link = self.links[session] = WorkerLink(self, session)
        for allocation, waiter in [one for one in self.dials if one[0].session == session]:
            self.dials.remove((allocation, waiter))
            waiter.linked(link, self.now)
        self.settle()
        return link

    def fails(self, session: bytes, why: str) -> None:
        """A dial comes to nothing: the worker is unreachable, or gone."""
        for allocation, waiter in [one for one in self.dials if one[0].session == session]:
            self.dials.remove((allocation, waiter))
            if why == "gone":
                waiter.gone("it is another one", self.now)
            else:
                waiter.unreachable(self.now)
        self.settle()

    def cut(self, session: bytes, *, hung: bool = False) -> None:
        """A connection ends."""
        link = self.links.pop(session)
        link.closed = True
        receivers = [one for one in link.streams.values() if one is not None]
        self.dispatcher.link_ended(session, receivers, self.now, hung=hung)
        link.streams.clear()
        for receiver in receivers:
            receiver.lost("cut", self.now, hung=hung)
        self.settle()

    def under_way(self) -> list[tuple[WorkerLink, int]]:
        """Queries that workers have."""
        return [(link, stream) for link in self.links.values() for stream in link.streams]

    def run(self, receiver: AnswerReceiver, message: RunQuery, now: float) -> None:
        assert now == self.now
        self.runs.append((receiver, message))

    def use(self, token: bytes, how: str) -> None:
        assert token not in self.used, f"{how}, and {self.used[token]} before"
        self.used[token] = how

    # Effects

    def connect(self, allocation: Allocation, waiter: ConnectionWaiter, now: float) -> None:
        assert now == self.now
        assert allocation.session not in self.links
        if not allocation.address:
            waiter.unreachable(now)
        else:
            self.dials.append((allocation, waiter))

    @property
    def open_links(self) -> dict[tuple[bytes, str], Carrier]:
        return {(session, "h:1"): link for session, link in self.links.items()}

    def give_back(self, allocation: Allocation, now: float) -> None:  # noqa: ARG002
        self.use(allocation.token, "given back")

    def ask_node(
        self,
        message: Any,  # noqa: ANN401
        seconds: float,
        told: Callable[[Any, float], None],
        *,
        patient: bool,  # noqa: ARG002
        first: Any = None,  # noqa: ANN401, ARG002
    ) -> NodeRequest:
        assert seconds > 0
        if self.away is not None:
            raise self.away
        request = NodeRequest(message, told)
        self.requests.append(request)
        return request

    def tell_node(
        self,
        message: Any,  # noqa: ANN401
        seconds: float,  # noqa: ARG002
        told: Callable[[bool], None] | None = None,
    ) -> None:
        self.told_node.append((message, told))

    def wake_at(self, moment: float, act: Callable[[float], None]) -> Any:  # noqa: ANN401
        alarm = SimpleNamespace(at=moment, act=act, cancelled=False)
        alarm.cancel = lambda: setattr(alarm, "cancelled", True)
        self.alarms.append(alarm)
        return alarm

    def soon(self, act: Callable[[float], None]) -> None:
        self.acts.append(act)

    def why_away(self, queue: QueueId) -> MaitredError | None:  # noqa: ARG002
        return None

    def payload_bytes_max(self) -> int:
        return 0

    def drained(self) -> None:
        self.drains += 1

    def worker_hangs(self, worker: str, session: bytes) -> None:  # noqa: ARG002
        self.hanging.append(session)
