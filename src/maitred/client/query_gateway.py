"""A gateway as a library: runs queries with links to workers, requests to nodes and timers.

Every listener uses it, and so does a client for its own queries. `dispatch/` decides what to do
about a query; this file does it. A query is entered into the table, waits for a slot, goes straight
to its worker, and comes to exactly one end: the result, the rows of a stream, or an error.
"""

from __future__ import annotations

import asyncio
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.client.asked_query import AskedQuery, Rows, Whole
from maitred.client.links import Links
from maitred.client.query_table_watch import QueryTableWatch
from maitred.client.queues import QueueView
from maitred.client.requester import Requester
from maitred.client.router import closed
from maitred.client.statistics import GatewayStatistics
from maitred.dispatch.dispatcher import Dispatcher
from maitred.dispatch.query_states import Accident
from maitred.errors import InternalError, MaitredError
from maitred.wire.background_tasks import BackgroundTasks
from maitred.wire.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.client.long_poll import LongPoll
    from maitred.client.worker_link import WorkerLink
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.effects import Act, Carrier, Told
    from maitred.dispatch.pending_query import PendingQuery
    from maitred.errors import NodeUnreachable
    from maitred.protocol.messages import AnyAnswer, AnyRequest
    from maitred.protocol.queries import Allocation
    from maitred.routing.names import QueueId
    from maitred.settings import ClientSettings, Querying, QueryLimits, QuerySettings
    from maitred.surroundings import Surroundings
    from maitred.telemetry.tracing import Tracing

    Hook = Callable[[Ask], Ask | Awaitable[Ask]]

__all__ = ["AskedQuery", "QueryGateway", "Rows", "Whole"]

SELECTION: Final = "weighted"
"""The selector of the partition for a slot request."""


class GatewayLog(Protocol):
    """The log of a gateway."""

    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401 - anything


class QueryRequester(Requester, Protocol):
    """The part of a client that the gateway of its queries uses."""

    @property
    def settings(self) -> ClientSettings:
        """The settings of the client's connections."""

    @property
    def encrypted(self) -> bool:
        """Whether the client's connections to nodes are by TLS."""

    @property
    def user(self) -> str:
        """The user of the client's address; empty if it names none."""

    def hold(
        self,
        message: AnyRequest,
        timeout: float,
        *,
        patient: bool = True,
        told: Callable[[AnyAnswer | MaitredError], None] | None = None,
        first: LongPoll | None = None,
    ) -> LongPoll:
        """Begin a request that waits at the node, and that can be taken back without a loss."""

    def why_away(self, queue: QueueId) -> NodeUnreachable | None:
        """Return why the queue's root cannot be asked now; None if it can."""


