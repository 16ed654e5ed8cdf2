"""Messages about tasks: from producers, workers, people who look after queues, and shards.

Tasks, ends and heartbeats come in batches: a message costs some ten microseconds at each end, a
task in it less than one. A task is named by its partition and its sequence number there.

A caller that knows the partition counts of a queue tells which version it knows, and receives a
newer one in the answer, so that no caller is out of date for longer than one exchange.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from maitred.matching.attempt_proofs import SESSION_BYTES
from maitred.matching.controls import QueueControls, ShortText
from maitred.matching.proofs import PROOF_BYTES
from maitred.matching.records import PRIORITIES, Terms
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest, ShardRequest
from maitred.settings.live import SettingValue  # noqa: TC001 - msgspec reads the annotations
from maitred.trace_context import TRACE_BYTES_MAX

TASKS_MAX = 10_000
"""Most tasks of one batch. More gain nothing, and a turn of the event loop has to end."""

PARTITIONS_MAX = 1_024
"""Most partitions of one queue. At thousands of tasks a second each, more would be a mistake."""

NEVER = 10 * 365 * 86_400.0
"""Ten years, in seconds: a longer duration is taken for a mistake."""

REASON_CHARACTERS = 500
"""Longest reason that an operator gives: some sentences. Every partition keeps it in memory."""

Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS)]
Trace = Annotated[bytes, Meta(max_length=TRACE_BYTES_MAX)]
"""The trace context of a task or query (`maitred.trace_context`); empty: it belongs to no trace."""
Priority = Annotated[int, Meta(ge=0, lt=PRIORITIES)]
Duration = Annotated[float, Meta(ge=0, le=NEVER)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
Session = Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
"""Identifies one run of a worker or a gateway, from its start to its end."""
Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
"""Proves that a worker was given an attempt: the bytes that came with the task."""
WorkerName = Annotated[str, Meta(max_length=200)]


class Counts(Struct, array_like=True, frozen=True, gc=False):
    """How many partitions a queue has, to read from and to write to."""

    read: int
    write: int
    version: int


# Producers


class Add(PartitionRequest, array_like=True, gc=False):
    """Add these tasks; answered when each of them is on disk, or has already ended."""

    opcode = Opcode.ADD
    permission = "produce"

    version: Natural
    """Version of the partition counts that the caller knows."""
    payloads: Annotated[list[bytes], Meta(min_length=1, max_length=TASKS_MAX)]
    priority: Priority = 2
    delay: Duration = 0.0
    """Seconds from now before which the tasks are not run."""
    expires: Duration = 0.0
    """Seconds from now after which a task that has not begun is dropped; 0: it never expires."""
    terms: Terms = Terms()
    user: str = ""
    """User who adds the tasks; the shard that the client is connected to fills it in. New queues
    count against this user's rate."""
    origin: str = ""
    """Who adds the tasks and from where, for their history, as in `alice@10.0.0.7`; the shard that
    the client is connected to fills it in."""
    traces: Trace | Annotated[list[Trace], Meta(max_length=TASKS_MAX)] = b""
    """The trace context of all tasks, or of each, in the order of the payloads."""


class Added(Answer, array_like=True, gc=False):
    """Sequence numbers of the tasks: from `first` on, in the order of the payloads."""

    first: int
    """-1 if this partition accepts no tasks any more, and nothing was done; the counts tell which
    do."""
    counts: Counts | None = None
    """The partition counts, if the caller's were out of date; None otherwise."""
    results: list[bytes | None] | None = None
    """Results of the tasks that are done already, in the order of the payloads, with None for the
    others: the body of their `Outcome`, so that no AWAIT is needed. None if there are none, or if
    they are large. A result that has to be written first is not among them."""


class Await(PartitionRequest, array_like=True, gc=False):
    """A long poll for the end of a task and its outcome."""

    opcode = Opcode.AWAIT
    permission = "produce"
    repeatable = True

    sequence: Natural


Status = Literal["done", "failed", "cancelled", "expired"]


class Outcome(Answer, array_like=True, gc=False):
    """How a task ended."""

    status: Status
    attempts: int
    body: bytes
    """What the handler returned or, if it failed, a `Failure`: msgpack either way."""


class Revoke(PartitionRequest, array_like=True, gc=False):
    """Cancel a task: it is not run, or it is stopped if it runs."""

    opcode = Opcode.REVOKE
    permission = "produce"
    repeatable = True

    sequence: Natural


