"""Loads partitions from the store: in groups, one group at a time, namespaces in turns.

A load is a commit, and the store does one commit after another. If each request for a partition
that is not in memory were a load of its own, a caller that names ten thousand queues would delay
all commits by ten thousand loads. At most one group is being loaded, so another commit waits for
one group only. Requests wait per namespace, and the namespaces take turns, so another namespace
waits for one group as well.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from maitred.errors import (
    MaitredError,
    Overloaded,
    TooManyNewQueues,
    TooManyQueues,
    Unavailable,
)
from maitred.matching.fair_lines import FairLines
from maitred.matching.limits import Limiter
from maitred.node.writer import store_silent
from maitred.settings import Namespace
from maitred.store.interface import Acquisition, QueueQuota, Refusal
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from maitred.matching.records import Acquired, PartitionKey
    from maitred.node.shard_services import PlacedShard
    from maitred.node.takeover import FormerOwner, Takeovers
    from maitred.store.interface import Store

SILENT_SECONDS: Final = 5.0
"""The store counts as unavailable when a load has taken this long. A commit has less time: a load
may have to open a connection first, and a partition is loaded rarely."""

PULLS_AT_ONCE: Final = 64
"""Partitions for which their owners are being asked. Each answer is followed by a load, so more
would only wait for the store."""

GROUP: Final = 32
"""Partitions that are loaded with one commit: one or two milliseconds beyond the disk's time."""

OVERTAKEN_MAX: Final = 3
"""How often a load begins anew because another shard has acquired the partition meanwhile. Shards
with the same view do not compete, so once is usual, and the next view decides soon."""

USERS_KEPT: Final = 10_000
"""Users whose rate of new queues is remembered; the user who made a queue longest ago is forgotten
first."""


Read = TypeVar("Read")


class _Wanted(NamedTuple):
    acquisition: Acquisition
    future: asyncio.Future[Acquired | Refusal]
    overtaken: int = 0
    """How often another shard acquired the partition while this one was about to."""


