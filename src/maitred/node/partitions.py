"""The partitions that a shard owns: it loads each for the first request that names it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maitred.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidArgument,
    MaitredError,
    NotOwner,
    Unavailable,
    UnknownQueue,
)
from maitred.matching.controls import NO_CONTROLS, QueueControls, decode_controls
from maitred.matching.hand_out import always, not_trusted
from maitred.matching.limits import Limiter
from maitred.matching.partition import Partition
from maitred.matching.queue_meters import QueueMeters
from maitred.matching.records import Changes, PartitionKey
from maitred.matching.task import Ticket
from maitred.matching.task_history import TaskHistories
from maitred.matching.task_memory import TaskMemory
from maitred.node.handover import KEPT_AT_ONCE, KEPT_BYTES, Handovers
from maitred.node.lost_commits import LostCommits
from maitred.node.owned import Owned
from maitred.node.ownership import PartitionMoves
from maitred.node.partition_driver import PartitionDriver
from maitred.node.partition_loader import Loader
from maitred.node.peer_calls import ASK_SECONDS
from maitred.node.shard_permits import ShardPermits
from maitred.node.store_reads import StoreReads
from maitred.node.stored_histories import StoredHistories
from maitred.node.stored_quotas import StoredQuotas
from maitred.node.takeover import Takeovers, moved
from maitred.node.waiting_requests import Absent, Makes, RequestKind, Serve, WaitingRequest
from maitred.node.writer import Writer
from maitred.protocol.tasks import (
    Counts,
    Sync,
    Synced,
)
from maitred.routing.counts import PartitionCounts
from maitred.settings import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from msgspec import Struct

    from maitred.matching.records import Acquired
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.partition_trust import PartitionTrust
    from maitred.node.request_table import Holder
    from maitred.node.shard_services import PartitionShard
    from maitred.protocol.requests import PartitionRequest
    from maitred.store.interface import Store
    from maitred.surroundings import Surroundings

ANSWER_EARLY_SECONDS: Final = 0.2
"""How long before its caller's deadline an offer is answered with nothing."""

NEAREST: Final = 3
"""Similar names in the error for a queue that does not exist."""

NAMES_COMPARED: Final = 1_000
"""Queues whose names are compared with an unknown one, at some 10 microseconds each."""

HINTS_PER_SECOND: Final = 5.0
"""Rate at which unknown names are compared. Beyond it errors come without a hint."""

HINT_SECONDS: Final = 1.0
"""How long a hint is repeated for the same name: a program that polls a queue until it exists must
not use up the rate of hints."""

HANDED_LOOK_SECONDS: Final = 0.05
"""Interval at which a stopping shard looks whether it has handed over its partitions; a look takes
a microsecond per partition."""

KEEPING_SECONDS: Final = 4.0
"""How long a stopping shard may take to persist results; the supervisor waits longer beyond
`drain_seconds`. SQLite persists some hundred thousand small results in this time."""

Answer = TypeVar("Answer")


class _MissingError(Exception):
    """The partition does not exist, and no request that waits for it may create it."""

    def __init__(self, counts: PartitionCounts | None = None) -> None:
        super().__init__()
        self.counts: Counts | None = None
        if counts is not None:
            self.counts = Counts(counts.read, counts.write, counts.version)


