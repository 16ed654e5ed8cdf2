"""The interface of every storage engine.

A store is fenced. A shard that wants to write for a partition acquires it, which raises its range
id; every commit names the range id of its owner, and an owner that was overtaken writes nothing.
Two owners of one partition can both be running, but they can never both write.

A store that several nodes share is opened with the name of its owner, one per start of a shard.
Then commits are conditional on the name too: a database that fails over to a standby without the
latest commits may give one range id to two owners, and only the one that acquired last may write.
Such a failover can also undo commits of an owner that stays the owner. Then that owner is overtaken
too: its next commit writes nothing, and acquiring the partition again tells it why.

`commit` takes a group: the changes of many partitions at once, on disk when it returns. The changes
of one partition are written as a whole or not at all. A partition that was overtaken is left out
and reported, and affects no other. If `commit` raises, nothing was written, unless the error says
that the outcome is unknown (`OutcomeUnknown`), or which partitions were written: partitions in
several SQLite files take several transactions, and the disk can fill up between two of them
(`PartlyWritten`, which is an `OutcomeUnknown` too, for callers that need not distinguish).

All methods raise `StoreUnavailable` (or `StoreFull`) if the store fails now but may succeed later.
An engine with a server raises it, or `OutcomeUnknown` for a commit, when the server has not
answered a statement for `COMMAND_SECONDS`. The shards of a cluster rely on this limit: each has one
commit and one load in progress at a time, and after a lapse of its lease one comparison of its
partitions.

A row whose body the engine cannot read comes back with an empty body, if its key can be read. The
partition sets it aside (`Changes.damaged`); from that commit on the row is in no answer but that of
`damaged`.

The records are those of `maitred.matching.records`; bodies are opaque here. Calls may overlap; what
was acquired and committed before a call began is visible to it. Overlapping commits are done in any
order, so a caller with two commits for one partition waits for the first.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from maitred.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        StoredHistoryRow,
        StoredUse,
    )
    from maitred.routing.counts import PartitionCounts


SIGNING_KEY_BYTES: Final = 32
"""The length of a store's signing key in bytes."""

COMMAND_SECONDS: Final = 10.0
"""How long an engine with a server waits for the answer to one statement. The server itself gives
up a little earlier, so that it is known that nothing was done."""


class QueueQuota(NamedTuple):
    """The most queues that may exist, counting the one to be created."""

    namespace: int
    """The most queues in the namespace of the new queue."""
    total: int
    """The most queues in the whole store."""


NO_QUOTA: Final = QueueQuota(2**63 - 1, 2**63 - 1)


class Acquisition(NamedTuple):
    """A partition that a shard wants to own."""

    key: PartitionKey
    makes: bool = True
    """Whether to create the partition if it does not exist."""
    quota: QueueQuota = NO_QUOTA
    """The quota, checked only for a root: a queue has one root, and counts once."""
    range_id: int | None = None
    """The range id that the partition must have, 0 if it must not exist: then no other shard has
    acquired it since `Store.owners` was asked. None acquires it from any owner. A store that only
    one node uses does not check this."""


class Refusal(Enum):
    """Why a partition was not acquired."""

    UNKNOWN = "it does not exist"
    NAMESPACE_FULL = "its namespace has as many queues as its quota allows"
    STORE_FULL = "the store has as many queues as it may"
    OVERTAKEN = "another shard has acquired it meanwhile"


class LastOwner(NamedTuple):
    """The shard that acquired a partition last."""

    range_id: int
    """The partition's range id."""
    member: str
    """The id of the shard's member of the cluster; empty if it left the partition in order, or if
    its store was opened without the name of an owner."""


class EmptyPartition(NamedTuple):
    """A partition without tasks."""

    key: PartitionKey
    range_id: int
    counts: PartitionCounts | None
    """The partition counts in the root's row; None means the counts of a new queue."""


class QueueContents(NamedTuple):
    """How much the partitions of a queue held, and whether they were deleted."""

    deleted: bool
    partitions: int
    tasks: int
    dead: int
    damaged: int = 0
    """How many rows were set aside because they cannot be read."""


class SegmentRead(NamedTuple):
    """A segment, and which of its tasks are finished."""

    segment: Segment
    marks: frozenset[int]


