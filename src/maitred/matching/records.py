"""The records that partitions persist, and that stores keep and return.

Tasks that have to be written are written in groups, and a group's tasks of one priority make one
*segment*: one row, however many tasks it has, whose body only partitions can read. A segment is
never rewritten. A task of it that is finished gets a *mark*; when all are finished, the segment and
its marks go together. Work is done about in the order in which it came, so most marks are those of
consecutive tasks.

A task that waits until it is due (a delay, a retry) leaves its segment and has a row of its own,
found by the time when it is due. Dead letters and stored results have rows of their own, too.

Bodies are sealed with a checksum, since disks and file systems return wrong bytes without saying
so. A row whose body cannot be read is *set aside*: it leaves its table, is kept as it was found,
and waits for an operator.

Every task has a sequence number, unique in its partition for ever: the range id of the owner that
took it in, times 2**32, plus a count. Higher means later.
"""

from __future__ import annotations

from struct import Struct as Packing
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple
from zlib import crc32

from msgspec import DecodeError, Meta, Struct, field, msgpack

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.routing.counts import PartitionCounts

PRIORITIES: Final = 5
"""0 is served first, 4 last."""

SEQUENCES_PER_RANGE: Final = 2**32

ROW_BYTES: Final = 64
"""Bytes that a stored row counts besides its body: keys, index entries and page headers take about
as much. Without them a million rows with empty bodies would count as nothing."""

BY_LETTERS: Final = 64
"""Characters of `Record.by`: most names and addresses are shorter, and every stored task has it."""

TASK_BYTES: Final = ROW_BYTES + 96 + BY_LETTERS
"""The most that a task takes in the store besides its payload, its failure, the notes about its
attempts and its trace context: a row of its own and the rest of its record. In a segment with
others it takes less."""


Seconds = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]
"""Seconds, at most ten years: a longer time is a mistake."""


class PartitionKey(NamedTuple):
    """Names a partition; the fields are in the order of the protocol."""

    namespace: str
    queue: str
    queue_type: int
    partition: int


class Terms(Struct, array_like=True, frozen=True, gc=False):
    """The options that a producer set, the same for many tasks. Times are in seconds."""

    retries: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 3
    """Further attempts after a failed one."""
    backoff_first: Seconds = 1.0
    """The delay of the first retry; each further delay is twice as long, with jitter."""
    backoff_longest: Seconds = 300.0
    """The longest delay of a retry."""
    timeout: Seconds = 0.0
    """How long one attempt may take; 0: no limit."""
    retention: Seconds = 60.0
    """How long the result is kept."""
    hidden: tuple[int, ...] | None = None
    """Places of the arguments that the handler hides, as its producer knows them; None: the
    producer does not know the handler."""


class Record(Struct, array_like=True, gc=False):
    """A task as it is stored. Moments are wall-clock seconds: they outlive the process."""

    sequence: int
    priority: int
    attempt: int
    """Attempts that have begun and failed; a task that was never tried has 0."""
    added_at: float
    expires_at: float
    """When the task expires unless it has begun; 0: never."""
    terms: Terms
    payload: bytes
    failure: bytes = b""
    """Why the last attempt failed, as its worker encoded it."""
    by: str = ""
    """User who added the task, and the address from which it came."""
    past: bytes = b""
    """Notes about the attempts that are over, for the history of the task."""
    trace: bytes = b""
    """The trace context that the producer sent."""


class Segment(NamedTuple):
    """Tasks of one priority that were written together."""

    priority: int
    first: int
    """The sequence number of its first task, which also names the segment."""
    last: int
    tasks: int
    """The number of its tasks."""
    body: bytes
    """The records, encoded by `encode_records`."""


class Later(NamedTuple):
    """A task that waits until it is due."""

    sequence: int
    due: float
    body: bytes
    """The record, encoded by `encode_record`."""


class Dead(NamedTuple):
    """A dead letter: a task that is tried again only if an operator says so."""

    sequence: int
    died_at: float
    reason: str
    """A code: `failed`, `lost`, `timed-out`, ..."""
    body: bytes


class Result(NamedTuple):
    """The result of a task that is over."""

    sequence: int
    expires_at: float
    body: bytes


class StoredHistoryRow(NamedTuple):
    """Tasks that ended, as one row. It stands among the results of its partition, under a negative
    number, which no task has: such rows are written, expire and are deleted like results."""

    number: int
    """A later row has a lower number."""
    body: bytes
    """The tasks, encoded by `maitred.matching.stored_history`."""


DamagedKind = Literal["segment", "later", "dead", "result"]


class Damaged(NamedTuple):
    """A row that was set aside because it cannot be read; `kind` and `first` name it."""

    kind: DamagedKind
    first: int
    """The sequence number of its task, or of the first one of a segment."""
    last: int
    tasks: int
    """The number of its tasks that are not over; 0 for a dead letter or a result."""
    priority: int
    moment: float
    """When a task is due, a dead letter died or a result expires; 0 for a segment."""
    noticed_at: float
    detail: str
    """Why a dead letter died."""
    reason: str
    """Why the row cannot be read, as a sentence for people."""
    over: tuple[int, ...]
    """Tasks between `first` and `last` that were over when the row was set aside."""
    body: bytes
    """The body as it was found; empty if the store could not read it. Then the row stays in its
    table, too, since the engine cannot be trusted to delete it, and the store leaves it out of all
    answers."""
    size: int = 0
    """Length of the body; lists leave the body itself out."""


