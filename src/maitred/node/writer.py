"""Group commit: the changes of all partitions of a shard go to the store together.

One commit is under way at a time, and changes that come up meanwhile are in the next one. So a lone
task is written at once, and under load the groups grow by themselves.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import MaitredError, NotOwner, OutcomeUnknown, StoreUnavailable
from maitred.matching.records import rows_in
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.metrics.histogram import SHORT_BOUNDS, SIZE_BOUNDS, Histogram
from maitred.store.interface import PartlyWritten
from maitred.wire.alarm import Alarm
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.records import Changes, PartitionKey
    from maitred.node.owned import Owned
    from maitred.node.shard_services import ShardRunner
    from maitred.store.interface import Store

RETRY_SECONDS: Final = 0.25
"""Pause after a failed commit. Callers do not wait for it: those that cannot be served meanwhile
are refused at once."""


class WrittenPartitions(Protocol):
    """The partitions that are told the outcome of commits."""

    @property
    def owned(self) -> dict[PartitionKey, Owned]:
        """The partitions that are loaded."""

    def touch(self, owned: Owned) -> None:
        """Drive the partition at the end of the turn: something happened to it."""

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        """Forget the partition: another shard owns it, or what the store has of it is unknown."""

    def failed(self, owned: Owned, fault: Exception) -> None:
        """Log a defect of the code, and forget the partition."""


class Writer:
    """Commits the changes of partitions, and reports the outcome to them."""

    def __init__(self, shard: ShardRunner, store: Store, partitions: WrittenPartitions) -> None:
        self._shard = shard
        self._store = store
        self._partitions = partitions
        self._wanting: dict[Owned, float] = {}
        """When the changes of each partition that has some are due."""
        self._awake = asyncio.Event()
        self._alarm = Alarm(shard.loop, self._rings)
        self._failing = False
        self._silence: SilenceTimer | asyncio.TimerHandle | None = None
        """Rings when the store has not answered the commit under way for `UNSAFE_SECONDS`."""
        self._silent: MaitredError | None = None
        """The error for producers since it rang."""
        self._committing = asyncio.Lock()
        self.commits = self.failed_commits = 0
        """Commits that the store confirmed, and that it refused, did in part or did not answer."""
        self.commit_seconds = Histogram(SHORT_BOUNDS)
        self.commit_rows = Histogram(SIZE_BOUNDS)

    @property
    def is_failing(self) -> bool:
        """Whether the last commit failed, or the one under way is not answered in time."""
        return self._failing or self._silent is not None

    def statistics(self) -> dict[str, int]:
        """Return the number of commits, and of partitions with changes to write."""
        return {"commits": self.commits, "partitions_waiting": len(self._wanting)}

    def begin(self) -> None:
        """Commit in the background from now on."""
        self._shard.spawn(self._run())

    def look_at(self, owned: Owned, now: float) -> None:
        """Commit the partition's changes when they are due, if it has some."""
        partition = owned.partition
        at = partition.ledger.wanted_at(partition.settings.finish_seconds)
        if at == inf:
            self._wanting.pop(owned, None)
            return
        self._wanting[owned] = at
        if at <= now:
            self._awake.set()
        elif at < self._alarm.at:
            self._alarm.by(at)

    def _rings(self, _: float) -> None:
        self._awake.set()

    async def _run(self) -> None:
        loop = self._shard.loop
        while True:
            await self._awake.wait()
            self._awake.clear()
            now = loop.time()
            due = [owned for owned, at in self._wanting.items() if at <= now]
            for owned in due:
                del self._wanting[owned]
            if due:
                await self.commit(due)
            if self._failing:
                await asyncio.sleep(RETRY_SECONDS)
                await self._probe()
            if self._wanting:
                soonest = min(self._wanting.values())
                if soonest <= loop.time():
                    self._awake.set()
                else:
                    self._alarm.by(soonest)

    async def finish(self) -> None:
        """Commit all changes of all partitions for the last time: the shard stops."""
        await self.commit(list(self._partitions.owned.values()), anything=True, clean=True)

    async def _probe(self) -> None:
        """Try the store again with all changes of the partitions that could not write."""
        owned = self._partitions.owned.values()
        failing = [one for one in owned if one.partition.health.problem]
        if failing:
            await self.commit(failing, anything=True)
        else:
            self._failing = False
        if self._failing:
            self._awake.set()

    async def commit(
        self, due: Iterable[Owned], *, anything: bool = False, clean: bool = False
    ) -> None:
        """Write the changes of these partitions, and report the outcome to them: those that are
        due, or with `anything` all. With `clean`, partitions whose tasks no worker can have are
        marked as left in order: their next owners need not wait for workers."""
        async with self._committing:
            loop = self._shard.loop
            self._silence = SilenceTimer(loop, UNSAFE_SECONDS, self._store_is_silent)
            try:
                await self._commit(due, anything=anything, clean=clean)
            finally:
                self._silence.cancel()
                self._silent = None

    def _store_is_silent(self) -> None:
        """Have all partitions refuse tasks that no worker takes at once: no partition can write
        while the commit under way is not answered. Partitions that are loaded meanwhile are told
        by the repetition."""
        loop, partitions = self._shard.loop, self._partitions
        if self._silent is None:
            self._silent = store_silent(UNSAFE_SECONDS)
            self._note(self._silent)
        now = loop.time()
        for owned in list(partitions.owned.values()):
            if owned.partition.health.problem is None:
                try:
                    owned.partition.store_replies.store_silent(self._silent, now)
                except Exception as fault:  # noqa: BLE001 - the others are told all the same
                    partitions.failed(owned, fault)
                partitions.touch(owned)
        self._silence = loop.call_later(RETRY_SECONDS, self._store_is_silent)

    def _store_answers(self) -> None:
        """Let the partitions that had no part in the silent commit take tasks again, too."""
        for owned in self._partitions.owned.values():
            if owned.partition.health.problem is self._silent:
                owned.partition.health.answers()
                self._partitions.touch(owned)

    async def _commit(self, due: Iterable[Owned], *, anything: bool, clean: bool) -> None:
        loop, partitions = self._shard.loop, self._partitions
        now = loop.time()
        batches = []
        for owned in due:
            if partitions.owned.get(owned.key) is not owned:
                continue  # it left in order while this waited for another commit
            try:
                batch = owned.partition.ledger.take(now, anything=anything)
            except Exception as fault:  # noqa: BLE001 - the others are written all the same
                partitions.failed(owned, fault)
                continue
            if batch is not None:
                batch.changes.clean = clean and owned.partition.unattended
                batches.append((owned, batch.changes))
        if not batches:
            return
        problem: MaitredError | None = None
        overtaken: Iterable[PartitionKey] = ()
        written = {owned.key for owned, _ in batches}
        try:
            overtaken = await self._timed_commit([changes for _, changes in batches])
        except PartlyWritten as partly:
            problem = partly.problem
            written = set(partly.written)
            overtaken = partly.overtaken
        except OutcomeUnknown as unknown:
            # The store may have the changes or not, so the partitions are loaded from it again.
            for owned, _ in batches:
                partitions.lost(owned.key, unknown)
            return
        except MaitredError as failure:
            problem = failure
            written = set()
        except Exception:
            # A defect of the store must not end the writer: all callers would wait for ever.
            self._shard.log.exception("commit failed")
            failed = OutcomeUnknown("The store failed; the node's log says more.")
            for owned, _ in batches:
                partitions.lost(owned.key, failed)
            return
        self._note(problem)
        if problem is None and self._silent is not None:
            self._store_answers()
        now = loop.time()
        for owned, _ in batches:
            if partitions.owned.get(owned.key) is not owned:
                continue
            if owned.key in overtaken:
                partitions.lost(owned.key, NotOwner("Another shard owns this partition now."))
                continue
            try:
                if owned.key in written:
                    owned.partition.store_replies.committed(now)
                elif isinstance(problem, OutcomeUnknown):
                    partitions.lost(owned.key, problem)
                elif problem is not None:
                    owned.partition.store_replies.not_committed(problem, now)
            except Exception as fault:  # noqa: BLE001 - likewise
                partitions.failed(owned, fault)
            partitions.touch(owned)

    async def _timed_commit(self, batches: list[Changes]) -> Iterable[PartitionKey]:
        """Have the store write the changes, and count how long it takes."""
        loop = self._shard.loop
        begun = loop.time()
        try:
            overtaken = await self._store.commit(batches)
        except BaseException:
            self.failed_commits += 1
            raise
        self.commits += 1
        self.commit_seconds.add(loop.time() - begun)
        self.commit_rows.add(sum(map(rows_in, batches)))
        return overtaken

    def _note(self, problem: MaitredError | None) -> None:
        if problem is not None and not self._failing:
            self._shard.log.error("store cannot be written; tasks are refused", error=problem)
        elif problem is None and self._failing:
            self._shard.log.info("store can be written again")
        self._failing = problem is not None
        if self._failing:
            self._awake.set()


def store_silent(seconds: float) -> StoreUnavailable:
    """Return the error for a request that cannot be served because the store does not answer."""
    return StoreUnavailable(
        f"The store has not answered for {seconds:g} s.",
        remedy="Try again later; the node goes on by itself when the store answers.",
    )
