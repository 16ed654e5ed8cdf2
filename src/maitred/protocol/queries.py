"""Messages about queries to a node: from gateways, workers, people who look after both, and shards.

A gateway asks a partition for free slots and gets *allocations*: a worker, and a reservation that
only that worker accepts, once, for a short time. The worker hears of the same reservation in the
answer to its offer. The query itself goes straight from the gateway to the worker (`query_link.py`)
and never passes through a shard, unless the gateway cannot reach the worker: then the node relays
it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from maitred.matching.controls import ShortText  # noqa: TC001 - msgspec reads the annotations
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import (
    Answer,
    Exchanges,
    Natural,
    PartitionRequest,
    ShardRequest,
)
from maitred.protocol.tasks import (  # noqa: TC001 - msgspec reads the annotations
    Counts,
    Duration,
    Priority,
    Session,
    WorkerName,
)

SLOTS_MAX = 1_000
"""Most slots that one request asks for; a gateway that needs more sends further requests."""

LISTED_MAX = 10_000
"""Most reservations of one user in one message of a worker."""

PROOF_BYTES = 22
"""Length of the proof that comes with a counted reservation."""

SIGNATURE_BYTES = 4_096
"""Longest signature that a worker may announce. One with forty parameters needs a quarter of it."""

PIECE_MAX = 2**20
"""Most bytes of one piece of a relayed answer."""

Token = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Identifies a reservation. It is random: only a gateway that was given the reservation can show
it."""
Proven = Annotated[bytes, Meta(min_length=16 + PROOF_BYTES, max_length=16 + PROOF_BYTES)]
"""A counted reservation: its token, followed by the proof that the worker received with it."""
AnnouncedSignature = Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)]
Host = Annotated[str, Meta(max_length=300)]
User = Annotated[str, Meta(max_length=200)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Reason = Annotated[str, Meta(max_length=40)]
ProvenByUser = dict[User, Annotated[list[Proven], Meta(max_length=LISTED_MAX)]]


# Gateways


class Allocate(PartitionRequest, array_like=True, gc=False):
    """Ask for slots for queued queries. Answered when at least one slot is reserved, or with an
    error.

    The request's timeout is the longest that any of the queries has left. A gateway that got fewer
    slots than it wanted asks again and tells how long it has waited, so that no other overtakes it.
    """

    opcode = Opcode.ALLOCATE
    permission = "query"
    repeatable = True
    """A reserved slot that is not used is soon free again."""

    version: Natural
    session: Session
    """Identifies the gateway's run; a restarted gateway has another session."""
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = 1
    priority: Priority = 2
    waited: Duration = 0.0
    """Seconds that the queries have already waited, here or elsewhere."""
    user: User = ""
    """User whose queries these are. If the node has users, only its own gateway may set it; for
    other clients the shard fills in the user who is logged in."""
    hops: Natural = 0
    """How often the request was forwarded to a parent partition."""
    do_not_queue: bool = False
    """Whether to refuse the request if no slot is free now."""
    permits: Annotated[list[Token], Meta(max_length=SLOTS_MAX)] = field(default_factory=list)
    """Permits under which these queries are counted; empty if they are not. Only shards set it; the
    shard that a client is connected to clears it."""


class Allocation(Struct, array_like=True, gc=False):
    """A reserved slot of a worker."""

    partition: int
    """Partition that made the reservation; the query is relayed there if necessary."""
    token: bytes
    session: bytes
    """Session of the worker."""
    worker: str
    """Name of the worker, for people to read."""
    address: str
    """`host:port` where gateways reach the worker directly; empty if they cannot."""


class Allocated(Answer, array_like=True, gc=False):
    """The reserved slots: at least one, at most as many as were asked for."""

    allocations: list[Allocation]
    counts: Counts | None = None
    policy: str = ""
    """How gateways pick workers for this queue; empty if its partitions hand out the slots. If it
    is set, the gateway subscribes to the workers and picks them itself."""


class Suspect(PartitionRequest, array_like=True, gc=False):
    """Report a worker that took a query and does not answer: its slots are given to no query until
    it offers them again.

    With `refused`, report instead that the worker answers but refuses slots that it had offered.
    """

    opcode = Opcode.SUSPECT
    permission = "query"
    repeatable = True

    worker_session: Session
    refused: Annotated[list[Token], Meta(max_length=SLOTS_MAX)] = field(default_factory=list)
    """Reservations of this partition that the worker refused. Those that were never made, or that
    were reported before, are ignored."""


class Suspected(Answer, array_like=True, gc=False):
    """The worker's offers were withdrawn; `offers` is how many there were."""

    offers: int


class Subscribe(PartitionRequest, array_like=True, gc=False):
    """A long poll to the root for the workers that serve the queue, answered when they change.

    It is for queues whose policy lets gateways pick the worker.
    """

    opcode = Opcode.SUBSCRIBE
    permission = "query"
    repeatable = True

    session: Session
    """Identifies the gateway's run; a restarted gateway has another session."""
    version: Natural = 0
    """Version of the roster that the gateway has; 0 if it has none."""
    user: User = ""
    """User whose queries these are, as in `Allocate`."""


class SheddingTerms(Struct, array_like=True, frozen=True, gc=False):
    """How a gateway sheds queries while no worker has room."""

    wait_target_seconds: float = 0.02
    length: int = 10_000
    holdback: float = 0.2
    retry_share: float = 0.2
    retries_per_second: float = 10.0


class Member(Struct, array_like=True, gc=False):
    """A worker to which a gateway may send queries directly, again and again."""

    session: bytes
    worker: str
    address: str
    slots: int
    token: bytes
    """A pass: the gateway sends it with every query, and it stays valid while the subscription
    lasts."""


class Roster(Answer, array_like=True, gc=False):
    """The workers that serve the queue: the complete list each time."""

    version: int
    policy: str
    """How the gateway picks a worker. With `idle` it picks none and asks for slots with
    ALLOCATE."""
    members: list[Member]
    shedding: SheddingTerms = SheddingTerms()


class Pass(Struct, array_like=True, gc=False):
    """Lets a gateway that picks workers itself send queries to the worker that receives this."""

    token: bytes
    gateway: bytes
    """Session of the gateway."""
    user: str
    seconds: float
    """Seconds that the pass is valid. The root sends it again in time while it is to stay valid."""
    run_seconds: float
    result_bytes: int
    stream_bytes: int
    tracebacks: bool = True


# Workers

WorkerState = Literal["online", "draining", "offline"]


class Attend(PartitionRequest, array_like=True, gc=False):
    """A long poll of a worker to the root, which shows that the worker is there, busy or not.
    Answered when there is news for the worker (`Attended`), or when the time is up."""

    opcode = Opcode.ATTEND
    permission = "work"
    repeatable = True

    session: Session
    """The worker's secret. The shard that the worker is connected to replaces it with the session
    (`sessions.py`): so no process can attend for another worker, whose session many know."""
    worker: WorkerName
    address: Host
    slots: Natural
    busy: Natural
    state: WorkerState = "online"
    good: Share = 1.0
    """Share of the worker's latest queries of this queue that succeeded; queries with invalid
    arguments and cancelled ones are not counted."""
    user: str = ""
    """User as whom the worker connected; the shard that it is connected to fills this in. New
    queues count against this user's rate."""
    limit: Natural | None = None
    """How many tasks and queries the worker runs at a time, of all its queues; None if it does not
    say."""
    limit_reason: Reason = ""
    """Why the limit is not higher: a word of `docs/capacity.md`."""
    blocked: Natural = 0
    """How often handlers have blocked the worker's event loop since it started."""
    signature: AnnouncedSignature = b""
    """Shape of the handler's parameters (`client/shapes.py`); empty if it accepts any arguments."""


class Attended(Answer, array_like=True, gc=False):
    """The order for the worker; empty if the time was up first."""

    order: Literal["", "offline", "online"] = ""
    counts: Counts | None = None
    passes: list[Pass] = field(default_factory=list)
    """Passes of gateways that the worker has not heard of, and passes to be renewed."""
    best: float | None = None
    """Largest share of good answers among the *other* workers; 0 if there are none. A worker that
    is far below it offers few slots. None if it is not told this time."""


class Running(PartitionRequest, array_like=True, gc=False):
    """Report to the partition that made them which counted reservations hold a slot at the worker,
    used or not, and which have ended. A worker sends it at every end, and every half second while
    it has any: a reservation that is not reported for two seconds stops counting.

    A reservation counts if its proof was issued to this worker's session, for this user, by this
    partition, and neither expired nor was reported as ended before.
    """

    opcode = Opcode.RUNNING
    permission = "work"
    repeatable = True

    session: Session
    """Session of the worker."""
    running: ProvenByUser
    """Reservations that hold a slot, by user. The worker may spread them over several messages."""
    ended: ProvenByUser = field(default_factory=dict)
    """Reservations that ended since the last report, by user."""


class Noted(Answer, array_like=True, gc=False):
    """The partition has taken note of the report."""

    refused: int = 0
    """Number of reservations that do not count: their proof is wrong or expired, or they ended
    before."""


class Workers(PartitionRequest, array_like=True, gc=False):
    """Ask the root to list the workers that serve the queue, to take one offline, or to put it back
    online. The last two need the permission `operate`."""

    opcode = Opcode.WORKERS
    permission = "read"

    action: Literal["list", "offline", "online"]
    worker: WorkerName = ""
    """Name of the worker, or the first digits of its session in hexadecimal."""
    user: User = ""
    """User who asks; the shard that the client is connected to fills it in."""
    source: ShortText = ""
    """Address that the request comes from; the shard that the client is connected to fills it in.
    """


class WorkerRow(Struct, kw_only=True):
    """One worker, as people see it."""

    session: bytes
    worker: str
    address: str
    slots: int
    busy: int
    """Slots in use when the worker was last heard from."""
    state: WorkerState
    heard_seconds: float
    """Seconds since the worker was last heard from."""
    suspected: bool = False
    """Whether a gateway reported that the worker does not answer."""
    good: float = 1.0
    """Share of the worker's latest queries of this queue that succeeded."""
    limit: int | None = None
    """How many tasks and queries the worker runs at a time; None if it does not say."""
    limit_reason: str = ""
    """Why the limit is not higher: a word of `docs/capacity.md`."""
    blocked: int = 0
    """How often handlers have blocked the worker's event loop since it started."""


class WorkersFound(Answer, array_like=True, gc=False):
    """All workers of the queue, or those that the order was given to."""

    workers: list[WorkerRow]


# Relaying


class Relay(PartitionRequest, array_like=True, gc=False):
    """From the gateway: the query for a reservation (ordinal 0), or a request for the next piece of
    its answer."""

    opcode = Opcode.RELAY
    permission = "query"
    stays = True

    token: Token
    ordinal: Natural = 0
    query: bytes = b""
    """An encoded `RunQuery` if the ordinal is 0; empty otherwise."""
    stop: bool = False
    """Whether the caller no longer wants the answer; the reply is the error `cancelled`. A gateway
    that waits for a piece cancels that request instead, to the same effect."""


class Relayed(Answer, array_like=True, gc=False):
    """A piece of a relayed answer."""

    kind: int
    """Opcode that the worker's frame would have had: ROWS, RUN or ERROR. A RUN that does not fit
    into one piece comes in several."""
    body: bytes
    more: bool
    """Whether further pieces follow."""


class Fetch(PartitionRequest, array_like=True, gc=False):
    """A long poll of the worker for the query of a reservation.

    If `running`, it is a long poll that is answered when the caller no longer wants the answer.
    """

    opcode = Opcode.FETCH
    permission = "work"
    stays = True
    repeatable = True

    token: Token
    running: bool = False


class Fetched(Answer, array_like=True, gc=False):
    """The query; empty if no gateway relayed one in time."""

    query: bytes = b""
    stop: bool = False


class Deliver(PartitionRequest, array_like=True, gc=False):
    """From the worker: a piece of the answer. The reply comes when the gateway has taken the
    piece."""

    opcode = Opcode.DELIVER
    permission = "work"
    stays = True

    token: Token
    ordinal: Natural
    kind: int
    body: bytes
    more: bool


class Delivered(Answer, array_like=True, gc=False):
    """Tells the worker to send the next piece, or to stop."""

    stop: bool = False


# Permits

Permits = dict[str, list[Token]]
"""Permits by the name that they count for: a user, or a queue with a stroke before its name."""


class Count(ShardRequest, array_like=True, gc=False):
    """Renew and end permits at the shard that counts these names, and ask for new ones for `name`.
    Answered at once, unless permits are wanted and the limit is reached: then a moment later, in
    case a query has just ended and the shard has not heard of it yet."""

    opcode = Opcode.COUNT
    permission = "query"
    repeatable = True
    between_shards = True

    held: Permits = field(default_factory=dict)
    over: Permits = field(default_factory=dict)
    name: str = ""
    limit: Natural = 0
    """How many permits may be held for the name at a time."""
    wanted: list[Token] = field(default_factory=list)


class Counted(Answer, array_like=True, gc=False):
    """How many of the wanted permits were granted; these are the first ones, and they count from
    now on."""

    granted: int = 0


# People


class QueryFilter(Struct, array_like=True, gc=False):
    """Selects queries of the gateways' tables; a field that is empty selects all."""

    namespace: str = ""
    queue: str = ""
    user: str = ""
    status: str = ""
    worker: str = ""
    gateway: str = ""
    """Name of the gateway, or the first digits of its session in hexadecimal."""
    sequence: int = -1
    changed_since: float = 0.0
    """Selects queries that changed after this time, in seconds since 1970."""
    most: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Most queries to return: the newest ones."""


QueryStatus = Literal[
    "waiting",
    "connecting",
    "running",
    "streaming",
    "done",
    "failed",
    "cancelled",
    "refused",
    "lost",
    "late",
]
"""`connecting`: it has a slot, and its gateway connects to the worker. `failed`: its handler
raised. `refused`: maitred refused it, and it never ran. `lost`: its worker was lost. `late`: its
deadline passed."""

QUERIES_UNDER_WAY: tuple[QueryStatus, ...] = ("waiting", "connecting", "running", "streaming")
"""The statuses of queries that have not ended, in the order in which a query passes through."""


class QueryRow(Struct, kw_only=True):
    """One query of a gateway's table, as people see it. Times are seconds since 1970; 0: not
    yet."""

    gateway: str
    """First eight digits of the gateway's session in hexadecimal."""
    sequence: int
    user: str
    connection: str
    namespace: str
    queue: str
    query: str
    priority: int
    status: QueryStatus
    received_at: float
    sent_at: float = 0.0
    returned_at: float = 0.0
    worker: str = ""
    error: str = ""
    """Error code of maitred, or class of the handler's exception, and the sentence."""
    bytes_in: int = 0
    bytes_out: int = 0
    attempts: int = 0
    """How often the query was sent to a worker."""
    relayed: bool = False
    changed_at: float = 0.0


class Watch(ShardRequest, array_like=True, gc=False):
    """A long poll from a gateway to shard 0, which announces the gateway's query table. Answered
    when a person lists or cancels queries."""

    opcode = Opcode.WATCH
    permission = "query"
    repeatable = True
    anywhere = True

    session: Session
    name: WorkerName
    user: User = ""
    """User whose table it is; empty for the node's own gateway. The node fills it in."""
    within: list[str] | None = None
    """Namespaces that the user may query; None: all. The node fills it in."""
    network: str = ""
    """IPv4 address or /64 of the IPv6 address that the gateway connects from; empty for the node's
    own gateway. The node fills it in."""


class Order(Struct, array_like=True, gc=False):
    """Asks a gateway to list or cancel the queries of its table that match."""

    number: int
    action: Literal["list", "cancel"]
    filter: QueryFilter


class Watched(Answer, array_like=True, gc=False):
    """The orders for the gateway."""

    orders: list[Order] = field(default_factory=list)


class Report(ShardRequest, array_like=True, gc=False):
    """From a gateway: the queries that an order selected."""

    opcode = Opcode.REPORT
    permission = "query"
    repeatable = True
    anywhere = True

    session: Session
    number: Natural
    rows: list[QueryRow]
    user: User = ""
    """User whose table it is, as in `Watch`."""


class Reported(Answer, array_like=True, gc=False):
    """The node has received the report."""


class Queries(ShardRequest, array_like=True, gc=False):
    """Ask shard 0 to list the queries of all gateways, or to cancel those that match. To cancel
    needs the permission `operate`."""

    opcode = Opcode.QUERIES
    permission = "read"
    anywhere = True

    action: Literal["list", "cancel"]
    filter: QueryFilter = field(default_factory=QueryFilter)
    within: list[str] | None = None
    """Namespaces in which the user who asks has the permission; None: all. The node fills it in."""
    reveal: bool = True
    """Whether to answer with the texts of queries and the messages of their errors, as far as the
    user may see them."""
    revealed: list[str] | None = None
    """Namespaces in which the user may see these; None: all. The node fills it in."""
    user: User = ""
    """User who asks, and who sees the own queries whole. The node fills it in."""


class QueriesFound(Answer, array_like=True, gc=False):
    """The queries that match, the newest last; for a cancel, those that were told to stop."""

    rows: list[QueryRow]
    gateways: int
    """How many gateways were asked."""
    silent: int = 0
    """How many of these gateways did not answer in time."""


QUERY_EXCHANGES: Exchanges = (
    (Allocate, Allocated),
    (Subscribe, Roster),
    (Suspect, Suspected),
    (Attend, Attended),
    (Running, Noted),
    (Count, Counted),
    (Workers, WorkersFound),
    (Relay, Relayed),
    (Fetch, Fetched),
    (Deliver, Delivered),
    (Watch, Watched),
    (Report, Reported),
    (Queries, QueriesFound),
)
"""Class of each request and of its answer."""