class Revoked(Answer, array_like=True, gc=False):
    """The state of the task after the request."""

    state: Literal["cancelled", "cancelling", "over"]
    """`cancelled`: it will not run, by this request or an earlier one. `cancelling`: it runs, and
    its worker will be told to stop it. `over`: it had ended otherwise."""


class Signatures(PartitionRequest, array_like=True, gc=False):
    """Ask the root which arguments the handlers of this queue take."""

    opcode = Opcode.SIGNATURES
    permission = "produce"
    repeatable = True

    must_exist: bool = False
    """Whether to refuse a queue that does not exist with `unknown-queue`, which names the nearest;
    otherwise the answer says that no worker served it."""


class SignaturesFound(Answer, array_like=True, gc=False):
    """Signatures of the workers that serve the queue, or did within `signatures_seconds`."""

    signatures: list[bytes]
    """Shapes of their handlers' parameters (`client/shapes.py`). An empty shape accepts any
    arguments: then none can be refused. The list is empty if no worker served the queue."""
    served_seconds_ago: float | None = None
    """Seconds since a worker last served the queue, 0 while one does; None: none did within that
    time."""
    paused_seconds_ago: float | None = None
    """Seconds since the queue was paused; None while it is not."""


# Workers


class Offer(PartitionRequest, array_like=True, gc=False):
    """A long poll of a worker with this many free slots. Answered when there is a task or a query
    for one, or when the time is up."""

    opcode = Opcode.OFFER
    permission = "work"

    version: Natural
    session: Session
    worker: WorkerName
    """Name of the worker, for people to read."""
    slots: Annotated[int, Meta(ge=1, le=TASKS_MAX)]
    hops: Natural = 0
    """How often the offer was forwarded to a parent partition."""
    address: Annotated[str, Meta(max_length=300)] = ""
    """`host:port` where gateways reach the worker directly; empty if they cannot."""
    user: str = ""
    """User as whom the worker connected; the shard that it is connected to fills this in. New
    queues count against this user's rate."""


class Given(Struct, array_like=True, gc=False):
    """A task for a worker to run."""

    partition: int
    """Partition that owns the task; the worker sends its heartbeats and its end there."""
    sequence: int
    attempt: int
    """Number of this attempt, from 1."""
    proof: bytes
    """The worker sends it with every message about this attempt, with the session of its offer."""
    timeout: float
    """Seconds that this attempt may take; 0: no limit."""
    payload: bytes
    waited: float = 0.0
    """Seconds from when the task was ready to run until it was given to the worker."""
    trace: bytes = b""
    """The task's trace context, for the worker."""


class Reserved(Struct, array_like=True, gc=False):
    """A slot of the worker is reserved for a query, which comes straight from a gateway."""

    partition: int
    """Partition that made the reservation; the worker fetches the query there if it is relayed."""
    token: bytes
    """Identifies the reservation; the query that shows it gets the slot."""
    user: str
    """User whose query it is."""
    reservation_seconds: float
    """If no query comes within this many seconds, the slot is free again."""
    run_seconds: float
    """Longest time that the query may run, in seconds."""
    result_bytes: int
    """Largest result that is not a stream, in bytes."""
    stream_bytes: int
    """Largest stream, in bytes; 0: no limit."""
    again_seconds: float = 0.0
    """Seconds for which the worker may reserve the slot for the same gateway again, without asking
    the partition, while it has other slots on offer."""
    tracebacks: bool = True
    """Whether a failure may include its traceback."""
    proof: bytes = b""
    """Set if the node counts the query until its end: with it the worker proves, in RUNNING, that
    the partition made the reservation for it. Empty: the query is not counted."""
    range_id: int = 0
    """Range id of the owner that made the reservation. If two owners of the partition think that
    they have the worker's slots, the one with the higher range id has them."""


class Offered(Answer, array_like=True, gc=False):
    """Tasks and reservations for the worker; none if the time was up first."""

    tasks: list[Given]
    lease_seconds: float
    """A task without a heartbeat for this many seconds is given to another worker."""
    backlog: int
    """Tasks that wait in this partition."""
    rate: float
    """Tasks that are added to this partition per second."""
    counts: Counts | None = None
    reserved: list[Reserved] = field(default_factory=list)
    """Slots that are reserved for queries."""


