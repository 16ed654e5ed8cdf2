"""The contents of a simulated disk, which outlive every process.

This is the interface of stores in its plainest form, dictionaries, without time and without faults;
`simulation/store.py` adds both. The same tests run on it as on the real engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.records import (
    PRIORITIES,
    ROW_BYTES,
    Acquired,
    StoredHistoryRow,
    StoredUse,
)
from maitred.routing.counts import PartitionCounts
from maitred.store.fences import UNDONE_RANGES, Fence
from maitred.store.interface import (
    SIGNING_KEY_BYTES,
    Document,
    EmptyPartition,
    LastOwner,
    QueueContents,
    Refusal,
    SegmentRead,
    StoreUse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from maitred.matching.records import (
        Changes,
        Damaged,
        DamagedKind,
        Dead,
        Later,
        PartitionKey,
        Result,
        Segment,
    )
    from maitred.store.interface import Acquisition


@dataclass(slots=True)
class _Partition:
    range_id: int = 0
    owner: str = ""
    commits: int = 0
    """The commits of the present owner."""
    timeline: int = 0
    """The disk's timeline when the partition was last acquired."""
    backlog: int = 0
    clean: bool = True
    counts: PartitionCounts | None = None
    segments: list[dict[int, Segment]] = field(
        default_factory=lambda: [{} for _ in range(PRIORITIES)]
    )
    """The segments of each priority, by `first`."""
    marks: set[int] = field(default_factory=set)
    later: dict[int, Later] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    damaged: dict[tuple[int, DamagedKind], Damaged] = field(default_factory=dict)

    def copy(self) -> _Partition:
        """Return a copy that shares nothing but the rows, which never change."""
        return replace(
            self,
            segments=[by_first.copy() for by_first in self.segments],
            marks=self.marks.copy(),
            later=self.later.copy(),
            dead=self.dead.copy(),
            results=self.results.copy(),
            damaged=self.damaged.copy(),
        )

    def write(self, changes: Changes) -> None:
        self.backlog = changes.backlog
        self.clean = changes.clean
        if changes.counts is not None:
            self.counts = changes.counts
        for segment in changes.segments:
            self.segments[segment.priority][segment.first] = segment
        self.marks.update(changes.marks)
        for gone in changes.segments_gone:
            self.segments[gone.priority].pop(gone.first, None)
        for gone in changes.segments_gone:
            for mark in [mark for mark in self.marks if gone.first <= mark <= gone.last]:
                if not self.around(mark):
                    self.marks.discard(mark)
        for sequence in changes.later_gone:
            self.later.pop(sequence, None)
        self.later.update((later.sequence, later) for later in changes.later)
        for sequence in changes.dead_gone:
            self.dead.pop(sequence, None)
        self.dead.update((dead.sequence, dead) for dead in changes.dead)
        self.results.update((result.sequence, result) for result in changes.results)
        for kind, first in changes.damaged_gone:
            self.damaged.pop((first, kind), None)
        for row in changes.damaged:
            self.damaged[row.first, row.kind] = row._replace(size=len(row.body))
            self._remove_unreadable(row)

    def _remove_unreadable(self, row: Damaged) -> None:
        """Delete the row that was set aside: this disk can delete what it cannot read."""
        if row.kind == "segment":
            self.segments[row.priority].pop(row.first, None)
        elif row.kind == "later":
            self.later.pop(row.first, None)
        elif row.kind == "dead":
            self.dead.pop(row.first, None)

    @property
    def holds_anything(self) -> bool:
        rows = (self.later, self.dead, self.results, self.damaged)
        return bool(self.backlog or any(self.segments) or any(rows))

    def around(self, sequence: int) -> list[Segment]:
        return [
            segment
            for by_first in self.segments
            for segment in by_first.values()
            if segment.first <= sequence <= segment.last
        ]

    def use(self) -> StoredUse:
        bodies = [segment.body for by_first in self.segments for segment in by_first.values()]
        for rows in (self.later, self.dead, self.results):
            bodies += [row.body for row in rows.values()]
        size = sum(map(len, bodies)) + ROW_BYTES * len(bodies)
        return StoredUse(self.backlog + len(self.dead), size)

    def read(self, segment: Segment) -> SegmentRead:
        first, last = segment.first, segment.last
        return SegmentRead(segment, frozenset(m for m in self.marks if first <= m <= last))