class Document(NamedTuple):
    """A small body that all shards and nodes of a store share, and its version."""

    version: int
    """The version: 1 for the first body, and one more with each replacement."""
    body: bytes


class StoreUse(NamedTuple):
    """How much each queue has in the store, and how much room is left."""

    queues: dict[tuple[str, str], StoredUse]
    """Maps (namespace, queue) to the use of all its partitions and types; empty ones are absent."""
    free_bytes: int | None
    """How many more bytes this store can write; None if the engine cannot tell."""
    dead: dict[tuple[str, str], int]
    """How many of these tasks are dead letters; queues without any are absent."""


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
        """The error of all other partitions. If it is an `OutcomeUnknown`, it is not known whether
        those were written; otherwise nothing of them was written."""
        self.written = frozenset(written)
        """The partitions whose changes are on disk."""
        self.overtaken = frozenset(overtaken)
        """The partitions that were found to be overtaken before the failure."""


class StoreLog(Protocol):
    """The methods of a logger that the stores use."""

    def info(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401
    def warning(self, event: str, **fields: Any) -> object: ...  # noqa: ANN401


class Store(Protocol):
    """An open store of any engine."""

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        """Become the owner of partitions: raise their range ids, and return what is stored of each.

        The outcomes are in the order of the group, which names no partition twice. A partition that
        does not exist is created if the acquisition says so and the quotas allow it. Its range id
        is 1, or above those of all partitions that were ever deleted: sequence numbers of a queue
        that is deleted and created again never repeat. From then on each partition counts as not
        clean, until its owner commits that it is. The group is one transaction, or two: one for the
        partitions that exist, one for those that are created.

        An acquisition may travel for seconds, and arrive when another shard has owned the partition
        for a while. One that names the range id it expects is then refused as `OVERTAKEN`.
        """

    async def owners(self, group: Sequence[PartitionKey]) -> dict[PartitionKey, LastOwner]:
        """Return which shards acquired the partitions last, for those that exist: the member is the
        part before "/" of the owner. A store that only one node uses returns nothing."""

    async def overtaken(self, group: Sequence[PartitionKey]) -> list[PartitionKey]:
        """Return the partitions that this store acquired and for which a commit would be refused
        now: another owner has acquired them, or the store has lost commits that it had confirmed.
        A store that only one node uses returns nothing."""

    def watch(self, may_have_lost: Callable[[], None]) -> None:
        """Call `may_have_lost` from now on whenever the database is found to be served by another
        server, or to be restored, so that it may have lost commits. It must return at once."""

    async def commit(self, group: Sequence[Changes]) -> Sequence[PartitionKey]:
        """Write all changes durably; return the keys of the partitions that were overtaken.

        A group has at most one `Changes` per partition. Deletions happen before insertions: a task
        in `later_gone` and in `later` exists afterwards (`dead` likewise). Segments of one priority
        do not overlap; those of two may, and a mark is deleted with the last segment that it lies
        in.
        """

    async def segments(
        self, key: PartitionKey, /, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        """Return segments with `first` above `after`, in order: as few as have `tasks` tasks or
        bodies of `most_bytes`, or all. However large the first is, it is among them.

        The marks are all those between `first` and `last`; some may be of tasks of other
        priorities.
        """

    async def segments_around(self, key: PartitionKey, /, sequence: int) -> list[SegmentRead]:
        """Return segments with first <= sequence <= last, at most one of each priority."""

    async def later(
        self, key: PartitionKey, /, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        """Return tasks due before the unix time `before`, the earliest first: `most` of them, or as
        few as have bodies of `most_bytes`, or all. However large the first is, it is among them."""

    async def later_after(
        self, key: PartitionKey, /, after: tuple[float, int], most: int, most_bytes: int
    ) -> list[Later]:
        """Return tasks that follow `after`, a unix time and a sequence number, ordered by due time
        and sequence number: `most` of them, or as few as have bodies of `most_bytes`, or all.
        However large the first is, it is among them. The due time of each is exact, also of a row
        whose body cannot be read, so a caller goes on after the last one that it got."""

    async def later_one(self, key: PartitionKey, /, sequence: int) -> Later | None:
        """Return that task, whenever it is due; None if it is not stored."""

    async def later_count(self, key: PartitionKey, /, most: int) -> int:
        """Return how many tasks `later` has, whenever they are due; count no further than
        `most`."""

    async def dead(
        self, key: PartitionKey, /, after: int, most: int, most_bytes: int
    ) -> list[Dead]:
        """Return dead letters with a sequence number above `after`, in order: `most` of them, or as
        few as have bodies of `most_bytes`, or all. However large the first is, it is among
        them."""

    async def dead_one(self, key: PartitionKey, /, sequence: int) -> Dead | None: ...

    async def dead_count(self, key: PartitionKey, /) -> int: ...

    async def damaged(
        self, key: PartitionKey, /, after: tuple[int, str], most: int
    ) -> list[Damaged]:
        """Return rows that were set aside, without their bodies, ordered by `first` and kind, from
        the one that follows `after`."""

    async def damaged_one(
        self, key: PartitionKey, /, kind: DamagedKind, first: int
    ) -> Damaged | None:
        """Return one row that was set aside with its body, as it was found. A body that could not
        be read then is read again now; it is empty if that fails."""

    async def damaged_around(self, key: PartitionKey, /, sequence: int) -> list[Damaged]:
        """Return rows set aside with first <= sequence <= last, without their bodies."""

    async def damaged_count(self, key: PartitionKey, /) -> tuple[int, int]:
        """Return how many rows were set aside, and how many unfinished tasks they hold."""

    async def result(self, key: PartitionKey, /, sequence: int) -> Result | None:
        """Return a stored result, expired or not; None if there is none."""

    async def history(
        self, key: PartitionKey, /, after: int, most: int, most_bytes: int
    ) -> list[StoredHistoryRow]:
        """Return the results with negative numbers above `after`, expired or not, in order: `most`
        of them, or as few as have bodies of `most_bytes`, or all. However large the first is, it is
        among them."""

    async def forget_results(self, before: float, most: int) -> int:
        """Delete at most `most` results that expired before that unix time; return how many."""

    async def partitions(self) -> list[PartitionKey]:
        """Return the keys of all partitions, in order."""

    async def queues(self, namespace: str, most: int) -> list[str]:
        """Return names of queues of the namespace, in order: `most` of them, or all. A name that
        queues of several types share is listed once."""

    async def queue_count(self, namespace: str) -> int:
        """Return how many queues of the namespace count against its quota: its root partitions."""

    async def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        """Return partitions without tasks, in order, from the first that follows `after`, None
        meaning from the start: `most` of them, or all."""

    async def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        """Delete partitions, each if its range id is still the one given; return those deleted.

        A partition that has tasks, dead letters or results stays. So does a root while the store
        has other partitions of its queue that are not deleted with it.
        """

    async def delete_queue(self, key: PartitionKey, /, *, force: bool) -> QueueContents:
        """Delete all partitions of the queue of that root, with everything that they hold; return
        how much they held.

        Unless forced, nothing is deleted if one of them has tasks, dead letters or damaged rows.
        Owners of deleted partitions are overtaken. A call that failed half-way may be repeated.
        """

    async def partitions_with_tasks(self) -> list[PartitionKey]:
        """Return the partitions, roots included, that have unfinished tasks, in order."""

    async def children_with_tasks(self) -> list[PartitionKey]:
        """Return the partitions, except roots, that have unfinished tasks, in order."""

    async def use(self) -> StoreUse:
        """Return how much each queue has in the store, whether or not a shard has loaded it."""

    async def signing_key(self) -> bytes:
        """Return the 32 random bytes with which owners of partitions sign the proofs they issue.

        The key is created on first use and stays for as long as the store does. All owners of all
        partitions get the same key, so the next owner of a partition verifies what the last one
        signed. It is secret: it goes to no client, worker or gateway, and into no log.
        """

    async def document(self, name: str, known: int = 0) -> Document | None:
        """Return the document of that name; None if it does not exist or has the version `known`.

        Names are short, of lower-case letters. A document is read and written whole, so it is for
        data that changes when a person does something, not with every task.
        """

    async def replace_document(self, name: str, version: int, body: bytes) -> bool:
        """Write the next version of the document, durably, if `version` is still the current one.

        The version of a document that does not exist is 0. Return False, and write nothing, if
        another writer was first.
        """

    async def close(self) -> None:
        """Finish the calls in progress, then release all files and connections."""