DONE, FAILED, RETURNED, TIMED_OUT, STOPPED = range(5)
"""How an attempt ended. RETURNED: it was not begun, as if it had never been given. STOPPED: it was
revoked."""


class Failure(Struct, array_like=True, gc=False):
    """Why an attempt failed."""

    kind: str
    """Class of the exception, or one of maitred's error codes."""
    message: str
    traceback: str = ""


class End(Struct, array_like=True, gc=False):
    """The end of an attempt."""

    sequence: Natural
    attempt: Natural
    proof: Proof
    how: Annotated[int, Meta(ge=DONE, le=STOPPED)] = DONE
    body: bytes = b"\xc0"
    """The result, or a `Failure`."""


class Finish(PartitionRequest, array_like=True, gc=False):
    """Report the ends of attempts; answered when they are on disk, or need not be."""

    opcode = Opcode.FINISH
    permission = "work"
    repeatable = True

    session: Session
    ends: Annotated[list[End], Meta(min_length=1, max_length=TASKS_MAX)]
    user: str = ""
    """User as whom the worker connected; the shard that it is connected to fills this in."""


class Finished(Answer, array_like=True, gc=False):
    """The partition has recorded the ends, except those listed here."""

    late: list[int]
    """Sequence numbers of tasks whose end was ignored: they had ended, or had been given to another
    worker."""
    refused: list[int] = field(default_factory=list)
    """Sequence numbers of tasks whose proof does not show that this session was given the attempt;
    their end was ignored."""
    follows: list[tuple[int, float, int]] | None = None
    """What follows each attempt that failed, for the worker's log: the sequence number of its task,
    the seconds until the next attempt, and how many attempts are left. 0: the task is a dead
    letter; -1: it has ended otherwise. None if no attempt failed."""


class Heartbeat(PartitionRequest, array_like=True, gc=False):
    """Report that attempts still run. Answered at once if one of them was lost or revoked, else
    when the time is up."""

    opcode = Opcode.HEARTBEAT
    permission = "work"
    repeatable = True

    session: Session
    worker: WorkerName
    running: Annotated[list[tuple[Natural, Natural, Proof]], Meta(max_length=TASKS_MAX)]
    """Sequence number, attempt and proof of each."""
    user: str = ""
    """User as whom the worker connected; the shard that it is connected to fills this in."""


class Heard(Answer, array_like=True, gc=False):
    """Attempts that the worker should abandon."""

    lost: list[int]
    """Sequence numbers of attempts that the session no longer holds, or did not prove; their ends
    will be ignored."""
    revoked: list[int]
    """Sequence numbers of tasks that the worker should stop."""


# Between shards


class Forward(PartitionRequest, array_like=True, gc=False):
    """Offer a child partition's task to a worker that waits at its parent; the child stays the
    task's owner."""

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
    """Seconds after which the task may no longer be begun; 0: it never expires."""
    trace: Trace = b""


class Forwarded(Answer, array_like=True, gc=False):
    """The worker that the task was given to; none if the holder is empty."""

    holder: bytes
    """The worker's session, followed by the name of its user."""
    worker: str
    counts: Counts | None = None


class Sync(PartitionRequest, array_like=True, gc=False):
    """Exchange partition counts and status between the root and a partition, in either
    direction."""

    opcode = Opcode.SYNC
    permission = "admin"
    between_shards = True
    repeatable = True

    counts: Counts
    makes: bool = False
    """For a root: whether to create the queue if it does not exist."""
    user: str = ""
    """User for whom the queue is created."""
    controls: QueueControls | None = None
    """The controls that the sender knows; None: no operator has changed anything there."""


class Synced(Answer, array_like=True, gc=False):
    """What the root needs to know of a partition."""

    version: int
    drained: bool
    """Whether the partition is read-only at that version, and empty: its ack level equals its read
    level."""
    added_per_second: float
    backlog: int
    counts: Counts | None = None
    """The counts, if the caller's were out of date: a partition asks its root for them when it is
    loaded."""
    controls: QueueControls | None = None
    """The controls, if the caller's were out of date."""


# People


class Describe(PartitionRequest, array_like=True, gc=False):
    """Ask for a description of the partition."""

    opcode = Opcode.DESCRIBE
    permission = "read"
    repeatable = True