class Partitions(PartitionDriver):
    """The partitions that one shard owns, and the requests that wait until one is loaded."""

    def __init__(self, shard: PartitionShard, store: Store, surroundings: Surroundings) -> None:
        self.shard = shard
        self.store = store
        self.loop = shard.loop
        self.permits = ShardPermits(shard, surroundings)
        self.writer = Writer(shard, store, self)
        self._surroundings = surroundings
        super().__init__(shard, store=store, writer=self.writer, permits=self.permits)
        self.handovers = Handovers(self)
        """Partitions that go to other shards."""
        self.moves: PartitionMoves | None = None
        self.takeovers: Takeovers | None = None
        """Partitions that come from other shards."""
        self.lost_commits: LostCommits | None = None
        """Partitions whose store has lost commits. All three are None without a cluster."""
        if shard.place.member:
            self.moves = PartitionMoves(self)
            self.takeovers = Takeovers(shard, store)
            self.lost_commits = LostCommits(self, self.moves)
        self.loader = Loader(
            shard, store, shard.settings.namespaces, self._refuse_waiting, self.takeovers
        )
        self.reads = StoreReads()
        self._loading: dict[PartitionKey, list[WaitingRequest]] = {}
        self._hints = Limiter(HINTS_PER_SECOND, HINTS_PER_SECOND, self.loop.time())
        self._hinted: dict[tuple[str, str], tuple[float, str | None]] = {}
        """Hints, with the time until which they are repeated, by namespace and queue."""
        self.stored = StoredQuotas(shard, store)
        self._memory = TaskMemory(shard.limits.waiting_bytes)
        self.meters = QueueMeters(self._queues_here)
        """Counts for operators, by queue."""
        self.histories = TaskHistories(shard.limits.history_bytes)
        """Tasks that ended lately, for operators."""
        self.stored_histories = StoredHistories(self, self.histories.memory)
        self.signing_key = b""
        """The store's signing key; empty until `load_signing_key` has read it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.owned)} loaded, {len(self._loading)} loading>"

    def statistics(self) -> dict[str, int]:
        """Return the number of partitions that are loaded and being loaded, of the requests that
        wait for them, and of the groups that were loaded from the store."""
        return {
            "loaded": len(self.owned),
            "loading": len(self._loading),
            "waiting_requests": sum(map(len, self._loading.values())),
            "loads": self.loader.loads,
            "handed_over": self.handovers.handed_over,
            "taken_over": 0 if self.takeovers is None else self.takeovers.pulled,
        }

    def _queues_here(self) -> set[tuple[str, str]]:
        return {(key.namespace, key.queue) for key in self.owned}

    def left_to_hand_over(self) -> int:
        """Count the partitions that this shard has and another one owns."""
        return 0 if self.moves is None else self.moves.left()

    async def handed_over_by(self, deadline: float) -> None:
        """Wait until this shard has no partition that another one owns, or until the deadline: a
        node that stops has left the ring before."""
        while self.left_to_hand_over():
            if self.loop.time() >= deadline:
                return
            await asyncio.sleep(HANDED_LOOK_SECONDS)

    def begin(self) -> None:
        """Write in the background, and follow the view of the cluster, from now on."""
        self.writer.begin()
        if self.moves is not None:
            self.moves.begin()
        if self.lost_commits is not None:
            self.lost_commits.begin()

    def stood_still(self, seconds: float) -> None:
        """Extend the leases of attempts by the time for which the shard heard no heartbeat."""
        self.shard.log.warning("the shard stood still", seconds=round(seconds, 1))
        for owned in self.owned.values():
            owned.partition.attempts.stood_still(seconds)

    @property
    def loading(self) -> list[PartitionKey]:
        """The partitions that are being loaded."""
        return list(self._loading)

    def settings_of(self, key: PartitionKey) -> Queue:
        """Return the most specific settings of the queue."""
        return queue_settings(self.shard.settings.queues, key)

    def has(self, key: PartitionKey) -> bool:
        """Whether the partition is loaded, or being loaded."""
        return key in self.owned or key in self._loading

    # Finding

    def holder(
        self,
        serve: Serve,
        *,
        makes: Makes | Callable[[Any], Makes] = Makes.NOTHING,
        absent: Absent | None = None,
        touches: bool = False,
    ) -> Holder:
        """Return a function that serves a request as soon as its partition is loaded.

        A partition that does not exist is created as far as the request `makes` it. Otherwise
        `absent` gives the answer, or the request is refused with `UnknownQueue`. A `serve` that
        `touches` the partition marks it for the end of the loop turn itself.
        """
        kind = RequestKind(serve, makes, absent)

        def hold(message: PartitionRequest, held: DeferredReply) -> None:
            key = PartitionKey(
                message.namespace, message.queue, message.queue_type, message.partition
            )
            owned = self.owned.get(key)
            if owned is None:
                self.load_for(key, WaitingRequest(kind, message, held))
                return
            if owned.leaving:
                held.refuse(moved())
                return
            owned.last_used = self.loop.time()
            serve(owned, message, held)
            if not touches:
                self.touch(owned)

        return hold

    def answerer(
        self,
        answer: Callable[[Owned, Any], Coroutine[Any, Any, Struct]],
        *,
        makes: Makes | Callable[[Any], Makes] = Makes.NOTHING,
    ) -> Holder:
        """Return a holder for requests that a coroutine answers with what it returns."""

        async def reply(owned: Owned, message: PartitionRequest, held: DeferredReply) -> None:
            held.answer(await answer(owned, message))

        def serve(owned: Owned, message: PartitionRequest, held: DeferredReply) -> None:
            self.answering(held, reply(owned, message, held))

        return self.holder(serve, makes=makes)

    def load_for(self, key: PartitionKey, request: WaitingRequest) -> None:
        """Load the partition, and then serve the request."""
        if self.loader.silent is not None:
            request.held.refuse(self.loader.silent)
            return
        waiting = self._loading.get(key)
        if waiting is not None:
            waiting.append(request)
            return
        if self.moves is not None and not self.shard.trusted():
            request.held.refuse(not_trusted())  # it must not be taken from a later owner
            return
        self._loading[key] = [request]
        self.shard.spawn(self._load(key))

    def _refuse_waiting(self, problem: MaitredError) -> None:
        """Refuse the requests that wait for partitions: the store does not answer. The loads
        continue, for requests that come later."""
        for waiting in self._loading.values():
            refused = list(waiting)
            waiting.clear()
            for one in refused:
                one.held.refuse(problem)

    async def _load(self, key: PartitionKey) -> None:
        problem: MaitredError | _MissingError
        owned: Owned | None = None
        waiting = self._loading[key]
        makes = Makes.NOTHING
        trust = None if self.moves is None else self.moves.trust()
        try:
            acquired = await self.loader.find(key)
            if acquired is None:
                # Requests that came meanwhile count as well.
                makes = max((one.makes for one in waiting), default=Makes.NOTHING)
                acquired = await self._made(key, makes, waiting)
            owned = await self._owned(key, acquired, trust)
        except (MaitredError, _MissingError) as refused:
            # The traceback's frames refer to the error: a cycle, which would keep the requests.
            problem = refused.with_traceback(None)
        except Exception as failure:
            self.shard.log.exception(
                "partition not loaded", queue=key.queue, partition=key.partition
            )
            problem = Unavailable(f"The partition could not be loaded: {failure}.")
        finally:
            del self._loading[key]
        if owned is None:
            self._not_loaded(key, problem, makes, waiting)
            return
        self.owned[key] = owned
        if self.takeovers is not None:
            self.takeovers.loaded(key)
        if self.lost_commits is not None:
            self.lost_commits.loaded(key)
        for one in waiting:
            self._serve_waiting(owned, one)
        self.touch(owned)
        if self.moves is not None:
            self.moves.look_at(owned)  # the view may have changed meanwhile

    async def _made(
        self, key: PartitionKey, makes: Makes, waiting: list[WaitingRequest]
    ) -> Acquired:
        """Create a partition that does not exist, if a waiting request may; raise why not.

        A queue begins with its root. The root's counts say which other partitions exist, so no
        caller creates one by naming a number.
        """
        if makes is Makes.NOTHING or (makes is Makes.PARTITIONS and not key.partition):
            raise _MissingError
        user = next((_user(one.message) for one in waiting if one.makes is makes), "")
        if key.partition:
            counts, _ = await self._ask_root(key, makes=makes is Makes.QUEUES, user=user)
            if not counts.readable(key.partition):
                raise _MissingError(counts)
        return await self.loader.make(key, user)

    def _not_loaded(
        self,
        key: PartitionKey,
        problem: MaitredError | _MissingError,
        makes: Makes,
        waiting: list[WaitingRequest],
    ) -> None:
        for one in waiting:
            if one.kind.otherwise is not None:
                one.held.answer(one.kind.otherwise)
            elif isinstance(problem, MaitredError):
                one.held.refuse(problem)
        if isinstance(problem, MaitredError):
            return
        unknown = []
        for one in waiting:
            if one.kind.otherwise is not None:
                continue
            if one.makes > makes:  # it came after that decision
                self.shard.holders[one.message.opcode](one.message, one.held)
                continue
            absent = one.kind.absent
            answer = absent(one.message, problem.counts) if absent is not None else None
            if answer is None:
                unknown.append(one.held)
            else:
                one.held.answer(answer)
        if unknown:
            self.shard.spawn(self._refuse_unknown(key, unknown))

    async def _refuse_unknown(self, key: PartitionKey, unknown: list[DeferredReply]) -> None:
        problem = await self._unknown(key)
        for held in unknown:
            held.refuse(problem)

    async def _unknown(self, key: PartitionKey) -> UnknownQueue:
        """Return the error, with the most similar names of the namespace: most unknown names are
        typing errors. Comparing names takes the loop's time, so its rate and the names are
        limited."""
        which = f"Partition {key.partition} of the queue" if key.partition else "The queue"
        problem = UnknownQueue(f"{which} {key.namespace}/{key.queue} does not exist.")
        now = self.loop.time()
        name = (key.namespace, key.queue)
        until, problem.remedy = self._hinted.get(name, (0.0, None))
        if now < until or not self._hints.allows(now):
            return problem
        self._hints.count()
        try:
            known = await self.store.queues(key.namespace, NAMES_COMPARED)
        except MaitredError:
            return problem
        problem.remedy = _hint(key.queue, known)
        self._hinted = {one: hint for one, hint in self._hinted.items() if hint[0] > now}
        self._hinted[name] = (now + HINT_SECONDS, problem.remedy)
        return problem

    def _serve_waiting(self, owned: Owned, request: WaitingRequest) -> None:
        has_left = not request.held.wanted
        with request.held.refused_on_error(self.shard.log):
            request.kind.serve(owned, request.message, request.held)
        if has_left:  # an offer, for example, must not be given anything
            request.held.on_stop()

    async def _owned(
        self, key: PartitionKey, acquired: Acquired, trust: PartitionTrust | None
    ) -> Owned:
        if self.shard.draining:
            raise Draining("The node is stopping.")
        settings = self.settings_of(key)
        inheritance = restored = None
        if self.takeovers is not None:
            inheritance = self.takeovers.inherited(key, acquired)
        if self.lost_commits is not None:
            restored = await self.lost_commits.restorable(key, acquired)
            if restored is not None:
                inheritance = restored.kept.inheritance
        signing_key = await self.load_signing_key()
        await self.stored.known()
        if key.partition == 0:
            counts = acquired.counts or await self._first_counts(key, acquired, settings.partitions)
            controls = decode_controls(acquired.controls, acquired.range_id)
        else:
            counts, controls = await self._ask_root(key, makes=True)
        if self.shard.draining:  # the drain began meanwhile, and refused the waiting requests
            raise Draining("The node is stopping.")
        now = self.loop.time()
        wall = self._surroundings.wall_clock() - now
        around = self._surroundings
        partition = Partition(
            key,
            acquired,
            counts,
            settings,
            random=around.random,
            loaded_at=now,
            wall=wall,
            secret=around.secret,
            signing_key=signing_key,
            quotas=self.stored.of(key, settings),
            memory=self._memory,
            supplies=self.supplies,
            meter=self.meters.of((key.namespace, key.queue)),
            is_trusted=trust or always,
            is_clustered=self.moves is not None,
            inheritance=inheritance,
            controls=controls,
            ended_tasks=self.histories.of(key),
        )
        if restored is not None and self.lost_commits is not None:
            self.lost_commits.restore(key, acquired, restored, partition)
        self.shard.log.debug(
            "partition loaded", queue=key.queue, partition=key.partition, backlog=acquired.backlog
        )
        return Owned(partition, now, trust)

    async def load_signing_key(self) -> bytes:
        """Return the store's key, with which partitions sign attempts and reservations."""
        if not self.signing_key:
            self.signing_key = await self.store.signing_key()
        return self.signing_key

    async def _first_counts(
        self, key: PartitionKey, acquired: Acquired, partitions: int
    ) -> PartitionCounts:
        """Return the counts of a queue whose counts were never changed. Callers assume one
        partition. More are persisted before the first answer: if the settings named fewer at the
        next start, the tasks of the others would not be found.

        The version is above those of a deleted queue of this name, since the range id is: callers
        with the old counts take these over.
        """
        if partitions == 1:
            return PartitionCounts(version=acquired.range_id - 1)
        counts = PartitionCounts(partitions, partitions, acquired.range_id)
        changes = Changes(key, acquired.range_id, acquired.backlog, counts=counts)
        if await self.store.commit([changes]):
            raise NotOwner("Another shard owns this partition now.")
        return counts

    async def _ask_root(
        self, key: PartitionKey, *, makes: bool, user: str = ""
    ) -> tuple[PartitionCounts, QueueControls]:
        """Ask the root for the counts and the controls; it is created if `makes` and if quotas
        allow it."""
        ours = Counts(1, 1, 0)
        root = Sync(key.namespace, key.queue, key.queue_type, 0, 0, ours, makes, user)
        try:
            answer = await self.question(root)
        except UnknownQueue:
            raise _MissingError from None
        if not isinstance(answer, Synced):
            raise InternalError("The root did not answer with its counts.")
        told = answer.counts or ours
        counts = PartitionCounts(told.read, told.write, told.version)
        return counts, answer.controls or NO_CONTROLS

    async def question(
        self,
        message: Any,  # noqa: ANN401 - a request
        seconds: float = ASK_SECONDS,
        owner: int | None = None,
    ) -> Struct:
        """Send a request to the owner of a partition, or to the shard with this owner number, and
        wait for the answer."""
        future: asyncio.Future[Struct] = self.loop.create_future()

        asked = self.shard.ask(
            message, seconds, lambda outcome: settle(future, outcome), owner=owner
        )
        try:
            return await asyncio.wait_for(future, seconds + 1)
        except DeadlineExceeded:
            raise
        except TimeoutError:  # a request of the shard to itself has no deadline of its own
            raise DeadlineExceeded("The owner of the partition did not answer in time.") from None
        finally:
            if not future.done() or future.cancelled():
                asked.give_up()

    def answering(self, held: DeferredReply, answer: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that answers the request; refuse the request if the coroutine raises."""
        task = self.shard.spawn(self._answered(held, answer))
        task.add_done_callback(lambda _: answer.close())  # the shard may close before it begins

    async def _answered(self, held: DeferredReply, answer: Coroutine[Any, Any, None]) -> None:
        with held.refused_on_error(self.shard.log):
            await answer

    @asynccontextmanager
    async def written(self, owned: Owned) -> AsyncIterator[Ticket]:
        """Yield a ticket, and wait after the block until the changes of the ticket are persisted;
        raise the store's error, or `NotOwner` if the shard let the partition go."""
        future: asyncio.Future[None] = self.loop.create_future()
        ticket = Ticket(lambda _, problem: settle(future, problem), 1)
        yield ticket
        self.check(owned)
        owned.partition.tickets.release(ticket)
        self.touch(owned)
        await future

    def drive(self, owned: Owned) -> None:
        """Do now what the partition would do at the end of the turn."""
        try:
            self._drive(owned, self.loop.time())
        except Exception as fault:  # noqa: BLE001 - the partition is loaded again
            self.failed(owned, fault)

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        owned = self.owned.get(key)
        if owned is not None and self.lost_commits is not None:
            self.lost_commits.keep(owned)
        super().lost(key, problem)

    async def let_go(self, owned: Owned) -> None:
        """Persist everything and let the partition go: the next owner need not wait for leases."""
        await self.writer.commit([owned], anything=True, clean=True)
        if self.owned.get(owned.key) is owned and owned.partition.idle:
            del self.owned[owned.key]
            self._let_go(owned, NotOwner("The partition was let go."))

    def stop_waiting(self) -> None:
        """Refuse all requests that wait for work, news or results: the shard stops."""
        for owned in self.owned.values():
            owned.partition.stop_waiting()
            for token in owned.partition.results.tokens():
                token.refuse(Draining("The node is stopping.", remedy="Ask again later."))
            self.touch(owned)
        for supply in list(self.supplies.sets.values()):
            for offer in list(supply.offers):
                if not offer.parts and not offer.gifts:
                    self.answer_shared(offer)

    async def leave(self) -> None:
        """Persist what is not persisted yet, and let all partitions go."""
        for owned in list(self.owned.values()):
            self._drive(owned, self.loop.time())
        self._answer_shared_offers(self.loop.time())
        await self.writer.finish()
        await self._keep_results()
        for owned in list(self.owned.values()):
            self._let_go(owned, Draining("The node is stopping."))
        self.owned = {}

    async def _keep_results(self) -> None:
        """Persist results that are only in memory, so that the next owners can answer with them."""
        deadline = self.loop.time() + KEEPING_SECONDS
        while self.loop.time() < deadline and (portion := self._results_portion()):
            await self.writer.commit(portion, anything=True, clean=True)
            if any(owned.partition.health.problem for owned in portion):
                break
        now = self.loop.time()
        lost = sum(owned.partition.results.unwritten(now) for owned in self.owned.values())
        if lost:
            self.shard.log.warning("results not kept", results=lost)

    def _results_portion(self) -> list[Owned]:
        """Add some results to the next commit, and return their partitions."""
        now = self.loop.time()
        room, portion = KEPT_AT_ONCE, []
        for owned in self.owned.values():
            taken = owned.partition.results.keep_in_store(now, room, KEPT_BYTES)
            if taken:
                portion.append(owned)
                room -= taken
            if not room:
                break
        return portion

    def wall_clock(self) -> float:
        return self._surroundings.wall_clock()


def check_root(owned: Owned) -> None:
    """Raise `InvalidArgument` unless the partition is the root of its queue."""
    if owned.key.partition:
        raise InvalidArgument("Only the root of the queue, partition 0, answers this request.")


def _user(message: Any) -> str:  # noqa: ANN401 - a request
    """Return the user for whom a request would create a queue."""
    return getattr(message, "user", "")


def settle(future: asyncio.Future[Answer], outcome: Answer | MaitredError) -> None:
    """Give the future its answer, or the error instead; without effect if the future is done.

    The error counts as retrieved, so that the loop does not report it: the caller may have met
    another error before, or may have been cancelled in this very turn of the loop.
    """
    if future.done():
        return
    if isinstance(outcome, MaitredError):
        future.set_exception(outcome)
        future.exception()
    else:
        future.set_result(outcome)


def queue_settings(queues: dict[str, Queue], key: PartitionKey) -> Queue:
    """Return the settings for `namespace/queue`, else `namespace/*`, else `*`, else defaults."""
    for name in (f"{key.namespace}/{key.queue}", f"{key.namespace}/*", "*"):
        if name in queues:
            return queues[name]
    return Queue()


def _hint(queue: str, known: list[str]) -> str | None:
    """Say which queue of the namespace may be meant."""
    near = get_close_matches(queue, known, n=NEAREST, cutoff=0.5)
    if queue in known:
        return "The queue has others."
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    if known:
        return f"The namespace has other queues, among them {', '.join(known[:NEAREST])}."
    return None
