"""What is said about tasks: by producers, workers, people who look after queues, and shards.

Everything that can come in numbers comes in batches: a message costs some ten microseconds at each
end, a task in it less than one. A task is named by its partition and its sequence number there.

Whoever knows the partition counts of a queue says which version it knows, and hears of a newer one
in the answer, so that nobody is out of date for longer than one exchange.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from maitred.matching.attempt_proofs import SESSION_BYTES
from maitred.matching.proofs import PROOF_BYTES
from maitred.matching.records import PRIORITIES, Terms
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest, ShardRequest

TASKS_MAX = 10_000
"""Tasks of one batch. More gain nothing, and a turn of the loop should end."""

PARTITIONS_MAX = 1_024
"""Of one queue. At thousands of tasks a second each, more would be a slip."""

NEVER = 10 * 365 * 86_400.0
"""Ten years: a moment later than that is a slip."""

Priority = Annotated[int, Meta(ge=0, lt=PRIORITIES)]
Duration = Annotated[float, Meta(ge=0, le=NEVER)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
Session = Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
"""A worker process, from its start to its end; random."""
Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
"""Shows that a worker was given an attempt: the bytes that came with the task."""
WorkerName = Annotated[str, Meta(max_length=200)]


class Counts(Struct, array_like=True, frozen=True, gc=False):
    """How many partitions a queue has."""

    read: int
    write: int
    version: int


# Producers


class Add(PartitionRequest, array_like=True, gc=False):
    """Take these tasks; answered when each is on disk, or over already."""

    opcode = Opcode.ADD
    permission = "produce"

    version: Natural
    """Of the partition counts that the caller goes by."""
    payloads: Annotated[list[bytes], Meta(min_length=1, max_length=TASKS_MAX)]
    priority: Priority = 2
    delay: Duration = 0.0
    """Not before so many seconds from now."""
    expires: Duration = 0.0
    """Not begun after so many seconds, it is not begun at all; 0: never expires."""
    terms: Terms = Terms()
    user: str = ""
    """Whose request it is; the shard that a client is connected to fills it in. New queues count
    against this user's rate."""


class Added(Answer, array_like=True, gc=False):
    """The tasks have the sequence numbers from `first` on, in the order of the payloads."""

    first: int
    """-1: this partition takes no tasks any more, and nothing was done; the counts say which do."""
    counts: Counts | None = None
    """If the caller's were out of date."""


class Await(PartitionRequest, array_like=True, gc=False):
    """Tell me when this task is over, and what came of it."""

    opcode = Opcode.AWAIT
    permission = "produce"
    repeatable = True

    sequence: Natural


Status = Literal["done", "failed", "cancelled", "expired"]


class Outcome(Answer, array_like=True, gc=False):
    """A task is over."""

    status: Status
    attempts: int
    body: bytes
    """What the handler returned, or, if it failed, a `Failure`: msgpack either way."""


class Revoke(PartitionRequest, array_like=True, gc=False):
    """Do not run this task; stop it if it runs."""

    opcode = Opcode.REVOKE
    permission = "produce"
    repeatable = True

    sequence: Natural


class Revoked(Answer, array_like=True, gc=False):
    """What became of it."""

    state: Literal["cancelled", "cancelling", "over"]
    """`cancelled`: it will not run, by this request or an earlier one. `cancelling`: it runs, and
    its worker will be told. `over`: it ended otherwise."""


class Signatures(PartitionRequest, array_like=True, gc=False):
    """To the root: what arguments do the handlers of this queue take?"""

    opcode = Opcode.SIGNATURES
    permission = "produce"
    repeatable = True

    must_exist: bool = False
    """Whether to refuse a queue that does not exist with `unknown-queue`, which names the nearest;
    otherwise the answer is that no worker served it."""


class SignaturesFound(Answer, array_like=True, gc=False):
    """Signatures of workers that serve the queue, or did within `signatures_seconds`."""

    signatures: list[bytes]
    """The shapes of their handlers' parameters (`client/shapes.py`). An empty one takes anything:
    then nothing can be refused. None at all: no worker served the queue."""
    served_seconds_ago: float | None = None
    """Since when no worker serves it, 0 while one does; None: none did within that time."""


# Workers


class Offer(PartitionRequest, array_like=True, gc=False):
    """I have so many free slots. Answered when there is a task for one, or when time is up."""

    opcode = Opcode.OFFER
    permission = "work"

    version: Natural
    session: Session
    worker: WorkerName
    """For people to read."""
    slots: Annotated[int, Meta(ge=1, le=TASKS_MAX)]
    hops: Natural = 0
    """How often it was passed on to a parent."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """`host:port` where gateways reach the worker directly; empty: nowhere."""
    user: str = ""
    """As whom the worker connected. The shard that it connected to fills this in. New queues count
    against this user's rate."""


