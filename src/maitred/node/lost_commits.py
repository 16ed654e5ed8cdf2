"""Restores tasks that the database has confirmed and then lost, if their owner still has them.

A failover to a standby that replicates asynchronously undoes the last commits. An owner notices by
the fence of the store: its next commit is refused. On a new timeline the shard also asks the store
about partitions that have nothing to commit, which is a read, since most failovers lose nothing.

A partition whose commits were undone is loaded again from what the store has, as if a next owner
took it over: that is the only state that is whole. Tasks that were acknowledged, that the last
state in memory has, and that the store does not have any more are written again. What the store
alone had is lost; tasks whose ends were undone run again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from maitred.errors import MaitredError, NotOwner
from maitred.matching.controls import encode_controls
from maitred.matching.records import RowDamagedError, decode_records
from maitred.matching.running_attempts import Inheritance
from maitred.membership.table import TIMELINE_VERSIONS
from maitred.node.ownership import (
    LOADED_AT_ONCE,
    RETRY_LONGEST_SECONDS,
    RETRY_SECONDS,
    PartitionMoves,
    load_only,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from msgspec import Struct

    from maitred.matching.partition import Partition
    from maitred.matching.records import Acquired, PartitionKey
    from maitred.matching.task import QueueTask
    from maitred.membership.view import ClusterView
    from maitred.node.owned import Owned
    from maitred.node.shard_services import PartitionShard
    from maitred.store.interface import Store

COMPARED_AT_ONCE: Final = 1_000
"""Partitions whose fences are compared by one read: a few milliseconds."""

READ_TASKS: Final = 1_000
"""Tasks of consecutive segments that one read fetches, to see which are there."""

READ_BYTES: Final = 2**20
"""Bytes of segments after which such a read ends."""


class ReloadedPartitions(Protocol):
    """The partitions of a shard, as `LostCommits` uses them."""

    @property
    def shard(self) -> PartitionShard: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def store(self) -> Store: ...

    @property
    def owned(self) -> dict[PartitionKey, Owned]:
        """The partitions that are loaded."""

    def has(self, key: PartitionKey) -> bool:
        """Whether the partition is loaded, or being loaded."""

    def lost(self, key: PartitionKey, problem: MaitredError) -> None:
        """Forget the partition: another shard owns it, or what the store has of it is unknown."""

    async def question(self, message: Any, seconds: float = ...) -> Struct:  # noqa: ANN401
        """Send a request to the owner of a partition, and wait for the answer."""


@dataclass(slots=True)
class KeptTasks:
    """The last state in memory of a partition that was given up because of its store."""

    last: Partition
    tasks: list[QueueTask]
    """Its tasks that were acknowledged and are not over."""
    inheritance: Inheritance
    """The attempts that ran."""
    is_undone: bool = False
    """Whether the partition was acquired again, and commits were found to be undone."""


class RestoredTasks(NamedTuple):
    """Tasks that the store has lost, and the last state in memory."""

    kept: KeptTasks
    missing: list[QueueTask]
    buried: frozenset[int]
    """Those of which the store has a dead letter again: the retry of the dead letter was undone."""


class LostCommits:
    """Notices, for one shard, that the store has lost commits, and restores what it can."""

    def __init__(self, partitions: ReloadedPartitions, moves: PartitionMoves) -> None:
        self._partitions = partitions
        self._moves = moves
        self._shard = partitions.shard
        self._store = partitions.store
        self._kept: dict[PartitionKey, KeptTasks] = {}
        self._compares = False
        """Whether the store may have lost commits since the fences were last compared."""
        self._awake = asyncio.Event()
        self.restored = 0
        """Tasks that were written again."""

    def __repr__(self) -> str:
        return f"<LostCommits: {len(self._kept)} partitions to load again>"

    def begin(self) -> None:
        """Look for lost commits from now on."""
        self._store.watch(self._may_have_lost)
        self._shard.view_listeners.append(self._view_changes)
        self._shard.spawn(self._run())

    def _view_changes(self, old: ClusterView | None, new: ClusterView) -> None:
        """Compare the fences if the membership table is on a new timeline: this shard may have
        nothing else to ask the store for, and would not notice. The failover may have undone some
        versions, too."""
        if old is not None and new.version - old.version > TIMELINE_VERSIONS / 2:
            self._may_have_lost()

    def _may_have_lost(self) -> None:
        self._compares = True
        self._awake.set()

    # The last state in memory

    def keep(self, owned: Owned) -> None:
        """Keep the tasks of a partition that is given up because a commit was refused, or because
        its outcome is unknown, until it is loaded again."""
        partition = owned.partition
        if not partition.ledger.stored and not partition.controls.version:
            return
        now = self._partitions.loop.time()
        is_complete = not (partition.own_tasks.recovering or partition.tree.tasks_away)
        running = Inheritance(partition.attempts.running(now), is_complete, now)
        self._kept[owned.key] = KeptTasks(partition, partition.acknowledged(), running)
        self._awake.set()

    async def restorable(self, key: PartitionKey, acquired: Acquired) -> RestoredTasks | None:
        """Return the tasks that the store has lost of a partition that was just acquired; None if
        it has lost nothing, or if this shard has nothing of it in memory."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        # It still holds if this shard has to acquire the partition once more.
        kept.is_undone = acquired.undone or (kept.is_undone and acquired.own)
        if not kept.is_undone:
            del self._kept[key]  # it lost nothing, or another owner has had it since
            return None
        missing = await self._missing(key, kept.tasks)
        return RestoredTasks(kept, missing, await self._buried(key, missing))

    async def _missing(self, key: PartitionKey, tasks: Iterable[QueueTask]) -> list[QueueTask]:
        """Return the tasks that the store does not have."""
        missing: list[QueueTask] = []
        present: set[tuple[int, int]] = set()
        read: set[tuple[int, int]] = set()
        for task in sorted(tasks, key=_place):
            if task.segment is None:
                if not await self._has_alone(key, task):
                    missing.append(task)
                continue
            name = task.segment.priority, task.segment.first
            if name not in present and name not in read:
                read.add(name)
                found = await self._store.segments(
                    key, name[0], name[1] - 1, READ_TASKS, READ_BYTES
                )
                present |= {(name[0], one.segment.first) for one in found}
            if name not in present:
                missing.append(task)
        return missing

    async def _has_alone(self, key: PartitionKey, task: QueueTask) -> bool:
        """Return whether the store has a task that had a row of its own: in that row, or in its
        segment, if the commit that moved it was undone."""
        if await self._store.later_one(key, task.sequence) is not None:
            return True
        for segment, marks in await self._store.segments_around(key, task.sequence):
            if task.sequence in marks:
                continue
            try:
                records = decode_records(segment)
            except RowDamagedError:
                return True  # an operator decides about the row
            if any(record.sequence == task.sequence for record in records):
                return True
        return False

    async def _buried(self, key: PartitionKey, missing: Iterable[QueueTask]) -> frozenset[int]:
        """Return the tasks of which the store has a dead letter. A retry has a row of its own."""
        found = set()
        for task in missing:
            if task.segment is None and await self._store.dead_one(key, task.sequence) is not None:
                found.add(task.sequence)
        return frozenset(found)

    def restore(
        self, key: PartitionKey, acquired: Acquired, found: RestoredTasks, new: Partition
    ) -> None:
        """Have the tasks, and the controls of the queue, written again by the partition that was
        loaded in place of the last."""
        now = self._partitions.loop.time()
        last = found.kept.last
        new.store_replies.restore(
            [(last.ledger.record(task), _due(task)) for task in found.missing], found.buried, now
        )
        if last.controls.version > new.controls.version:
            new.set_controls(last.controls, now)
            if not key.partition:
                new.ledger.keep_controls(encode_controls(last.controls), None, now)
        self.restored += len(found.missing)
        self._shard.log.warning(
            "database lost commits of a partition; it was loaded again",
            namespace=key.namespace,
            queue=key.queue,
            partition=key.partition,
            tasks_before=last.ledger.stored,
            tasks_found=acquired.backlog,
            tasks_restored=len(found.missing),
        )

    def loaded(self, key: PartitionKey) -> None:
        """Forget the last state: the partition is loaded."""
        self._kept.pop(key, None)

    # In the background

    async def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            await self._awake.wait()
            self._awake.clear()
            failed = True
            with self._shard.failures_logged("partitions not compared with the store"):
                failed = not await self._look()
            if failed:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_LONGEST_SECONDS)
                self._awake.set()
            else:
                pause = RETRY_SECONDS

    async def _look(self) -> bool:
        """Compare the fences, if need be, and load the partitions that were given up; return False
        if that has to be tried again."""
        loaded = await self._load_kept()
        if not self._compares:
            return loaded
        self._compares = False
        try:
            await self._compare()
        except MaitredError as problem:
            self._compares = True
            self._shard.log.warning("partitions not compared with the store", error=problem)
            return False
        return loaded

    async def _compare(self) -> None:
        owned = self._partitions.owned
        held = list(owned.items())
        undone = 0
        for start in range(0, len(held), COMPARED_AT_ONCE):
            some = dict(held[start : start + COMPARED_AT_ONCE])
            overtaken = await self._store.overtaken(list(some))
            undone += len(overtaken)
            for at in range(0, len(overtaken), LOADED_AT_ONCE):
                for key in overtaken[at : at + LOADED_AT_ONCE]:
                    if owned.get(key) is some[key]:
                        problem = NotOwner("The database does not have the last commits.")
                        self._partitions.lost(key, problem)
                await self._load_kept()
        self._shard.log.info(
            "database failed over; partitions compared with it",
            partitions=len(held),
            overtaken=undone,
        )

    async def _load_kept(self) -> bool:
        keys = list(self._kept)
        loaded: list[bool] = []
        for start in range(0, len(keys), LOADED_AT_ONCE):
            some = keys[start : start + LOADED_AT_ONCE]
            loaded += await asyncio.gather(*(self._load_one(key) for key in some))
        return all(loaded)

    async def _load_one(self, key: PartitionKey) -> bool:
        if not self._moves.is_ours(key):
            self._kept.pop(key, None)  # its owner has what the store has
            return True
        try:
            await self._partitions.question(load_only(key))
        except MaitredError as problem:
            self._shard.log.debug(
                "partition not loaded again",
                queue=key.queue,
                partition=key.partition,
                error=problem,
            )
        return key not in self._kept


def _place(task: QueueTask) -> tuple[int, int]:
    return task.priority, task.sequence


def _due(task: QueueTask) -> float:
    """Return when the task is, or was, due."""
    return max(task.due, task.ready)