class Contents:
    """The partitions, the documents and the signing key; every call is one transaction."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._signing_key = b""
        self._documents: dict[str, Document] = {}
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._watermark = 0
        """A number not below any range id, or version of counts, of a deleted partition."""
        self.timeline = 0
        """The number of failovers of the database so far: each begins a new timeline."""

    def copy(self) -> Contents:
        """Return a copy of everything."""
        copied = Contents(self._random)
        copied._signing_key = self._signing_key
        copied._documents = self._documents.copy()
        copied._partitions = {key: one.copy() for key, one in self._partitions.items()}
        copied._watermark = self._watermark
        copied.timeline = self.timeline
        return copied

    def acquire(self, group: Sequence[Acquisition], owner: str = "") -> list[Acquired | Refusal]:
        return [self._acquire(one, owner) for one in group]

    def _acquire(self, wanted: Acquisition, owner: str) -> Acquired | Refusal:
        found = self._partitions.get(wanted.key)
        if found is None:
            refusal = self._refusal(wanted)
        else:
            expected = wanted.range_id
            is_it = expected is None or expected == found.range_id
            refusal = None if is_it else Refusal.OVERTAKEN
        return refusal or self.own(wanted.key, owner)

    def own(self, key: PartitionKey, owner: str = "") -> Acquired:
        """Acquire a partition, created if needed, whatever the quotas say."""
        found = self._partitions.get(key)
        if found is None:
            range_id = self._watermark + UNDONE_RANGES * self.timeline
            found = self._partitions[key] = _Partition(range_id, timeline=self.timeline)
        was_clean, found.clean = found.clean, False
        found.range_id += 1
        if found.timeline != self.timeline:
            undone = UNDONE_RANGES * (self.timeline - found.timeline) - 1
            found.range_id += undone
            if found.counts is not None:
                read, write, version = found.counts.read, found.counts.write, found.counts.version
                found.counts = PartitionCounts(read, write, version + undone)
        found.timeline = self.timeline
        found.owner = owner
        found.commits = 0
        row = found.results.get(CONTROLS_ROW)
        controls = None if row is None else row.body
        return Acquired(found.range_id, found.counts, found.backlog, was_clean, controls=controls)

    def fence(self, key: PartitionKey) -> tuple[Fence, str]:
        """Return the fence of a partition, and its owner. One that does not exist counts as having
        the highest range id of any that was deleted."""
        found = self._partitions.get(key)
        if found is None:
            return Fence(self._watermark, 0), ""
        return Fence(found.range_id, found.commits), found.owner

    def _refusal(self, wanted: Acquisition) -> Refusal | None:
        if not wanted.makes:
            return Refusal.UNKNOWN
        if wanted.key.partition:
            return None
        if self.queue_count(wanted.key.namespace) >= wanted.quota.namespace:
            return Refusal.NAMESPACE_FULL
        if sum(not key.partition for key in self._partitions) >= wanted.quota.total:
            return Refusal.STORE_FULL
        return None

    def owners(self, group: Sequence[PartitionKey]) -> dict[PartitionKey, LastOwner]:
        found = ((key, self._partitions.get(key)) for key in group)
        return {
            key: LastOwner(one.range_id, "" if one.clean else one.owner.split("/")[0])
            for key, one in found
            if one is not None
        }

    def commit(
        self, group: Sequence[Changes], owner: str = "", commits: Sequence[int] = ()
    ) -> list[PartitionKey]:
        """`commits` are those that the owner counts, if it has a name."""
        overtaken = []
        for changes, count in zip_longest(group, commits):
            found = self._partitions.get(changes.key)
            if (
                found is None
                or found.range_id != changes.range_id
                or (owner and (found.owner, found.commits) != (owner, count))
            ):
                overtaken.append(changes.key)
            else:
                found.write(changes)
                found.commits += 1
        return overtaken

    def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        found = self._of(key)
        read = []
        for first, segment in sorted(found.segments[priority].items()):
            if tasks <= 0:
                break
            if first > after:
                read.append(found.read(segment))
                tasks -= segment.tasks
                most_bytes -= len(segment.body)
                if most_bytes <= 0:
                    break
        return read

    def segments_around(self, key: PartitionKey, sequence: int) -> list[SegmentRead]:
        found = self._of(key)
        return [found.read(segment) for segment in found.around(sequence)]

    def later(self, key: PartitionKey, before: float, most: int, most_bytes: int) -> list[Later]:
        due = (later for later in self._of(key).later.values() if later.due < before)
        return _first_later(due, most, most_bytes)

    def later_after(
        self, key: PartitionKey, after: tuple[float, int], most: int, most_bytes: int
    ) -> list[Later]:
        rows = self._of(key).later.values()
        follow = (later for later in rows if (later.due, later.sequence) > after)
        return _first_later(follow, most, most_bytes)

    def later_one(self, key: PartitionKey, sequence: int) -> Later | None:
        return self._of(key).later.get(sequence)

    def dead(self, key: PartitionKey, after: int, most: int, most_bytes: int) -> list[Dead]:
        found = []
        follow = sorted(d for d in self._of(key).dead.values() if d.sequence > after)
        for letter in follow[: max(most, 0)]:
            found.append(letter)
            most_bytes -= len(letter.body)
            if most_bytes <= 0:
                break
        return found

    def dead_one(self, key: PartitionKey, sequence: int) -> Dead | None:
        return self._of(key).dead.get(sequence)

    def later_count(self, key: PartitionKey, most: int) -> int:
        return min(len(self._of(key).later), max(most, 0))

    def dead_count(self, key: PartitionKey) -> int:
        return len(self._of(key).dead)

    def damaged(self, key: PartitionKey, after: tuple[int, str], most: int) -> list[Damaged]:
        rows = sorted(self._of(key).damaged.items())
        found = [row._replace(body=b"") for at, row in rows if at > after]
        return found[: max(most, 0)]

    def damaged_one(self, key: PartitionKey, kind: DamagedKind, first: int) -> Damaged | None:
        return self._of(key).damaged.get((first, kind))

    def damaged_around(self, key: PartitionKey, sequence: int) -> list[Damaged]:
        rows = self._of(key).damaged.values()
        return [row._replace(body=b"") for row in rows if row.first <= sequence <= row.last]

    def damaged_count(self, key: PartitionKey) -> tuple[int, int]:
        rows = self._of(key).damaged.values()
        return len(rows), sum(row.tasks for row in rows)

    def result(self, key: PartitionKey, sequence: int) -> Result | None:
        return self._of(key).results.get(sequence)

    def history(
        self, key: PartitionKey, after: int, most: int, most_bytes: int
    ) -> list[StoredHistoryRow]:
        read: list[StoredHistoryRow] = []
        for number, row in sorted(self._of(key).results.items()):
            if after < number < 0 and len(read) < most:
                read.append(StoredHistoryRow(number, row.body))
                most_bytes -= len(row.body)
                if most_bytes <= 0:
                    break
        return read

    def forget_results(self, before: float, most: int) -> int:
        expired = sorted(
            (result.expires_at, key, sequence)
            for key, partition in self._partitions.items()
            for sequence, result in partition.results.items()
            if result.expires_at < before
        )[: max(most, 0)]
        for _, key, sequence in expired:
            del self._partitions[key].results[sequence]
        return len(expired)

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._partitions)

    def partitions_with_tasks(self) -> list[PartitionKey]:
        return sorted(key for key, partition in self._partitions.items() if partition.backlog)

    def children_with_tasks(self) -> list[PartitionKey]:
        return [key for key in self.partitions_with_tasks() if key.partition]

    def use(self) -> StoreUse:
        """Count the use anew; the real engines keep sums."""
        queues: dict[tuple[str, str], StoredUse] = {}
        dead: dict[tuple[str, str], int] = {}
        for key, partition in self._partitions.items():
            use = partition.use()
            if use.tasks or use.bytes:
                name = key.namespace, key.queue
                queues[name] = queues.get(name, StoredUse()).plus(use)
            if partition.dead:
                name = key.namespace, key.queue
                dead[name] = dead.get(name, 0) + len(partition.dead)
        return StoreUse(queues, None, dead)

    def queues(self, namespace: str, most: int) -> list[str]:
        names = {key.queue for key in self._partitions if key.namespace == namespace}
        return sorted(names)[: max(most, 0)]

    def queue_count(self, namespace: str) -> int:
        return sum(key.namespace == namespace and not key.partition for key in self._partitions)

    def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        held = self._partitions
        empty = sorted(
            key for key, one in held.items() if not one.backlog and (after is None or key > after)
        )
        return [
            EmptyPartition(key, held[key].range_id, held[key].counts)
            for key in empty[: max(most, 0)]
        ]

    def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        held = [key for key, range_id in group if self._of(key).range_id == range_id]
        gone = {key for key in held if not self._of(key).holds_anything}
        gone -= {
            key
            for key in gone
            if not key.partition
            and any(other[:3] == key[:3] and other not in gone for other in self._partitions)
        }
        self._delete(gone)
        return sorted(gone)

    def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        found = {other: self._of(other) for other in self._partitions if other[:3] == key[:3]}
        tasks = sum(one.backlog for one in found.values())
        dead = sum(len(one.dead) for one in found.values())
        damaged = sum(len(one.damaged) for one in found.values())
        deleted = force or not (tasks or dead or damaged)
        if deleted:
            self._delete(found)
        return QueueContents(deleted, len(found), tasks, dead, damaged)

    def _delete(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            gone = self._partitions.pop(key)
            version = gone.counts.version + 1 if gone.counts is not None else 0
            self._watermark = max(self._watermark, gone.range_id, version)

    def signing_key(self) -> bytes:
        """Return the signing key, which is created on first use from the seed."""
        if not self._signing_key:
            self._signing_key = self._random.randbytes(SIGNING_KEY_BYTES)
        return self._signing_key

    def document(self, name: str, known: int = 0) -> Document | None:
        found = self._documents.get(name)
        return None if found is None or found.version == known else found

    def replace_document(self, name: str, version: int, body: bytes) -> bool:
        found = self._documents.get(name)
        if version != (found.version if found is not None else 0):
            return False
        self._documents[name] = Document(version + 1, body)
        return True

    def all(self) -> dict[PartitionKey, _Partition]:
        """Return all partitions, for checks from outside."""
        return self._partitions

    def _of(self, key: PartitionKey) -> _Partition:
        return self._partitions.get(key) or _Partition()


def _first_later(rows: Iterable[Later], most: int, most_bytes: int) -> list[Later]:
    """Return the earliest tasks: `most` of them, or as few as have bodies of `most_bytes`."""
    read = []
    for later in sorted(rows, key=lambda later: (later.due, later.sequence))[: max(most, 0)]:
        read.append(later)
        most_bytes -= len(later.body)
        if most_bytes <= 0:
            break
    return read
