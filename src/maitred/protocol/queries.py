"""What is said about queries at a node: by gateways, workers, people who look after both, and
shards.

A gateway asks a partition for free slots and gets *allocations*: a worker, and a reservation that
only that worker takes, once, for a short time. The worker hears of the same reservation in the
answer to its offer. The query itself goes straight from the gateway to the worker (`seats.py`) and
never passes through a shard, unless the worker cannot be reached: then the node relays it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Natural, PartitionRequest, ShardRequest
from maitred.protocol.tasks import (  # noqa: TC001 - msgspec reads the annotations
    Counts,
    Duration,
    Priority,
    Session,
    WorkerName,
)

SLOTS_MAX = 1_000
"""Of one request for slots. More are asked for in further ones."""

LISTED_MAX = 10_000
"""Reservations of one user in one message of a worker."""

PROOF_BYTES = 22
"""Of a counted reservation."""

SIGNATURE_BYTES = 4_096
"""Longest signature that a worker may announce. One with forty parameters needs a quarter of it."""

PIECE_MAX = 2**20
"""Bytes of one piece of an answer that is relayed."""

Token = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""A reservation: random, so that whoever shows it was given it."""
Proven = Annotated[bytes, Meta(min_length=16 + PROOF_BYTES, max_length=16 + PROOF_BYTES)]
"""A counted reservation: its token, and then the proof that the worker was given with it."""
AnnouncedSignature = Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)]
Host = Annotated[str, Meta(max_length=300)]
User = Annotated[str, Meta(max_length=200)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Reason = Annotated[str, Meta(max_length=40)]
ProvenByUser = dict[User, Annotated[list[Proven], Meta(max_length=LISTED_MAX)]]


# Gateways


class Allocate(PartitionRequest, array_like=True, gc=False):
    """I have queries for so many slots. Answered when there is at least one, or with an error.

    The time that it may take is the longest of any of the queries. Whoever got fewer slots than he
    wanted asks again, and says how long he has waited: nobody overtakes him.
    """

    opcode = Opcode.ALLOCATE
    permission = "query"
    repeatable = True
    """A slot that is reserved and not used is free again soon."""

    version: Natural
    session: Session
    """The gateway's."""
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = 1
    priority: Priority = 2
    waited: Duration = 0.0
    """Seconds that the queries have waited already, here or elsewhere."""
    user: User = ""
    """Whose queries these are; only the node's own gateway may say so, for others it is who they
    are."""
    hops: Natural = 0
    """How often it was passed on to a parent."""
    do_not_queue: bool = False
    """A slot now, or a refusal."""
    permits: Annotated[list[Token], Meta(max_length=SLOTS_MAX)] = field(default_factory=list)
    """Under which these queries are counted, if they are; one shard says so to another."""


class Allocation(Struct, array_like=True, gc=False):
    """A free slot, and the right to use it."""

    partition: int
    """Where the reservation was made; there the query is relayed if it has to be."""
    token: bytes
    session: bytes
    """The worker's."""
    worker: str
    """Its name, for people to read."""
    address: str
    """`host:port` where it can be reached directly; empty: nowhere."""


class Allocated(Answer, array_like=True, gc=False):
    """Slots; fewer than were asked for, perhaps, but at least one."""

    allocations: list[Allocation]
    counts: Counts | None = None
    policy: str = ""
    """How the queue wants its queries handed out, if not through its partitions: then the gateway
    subscribes to the workers, and picks them itself."""


class Suspect(PartitionRequest, array_like=True, gc=False):
    """This worker took a query and does not answer: give nobody its slots until it speaks again.

    Or, if there are any `refused`: it answers, but refuses slots that it had offered.
    """

    opcode = Opcode.SUSPECT
    permission = "query"
    repeatable = True

    worker_session: Session
    refused: Annotated[list[Token], Meta(max_length=SLOTS_MAX)] = field(default_factory=list)
    """Reservations that were made here and that it did not take. One that nobody was given, or of
    which that was said before, does not count."""


class Suspected(Answer, array_like=True, gc=False):
    """Its offers were taken down."""

    offers: int


class Subscribe(PartitionRequest, array_like=True, gc=False):
    """To the root: who serves this queue, and how do I reach them? Held until that changes.

    For queues whose policy lets gateways pick the worker.
    """

    opcode = Opcode.SUBSCRIBE
    permission = "query"
    repeatable = True

    session: Session
    """The gateway's."""
    version: Natural = 0
    """Of the roster that the gateway has; 0: none."""
    user: User = ""
    """As in `Allocate`."""


class Shedding(Struct, array_like=True, frozen=True, gc=False):
    """What a gateway does with queries for which no worker has room."""

    wait_target_seconds: float = 0.02
    length: int = 10_000
    holdback: float = 0.2
    retry_share: float = 0.2
    retries_per_second: float = 10.0


class Member(Struct, array_like=True, gc=False):
    """A worker that may be asked directly, again and again."""

    session: bytes
    worker: str
    address: str
    slots: int
    token: bytes
    """A pass: it is shown with every query, and stays good while the subscription lasts."""


class Roster(Answer, array_like=True, gc=False):
    """Who serves the queue; all of them each time."""

    version: int
    policy: str
    """`idle`: ask for slots as before."""
    members: list[Member]
    shedding: Shedding = Shedding()


class Pass(Struct, array_like=True, gc=False):
    """What a worker is told of a gateway that picks workers itself."""

    token: bytes
    gateway: bytes
    """The gateway's session."""
    user: str
    seconds: float
    """It is good for so long; told again in time if it is to stay so."""
    run_seconds: float
    result_bytes: int
    stream_bytes: int
    tracebacks: bool = True


# Workers

WorkerState = Literal["online", "draining", "offline"]


class Attend(PartitionRequest, array_like=True, gc=False):
    """To the root: I am here, busy or not. Answered when there is an order, or when time is up."""

    opcode = Opcode.ATTEND
    permission = "work"
    repeatable = True

    session: Session
    """A worker says its secret here, and the shard that it is connected to replaces it with the
    session (`sessions.py`). So nobody attends for another worker, whose session many know."""
    worker: WorkerName
    address: Host
    slots: Natural
    busy: Natural
    state: WorkerState = "online"
    good: Share = 1.0
    """The share of its queries here that went well, lately; bad arguments and what was cancelled
    are not counted."""
    user: str = ""
    """Whose request it is; the shard that a client is connected to fills it in. New queues count
    against this user's rate."""
    limit: Natural | None = None
    """How many the worker takes at a time, of all its queues; nothing: it does not say."""
    limit_reason: Reason = ""
    """Why not more: a word of `docs/capacity.md`."""
    blocked: Natural = 0
    """How often handlers have blocked its event loop since it was started."""
    signature: AnnouncedSignature = b""
    """The shape of the handler's parameters (`client/shapes.py`); empty: it takes anything."""


class Attended(Answer, array_like=True, gc=False):
    """What a person wants of the worker; nothing, if the time was up first."""

    order: Literal["", "offline", "online"] = ""
    counts: Counts | None = None
    passes: list[Pass] = field(default_factory=list)
    """Gateways that may come without a reservation, those that the worker has not heard of, and
    those whose time is to be renewed."""
    best: float | None = None
    """The largest share of good answers among the *other* workers, 0 if there are none: whoever is
    far below it offers little. Nothing: it is not said this time."""


class Running(PartitionRequest, array_like=True, gc=False):
    """To the partition that made them: these reservations, of those that are counted, have a slot
    here, used or not; and these are over. Said at every end, and again and again while there are
    any: whoever is silent for a moment has none.

    A reservation counts if its proof was issued to this worker's session, for this user, by this
    partition, and neither expired nor was reported as over before.
    """

    opcode = Opcode.RUNNING
    permission = "work"
    repeatable = True

    session: Session
    """The worker's."""
    running: ProvenByUser
    """All that there are, in this message or others."""
    ended: ProvenByUser = field(default_factory=dict)
    """Since the last time."""


class Noted(Answer, array_like=True, gc=False):
    """Heard."""

    refused: int = 0
    """Reservations that do not count: their proof is wrong, or expired, or they are over."""


class Workers(PartitionRequest, array_like=True, gc=False):
    """To the root: who serves this queue? Or: take one of them offline, or put it back."""

    opcode = Opcode.WORKERS
    permission = "admin"

    action: Literal["list", "offline", "online"]
    worker: WorkerName = ""
    """Its name, or the first letters of its session in hexadecimal."""


class WorkerRow(Struct, kw_only=True):
    """A worker, as people see it."""

    session: bytes
    worker: str
    address: str
    slots: int
    busy: int
    """When it was heard of last."""
    state: WorkerState
    heard_seconds: float
    """Since then."""
    suspected: bool = False
    """A gateway said that it does not answer."""
    good: float = 1.0
    """The share of its queries here that went well, lately."""
    limit: int | None = None
    """How many it takes at a time; nothing: it does not say."""
    limit_reason: str = ""
    """Why the limit is not higher: a word of `docs/capacity.md`."""
    blocked: int = 0
    """How often handlers have blocked its event loop."""


class WorkersFound(Answer, array_like=True, gc=False):
    """All of them, or those that the order was given to."""

    workers: list[WorkerRow]


# Relaying


class Relay(PartitionRequest, array_like=True, gc=False):
    """From the gateway: the query for a reservation (ordinal 0); then: the next piece of the
    answer."""

    opcode = Opcode.RELAY
    permission = "query"

    token: Token
    ordinal: Natural = 0
    seat: bytes = b""
    """A `Seat`, with ordinal 0."""
    stop: bool = False
    """Nobody wants the answer any more; answered with `cancelled`. Who waits for a piece takes the
    request for it back instead, to the same effect."""


class Relayed(Answer, array_like=True, gc=False):
    """A piece of the answer."""

    kind: int
    """The opcode that the worker's frame would have had: ROWS, SEAT or ERROR. A SEAT that does not
    fit into one piece comes in several."""
    body: bytes
    more: bool
    """Whether to ask for the next piece."""


class Fetch(PartitionRequest, array_like=True, gc=False):
    """From the worker: is there a query for this reservation? Held until there is, or time is up.

    While it runs: tell me when nobody wants the answer any more.
    """

    opcode = Opcode.FETCH
    permission = "work"
    repeatable = True

    token: Token
    running: bool = False


class Fetched(Answer, array_like=True, gc=False):
    """The query; nothing if nobody relayed one in time."""

    seat: bytes = b""
    stop: bool = False


class Deliver(PartitionRequest, array_like=True, gc=False):
    """From the worker: a piece of the answer; answered when the gateway has taken it."""

    opcode = Opcode.DELIVER
    permission = "work"

    token: Token
    ordinal: Natural
    kind: int
    body: bytes
    more: bool


class Delivered(Answer, array_like=True, gc=False):
    """Go on, or stop."""

    stop: bool = False


# Counting

Permits = dict[str, list[Token]]
"""By what they count for: a user, or a queue after a stroke."""


class Count(ShardRequest, array_like=True, gc=False):
    """To the shard that counts for these names: these are held still, these are over; and may I
    have more? Answered at once, unless more are wanted and there is no room: then a moment later,
    in case something has just ended of which nobody knows yet."""

    opcode = Opcode.COUNT
    permission = "query"
    repeatable = True
    between_shards = True

    held: Permits = field(default_factory=dict)
    over: Permits = field(default_factory=dict)
    name: str = ""
    limit: Natural = 0
    """How many may be under way for the name."""
    wanted: list[Token] = field(default_factory=list)


class Counted(Answer, array_like=True, gc=False):
    """So many of those that were wanted, the first ones, are counted from now on."""

    granted: int = 0


# People


class QueryFilter(Struct, array_like=True, gc=False):
    """Which queries of the tables; empty fields let everything through."""

    namespace: str = ""
    queue: str = ""
    user: str = ""
    status: str = ""
    worker: str = ""
    gateway: str = ""
    """The first letters of its session in hexadecimal, or its name."""
    sequence: int = -1
    changed_since: float = 0.0
    """Wall-clock time; only what has changed after it."""
    most: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """The newest ones."""


class QueryRow(Struct, kw_only=True):
    """One query of a gateway's table, as people see it. Times are seconds since 1970, 0: not
    yet."""

    gateway: str
    """The first eight letters of its session in hexadecimal."""
    sequence: int
    user: str
    connection: str
    namespace: str
    queue: str
    query: str
    priority: int
    status: Literal[
        "waiting", "running", "streaming", "done", "failed", "cancelled", "refused", "lost", "late"
    ]
    """`failed`: by its handler. `refused`: by us, it never ran. `lost`: with its worker. `late`:
    its time was over."""
    received_at: float
    sent_at: float = 0.0
    returned_at: float = 0.0
    worker: str = ""
    error: str = ""
    """A code of ours, or the class of the handler's exception, and the sentence."""
    bytes_in: int = 0
    bytes_out: int = 0
    attempts: int = 0
    """How often it was given to a worker."""
    relayed: bool = False
    changed_at: float = 0.0


class Watch(ShardRequest, array_like=True, gc=False):
    """From a gateway, to shard 0: I have a query table. Held until somebody asks for it."""

    opcode = Opcode.WATCH
    permission = "query"
    repeatable = True
    anywhere = True

    session: Session
    name: WorkerName
    user: User = ""
    """The user whose table it is; empty for the node's own gateway. The node fills it in."""
    within: list[str] | None = None
    """Namespaces that the user may ask; nothing: all. The node fills it in."""
    network: str = ""
    """The IPv4 address or the /64 of the IPv6 address that it comes from; empty for the node's own
    gateway. The node fills it in."""


class Order(Struct, array_like=True, gc=False):
    """What somebody wants of a gateway's table."""

    number: int
    action: Literal["list", "cancel"]
    filter: QueryFilter


class Watched(Answer, array_like=True, gc=False):
    """What was asked."""

    orders: list[Order] = field(default_factory=list)


class Report(ShardRequest, array_like=True, gc=False):
    """From a gateway: the answer to an order."""

    opcode = Opcode.REPORT
    permission = "query"
    repeatable = True
    anywhere = True

    session: Session
    number: Natural
    rows: list[QueryRow]
    user: User = ""
    """As in `Watch`."""


class Reported(Answer, array_like=True, gc=False):
    """Heard."""


class Queries(ShardRequest, array_like=True, gc=False):
    """To shard 0: list the queries of all gateways, or cancel those that match."""

    opcode = Opcode.QUERIES
    permission = "admin"
    anywhere = True

    action: Literal["list", "cancel"]
    filter: QueryFilter = field(default_factory=QueryFilter)
    within: list[str] | None = None
    """Namespaces in which the asker is admin; nothing: everywhere. The node fills it in."""


class QueriesFound(Answer, array_like=True, gc=False):
    """Those that match, the newest last; of a cancel, those that were told to stop."""

    rows: list[QueryRow]
    gateways: int
    """How many were asked."""
    silent: int = 0
    """Of these, how many did not answer in time."""


AnyQueryRequest = (
    Allocate
    | Subscribe
    | Suspect
    | Attend
    | Running
    | Count
    | Workers
    | Relay
    | Fetch
    | Deliver
    | Watch
    | Report
    | Queries
)
AnyQueryAnswer = (
    Allocated
    | Roster
    | Suspected
    | Attended
    | Noted
    | Counted
    | WorkersFound
    | Relayed
    | Fetched
    | Delivered
    | Watched
    | Reported
    | QueriesFound
)

QUERY_EXCHANGES: tuple[tuple[type[AnyQueryRequest], type[AnyQueryAnswer]], ...] = (
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
"""Each request and its answer."""