class Given(Struct, array_like=True, gc=False):
    """A task for a worker to run."""

    partition: int
    """Whose it is: there it is finished, and there its heartbeats go."""
    sequence: int
    attempt: int
    """1 for the first."""
    proof: bytes
    """Shown in every message about this attempt, by the session that made the offer."""
    timeout: float
    """Seconds for this attempt; 0: no limit."""
    payload: bytes
    waited: float = 0.0
    """Seconds from when it could have been run until it was given."""


class Reserved(Struct, array_like=True, gc=False):
    """A slot is reserved for a query, which comes straight from a gateway."""

    partition: int
    """Where the reservation was made: there the query is fetched if it is relayed."""
    token: bytes
    """Whoever shows it has the slot."""
    user: str
    """Whose query it is."""
    reservation_seconds: float
    """If no query comes for it within this time, the slot is free again."""
    run_seconds: float
    """Longest that the query may run."""
    result_bytes: int
    """Largest result in one piece."""
    stream_bytes: int
    """Largest stream; 0: any."""
    again_seconds: float = 0.0
    """For so long the worker may give the slot to the same gateway again, without the partition,
    while it has others on offer."""
    tracebacks: bool = True
    """Whether a failure may tell where it happened."""
    proof: bytes = b""
    """If the node counts the query until its end: with this the worker proves, in RUNNING, that the
    partition made the reservation for it. Empty: the query is not counted."""


class Offered(Answer, array_like=True, gc=False):
    """What there is to do; nothing, if the time was up first."""

    tasks: list[Given]
    lease_seconds: float
    """Without a heartbeat for so long, each task is given to somebody else."""
    backlog: int
    """Tasks that wait in this partition."""
    rate: float
    """Tasks a second that are added to it."""
    counts: Counts | None = None
    reserved: list[Reserved] = field(default_factory=list)
    """Slots that queries will take."""


DONE, FAILED, RETURNED, TIMED_OUT, STOPPED = range(5)
"""How an attempt ended. Returned: not begun, as if never given. Stopped: it was revoked."""


class Failure(Struct, array_like=True, gc=False):
    """Why an attempt failed."""

    kind: str
    """The exception's class, or one of our codes."""
    message: str
    traceback: str = ""


class End(Struct, array_like=True, gc=False):
    """An attempt is over."""

    sequence: Natural
    attempt: Natural
    proof: Proof
    how: Annotated[int, Meta(ge=DONE, le=STOPPED)] = DONE
    body: bytes = b"\xc0"
    """The result, or a `Failure`."""


class Finish(PartitionRequest, array_like=True, gc=False):
    """These attempts are over; answered when that is on disk, or need not be."""

    opcode = Opcode.FINISH
    permission = "work"
    repeatable = True

    session: Session
    ends: Annotated[list[End], Meta(min_length=1, max_length=TASKS_MAX)]
    user: str = ""
    """As whom the worker connected. The shard that it connected to fills this in."""


class Finished(Answer, array_like=True, gc=False):
    """Written down."""

    late: list[int]
    """Of these nobody waited for the end: they were over, or had been given to somebody else."""
    refused: list[int] = field(default_factory=list)
    """The proofs of these do not show that this session was given the attempt: nothing was done."""


class Heartbeat(PartitionRequest, array_like=True, gc=False):
    """These run still. Answered at once if there is news of one of them, else when time is up."""

    opcode = Opcode.HEARTBEAT
    permission = "work"
    repeatable = True

    session: Session
    worker: WorkerName
    running: Annotated[list[tuple[Natural, Natural, Proof]], Meta(max_length=TASKS_MAX)]
    """Sequence numbers, attempts and their proofs."""
    user: str = ""
    """As whom the worker connected. The shard that it connected to fills this in."""


class Heard(Answer, array_like=True, gc=False):
    """What a worker should know about its tasks."""

    lost: list[int]
    """No longer yours, or not proven to be: whatever comes of them will not count."""
    revoked: list[int]
    """Stop these."""


# Between shards


class Forward(PartitionRequest, array_like=True, gc=False):
    """A child's task, for an offer that its parent may have; the child stays its owner."""

    opcode = Opcode.FORWARD
    permission = "work"
    between_shards = True

    version: Natural
    origin: int
    sequence: int
    attempt: int
    priority: Priority
    task_timeout: float
    payload: bytes
    waited: float
    expires: float = 0.0
    """Seconds that are left until it may not be begun any more; 0: it never expires."""


class Forwarded(Answer, array_like=True, gc=False):
    """Which worker has it now; none, if the holder is empty."""

    holder: bytes
    """The worker's session, followed by the name of its user."""
    worker: str
    counts: Counts | None = None