class StoredUse(NamedTuple):
    """How much a queue, a namespace or a partition has in the store."""

    tasks: int = 0
    """Tasks that are not over, and dead letters."""
    bytes: int = 0
    """Bodies of segments, later tasks, dead letters and results, and `ROW_BYTES` for each."""

    def plus(self, other: StoredUse) -> StoredUse:
        """Return the sum of both."""
        return StoredUse(self.tasks + other.tasks, self.bytes + other.bytes)


class Changes(Struct):
    """Changes of one partition, written all or none, and only while its range id is current."""

    key: PartitionKey
    range_id: int
    backlog: int
    """The number of tasks that the store holds after these changes, in segments or rows."""
    segments: list[Segment] = field(default_factory=list)
    segments_gone: list[Segment] = field(default_factory=list)
    """Segments to delete, without bodies; marks from `first` to `last` are deleted with them."""
    marks: list[int] = field(default_factory=list)
    """Tasks that are over and whose segments stay."""
    later: list[Later] = field(default_factory=list)
    """New rows, and new versions of old ones."""
    later_gone: list[int] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    dead_gone: list[int] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    counts: PartitionCounts | None = None
    """New partition counts; only roots have them."""
    damaged: list[Damaged] = field(default_factory=list)
    """Rows to set aside. Those that can be deleted are also among the rows to delete."""
    damaged_gone: list[tuple[DamagedKind, int]] = field(default_factory=list)
    """Damaged rows that an operator dropped or brought back, by kind and first."""
    clean: bool = False
    """Whether the owner leaves, and no worker runs a task of this partition."""


def rows_in(changes: Changes) -> int:
    """Count the rows that the changes write or delete."""
    return (
        len(changes.segments)
        + len(changes.segments_gone)
        + len(changes.marks)
        + len(changes.later)
        + len(changes.later_gone)
        + len(changes.dead)
        + len(changes.dead_gone)
        + len(changes.results)
    )


class Acquired(NamedTuple):
    """What the store returns to a new owner of a partition."""

    range_id: int
    """The new owner's; owners with a lower one can no longer write."""
    counts: PartitionCounts | None
    """None: the counts were never changed."""
    backlog: int
    """The number of tasks that the store has."""
    clean: bool
    """Whether the last owner left in order. A new partition is clean."""
    undone: bool = False
    """Whether the store had lost, or may have lost, commits that it had confirmed to this owner,
    because its database failed over to a server without them, and no other owner has acquired the
    partition since."""
    controls: bytes | None = None
    """The row of the queue's controls, of a root; None if there is none. It is empty if the engine
    cannot read it."""
    own: bool = False
    """Whether this owner had acquired the partition last. Stores for one node do not tell."""


def rows_bytes(*groups: Collection[Segment | Later | Dead | Result]) -> int:
    """Compute how many bytes these rows count in the store."""
    return sum(ROW_BYTES * len(rows) + sum(len(row.body) for row in rows) for rows in groups)


class RowDamagedError(Exception):
    """The body of a row cannot be read; the text says why."""


_SEAL: Final = b"\xc1"
"""First byte of a sealed body. msgpack never uses it, so bodies of earlier versions, which have no
checksum, are told from sealed ones."""

_CHECKSUM: Final = Packing(">BI")
UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)
_encode: Final = msgpack.Encoder().encode
_decode_record: Final = msgpack.Decoder(Record).decode
_decode_records: Final = msgpack.Decoder(list[Record]).decode


def seal(body: bytes) -> bytes:
    """Put the checksum before the body."""
    return _CHECKSUM.pack(_SEAL[0], crc32(body)) + body


def unseal(body: bytes, *, trusting: bool = False) -> memoryview:
    """Return the body that was sealed; raises `RowDamagedError` if the checksum is wrong.

    With `trusting`, which an operator can ask for, the checksum is not compared.
    """
    if not body:
        raise RowDamagedError("The store cannot read it.")
    if body[0] != _SEAL[0]:
        return memoryview(body)
    if len(body) < _CHECKSUM.size:
        raise RowDamagedError("It is cut off.")
    found = memoryview(body)[_CHECKSUM.size :]
    if not trusting and crc32(found) != _CHECKSUM.unpack_from(body)[1]:
        raise RowDamagedError("Its checksum is wrong.")
    return found


def encode_record(record: Record) -> bytes:
    """Serialise a task for a row of its own."""
    return seal(_encode(record))


def encode_records(records: list[Record]) -> bytes:
    """Serialise the tasks of a segment."""
    return seal(_encode(records))


def decode_record(body: bytes, sequence: int, *, trusting: bool = False) -> Record:
    """Read the row of one task; raises `RowDamagedError` unless it is that of `sequence`."""
    try:
        record = _decode_record(unseal(body, trusting=trusting))
    except UNREADABLE as problem:
        raise RowDamagedError(f"It is not what was written: {problem}.") from None
    if record.sequence != sequence or not 0 <= record.priority < PRIORITIES:
        raise RowDamagedError("It holds another task.")
    return record


def decode_records(segment: Segment, *, trusting: bool = False) -> list[Record]:
    """Read a segment; raises `RowDamagedError` unless its tasks are those that it says it has."""
    try:
        records = _decode_records(unseal(segment.body, trusting=trusting))
    except UNREADABLE as problem:
        raise RowDamagedError(f"It is not what was written: {problem}.") from None
    first, last, priority = segment.first, segment.last, segment.priority
    is_right = (
        len(records) == segment.tasks
        and records[0].sequence == first
        and records[-1].sequence == last
        # Without a checksum that is right, any of them may be wrong.
        and (
            (segment.body[0] == _SEAL[0] and not trusting)
            or all(first <= one.sequence <= last and one.priority == priority for one in records)
        )
    )
    if not is_right:
        raise RowDamagedError("It holds other tasks.")
    return records