class Loader:
    """Loads partitions for one shard, and creates queues as far as quotas allow."""

    def __init__(
        self,
        shard: PlacedShard,
        store: Store,
        namespaces: dict[str, Namespace],
        silent: Callable[[MaitredError], None],
        takeovers: Takeovers | None = None,
    ) -> None:
        """`takeovers` asks for partitions that other members of the cluster have."""
        self._shard = shard
        self._store = store
        self._namespaces = namespaces
        self._tell_silent = silent
        """Called when the store has not answered a load for `SILENT_SECONDS`."""
        self.silent: MaitredError | None = None
        """The error for requests that would wait for a load, while the store does not answer."""
        self._loop = shard.loop
        self._lines: FairLines[_Wanted] = FairLines()
        self._runs = False
        self._takeovers = takeovers
        self._pulls = Semaphore(PULLS_AT_ONCE)
        self._pulled: list[_Wanted] = []
        """Partitions that no other shard has any more, as far as it could be asked."""
        self._limiters: OrderedDict[str, Limiter] = OrderedDict()
        self.loads = 0
        """Groups that were loaded."""

    def quota(self, namespace: str) -> int:
        """Return how many queues the namespace may have."""
        namespaces = self._namespaces
        return (namespaces.get(namespace) or namespaces.get("*") or _DEFAULTS).queues

    async def find(self, key: PartitionKey) -> Acquired | None:
        """Acquire the partition if it exists."""
        found = await self._acquire(Acquisition(key, makes=False))
        return None if isinstance(found, Refusal) else found

    async def make(self, key: PartitionKey, user: str) -> Acquired:
        """Acquire the partition, or create it if it does not exist. A new root is a new queue; it
        counts against the user's rate and the quotas; raise `TooManyNewQueues` or
        `TooManyQueues`."""
        if key.partition:
            found = await self._acquire(Acquisition(key))
        else:
            limiter = self._limiter(user)
            self._check_rate(limiter, user)
            limiter.count()
            limits = self._shard.limits
            quota = QueueQuota(self.quota(key.namespace), limits.queues)
            found = await self._acquire(Acquisition(key, quota=quota))
            if isinstance(found, Refusal):
                limiter.give_back()
        if isinstance(found, Refusal):
            raise self._refused(found, key)
        return found

    async def _acquire(self, wanted: Acquisition) -> Acquired | Refusal:
        namespace = wanted.key.namespace
        if self._lines.length(namespace) >= self._shard.limits.loading:
            raise Overloaded(
                f"{self._shard.limits.loading:,} partitions of the namespace {namespace} wait to "
                "be loaded already.",
                remedy="Try later, or use fewer queues at once.",
            )
        future: asyncio.Future[Acquired | Refusal] = self._loop.create_future()
        self._lines.push(namespace, _Wanted(wanted, future))
        self._begin()
        return await future

    def _begin(self) -> None:
        if not self._runs:
            self._runs = True
            self._shard.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._lines or self._pulled:
                group, self._pulled = self._pulled[:GROUP], self._pulled[GROUP:]
                others = [] if len(group) == GROUP else self._lines.take(GROUP - len(group))
                others = [one for one in others if not one.future.done()]
                if others and self._takeovers is not None:
                    others = await self._free(others, self._takeovers)
                group += others
                if group:
                    await self._load(group)
        finally:
            self._runs = False

    async def _free(self, group: list[_Wanted], takeovers: Takeovers) -> list[_Wanted]:
        """Return the partitions that no other shard has; ask the owners of the others for them, and
        load those when they are free."""
        try:
            owners = await self._within_silence(
                takeovers.owners([one.acquisition.key for one in group])
            )
        except MaitredError as problem:
            _fail(group, problem)
            return []
        except Exception as failure:
            self._shard.log.exception("owners of partitions not found")
            _fail(group, Unavailable(f"The partition could not be loaded: {failure}."))
            return []
        free = []
        for one in group:
            owner = owners[one.acquisition.key]
            # Whoever acquires the partition from now on is not asked, so must not be overtaken.
            expected = one.acquisition._replace(range_id=owner.range_id)
            wanted = one._replace(acquisition=expected)
            if not owner.shards:
                free.append(wanted)
            else:
                await self._pulls.acquire()
                self._shard.spawn(self._pull(wanted, owner, takeovers))
        return free

    async def _pull(self, wanted: _Wanted, owner: FormerOwner, takeovers: Takeovers) -> None:
        try:
            await takeovers.pull(wanted.acquisition.key, owner)
        except MaitredError as problem:
            _fail([wanted], problem)
        except BaseException:
            _fail([wanted], Unavailable("The partition could not be taken over."))
            raise
        else:
            self._pulled.append(wanted)
            self._begin()
        finally:
            self._pulls.release()

    async def _within_silence(self, reading: Coroutine[Any, Any, Read]) -> Read:
        """Return what the store answers, and tell those that wait if it does not for a while."""
        silence = SilenceTimer(self._loop, SILENT_SECONDS, self._store_is_silent)
        try:
            return await reading
        finally:
            silence.cancel()
            self.silent = None

    def _still_wanted(self, group: list[_Wanted]) -> list[_Wanted]:
        """Return the partitions that this shard may still acquire, and refuse the others."""
        if self._takeovers is None:
            return group
        wanted = []
        for one in group:
            problem = self._takeovers.refusal(one.acquisition.key)
            if problem is None:
                wanted.append(one)
            else:
                _fail([one], problem)
        return wanted

    async def _load(self, group: list[_Wanted]) -> None:
        group = self._still_wanted(group)
        if not group:
            return
        self.loads += 1
        try:
            found = await self._within_silence(
                self._store.acquire([one.acquisition for one in group])
            )
        except MaitredError as refused:
            _fail(group, refused)
        except Exception as failure:
            self._shard.log.exception("partitions not loaded")
            _fail(group, Unavailable(f"The partition could not be loaded: {failure}."))
        else:
            for one, outcome in zip(group, found, strict=True):
                if outcome is Refusal.OVERTAKEN:
                    self._load_again(one)
                elif not one.future.done():
                    one.future.set_result(outcome)

    def _load_again(self, one: _Wanted) -> None:
        """Ask the shard that has acquired the partition meanwhile, if this one still owns it."""
        if one.overtaken == OVERTAKEN_MAX:
            _fail([one], Unavailable("Other shards acquire the partition.", remedy="Ask again."))
            return
        again = one._replace(overtaken=one.overtaken + 1)
        self._lines.push(one.acquisition.key.namespace, again)

    def _store_is_silent(self) -> None:
        self.silent = store_silent(SILENT_SECONDS)
        self._tell_silent(self.silent)

    # New queues

    def _limiter(self, user: str) -> Limiter:
        """Return the user's limiter; each shard allows its share, since names spread queues evenly
        over shards."""
        limiter = self._limiters.get(user)
        if limiter is None:
            limits, shards = self._shard.limits, self._shard.place.shards
            rate, burst = limits.new_queues_per_second / shards, limits.new_queues / shards
            limiter = self._limiters[user] = Limiter(rate, burst, self._loop.time())
            if len(self._limiters) > USERS_KEPT:
                self._limiters.popitem(last=False)
        self._limiters.move_to_end(user)
        return limiter

    def _check_rate(self, limiter: Limiter, user: str) -> None:
        now = self._loop.time()
        at = limiter.next_at(now)
        if at > now:
            rate = self._shard.limits.new_queues_per_second
            who = f"The user {user!r}" if user else "Callers without a user name"
            raise TooManyNewQueues(
                f"{who} may make {rate:g} new queues a second, and made more.",
                remedy="Use queues that exist, or raise limits.new_queues_per_second.",
                retry_after=round(max(at - now, 0.001), 3),
            )

    def _refused(self, refusal: Refusal, key: PartitionKey) -> MaitredError:
        namespace = key.namespace
        if refusal is Refusal.NAMESPACE_FULL:
            return TooManyQueues(
                f"The namespace {namespace} has {self.quota(namespace):,} queues, as many as "
                f"allowed; {key.queue} would be a new one.",
                remedy="Delete some (`maitred admin queue delete`), or raise "
                f"namespaces.{namespace}.queues. Idle queues are forgotten in time.",
            )
        if refusal is Refusal.STORE_FULL:
            return TooManyQueues(
                f"The store has {self._shard.limits.queues:,} queues, as many as allowed.",
                remedy="Delete some (`maitred admin queue delete`), or raise limits.queues.",
            )
        return Unavailable("The partition could not be made.")


def _fail(group: list[_Wanted], problem: MaitredError) -> None:
    for one in group:
        if not one.future.done():
            one.future.set_exception(problem)


_DEFAULTS: Final = Namespace()
