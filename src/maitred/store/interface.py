"""What must last: the one interface behind which the engines stand.

A store is fenced. Whoever wants to write for a partition acquires it, which raises its range id;
every commit names the range id that it believes in, and what has been overtaken writes nothing. Two
owners of one partition can both be running, but they can never both write.

`commit` is a group: the changes of many partitions at once, on disk when it returns. What one
partition changes is written as a whole or not at all. One that was overtaken is left out and
reported, and harms no other. If it raises, nothing of it was written, unless the error says that
nobody knows (`OutcomeUnknown`), or who was written and who was not: partitions in several SQLite
files take several transactions, and the disk can fill up between two of them (`PartlyWritten`;
for those who do not care, that is an `OutcomeUnknown` too).

All methods raise `StoreUnavailable` (or `StoreFull`) if the store cannot do it now and could later.
A row whose body the engine cannot read comes back with an empty body, if its key can be read. The
partition sets it aside (`Changes.damaged`); from that commit on the row is in no answer but that of
`damaged`.

The shapes are those of `maitred.matching.records`; bodies are opaque here. Calls may overlap; what
was acquired and committed before a call began is visible to it. Commits that overlap are done
in any order, so whoever has two for one partition waits for the first.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.errors import MaitredError
    from maitred.matching.records import (
        Acquired,
        Changes,
        Damaged,
        DamagedKind,
        Dead,
        Later,
        PartitionKey,
        Result,
        Segment,
        StoredUse,
    )
    from maitred.routing.counts import PartitionCounts


SIGNING_KEY_BYTES: Final = 32
"""Length of a store's signing key."""


class QueueQuota(NamedTuple):
    """The number of queues that may exist once a new one has been created."""

    namespace: int
    """In the namespace of the new one."""
    total: int
    """In the store."""


NO_QUOTA: Final = QueueQuota(2**63 - 1, 2**63 - 1)


class Acquisition(NamedTuple):
    """A partition that a shard wants to own."""

    key: PartitionKey
    makes: bool = True
    """Whether it is made if it does not exist."""
    quota: QueueQuota = NO_QUOTA
    """Counts for a root: a queue has one root, and its other partitions are not counted."""


class Refusal(Enum):
    """Why a partition was not acquired."""

    UNKNOWN = "it does not exist"
    NAMESPACE_FULL = "its namespace has as many queues as its quota allows"
    STORE_FULL = "the store has as many queues as it may"


class EmptyPartition(NamedTuple):
    """A partition without tasks."""

    key: PartitionKey
    range_id: int
    counts: PartitionCounts | None
    """Counts of the root's row; None: those with which every queue begins."""


class QueueContents(NamedTuple):
    """What the partitions of a queue held, and whether they were deleted with it."""

    deleted: bool
    partitions: int
    tasks: int
    dead: int
    damaged: int = 0
    """Rows that were set aside because they cannot be read."""


class SegmentRead(NamedTuple):
    """A segment, and which of its tasks are finished."""

    segment: Segment
    marks: frozenset[int]


class Document(NamedTuple):
    """A small body that all shards and nodes of a store share, and which version of it this is."""

    version: int
    """1 for the first one; it rises by one with each replacement."""
    body: bytes


class StoreUse(NamedTuple):
    """What fills the store, and how much room is left."""

    queues: dict[tuple[str, str], StoredUse]
    """By namespace and queue, all partitions and types of it together; those with anything."""
    free_bytes: int | None
    """How much more this store can write; None if the engine cannot tell."""


class PartlyWritten(OutcomeUnknown):
    """Some partitions of a group were written before the rest failed."""

    def __init__(
        self,
        problem: MaitredError,
        written: Iterable[PartitionKey],
        overtaken: Iterable[PartitionKey],
    ) -> None:
        super().__init__(
            f"A part of the changes was written; the rest was not: {problem.sentence}",
            remedy=problem.remedy,
        )
        self.problem = problem
        """What all the others met. If this is an `OutcomeUnknown`, nobody knows about those; if it
        is anything else, nothing of them was written."""
        self.written = frozenset(written)
        """Those that are safe."""
        self.overtaken = frozenset(overtaken)
        """Those that were found to be overtaken before it failed."""


