"""Reads the rows of single tasks that partitions look up: tasks that are not in memory.

The partition decides what the rows mean (`matching/stored_tasks.py`), and does not rely on the
order of the reads. They begin with the segments, since most tasks that are looked up are waiting
in one, and end with the first row that answers the request.

A segment may be large, and ten thousand callers may ask for its tasks at once. So segments are read
for one caller at a time, and commits do not wait behind reads; the next callers use the segments
that were read last. Namespaces take turns, so that none waits for the ten thousand callers of
another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import InternalError, MaitredError
from maitred.matching.effects import LookUp
from maitred.matching.task_searches import StoredRows
from maitred.node.namespace_turns import NamespaceTurns

if TYPE_CHECKING:
    from maitred.matching.task_searches import TaskSearch
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.store.interface import SegmentRead

SEGMENTS_KEPT_SECONDS: Final = 1.0
"""How long the segments that were read last are kept for the next look-up."""


class TaskLookups:
    """Carries out the effect `LookUp` for the partitions of a shard."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._store = partitions.store
        self._read = partitions.reads.answer
        self._turns = NamespaceTurns()
        self._kept: tuple[Owned, list[SegmentRead]] | None = None
        """The segments that were read last. Ends since then are known to the partition."""
        partitions.on_effect(LookUp, self._begin)

    def _begin(self, owned: Owned, effect: LookUp) -> None:
        self._shard.spawn(self._look_up(owned, effect.search))

    async def _look_up(self, owned: Owned, search: TaskSearch) -> None:
        outcome: StoredRows | MaitredError
        try:
            outcome = await self._rows(owned, search)
        except MaitredError as problem:
            outcome = problem
        except Exception:
            self._shard.log.exception("task not looked up", queue=owned.key.queue)
            outcome = InternalError("The node failed at this request.", remedy="Its log says more.")
        if self._partitions.owned.get(owned.key) is not owned:
            return  # the callers were answered when the partition was let go
        stored_tasks = owned.partition.stored_tasks
        now = self._loop.time()
        try:
            if isinstance(outcome, MaitredError):
                stored_tasks.not_read(search, outcome, now)
            else:
                stored_tasks.found(search, outcome, now)
        except Exception as fault:  # noqa: BLE001 - the decision may be half carried out
            self._partitions.failed(owned, fault)
        self._partitions.touch(owned)

    async def _rows(self, owned: Owned, search: TaskSearch) -> StoredRows:
        key, sequence = owned.key, search.sequence
        segment = await self._segment(owned, sequence)
        if segment is not None:
            return StoredRows(segment=segment)
        later = await self._read(self._store.later_one(key, sequence))
        if later is not None or not search.wants_end:
            return StoredRows(later=later)
        result = await self._read(self._store.result(key, sequence))
        wall_clock = self._loop.time() + owned.partition.ledger.wall
        if result is not None and result.expires_at <= wall_clock:
            result = None
        dead = None
        if result is None or search.wants_letter:
            dead = await self._read(self._store.dead_one(key, sequence))
        damaged = await self._read(self._store.damaged_around(key, sequence))
        return StoredRows(result=result, dead=dead, damaged=damaged)

    async def _segment(self, owned: Owned, sequence: int) -> SegmentRead | None:
        unread = owned.partition.stored_tasks.unread
        async with self._turns.turn(owned.key.namespace):
            if self._kept is not None and self._kept[0] is owned:
                for kept in self._kept[1]:
                    if unread.record(*kept, sequence) is not None:
                        return kept
            found = await self._read(self._store.segments_around(owned.key, sequence))
            self._kept = just_read = (owned, found)
            self._loop.call_later(SEGMENTS_KEPT_SECONDS, self._forget, just_read)
            return next(
                (read for read in found if unread.record(*read, sequence) is not None), None
            )

    def _forget(self, kept: tuple[Owned, list[SegmentRead]]) -> None:
        if self._kept is kept:
            self._kept = None
