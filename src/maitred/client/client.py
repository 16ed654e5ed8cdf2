"""The client for asyncio.

A request computes alone which shard of which node it belongs to and goes there; that path is kept
short. Everything unusual (waiting, retries, corrections) is off it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, cast

from maitred.client.call import AwaitedCall, Call, PatientCall, ToldCall
from maitred.client.connection_attempt import ConnectionTerms
from maitred.client.long_poll import GRACE_SECONDS, LongPoll
from maitred.client.pool import Pool
from maitred.client.query_calls import Stream, read_any_rows, read_anything, written
from maitred.client.query_gateway import QueryGateway
from maitred.client.retries import may_retry, patience_seconds, retry_delay
from maitred.client.router import SILENT_SECONDS, Router, closed
from maitred.client.statistics import NodeView, ShardAnswer, Statistics, Unreachable, summed
from maitred.client.timeouts import checked_timeout
from maitred.client.waiting_room import WaitingRoom
from maitred.dispatch.ask import Ask
from maitred.errors import (
    UNKNOWN,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    MaitredError,
    NodeUnreachable,
    NoWorker,
    ProtocolViolation,
    Unavailable,
)
from maitred.protocol.description import VERSIONS
from maitred.protocol.frames import ANSWER, CUSTOM_PAYLOAD, Frame, Opcode
from maitred.protocol.messages import (
    HOLD_MAX_MILLISECONDS,
    AnyAnswer,
    Echo,
    Echoed,
    ShardStatus,
    Status,
    decode_answer,
    without_home,
)
from maitred.settings import Querying
from maitred.wire.background_tasks import BackgroundTasks
from maitred.wire.caller import error_of
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from maitred.client.address import Address, HostPort
    from maitred.client.asked_query import AskedQuery
    from maitred.client.call import CallConnection
    from maitred.client.connection import Connection
    from maitred.client.connection_attempt import MemberTerms
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.protocol.messages import AnyRequest
    from maitred.routing.names import QueueId
    from maitred.settings import ClientSettings
    from maitred.surroundings import Surroundings

__all__ = ["AnyAnswer", "AsyncClient", "NodeView", "Unreachable"]

NAMESPACE: Final = "default"
"""The namespace of a query whose queue names none."""


class AsyncClient:
    """A client for asyncio, made by `maitred.connect`. Many tasks of one loop may use it."""

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        surroundings: Surroundings,
        tls: Callable[[], ssl.SSLContext] | None = None,
        versions: Sequence[int] = VERSIONS,
        members: MemberTerms | None = None,
    ) -> None:
        """`members` are the terms of connections to members of the cluster that the address does
        not name; by default, they are those of the address."""
        loop = asyncio.get_running_loop()
        self.address = address
        self.settings = settings
        self._loop = loop
        self._surroundings = surroundings
        self._timeout_seconds = settings.timeout_seconds
        self._room = WaitingRoom(loop, settings.waiting)
        self._terms = ConnectionTerms(settings, address.credentials, tls, versions)
        self._member_terms = self._terms
        if members is not None:
            self._member_terms = self._terms._replace(**members._asdict())
        self._router = Router(
            surroundings.wall_clock,
            self._tell_news,
            loop=loop,
            room=self._room,
            make_pool=self._make_pool,
            preference=surroundings.random.random,
        )
        self._router.begin(address.nodes)
        self._watchers: dict[asyncio.Future[None], None] = {}
        self._closing: asyncio.Task[None] | None = None
        self._retrying = BackgroundTasks(loop)
        """Requests of `request_told` that are being tried again."""
        self._silent = False
        """Whether the first attempts at connections were not even refused."""
        self._querying: QueryGateway | None = None
        self.encrypted = tls is not None
        """Whether its connections to nodes are by TLS."""
        self.user = address.credentials.user if address.credentials is not None else ""
        """The user of the address; empty if it names none."""

    def _make_pool(self, node: HostPort, member: ClusterMember | None) -> Pool:
        """Return the pool of a node of the address, or of a member of the cluster."""
        terms, id_ = (self._terms, "") if member is None else (self._member_terms, member.id)
        random = self._surroundings.random
        return Pool(node, terms, self._router, self._room, self._loop, random, id_)

    def __repr__(self) -> str:
        if self._router.closed:
            return f"<AsyncClient {self.address}, closed>"
        pools = self._router.pools.values()
        covered = sum(len(pool.by_shard) for pool in pools)
        shards = sum(pool.description.shards if pool.description else 0 for pool in pools)
        return (
            f"<AsyncClient {self.address}, {covered} of {shards} shards connected, "
            f"{self.statistics().in_flight} requests in flight>"
        )

    # Begin and end

    async def open(self) -> Self:
        """Connect; returns as soon as one node has answered. Raises why none did, after
        `connect_seconds`, or after `SILENT_SECONDS` if the network does not answer at all."""
        for pool in self._router.pools.values():
            pool.start()
        silence = SilenceTimer(self._loop, SILENT_SECONDS, self._network_is_silent)
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                while not self._router.nodes.has_connected(self.address, silent=self._silent):
                    await self._news()
        except BaseException as problem:
            why = self._router.nodes.why_not_connected
            late = isinstance(problem, TimeoutError)
            reason = why(self.address, self.settings.connect_seconds) if late else problem
            await self._close(within=0)
            if reason is problem:
                raise
            raise reason from None
        finally:
            silence.cancel()
        return self

    def _network_is_silent(self) -> None:
        self._silent = not any(
            pool.reached or pool.problem is not None for pool in self._router.pools.values()
        )
        self._tell_news()

    async def covered(self, *, one_node: bool = False) -> None:
        """Wait until there is a connection to every shard of every node, or of `one_node`."""
        enough = any if one_node else all
        while not enough(not pool.missing for pool in self._router.pools.values()):
            if self._router.closed:
                raise closed()
            await self._news()

    async def close(self) -> None:
        """Accept no more requests, wait up to `close_seconds` for those under way, disconnect."""
        if self._querying is None:
            self._router.closed = True
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(self.settings.close_seconds))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _close(self, within: float) -> None:
        if self._querying is not None:
            began = self._loop.time()
            await self._querying.close(within)
            within = max(0.0, within - (self._loop.time() - began))
        self._router.closed = True
        self._router.stop()
        self._room.empty(closed())
        await asyncio.gather(*(pool.stop() for pool in self._router.nodes.all()))
        for connection in self._connections():
            connection.retire()  # closes when its last call is answered
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._connections():
                    await self._news()
        for connection in self._connections():
            for call in list(connection.pending.values()):
                if isinstance(call, Call):
                    call.fail(closed())
            connection.finish()
        # A connection that its node does not close ends itself, so this ends as well.
        while self._connections():
            await self._news()

    def _connections(self) -> list[Connection]:
        return [one for pool in self._router.nodes.all() for one in pool.connections()]

    def _tell_news(self) -> None:
        """Wake the tasks that wait for a change of connections."""
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def _news(self) -> None:
        watcher = self._loop.create_future()
        self._watchers[watcher] = None
        try:
            await watcher
        finally:
            self._watchers.pop(watcher, None)

    # Requests

    async def request(
        self,
        message: AnyRequest,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
        *,
        node: str | None = None,
        patient: bool = False,
        first: LongPoll | None = None,
    ) -> AnyAnswer:
        """Send it to where it belongs, and wait for the answer, `timeout` seconds in all.

        The message's `timeout_milliseconds` is set to what is left when it is sent. What belongs to
        a shard instead of a partition goes to the `node` of that address or identity. A request
        that is `patient` waits for a node that is away until its time is over; others are refused
        when the node has been away for the setting `away_seconds`, or for `takeover_seconds` while
        other members of its cluster are connected. With `first`, it goes to the shard that this
        earlier request was sent to.
        """
        loop = self._loop
        router = self._router
        now = loop.time()
        seconds = self._timeout_seconds if timeout is None else checked_timeout(timeout)
        pool = None if node is None else router.nodes.find(node)
        kind = PatientCall if patient else AwaitedCall
        call = kind(message, now + seconds, loop.create_future(), pool)
        if first is None:
            router.dispatch(call, now)
        else:
            router.dispatch_after(call, first, now)
        try:
            outcome = self._read(call, await call.future)
        except ConnectionLost as problem:
            outcome = problem
        except asyncio.CancelledError:
            call.give_up()
            raise
        if isinstance(outcome, MaitredError):
            return await self._try_again(call, outcome, kind, pool)
        return outcome

    def request_told(
        self,
        message: AnyRequest,
        told: Callable[[AnyAnswer | MaitredError], None],
        timeout: float | None = None,
        *,
        patient: bool = False,
    ) -> None:
        """Send it as `request` does, and have `told` called once, with the answer or the error. No
        coroutine runs for it unless it has to be tried again."""
        now = self._loop.time()
        seconds = self._timeout_seconds if timeout is None else checked_timeout(timeout)

        def first_told(call: Call, outcome: Frame | Exception) -> None:
            answer = self._read(call, outcome) if isinstance(outcome, Frame) else outcome
            if not isinstance(answer, MaitredError):
                told(cast("AnyAnswer", answer))
            elif answer is outcome and not isinstance(answer, ConnectionLost):
                told(answer)
            else:
                self._retrying.start(self._tell_later(call, answer, told))

        call = ToldCall(message, now + seconds, first_told, patient=patient)
        try:
            self._router.dispatch(call, now)
        except MaitredError as problem:
            told(problem)

    async def _tell_later(
        self, call: Call, failure: MaitredError, told: Callable[[AnyAnswer | MaitredError], None]
    ) -> None:
        outcome: AnyAnswer | MaitredError = failure
        try:
            kind = PatientCall if call.patient else AwaitedCall
            outcome = await self._try_again(call, failure, kind, None)
        except MaitredError as problem:
            outcome = problem
        finally:
            told(outcome)

    async def _try_again(
        self, call: Call, failure: MaitredError, kind: type[AwaitedCall], pool: Pool | None
    ) -> AnyAnswer:
        """Send a request again that failed, while its deadline and the settings allow it; raise
        what remains if that does not help."""
        tries = 0
        failed_at = self._loop.time()
        doubt: MaitredError | None = None
        try:
            while True:
                if failure.outcome is UNKNOWN:
                    doubt = failure
                tries += 1
                await self._before_next_try(call, failure, tries, failed_at)
                loop = self._loop
                call = again = kind(call.message, call.deadline, loop.create_future(), pool)
                self._router.dispatch(call, loop.time())
                try:
                    outcome = self._read(call, await again.future)
                except ConnectionLost as problem:
                    outcome = problem
                if not isinstance(outcome, MaitredError):
                    return outcome
                failure = outcome
        except asyncio.CancelledError:
            call.give_up()
            raise
        except MaitredError as problem:
            if doubt is None or doubt is problem:
                raise
            raise _in_doubt(doubt, problem) from problem

    def hold(
        self,
        message: AnyRequest,
        timeout: float,
        grace_seconds: float = GRACE_SECONDS,
        *,
        patient: bool = True,
        told: Callable[[AnyAnswer | MaitredError], None] | None = None,
        first: LongPoll | None = None,
    ) -> LongPoll:
        """Begin a request that waits at the node, and that can be taken back without a loss.

        It is sent once, apart from refusals by a node that does not own the partition any more: the
        caller decides when to ask again. Raises if the request cannot be sent
        at all; later errors come with its answer. A `patient` one waits for a node that is away.
        With `told`, that is called with the answer, which is not awaited then. With `first`, it
        goes to the shard that this earlier one was sent to.
        """
        now = self._loop.time()
        deadline = now + checked_timeout(timeout)
        held = LongPoll(
            message,
            deadline,
            self._read,
            loop=self._loop,
            grace_seconds=grace_seconds,
            patient=patient,
            told=told,
            redirect=self._redirect,
        )
        if first is None:
            self._router.dispatch(held, now)
        else:
            self._router.dispatch_after(held, first, now)
        return held

    def _redirect(self, call: LongPoll, frame: Frame) -> bool:
        """Send a long poll again whose node does not own its partition any more; return False if
        the error is for its caller."""
        if self._router.view is None:
            return False
        if frame.flags & CUSTOM_PAYLOAD:
            frame = frame._replace(body=without_home(frame.body)[1])
        return self._router.redirect(call, error_of(frame))

    def _read(self, call: Call, frame: Frame) -> AnyAnswer | MaitredError:
        """Decode an answer: usually a plain one; else an error, or with a hint where the partition
        lives."""
        opcode = call.message.opcode
        try:
            flags, _, answered, body = frame
            if answered == opcode + ANSWER and not flags:
                return decode_answer(opcode, body)
            home = None
            if frame.flags & CUSTOM_PAYLOAD:
                home, body = without_home(frame.body)
                frame = frame._replace(body=body)
                if home is not None:
                    self._router.learn(call, home)
            if frame.opcode == Opcode.ERROR:
                return self._explained(call, error_of(frame))
            if frame.opcode == opcode + ANSWER:
                if home is not None:
                    self._router.served_at(call, home)
                return decode_answer(opcode, frame.body)
            raise ProtocolViolation(  # noqa: TRY301 - counted like the others
                f"The node answered {opcode.name} with the opcode 0x{frame.opcode:02x}."
            )
        except ProtocolViolation as problem:
            if call.connection is not None:
                call.connection.counts.violations += 1
            return problem

    def _explained(self, call: Call, problem: MaitredError) -> MaitredError:
        """Return the error for the caller: a shard that neither the other shards of its node nor
        the client have reached for a while is away, and not being restarted."""
        pool, now = call.pool, self._loop.time()
        if (
            pool is not None
            and not call.patient
            and isinstance(problem, Unavailable)
            and not isinstance(problem, NoWorker)
            and pool.is_away(call.shard, now, self._patience(call))
            and not self._router.has_moved(call)
        ):
            return pool.unreachable(call.shard, now, problem.sentence)
        return problem

    def why_away(self, queue: QueueId) -> NodeUnreachable | None:
        """Return why the queue's root cannot be asked now; None if it can."""
        router, now = self._router, self._loop.time()
        pool, shard, _ = router.route((*queue, 0))
        # In a cluster the partition soon has another owner, which a newer view will name.
        may_move = self.clustered or (len(router.pools) > 1 and not router.nodes.settled)
        patience = patience_seconds(self.settings, awaits_takeover=pool.awaits_takeover)
        if not pool.lacks(shard) or (may_move and not pool.is_away(shard, now, patience)):
            return None
        return pool.unreachable(shard, now)

    def _patience(self, call: Call) -> float:
        return patience_seconds(self.settings, awaits_takeover=call.awaits_takeover)

    async def _before_next_try(
        self, call: Call, problem: MaitredError, tries: int, failed_at: float
    ) -> None:
        """Wait before the next try; raise the problem if another try does not help."""
        router, now = self._router, self._loop.time()
        again = may_retry(
            call.message,
            problem,
            self.settings,
            tries=tries,
            fails_seconds=now - failed_at,
            in_cluster=self.clustered,
            awaits_takeover=call.awaits_takeover,
        )
        if not again:
            raise problem
        delay = 0.0
        if not router.has_moved(call):
            random = self._surroundings.random
            delay = retry_delay(tries, self.settings, random, in_cluster=self.clustered)
        if now + delay >= call.deadline:
            raise problem
        if call.connection is not None:
            call.connection.counts.retries += 1
        if not self.clustered:
            await asyncio.sleep(delay)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                while not router.has_moved(call):
                    await self._news()

    # Not async themselves: a coroutine around a coroutine would cost a tenth of the request.

    def echo(
        self,
        namespace: str,
        queue: str,
        payload: bytes,
        *,
        partition: int = 0,
        queue_type: int = 1,
        hold: float = 0,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Echoed]:
        """Have the shard that owns the partition return the payload, after `hold` seconds."""
        milliseconds = _milliseconds(hold) if hold else 0
        message = Echo(namespace, queue, queue_type, partition, 0, payload, milliseconds)
        return cast("Coroutine[Any, Any, Echoed]", self.request(message, timeout))

    def status(
        self, shard: int, node: str | None = None, timeout: float | None = None
    ) -> Coroutine[Any, Any, ShardStatus]:
        """Return the status of a shard; with several nodes, `node` is an address or identity."""
        message = Status(shard, 0)
        return cast("Coroutine[Any, Any, ShardStatus]", self.request(message, timeout, node=node))

    async def statuses(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
    ) -> list[ShardStatus | Unreachable]:
        """Return the status of every shard of every node, or why it is unknown."""
        found = await self.ask_shards(lambda _, shard: Status(shard, 0), timeout)
        return [
            one if isinstance(one, Unreachable) else cast("ShardStatus", one.answer)
            for one in found
        ]

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
    ) -> list[ShardAnswer | Unreachable]:
        """Ask every shard of every node at once, with the message that is made for the address of
        the node and the number of the shard; None: it is not asked. Return the answers, or why
        there is none, in the order of the nodes and shards; nodes that have not told yet how many
        shards they have come last."""
        await self.members_known(timeout)
        silent: list[ShardAnswer | Unreachable] = []
        asked = []
        for pool in self._router.pools.values():
            if pool.description is None:
                problem = pool.problem or Unavailable(f"{pool.name} has not answered yet.")
                silent.append(Unreachable(address=pool.name, shard=None, error=problem))
            else:
                asked += [
                    self._answer_or_why(made, pool.name, shard, timeout)
                    for shard in range(pool.description.shards)
                    if (made := message(pool.name, shard)) is not None
                ]
        return [*await asyncio.gather(*asked), *silent]

    async def _answer_or_why(
        self, message: AnyRequest, address: str, shard: int, seconds: float | None
    ) -> ShardAnswer | Unreachable:
        try:
            answer = await self.request(message, seconds, node=address)
        except MaitredError as problem:
            return Unreachable(address=address, shard=shard, error=problem)
        return ShardAnswer(address=address, shard=shard, answer=answer)

    # Queries

    @property
    def querying(self) -> QueryGateway:
        """The gateway of this client's queries, made when it is first needed."""
        if self._querying is None:
            if self._router.closed:
                raise closed()
            self._querying = QueryGateway(self, Querying(), self._surroundings)
        return self._querying

    def ask_with(self, querying: QueryGateway) -> None:
        """Use this gateway, which has settings of its own; call it before the first query."""
        if self._querying is not None:
            raise InvalidArgument("This client asks queries already.")
        self._querying = querying

    async def query(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it travels with the query
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> Any:  # noqa: ANN401 - what the handler returns
        """Have a free worker of the queue run this, and return what it returns.

        The queue may be `namespace/queue`; the namespace is `default` otherwise. `idempotent`: the
        query may run again elsewhere if its worker is lost. `do_not_queue`: a worker now, or
        `Overloaded`. Cancelling stops the handler, too.
        """
        payload = written(args, named)
        running = self._begin(
            queue, payload, timeout, namespace, priority, idempotent, do_not_queue, rows=False
        )
        return (await running.answer()).read(read_anything)

    def stream(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> Stream[Any]:
        """Have a free worker run a generator, and return its rows as they come; see `query`."""
        payload = written(args, named)

        async def begin() -> AskedQuery:
            return self._begin(
                queue, payload, timeout, namespace, priority, idempotent, do_not_queue, rows=True
            )

        return Stream(begin, read_any_rows, read_anything)

    def _begin(
        self,
        queue: str,
        payload: bytes,
        timeout: float | None,
        namespace: str | None,
        priority: int,
        idempotent: bool,
        do_not_queue: bool,
        *,
        rows: bool,
    ) -> AskedQuery:
        querying = self._querying or self.querying
        seconds = querying.settings.timeout_seconds if timeout is None else checked_timeout(timeout)
        if namespace is None:
            if not isinstance(queue, str):
                raise InvalidArgument(f"A queue is named by text, not {queue!r:.80}.")
            namespace, slash, name = queue.partition("/")
            namespace, queue = (namespace, name) if slash else (NAMESPACE, queue)
        ask = Ask(
            namespace=namespace,
            queue=queue,
            payload=payload,
            deadline=self._loop.time() + seconds,
            priority=priority,
            idempotent=bool(idempotent),
            do_not_queue=bool(do_not_queue),
            rows=rows,
            user=self.user,
        )
        return querying.begin(ask)

    # What is known

    @property
    def view(self) -> ClusterView | None:
        """The newest view of the cluster; None before the first one, or without a cluster."""
        return self._router.view

    @property
    def clustered(self) -> bool:
        """Whether a view of the cluster is known."""
        return self._router.view is not None

    @property
    def is_connected(self) -> bool:
        """Whether any node is connected; may be asked from another thread."""
        return self._router.nodes.connected

    def follow_routes(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever partitions may have other owners than before; return a function
        that ends this."""
        listeners = self._router.listeners
        listeners[changed] = None
        return lambda: listeners.pop(changed, None)

    def follow_losses(self, lost: Callable[[CallConnection], None]) -> Callable[[], None]:
        """Call `lost` with each connection that breaks, or that its node closes without having said
        that it drains; return a function that ends this."""
        listeners = self._router.loss_listeners
        listeners[lost] = None
        return lambda: listeners.pop(lost, None)

    async def members_known(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until the client knows the members of the cluster, and has heard of each or knows
        why not, or knows that there is no cluster. Ends without either if no node is connected."""
        router = self._router
        seconds = self._timeout_seconds if timeout is None else checked_timeout(timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, SILENT_SECONDS)):
                while router.nodes.connected and not router.nodes.settled:
                    await self._news()
                while self.clustered and any(
                    pool.description is None and pool.problem is None
                    for pool in router.pools.values()
                ):
                    await self._news()

    def watched_nodes(self) -> tuple[str, ...]:
        """Return the nodes at which a gateway waits for the orders of operators: one member of a
        cluster, or else every node of the address."""
        if self.clustered:
            return (self._router.nodes.near().name,)
        return tuple(pool.name for pool in self._router.pools.values())

    def place(self, partition: tuple[str, str, int, int]) -> tuple[str, int, float]:
        """Return the node and the shard that own a partition, and until which time of the wall
        clock; the shard is -1 until the node has answered."""
        route = self._router.route(partition)
        return route.pool.name, route.shard, route.until

    def wall_clock(self) -> float:
        """Return the time by which `place` computes."""
        return self._surroundings.wall_clock()

    def nodes(self) -> tuple[NodeView, ...]:
        """Return what the client knows of each node, in the order of the address; in a cluster, of
        each member, in the order of their addresses."""
        return tuple(pool.view() for pool in self._router.pools.values())

    def statistics(self) -> Statistics:
        """Return the counts of requests and connections until now; those of nodes that left the
        cluster are in the sums only."""
        nodes = tuple(pool.statistics() for pool in self._router.pools.values())
        left = [pool.statistics() for pool in self._router.nodes.retiring]
        totals = summed([*nodes, *left, self._router.nodes.departed])
        return Statistics(waiting=len(self._room), nodes=nodes, **totals)


def _in_doubt(doubt: MaitredError, problem: MaitredError) -> MaitredError:
    """Return the error of a request that an earlier try may have done."""
    sentence = f"{doubt.sentence} Asking again came to nothing: {problem.sentence}"
    kind = DeadlineExceeded if isinstance(problem, DeadlineExceeded) else ConnectionLost
    return kind(sentence, remedy=problem.remedy)


def _milliseconds(seconds: float) -> int:
    try:
        milliseconds = round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{seconds!r} is not a number of seconds.") from None
    if not 0 <= milliseconds <= HOLD_MAX_MILLISECONDS:
        raise InvalidArgument(
            f"An echo is held for 0 to {HOLD_MAX_MILLISECONDS // 1000} seconds, not {seconds!r}."
        )
    return milliseconds