class StoredAmount(Struct):
    """How much of a queue or a namespace is stored, and its quota. A map, for people."""

    tasks: int = 0
    """Tasks that have not ended, and dead letters."""
    bytes: int = 0
    """Bytes stored, including results that are kept."""
    most_tasks: int | None = None
    """Quota of tasks; None: no quota."""
    most_bytes: int | None = None


class EffectiveSetting(Struct):
    """The value of a setting that can be set live, and where it comes from. A map, for people."""

    value: SettingValue
    """None: no limit."""
    source: Literal["default", "settings", "live"]
    """`settings` is the settings file, the environment or the command line of the node."""
    by: str = ""
    """User who set it live."""
    at: float = 0.0
    """When it was set live, in seconds since 1970."""
    reason: str = ""
    choices: tuple[str, ...] = ()
    """The words that it can be set to; none for numbers and switches."""


class PartitionDescription(Struct, kw_only=True):
    """The state of a partition. A map, not an array: people read it, and it grows with every
    feature."""

    partition: int
    node: str
    shard: int
    """Number of the shard that owns the partition."""
    state: Literal["writable", "read-only", "drained"]
    counts: Counts
    range_id: int
    read_level: int
    """Highest sequence number that was read from the store or assigned to a task."""
    ack_level: int
    """All tasks up to this sequence number have ended."""
    backlog: int
    """Tasks that have not ended and do not run, including delayed ones."""
    backlog_age_seconds: float
    """Seconds since the first task of the backlog was ready to run; 0 if none is."""
    running: int
    later: int
    """Delayed tasks that are in memory."""
    dead: int
    offers: int
    """Free slots on offer at this partition."""
    workers: list[str]
    added: int
    added_per_second: float
    finished: int
    finished_per_second: float
    failed: int
    lost: int
    """Attempts whose worker was lost: their tasks may have run twice."""
    matched_at_once: int
    never_written: int
    """Tasks that ended before they had to be written to disk."""
    forwarded_tasks: int
    forwarded_offers: int
    wait_p50_seconds: float
    wait_p99_seconds: float
    rate_limit_per_second: float | None = None
    parent: int | None = None
    worker_details: list[tuple[str, int, float]] = field(default_factory=list)
    """For each worker: its name, tasks that it runs for this partition, and seconds since it was
    heard from."""
    queries_waiting: int = 0
    """Slots that gateways wait for, here or further up the tree."""
    allocated: int = 0
    """Slots that this partition reserved for queries."""
    allocated_per_second: float = 0.0
    unproven: int = 0
    """Ends and heartbeats that were refused because their proof was wrong."""
    not_kept: int = 0
    """Results that are kept in memory only and failures that were truncated, because a quota was
    used up."""
    queue_stored: StoredAmount = field(default_factory=StoredAmount)
    """Summed over all partitions of the queue, about a second ago."""
    namespace_stored: StoredAmount = field(default_factory=StoredAmount)
    controls: QueueControls = QueueControls()
    """What operators have changed while the queue runs, as this partition knows it."""
    settings: dict[str, EffectiveSetting] = field(default_factory=dict)
    """The settings that can be set live, by their names in the settings file, whose values are
    numbers and switches."""
    word_settings: dict[str, EffectiveSetting] = field(default_factory=dict)
    """Those whose values are words. They are sent apart because programs of the release before
    accept only numbers and switches in `settings`."""
    namespace_queues: int = 0
    """Queues that the namespace has; told by root partitions only."""
    namespace_queues_max: int = 0
    """Queues that the namespace may have; told by root partitions only."""
    damaged_rows: int = 0
    """Rows that could not be read and were set aside."""
    damaged_tasks: int = 0
    """Tasks in these rows that have not ended."""
    served_seconds_ago: float | None = None
    """Seconds since a worker last served the queue, 0 while one does; None: none did within
    `signatures_seconds`. Told by root partitions only."""
    service_seconds: float = 0.0
    """Mean time from giving a task to a worker until its end, of the queue's last tasks at this
    shard; 0: unknown."""

    @property
    def all_settings(self) -> dict[str, EffectiveSetting]:
        """The settings that can be set live, by their names in the settings file."""
        return self.settings | self.word_settings


