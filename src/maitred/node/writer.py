"""Group commit: the changes of all partitions of a shard go to the store together.

One commit is under way at a time, and changes that come up meanwhile are in the next one. So a lone
task is written at once, and under load the groups grow by themselves.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.errors import MaitredError, NotOwner, OutcomeUnknown, StoreUnavailable
from maitred.logs import OccasionalWarning
from maitred.matching.records import rows_bytes, rows_in
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.metrics.histogram import SHORT_BOUNDS, SIZE_BOUNDS, Histogram
from maitred.store.interface import PartlyWritten
from maitred.wire.alarm import Alarm
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.matching.records import Changes, PartitionKey
    from maitred.matching.stored_history import HistoryWrite
    from maitred.node.owned import Owned
    from maitred.node.shard_services import ShardRunner
    from maitred.store.interface import Store

RETRY_SECONDS: Final = 0.25
"""Pause after a failed commit. Callers do not wait for it: those that cannot be served meanwhile
are refused at once."""

HISTORY_BYTES: Final = 4 * 2**20
"""Bytes of rows after which a commit of histories takes no further partition, so that the commits
of tasks wait for some tens of milliseconds at most."""


NO_ROOM: Final = "A quota, or the disk, has no room to spare for histories."


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


class CommitOutcome(NamedTuple):
    """What became of a commit."""

    written: Iterable[PartitionKey]
    """The partitions whose changes are on disk."""
    overtaken: Iterable[PartitionKey]
    """The partitions that another shard has acquired, or that the store has lost commits of."""
    problem: MaitredError | None
    """The error of all other partitions."""


class HistoryCommit(NamedTuple):
    """What became of a commit of histories."""

    has_rows: bool
    """Whether there was something to write."""
    is_failed: bool
    idle: list[Owned]
    """The partitions that have nothing that may be written now."""


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
        self.history_tasks = 0
        """Tasks that were written to stored histories."""
        self._history_warning = OccasionalWarning(shard.log, "history not stored")
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
            self._watch_for_silence()
            try:
                if clean:
                    due = list(due)
                    try:
                        await self._write_last_histories(due)
                    except Exception:
                        # A defect of histories must not cost tasks their last commit.
                        self._shard.log.exception("histories not stored")
                await self._commit(due, anything=anything, clean=clean)
            finally:
                self._watch_no_more()

    async def write_histories(self, due: Sequence[Owned]) -> HistoryCommit:
        """Write the histories of these partitions, as much as one commit takes."""
        async with self._committing:
            self._watch_for_silence()
            try:
                return await self._write_histories(due)
            finally:
                self._watch_no_more()

    def _watch_for_silence(self) -> None:
        self._silence = SilenceTimer(self._shard.loop, UNSAFE_SECONDS, self._store_is_silent)

    def _watch_no_more(self) -> None:
        if self._silence is not None:
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
        outcome = await self._outcome([changes for _, changes in batches])
        problem = outcome.problem
        if outcome.written or not isinstance(problem, OutcomeUnknown):
            self._note(problem)
            if problem is None and self._silent is not None:
                self._store_answers()
        now = loop.time()
        for owned, _ in batches:
            if not self._is_left_with(owned, outcome):
                continue
            try:
                if owned.key in outcome.written:
                    owned.partition.store_replies.committed(now)
                elif problem is not None:
                    owned.partition.store_replies.not_committed(problem, now)
            except Exception as fault:  # noqa: BLE001 - likewise
                partitions.failed(owned, fault)
            partitions.touch(owned)

    async def _outcome(self, changes: list[Changes]) -> CommitOutcome:
        """Have the store write the changes, and return what became of them."""
        try:
            overtaken = await self._timed_commit(changes)
        except PartlyWritten as partly:
            return CommitOutcome(partly.written, partly.overtaken, partly.problem)
        except MaitredError as failure:
            return CommitOutcome((), (), failure)
        except Exception:
            # A defect of the store must not end the writer: all callers would wait for ever.
            self._shard.log.exception("commit failed")
            failed = OutcomeUnknown("The store failed; the node's log says more.")
            return CommitOutcome((), (), failed)
        return CommitOutcome({one.key for one in changes}, overtaken, None)

    def _is_left_with(self, owned: Owned, outcome: CommitOutcome, *, reloads: bool = True) -> bool:
        """Return whether the shard still has the partition after a commit. It does not if another
        shard has it, or with `reloads` if the outcome is unknown: the store may have the changes or
        not, so the partition is loaded from it again."""
        partitions = self._partitions
        if partitions.owned.get(owned.key) is not owned:
            return False
        if owned.key in outcome.overtaken:
            partitions.lost(owned.key, NotOwner("Another shard owns this partition now."))
            return False
        problem = outcome.problem
        if reloads and owned.key not in outcome.written and isinstance(problem, OutcomeUnknown):
            partitions.lost(owned.key, problem)
            return False
        return True

    # Histories

    async def _write_last_histories(self, due: Sequence[Owned]) -> None:
        """Write what is left of the histories of partitions that leave, after the ends of their
        tasks. The commit that marks them as left in order comes last."""
        leaving = [owned for owned in due if owned.partition.stored_history.has_unstored]
        if leaving:
            await self._commit(leaving, anything=True, clean=False)
        while leaving:
            commit = await self._write_histories(leaving)
            if commit.is_failed or not commit.has_rows:
                break
            leaving = [owned for owned in leaving if owned.partition.stored_history.has_unstored]

    async def _write_histories(self, due: Iterable[Owned]) -> HistoryCommit:
        """Write histories in a commit of their own, so that no task waits for it or fails with it.
        A failure is logged, and leaves them to a later commit."""
        now = self._shard.loop.time()
        writes: list[tuple[Owned, HistoryWrite]] = []
        idle: list[Owned] = []
        size = 0
        for owned in due:
            if size >= HISTORY_BYTES:
                break
            write = self._next_history(owned, now)
            if write is None:
                idle.append(owned)
            else:
                writes.append((owned, write))
                size += rows_bytes(write.changes.results)
        if not writes:
            return HistoryCommit(has_rows=False, is_failed=False, idle=idle)
        outcome = await self._outcome([write.changes for _, write in writes])
        if outcome.problem is None and self._silent is not None:
            self._note(None)
            self._store_answers()  # else the next commit of tasks finds out
        for owned, write in writes:
            if not self._is_left_with(owned, outcome, reloads=False):
                continue
            history = owned.partition.stored_history
            if owned.key in outcome.written:
                history.stored(write)
                self.history_tasks += len(write.tasks)
            else:
                is_unknown = isinstance(outcome.problem, OutcomeUnknown)
                history.not_stored(write, self._shard.loop.time(), maybe=is_unknown)
        if outcome.problem is not None:
            self._history_warning.say(self._shard.loop.time(), error=outcome.problem)
        return HistoryCommit(has_rows=True, is_failed=outcome.problem is not None, idle=idle)

    def _next_history(self, owned: Owned, now: float) -> HistoryWrite | None:
        """Return what is to be written of a history; None if there is nothing, or not now."""
        if self._partitions.owned.get(owned.key) is not owned:
            return None
        history = owned.partition.stored_history
        if owned.partition.health.problem is not None:
            history.wait(now)
            return None
        write = history.take(now)
        if history.lacks_room:
            self._history_warning.say(
                now,
                namespace=owned.key.namespace,
                queue=owned.key.queue,
                partition=owned.key.partition,
                error=NO_ROOM,
            )
        return write

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