class Sync(PartitionRequest, array_like=True, gc=False):
    """From the root to a partition, or the other way: these are the counts. How are you?"""

    opcode = Opcode.SYNC
    permission = "admin"
    between_shards = True
    repeatable = True

    counts: Counts
    makes: bool = False
    """To a root: whether the queue is made if it does not exist."""
    user: str = ""
    """For whom."""


class Synced(Answer, array_like=True, gc=False):
    """What the root needs to know of a partition."""

    version: int
    drained: bool
    """Read-only at that version, and empty: its ack level equals its read level."""
    added_per_second: float
    backlog: int
    counts: Counts | None = None
    """If the caller's were out of date: a partition asks its root for them when it is loaded."""


# People


class Describe(PartitionRequest, array_like=True, gc=False):
    """How is this partition?"""

    opcode = Opcode.DESCRIBE
    permission = "admin"
    repeatable = True


class StoredAmount(Struct):
    """How much of a queue or a namespace is stored, and its quota. A map, for people."""

    tasks: int = 0
    """Tasks that are not over, and dead letters."""
    bytes: int = 0
    """With results that are kept."""
    most_tasks: int | None = None
    """The quota; None: there is none."""
    most_bytes: int | None = None


class PartitionDescription(Struct, kw_only=True):
    """How a partition is. A map, not an array: people read it, and it grows with every feature."""

    partition: int
    node: str
    shard: int
    """The owner."""
    state: Literal["writable", "read-only", "drained"]
    counts: Counts
    range_id: int
    read_level: int
    """The highest sequence number that was read from the store or given out."""
    ack_level: int
    """Everything up to this one is over."""
    backlog: int
    """Tasks that are not over and not running, later ones too."""
    backlog_age_seconds: float
    """Since when the first of them could be run."""
    running: int
    later: int
    """Tasks that wait for their time, of those in memory."""
    dead: int
    offers: int
    """Free slots that wait here."""
    workers: list[str]
    added: int
    added_per_second: float
    finished: int
    finished_per_second: float
    failed: int
    lost: int
    """Attempts whose worker was lost: what may have run twice."""
    matched_at_once: int
    never_written: int
    """Tasks that were over before they had to be written."""
    forwarded_tasks: int
    forwarded_offers: int
    wait_p50_seconds: float
    wait_p99_seconds: float
    rate_limit_per_second: float | None = None
    parent: int | None = None
    worker_details: list[tuple[str, int, float]] = field(default_factory=list)
    """Name, tasks running here, seconds since it was heard of."""
    queries_waiting: int = 0
    """Slots that gateways wait for, here or further up."""
    allocated: int = 0
    """Slots that were given to queries here."""
    allocated_per_second: float = 0.0
    unproven: int = 0
    """Ends and heartbeats that were refused because their proof was wrong."""
    not_kept: int = 0
    """Results that are kept in memory only and failures that were cut: a quota had no room."""
    queue_stored: StoredAmount = field(default_factory=StoredAmount)
    """Summed over all partitions of the queue, about a second ago."""
    namespace_stored: StoredAmount = field(default_factory=StoredAmount)
    namespace_queues: int = 0
    """Queues that the namespace has; told by root partitions only."""
    namespace_queues_max: int = 0
    """Queues that the namespace may have; told by root partitions only."""
    damaged_rows: int = 0
    """Rows that could not be read and were set aside."""
    damaged_tasks: int = 0
    """Tasks in them that are not over."""
    served_seconds_ago: float | None = None
    """Since when no worker serves the queue, 0 while one does; None: none did within
    `signatures_seconds`. Told by root partitions only."""


class Resize(PartitionRequest, array_like=True, gc=False):
    """To the root: have so many partitions."""

    opcode = Opcode.RESIZE
    permission = "admin"

    read: PartitionCount
    write: PartitionCount
    force: bool = False
    user: str = ""
    """Whose request it is; the shard that a client is connected to fills it in. New queues count
    against this user's rate."""


class Resized(Answer, array_like=True, gc=False):
    """The counts from now on."""

    counts: Counts


class DeadLetters(PartitionRequest, array_like=True, gc=False):
    """List, retry or drop dead letters of a partition."""

    opcode = Opcode.DEAD
    permission = "admin"

    action: Literal["list", "show", "retry", "drop"]
    sequences: Annotated[list[Natural], Meta(max_length=TASKS_MAX)] = field(default_factory=list)
    """Which; for a list, those after the first of these."""
    most: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 100


class DeadLetter(Struct, kw_only=True):
    """A task that nobody will try again unless a person says so."""

    partition: int
    sequence: int
    died_at: float
    reason: str
    attempts: int
    added_at: float
    failure: bytes
    """A `Failure`."""
    payload: bytes
    """Empty in a list."""
    payload_bytes: int