class Store(Protocol):
    """One engine, opened."""

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        """Become the owner of partitions: range ids rise, and what is known of each comes back.

        The outcomes stand in the order of the group, which names no partition twice. A partition
        that does not exist is made if the acquisition says so and the quotas allow it. Its range id
        is 1, or above those of all partitions that were ever deleted: sequence numbers of a queue
        that is deleted and made anew never repeat. From the commit of this on each partition counts
        as not clean, until its owner says otherwise. The group is one transaction, or two: one for
        those that exist, one for those that are made.
        """

    async def commit(self, group: Sequence[Changes]) -> Sequence[PartitionKey]:
        """Write them all, durably; returns the keys of those that were overtaken.

        There is at most one `Changes` a partition in a group. What is gone goes before what is new
        comes: a task in `later_gone` and in `later` is there afterwards (`dead` likewise). Segments
        of one priority do not overlap; those of two may, and a mark goes with the last of the
        segments that it lies in.
        """

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        """In order, those with `first` above `after`: as few as have `tasks` tasks or bodies of
        `most_bytes`, or all. However large the first is, it is among them.

        Marks are all those between `first` and `last`; some may be of other priorities' tasks.
        """

    async def segments_around(self, key: PartitionKey, sequence: int) -> list[SegmentRead]:
        """Those with first <= sequence <= last: at most one of each priority can have the task."""

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        """Those due before the moment, the earliest first: `most` of them, or as few as have bodies
        of `most_bytes`, or all. However large the first is, it is among them."""

    async def later_one(self, key: PartitionKey, sequence: int) -> Later | None:
        """That one, whenever it is due."""

    async def dead(self, key: PartitionKey, after: int, most: int) -> list[Dead]:
        """Dead letters with a sequence number above `after`, in their order."""

    async def dead_one(self, key: PartitionKey, sequence: int) -> Dead | None: ...

    async def dead_count(self, key: PartitionKey) -> int: ...

    async def damaged(self, key: PartitionKey, after: tuple[int, str], most: int) -> list[Damaged]:
        """Rows that were set aside, without their bodies, ordered by `first` and kind, from the one
        that follows `after`."""

    async def damaged_one(self, key: PartitionKey, kind: DamagedKind, first: int) -> Damaged | None:
        """One of them with its body, as it was found. One that could not be read then comes with
        the body that can be read now, if any."""

    async def damaged_around(self, key: PartitionKey, sequence: int) -> list[Damaged]:
        """Those with first <= sequence <= last, without their bodies."""

    async def damaged_count(self, key: PartitionKey) -> tuple[int, int]:
        """How many rows were set aside, and how many tasks that are not over are in them."""

    async def result(self, key: PartitionKey, sequence: int) -> Result | None:
        """A result that was kept, expired or not."""

    async def forget_results(self, before: float, most: int) -> int:
        """Delete results that expired before the moment; returns how many, at most `most`."""

    async def partitions(self) -> list[PartitionKey]:
        """All that exist, in order."""

    async def queues(self, namespace: str, most: int) -> list[str]:
        """Names of queues of the namespace, in order: `most` of them, or all. A name that queues of
        several types share is there once."""

    async def queue_count(self, namespace: str) -> int:
        """Return how many queues of the namespace count against its quota: its root partitions."""

    async def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        """Partitions without tasks, in order, from the first that follows `after`: `most`, or
        all."""

    async def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        """Delete partitions, each if its range id is still the one given; return those deleted.

        One that has tasks, dead letters or results stays. So does a root while the store has other
        partitions of its queue that are not deleted with it.
        """

    async def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        """Delete all partitions of the queue of that root, with everything that they hold; return
        what they held.

        Unless forced, nothing is deleted if one of them has tasks, dead letters or damaged rows.
        Owners of the partitions are overtaken by it. It may be repeated if it failed half-way.
        """

    async def children_with_tasks(self) -> list[PartitionKey]:
        """Those that are no roots and have tasks that are not over, in order."""

    async def use(self) -> StoreUse:
        """Return how much each queue has in the store, loaded or not, whoever owns it."""

    async def signing_key(self) -> bytes:
        """Return the 32 random bytes with which owners of partitions sign what they hand out.

        The key is made on first use and stays for as long as the store does. All owners of all
        partitions get the same one, so the next owner of a partition verifies what the last one
        signed. It is secret: it goes to no client, worker or gateway, and into no log.
        """

    async def document(self, name: str, known: int = 0) -> Document | None:
        """Return the document of that name; None if it does not exist or has the version `known`.

        Names are short, of lower-case letters. A document is read and written whole, so it is for
        what changes when a person does something, not for what changes with every task.
        """

    async def replace_document(self, name: str, version: int, body: bytes) -> bool:
        """Write the next version of the document, durably, if `version` is still the present one.

        The version of a document that does not exist is 0. False: another writer was first, and
        nothing was written.
        """

    async def close(self) -> None:
        """Finish what was asked, and let go."""