class Resize(PartitionRequest, array_like=True, gc=False):
    """Ask the root to change the number of partitions."""

    opcode = Opcode.RESIZE
    permission = "operate"

    read: PartitionCount
    write: PartitionCount
    force: bool = False
    user: str = ""
    """User who asks; the shard that the client is connected to fills it in. New queues count
    against this user's rate."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class Resized(Answer, array_like=True, gc=False):
    """The partition counts from now on."""

    counts: Counts


class ControlQueue(PartitionRequest, array_like=True, gc=False):
    """Ask the root to show or to change the controls of the queue. A change needs the permission
    `operate`, and is refused with `controls-conflict` unless the controls have the version that the
    caller expects."""

    opcode = Opcode.CONTROL
    permission = "read"

    action: Literal["show", "pause", "resume", "set"]
    reason: Reason = ""
    """Why, for other operators and the audit log."""
    version: Natural | None = None
    """Version that the controls must have; None: any."""
    settings: dict[ShortText, SettingValue] = field(default_factory=dict)
    """For `set`: values of settings, by their names in the settings file; None: no limit."""
    unset: Annotated[list[ShortText], Meta(max_length=100)] = field(default_factory=list)
    """For `set`: names of settings that go by the settings file again."""
    user: ShortText = ""
    """User who asks; the shard that the client is connected to fills it in."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class QueueControlled(Answer, array_like=True, gc=False):
    """The controls of the queue from now on."""

    controls: QueueControls
    changed: bool
    """Whether the request has changed them: a queue may be paused already, for example."""
    partitions: int
    """Number of partitions of the queue."""
    told: int
    """How many of them have the controls. The root tells the others again within seconds, and each
    asks the root when it is loaded."""