class QueryGateway:
    """Runs the queries of one client: the shell of a `Dispatcher`. Made on the running loop."""

    def __init__(
        self,
        client: QueryRequester,
        settings: Querying,
        surroundings: Surroundings,
        log: GatewayLog | None = None,
        *,
        name: str = "",
        hook: Hook | None = None,
        limits: Callable[[str], QueryLimits | None] | None = None,
        queue_limits: Callable[[str, str], QuerySettings | None] = lambda _, __: None,
    ) -> None:
        self.loop = loop = asyncio.get_running_loop()
        self.client = client
        self.settings = settings
        self.name = name
        self.session = surroundings.secret(16)
        """Identifies this gateway until it closes."""
        random = surroundings.random
        self.dispatcher = Dispatcher(
            settings,
            effects=self,
            session=self.session,
            name=name,
            frame_bytes=client.settings.frame_bytes,
            backoff=(
                client.settings.backoff_first_seconds,
                client.settings.backoff_longest_seconds,
            ),
            random=random,
            new_view=lambda queue: QueueView(queue, SELECTION, random),
            limits=limits,
            queue_limits=queue_limits,
        )
        self.table = self.dispatcher.table
        self.links = Links(
            self,
            settings,
            frame_bytes=client.settings.frame_bytes,
            name=name,
            secret=surroundings.secret,
            encrypted=client.encrypted,
        )
        self.open_links = self.links.open
        self.connect = self.links.connect
        self.load_reported = self.dispatcher.queues.reported
        self.why_away = client.why_away
        self._links_refused = 0
        self._watching = QueryTableWatch(client, self)
        self._watches = False
        self._prepare = None if hook is None else partial(self._call_hook, hook)
        self._log = log
        self._complaints = None if log is None else Complaints(loop, log)
        self._wall_clock = surroundings.wall_clock
        self._tracing = surroundings.tracing
        self._hooks = BackgroundTasks(loop)
        """Hooks that are awaited."""
        self._closed = False
        self._drained: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return (
            f"<QueryGateway {self.table.gateway}, {self.under_way} queries under way, "
            f"{len(self.open_links)} links{', closed' if self._closed else ''}>"
        )

    # Queries

    def begin(self, ask: Ask) -> AskedQuery:
        """Begin the query; raises an error if it is refused at once."""
        if self._closed:
            raise closed()
        if not self._watches:
            self._watches = True
            self._watching.start()
        loop, dispatcher = self.loop, self.dispatcher
        now = loop.time()
        if self._tracing is not None:
            return self._begin_traced(ask, self._tracing, now)
        query = AskedQuery(dispatcher, ask, now=now, wall=self._wall_clock(), loop=loop)
        dispatcher.begin(query, now, self._prepare)
        return query

    def _begin_traced(self, ask: Ask, tracing: Tracing, now: float) -> AskedQuery:
        """Begin the query within a span of its own, whose context replaces that of the caller."""
        queue, loop, wall = f"{ask.namespace}/{ask.queue}", self.loop, self._wall_clock()
        span = tracing.queries(queue, ask.trace, served=bool(ask.connection))
        ask.trace = span.context
        try:
            query = AskedQuery(self.dispatcher, ask, now=now, wall=wall, loop=loop, span=span)
        except MaitredError as problem:  # the query table is full
            span.query_ended("refused", "", 0, problem.code)
            raise
        try:
            self.dispatcher.begin(query, now, self._prepare)
        except MaitredError:
            query.end_span()
            raise
        return query

    def cancel(self, sequence: int) -> bool:
        """Cancel the query of that number; False if it is over, or does not exist."""
        return self.dispatcher.cancel(sequence, self.loop.time())

    @property
    def closed(self) -> bool:
        """Whether the gateway accepts no more queries."""
        return self._closed

    @property
    def under_way(self) -> int:
        """Return the number of queries that have not ended."""
        return self.dispatcher.under_way

    @property
    def waiting(self) -> int:
        """Return the number of queries under way that no worker has yet."""
        return self.dispatcher.waiting

    def statistics(self) -> GatewayStatistics:
        """Return the counts of queries and of connections to workers."""
        queues = self.dispatcher.queues
        return GatewayStatistics(
            waiting=self.waiting,
            queued=queues.queued,
            links=len(self.open_links),
            links_refused=self._links_refused,
            relayed=self.table.relayed,
            shed=queues.totals.shed,
            refused_by_workers=queues.totals.refused_by_workers,
        )

    async def close(self, within: float = 0.0) -> None:
        """Accept no more queries, wait up to `within` seconds for those under way, then end all."""
        self._closed = True
        if self.under_way and within > 0:
            self._drained = self.loop.create_future()
            self.dispatcher.drain()
            await asyncio.wait([self._drained], timeout=within)
        self.dispatcher.close(self.loop.time())
        await self._hooks.stop()
        await self._watching.stop()
        await self.links.close()

    # The hook

    def _call_hook(self, hook: Hook, query: PendingQuery, now: float) -> None:
        """Let the hook change the query, and dispatch the result."""
        try:
            made = hook(query.ask)
        except MaitredError:
            raise
        except Exception as problem:
            raise self._hook_failed(problem) from problem
        if isawaitable(made):
            self._hooks.start(self._after_hook(query, made))
        else:
            self._hooked(query, made, now)

    async def _after_hook(self, query: PendingQuery, made: Awaitable[Ask]) -> None:
        try:
            ask = await made
            if not query.over:
                self._hooked(query, ask, self.loop.time())
        except MaitredError as problem:
            query.happen(Accident.REFUSED, problem, self.loop.time())
        except Exception as problem:  # noqa: BLE001 - the hook is the user's code
            query.happen(Accident.REFUSED, self._hook_failed(problem), self.loop.time())
        except BaseException:
            query.leave(self.loop.time())
            raise

    def _hooked(self, query: PendingQuery, ask: Ask, now: float) -> None:
        self.dispatcher.change(query, ask)
        self.dispatcher.dispatch(query, now)

    def _hook_failed(self, problem: Exception) -> InternalError:
        if self._log is not None:
            self._log.warning("the hook for queries failed", error=repr(problem))
        return InternalError("The gateway's hook for queries failed; the query was not begun.")

    # The dispatcher's effects

    def give_back(self, allocation: Allocation, now: float) -> None:
        """Tell the worker that no query needs its slot, if the worker can be reached."""
        link = self.open_links.get((allocation.session, allocation.address))
        if link is not None:
            link.release(allocation.token)
        elif not self._closed:
            self.links.connect(allocation, _Surplus(allocation.token), now)

    def ask_node(
        self,
        message: AnyRequest,
        seconds: float,
        told: Told,
        *,
        patient: bool,
        first: LongPoll | None = None,
    ) -> LongPoll:
        """Send a request once; `told` gets the answer."""
        loop = self.loop

        def answered(outcome: AnyAnswer | MaitredError) -> None:
            told(outcome, loop.time())

        return self.client.hold(message, seconds, patient=patient, told=answered, first=first)

    def tell_node(
        self, message: AnyRequest, seconds: float, told: Callable[[bool], None] | None = None
    ) -> None:
        """Send a request, again if need be; `told` gets whether it arrived."""

        def answered(outcome: AnyAnswer | MaitredError) -> None:
            if told is not None:
                told(not isinstance(outcome, MaitredError))

        self.client.request_told(message, answered, seconds)

    def wake_at(self, moment: float, act: Act) -> asyncio.TimerHandle:
        """Call `act` at that moment."""
        return self.loop.call_at(moment, self._wake, moment, act)

    def _wake(self, moment: float, act: Act) -> None:
        # Timers of some loops count whole milliseconds and fire up to one early.
        act(max(moment, self.loop.time()))

    def soon(self, act: Act) -> None:
        """Call `act` in the next turn of the loop."""
        self.loop.call_soon(self._act, act)

    def _act(self, act: Act) -> None:
        act(self.loop.time())

    def payload_bytes_max(self) -> int:
        """Return the smallest payload limit of the nodes; 0 before any node has told its limit."""
        known = [node.payload_bytes for node in self.client.nodes() if node.node is not None]
        return min(known, default=0)

    def worker_hangs(self, worker: str, session: bytes) -> None:
        """Log that a worker does not answer."""
        if self._log is not None:
            self._log.warning("a worker hangs", worker=worker, session=session.hex()[:8])

    def drained(self) -> None:
        """Let `close` continue: the last query has ended."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # Events from links

    def link_ended(self, link: WorkerLink, now: float, *, hung: bool) -> None:
        """Forget a link, and avoid its worker."""
        self.links.ended(link)
        self.dispatcher.link_ended(link.session, link.streams.values(), now, hung=hung)

    def link_refused(self, allocation: Allocation, problem: MaitredError) -> None:
        """Log why a worker was not dialled, or what was wrong with the answer at its address."""
        self._links_refused += 1
        if self._complaints is not None:
            peer = f"{allocation.worker} at {allocation.address.partition('#')[0]}"
            self._complaints.say("a connection to a worker was refused", peer, problem)

    def stray_answer(self, link: WorkerLink) -> None:
        """Log the first answer of a worker to a query that it was not sent."""
        if self._log is not None:
            self._log.warning(
                "a worker answered a query that it was not sent", session=link.session.hex()[:8]
            )


class _Surplus:
    """Gives a slot that no query needs back to its worker."""

    __slots__ = ("_token",)

    def __init__(self, token: bytes) -> None:
        self._token = token

    def linked(self, link: Carrier, now: float) -> None:  # noqa: ARG002
        link.release(self._token)

    def unreachable(self, now: float) -> None:
        """Let the reservation expire."""

    def gone(self, why: str, now: float) -> None:
        """Do nothing: there is no such slot any more."""