class DeadLettersFound(Answer, array_like=True, gc=False):
    """The dead letters that were listed, or that the action changed."""

    letters: list[DeadLetter]
    total: int


RowKind = Literal["segment", "later", "dead", "result"]


class DamagedRows(PartitionRequest, array_like=True, gc=False):
    """List, bring back or drop rows of a partition that were set aside as damaged."""

    opcode = Opcode.DAMAGED
    permission = "admin"

    action: Literal["list", "show", "retry", "drop"]
    rows: Annotated[list[tuple[RowKind, Natural]], Meta(max_length=TASKS_MAX)] = field(
        default_factory=list
    )
    """Which, by kind and first sequence number; for a list, those after the first of these."""
    most: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 100
    ignore_checksum: bool = False
    """For a retry: a wrong checksum alone is no reason to refuse."""
    body: bytes = b""
    """For a retry of one row: its body as it was mended; empty: the one that was kept."""


class DamagedRow(Struct, kw_only=True):
    """A row that cannot be read. A map, for people."""

    partition: int
    kind: RowKind
    first: int
    """Sequence number of its task, or of the first task of a segment."""
    last: int
    tasks: int
    """Tasks in it that are not over; 0 for a dead letter or a result."""
    noticed_at: float
    reason: str
    """Why it cannot be read; in the answer to a retry, why it still cannot, or empty."""
    body_bytes: int
    """0: the store could not read it, so there is nothing to export."""
    body: bytes
    """Empty in a list."""


class DamagedRowsFound(Answer, array_like=True, gc=False):
    """The damaged rows that were listed, or that the action named."""

    rows: list[DamagedRow]
    total: int
    """Damaged rows that the partition has now."""
    tasks: int
    """Tasks in them."""


class Queues(ShardRequest, array_like=True, gc=False):
    """Which queues does this store have?"""

    opcode = Opcode.QUEUES
    permission = "admin"
    repeatable = True


class QueuesFound(Answer, array_like=True, gc=False):
    """Namespace, queue and type of each."""

    queues: list[tuple[str, str, int]]
    quotas: dict[str, int] = field(default_factory=dict)
    """By namespace, how many queues it may have."""


class DeleteQueue(PartitionRequest, array_like=True, gc=False):
    """To the shard of the root: delete this queue, all partitions of it, with what they hold."""

    opcode = Opcode.DELETE
    permission = "admin"

    force: bool = False
    """Also if it has tasks or dead letters, or if workers or queries wait at it."""


class DeletedQueue(Answer, array_like=True, gc=False):
    """What was deleted."""

    partitions: int
    """0: the queue did not exist."""
    tasks: int
    """Tasks that were not over; they will not run, or not again."""
    dead: int
    """Dead letters."""
    workers: int
    """Workers that were connected. While they stay, they make the queue anew."""


class Withdraw(ShardRequest, array_like=True, gc=False):
    """From shard to shard: who uses partitions of this queue in your memory? Or let go of them."""

    opcode = Opcode.WITHDRAW
    permission = "admin"
    between_shards = True
    repeatable = True

    namespace: str
    queue: str
    queue_type: int
    drop: bool = False
    """Whether to let go of them: the queue was deleted from the store."""


class Withdrawn(Answer, array_like=True, gc=False):
    """What the partitions in the shard's memory have."""

    tasks: int
    workers: list[bytes]
    """Sessions of those that wait for tasks, or attend."""
    queries: int
    """Slots that gateways wait for."""


AnyTaskRequest = (
    Add
    | Await
    | Revoke
    | Offer
    | Finish
    | Heartbeat
    | Forward
    | Sync
    | Describe
    | Resize
    | DeadLetters
    | DamagedRows
    | Queues
    | DeleteQueue
    | Withdraw
    | Signatures
)
AnyTaskAnswer = (
    Added
    | Outcome
    | Revoked
    | Offered
    | Finished
    | Heard
    | Forwarded
    | Synced
    | PartitionDescription
    | Resized
    | DeadLettersFound
    | DamagedRowsFound
    | QueuesFound
    | DeletedQueue
    | Withdrawn
    | SignaturesFound
)

EXCHANGES: tuple[tuple[type[AnyTaskRequest], type[AnyTaskAnswer]], ...] = (
    (Add, Added),
    (Await, Outcome),
    (Revoke, Revoked),
    (Offer, Offered),
    (Finish, Finished),
    (Heartbeat, Heard),
    (Forward, Forwarded),
    (Sync, Synced),
    (Describe, PartitionDescription),
    (Resize, Resized),
    (DeadLetters, DeadLettersFound),
    (DamagedRows, DamagedRowsFound),
    (Queues, QueuesFound),
    (DeleteQueue, DeletedQueue),
    (Withdraw, Withdrawn),
    (Signatures, SignaturesFound),
)
"""Each request and its answer."""