class PurgeTasks(PartitionRequest, array_like=True, gc=False):
    """Drop tasks of a partition that wait, for about a second; or count them. The answer says
    whether to ask again."""

    opcode = Opcode.PURGE
    permission = "operate"

    state: Literal["waiting", "delayed", "dead"]
    """`waiting`: ready to run. `delayed`: not due yet, retries included. `dead`: dead letters."""
    older_than: Duration = 0.0
    """Only those that were added (or died) at least this many seconds ago; not for `delayed`."""
    dry_run: bool = False
    """Whether to count them and drop none."""
    until: Natural = 0
    """For `waiting`: the highest number of a task to drop, from the first answer; 0 in the first
    request: all that are there."""
    cursor: tuple[Natural, Natural] = (0, 0)
    """Where to go on, from the last answer."""
    reason: Reason = ""
    """Why, for the audit log."""
    user: ShortText = ""
    """User who asks; the shard that the client is connected to fills it in."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class Purged(Answer, array_like=True, gc=False):
    """What was dropped or counted by this request."""

    tasks: int
    is_complete: bool
    """Whether there are no more; otherwise the caller asks again, with these fields."""
    until: int
    cursor: tuple[int, int]


class DeadLetters(PartitionRequest, array_like=True, gc=False):
    """List, show, retry or drop dead letters of a partition. The last two need the permission
    `operate`."""

    opcode = Opcode.DEAD
    permission = "read"

    action: Literal["list", "show", "retry", "drop"]
    sequences: Annotated[list[Natural], Meta(max_length=TASKS_MAX)] = field(default_factory=list)
    """Sequence numbers of the dead letters; a list starts after the first of these."""
    most: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 100
    reveal: bool = True
    """Whether to answer with payloads, and with messages and tracebacks of failures; the shard that
    the client is connected to takes it back unless the user has the permission `reveal`."""


class DeadLetter(Struct, kw_only=True):
    """A task whose attempts are used up; only a person can have it tried again."""

    partition: int
    sequence: int
    died_at: float
    reason: str
    attempts: int
    added_at: float
    failure: bytes
    """An encoded `Failure`; without message and traceback unless these are revealed."""
    payload: bytes
    """The task's payload, with `[hidden]` in place of arguments that the handler hides; empty in a
    list, and unless it is revealed."""
    payload_bytes: int
    withheld: str = ""
    """Why there is no payload although it was asked for: `permission`; `unknown`, if no handler has
    said which arguments are hidden; `unreadable`, if they cannot be told apart."""


class DeadLettersFound(Answer, array_like=True, gc=False):
    """The dead letters that were listed, or that the action changed."""

    letters: list[DeadLetter]
    total: int


RowKind = Literal["segment", "later", "dead", "result"]


class DamagedRows(PartitionRequest, array_like=True, gc=False):
    """List, show, retry or drop rows of a partition that were set aside as damaged. The last two
    need the permission `operate`; a retry with a repaired body needs `admin`, because such a body
    may hold any task."""

    opcode = Opcode.DAMAGED
    permission = "read"

    action: Literal["list", "show", "retry", "drop"]
    rows: Annotated[list[tuple[RowKind, Natural]], Meta(max_length=TASKS_MAX)] = field(
        default_factory=list
    )
    """Kind and first sequence number of each row; a list starts after the first of these."""
    most: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 100
    ignore_checksum: bool = False
    """For a retry: whether to accept a row whose checksum alone is wrong."""
    body: bytes = b""
    """For a retry of one row: its repaired body; empty: the body that was kept."""
    reveal: bool = True
    """Whether `show` answers with the bodies of rows, hidden arguments included; the shard that the
    client is connected to takes it back unless the user has the permission `admin`."""


class DamagedRow(Struct, kw_only=True):
    """A row that cannot be read. A map, for people."""

    partition: int
    kind: RowKind
    first: int
    """Sequence number of its task, or of the first task of a segment."""
    last: int
    tasks: int
    """Tasks in the row that have not ended; 0 for a dead letter or a result."""
    noticed_at: float
    reason: str
    """Why the row cannot be read; in the answer to a retry, why it still cannot, or empty."""
    body_bytes: int
    """Size of the body; 0 if the store could not read it, so that there is nothing to export."""
    body: bytes
    """Content of the row; empty in a list, and unless it is revealed."""


class DamagedRowsFound(Answer, array_like=True, gc=False):
    """The damaged rows that were listed, or that the action named."""

    rows: list[DamagedRow]
    total: int
    """Damaged rows that the partition has now."""
    tasks: int
    """Tasks in these rows that have not ended."""


class Queues(ShardRequest, array_like=True, gc=False):
    """List the queues of the store, as far as the user may see them."""

    opcode = Opcode.QUEUES
    permission = "read"
    any_node = True
    anywhere = True
    repeatable = True

    within: list[str] | None = None
    """Namespaces that the user may see; None: all. The shard that the client is connected to fills
    it in."""


class QueuesFound(Answer, array_like=True, gc=False):
    """Namespace, name and type of each queue."""

    queues: list[tuple[str, str, int]]
    quotas: dict[str, int] = field(default_factory=dict)
    """How many queues each namespace may have."""


class DeleteQueue(PartitionRequest, array_like=True, gc=False):
    """Ask the root's shard to delete the queue, with all partitions and what they hold."""

    opcode = Opcode.DELETE
    permission = "operate"

    force: bool = False
    """Whether to delete it even if it has tasks or dead letters, or if workers or queries wait at
    it."""
    user: ShortText = ""
    """User who asks; the shard that the client is connected to fills it in."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class DeletedQueue(Answer, array_like=True, gc=False):
    """How much was deleted."""

    partitions: int
    """0: the queue did not exist."""
    tasks: int
    """Tasks that had not ended; they will not run, or not again."""
    dead: int
    """Dead letters that were deleted."""
    workers: int
    """Workers that serve the queue. While they stay, they create it anew."""


class Withdraw(ShardRequest, array_like=True, gc=False):
    """From shard to shard: report the use of this queue's partitions in memory, or unload them."""

    opcode = Opcode.WITHDRAW
    permission = "admin"
    between_shards = True
    repeatable = True

    namespace: str
    queue: str
    queue_type: int
    drop: bool = False
    """Whether to unload them: the queue was deleted from the store."""


class Withdrawn(Answer, array_like=True, gc=False):
    """Tasks, workers and queries of the queue's partitions in the shard's memory."""

    tasks: int
    workers: list[bytes]
    """Sessions of the workers that offer slots to the queue or attend it."""
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
    | ControlQueue
    | PurgeTasks
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
    | QueueControlled
    | Purged
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
    (ControlQueue, QueueControlled),
    (PurgeTasks, Purged),
    (DeadLetters, DeadLettersFound),
    (DamagedRows, DamagedRowsFound),
    (Queues, QueuesFound),
    (DeleteQueue, DeletedQueue),
    (Withdraw, Withdrawn),
    (Signatures, SignaturesFound),
)
"""Class of each request and of its answer."""
