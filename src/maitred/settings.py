"""Everything that can be set, in one schema: names, defaults, and the reason for each default.

A limit is a number with a name. Whoever reaches it is refused in words, never slowed down without a
sign. Times are in seconds and sizes in bytes, and say so at the end of their names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

PORT = 4747
"""Where a node listens and a client looks, if nobody says otherwise."""

HTTP_PORT = 4780
"""The same for the HTTP door of a gateway."""

# The upper ends say "this is a slip", not "this is wise": they keep a value with too many zeros, or
# an infinite one, out of timers and counters that could not hold it.
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]
Wait = Annotated[float, Meta(ge=0, le=365 * 86_400)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(min_length=1)]
Location = Annotated[str, Meta(min_length=1, extra={"location": True})]
"""A file or directory. A relative one in a configuration file starts at that file's directory."""
Hidden = Annotated[str, Meta(min_length=1, extra={"hidden": True})]
"""Never shown: not in an error, not by `maitred config show`."""
Permission = Literal["produce", "work", "query", "admin"]


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings do not change while they are used, and there are none that nobody knows."""


class Limits(Schema, frozen=True, kw_only=True):
    """What one shard takes from its connections."""

    frame_bytes: Annotated[int, Meta(ge=1024, le=256 * 2**20)] = 16 * 2**20
    """Largest body of a frame. It is held in memory whole, so it bounds what a connection costs."""

    payload_bytes: Annotated[int, Meta(ge=0, le=256 * 2**20 - 64 * 1024)] = 2 * 2**20
    """Largest payload of a task or a query. Larger things belong into a store, with a reference."""

    connections: Count = 10_000
    """Connections of one shard; some 10 KiB each when idle."""

    in_flight: Annotated[int, Meta(ge=1, le=32_768)] = 1_024
    """Unanswered requests of one connection; CQL's stream ids allow 32,768. At a millisecond each,
    this many are a million requests a second."""

    handshake_seconds: Seconds = 10.0
    """From the connection to READY. Long enough for TLS over a bad line."""

    frame_seconds: Seconds = 30.0
    """From the first byte of a frame to its last, and longest time in which a peer takes nothing of
    what is written to it. A phone on a train is faster; one byte a second is not."""

    idle_seconds: Seconds = 300.0
    """A connection on which nothing arrives for so long is closed. Drivers beat every 30 s."""

    turn_frames: Count = 64
    """Requests of one connection that are served before the others get their turn."""

    write_buffer_bytes: Count = 256 * 1024
    """Unsent answers from which on nothing more is read from that connection."""

    partial_bytes: Count = 256 * 2**20
    """Incomplete frames of all connections of a shard together. Whoever goes beyond is closed, so
    that ten thousand large frames, each nearly sent, do not fill the memory."""

    handshake_bytes: Count = 16 * 2**20
    """The same for those who have not finished their handshake: strangers cannot use up what users
    need. An honest handshake has some hundred bytes."""

    verifications: Count = 64
    """Secrets that may wait to be verified; more are refused and may try again. Two are verified at
    a time, in some 50 ms each, so the last of them waits for less than two seconds."""

    under_way_bytes: Count = 256 * 2**20
    """Bodies of all requests of a shard that are under way and not answered yet. Beyond it further
    ones are refused, however few each connection has."""

    unsent_bytes: Count = 256 * 2**20
    """Answers that wait in a shard for peers that do not take them, all connections together.
    Whoever goes beyond is cut off: no other connection has to suffer for one that does not read."""

    forward_buffer_bytes: Count = 16 * 2**20
    """Unsent requests to another shard from which on requests for it are refused."""


class Tls(Schema, frozen=True, kw_only=True):
    """Files in PEM form."""

    certificate: Location
    """The node's certificate, followed by those that vouch for it."""

    key: Location
    """The certificate's key."""

    client_authorities: Location | None = None
    """If given, clients must show a certificate signed by one of these."""


class QueryLimits(Schema, frozen=True, kw_only=True):
    """What the queries of one user may take, at every door; nothing means no limit of its own."""

    queues: list[Text] | None = None
    """Queues that may be asked, as `namespace/queue` or `namespace/*`; nothing: all of the
    namespaces in which the user may query."""

    concurrent: Count | None = None
    """Queries under way at a time, across the node; more are refused. Such a user's queries ask the
    node for every slot."""

    waiting: Count | None = None
    """Queries that wait for a worker at a time, in one queue; more are refused."""

    rate_per_second: Rate | None = None
    """Queries a second, with bursts of as many as a second has; more are refused."""

    run_seconds: Seconds | None = None
    """Longest that a query runs; then it is stopped. The queue's own counts if it is lower."""

    result_bytes: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    """Largest result, streamed or not. The queue's own counts if it is lower."""


class User(Schema, frozen=True, kw_only=True):
    """Who may come in, and what for."""

    secret: Hidden
    """What `maitred hash-secret` prints; never the secret itself."""

    permissions: dict[Text, list[Permission]] = field(default_factory=dict)
    """By namespace; `*` stands for every one."""

    queries: QueryLimits = field(default_factory=QueryLimits)


class Log(Schema, frozen=True, kw_only=True):
    """What is written to standard error."""

    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: for people on a terminal, JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written. `info` is what a person would want to know the next morning."""


class Restarts(Schema, frozen=True, kw_only=True):
    """When a shard dies."""

    first_seconds: Seconds = 0.1
    """Before the first restart; doubled each time, until..."""

    longest_seconds: Seconds = 5.0
    """... this."""

    give_up_after: Count = 6
    """Deaths within the window after which the node stops: it will not heal by itself."""

    window_seconds: Seconds = 60.0
    """A shard that lived for so long starts from nothing."""


class Forwarding(Schema, frozen=True, kw_only=True):
    """How tasks and offers of a partition go up the tree to its parent.

    Chosen by simulation: docs/matching-study.md has the numbers.
    """

    children: Annotated[int, Meta(ge=1, le=10_000)] = 20
    """Partitions that have one parent: two levels reach 20 partitions, three reach 420. Each level
    more costs two messages and their time; twenty children are no burden to a parent."""

    offers: Count = 4
    """Offers of one partition that may wait at its parent at a time, each with all its slots. One
    is enough while workers are few; sixteen were no better than four."""

    tasks: Count = 4
    """Tasks of one partition that may wait at its parent at a time. One keeps the workers of others
    idle for as long as a message takes; sixteen were no faster than four, and an offer at home
    calls all of them back: a seventh more messages."""

    tasks_per_second: Rate = 1_000.0
    """Tasks of one partition that are passed on, at most. Cadence's 10 are what keeps a backlog in
    one partition from being worked off by the workers of the others: 30 s instead of 0.7."""

    task_wait_seconds: Wait = 0.0
    """How long a task waits for an offer of its own partition before it is passed on. Every
    millisecond here is one of latency, and more tasks that are written though a worker is free."""

    offer_wait_seconds: Wait = 0.001
    """How long an offer waits for a task of its own partition before it is passed on; it keeps
    listening there. A millisecond spares a busy queue its messages and costs nobody anything; ten
    leave tasks without workers that are free."""


class Scaling(Schema, frozen=True, kw_only=True):
    """How the number of partitions follows the load."""

    adaptive: bool = True
    """Whether the root changes the counts by itself."""

    tasks_per_second: Rate = 5_000.0
    """What one partition should take in. One core does several times that, but has other queues."""

    up_after_seconds: Seconds = 60.0
    """More than the partitions should take, for so long: add some."""

    down_after_seconds: Seconds = 120.0
    """Fewer would do with a quarter to spare, for so long: remove some."""

    down_share: Annotated[float, Meta(gt=0, lt=1)] = 0.75
    """How full the remaining partitions may be after shrinking: the gap that keeps the count from
    swinging."""

    look_seconds: Seconds = 5.0
    """How often the root looks at its partitions, and tells them the counts."""

    partitions_max: Annotated[int, Meta(ge=1, le=1024)] = 64
    """No more than this by itself; by hand there may be more."""


class Shedding(Schema, frozen=True, kw_only=True):
    """What a gateway that picks workers itself does with queries for which none has room."""

    wait_target_seconds: Seconds = 0.02
    """A query that would wait longer than this, at the rate at which slots get free, is refused at
    once: WeChat takes a mean of 20 ms for overload."""

    length: Count = 10_000
    """Queries that wait at one gateway, however fast the workers are; each costs about a kilobyte
    and its connection."""

    holdback: Annotated[float, Meta(ge=0, lt=0.25)] = 0.2
    """Of the line, what each priority leaves to those before it: the lowest are refused first."""

    retry_share: Annotated[float, Meta(ge=0, le=10)] = 0.2
    """Retries of refused queries for each that is let in: a fifth more load at the very most."""

    retries_per_second: Annotated[float, Meta(ge=0, le=1e6)] = 10.0
    """And so many more, so that a quiet queue can retry too."""


class Queries(Schema, frozen=True, kw_only=True):
    """What a queue does with queries."""

    policy: Literal[
        "idle",
        "adaptive",
        "two-phase",
        "random",
        "round-robin",
        "least-active",
        "weighted-least-connections",
        "p2c-peak-ewma",
    ] = "idle"
    """Who picks the worker. `idle`: the partitions give a query to a worker with a free slot. All
    others: the gateway picks, without that hop; `adaptive` by what workers measure of
    themselves."""

    waiting: Count = 10_000
    """Queries that wait for a worker; more are refused, and told when to come back. At a
    millisecond each and ten slots, the last of them waits for a second."""

    waiting_per_user: Count = 5_000
    """The same for one user, so that nobody fills the line alone."""

    rate_per_second: Rate | None = None
    """Queries a second of all users together, with bursts of as many as a second has; more are
    refused. Counted by the gateway and by the shard that is asked."""

    concurrent: Count | None = None
    """Queries under way at a time, of all users together and across the node; more are refused.
    Workers have as many slots as they have, whatever this says. The policy of such a queue is
    `idle`: its queries ask the node for every slot."""

    no_worker_seconds: Wait = 5.0
    """How long queries wait when the last worker of the queue has gone, before they are refused. A
    worker that is started again is back within this time."""

    reservation_seconds: Seconds = 2.0
    """How long a slot that was given to a gateway stays reserved if nothing comes: the longest that
    a gateway's death can cost a slot. The query usually follows within a millisecond."""

    again_seconds: Wait = 10.0
    """How long a gateway that has just been served may use the slot again without asking, while the
    worker has others on offer, so that nobody waits for it. It spares half of the messages; for so
    long a user who is no more, or may no more, can go on. 0: every query asks."""

    pass_seconds: Annotated[float, Meta(ge=6, le=3600)] = 60.0
    """Where gateways pick workers: how long a worker lets a gateway in without hearing of it again
    from the node. So long a user who is no more, or may no more, can go on; and so long, at most,
    do queries go on while the node is away. Each worker hears of each gateway three times in it."""

    subscribers: Count = 1_000
    """Gateways that pick the workers of the queue themselves, and clients that are their own; more
    ask for a slot each time, as with `idle`. Each holds a request at the root partition."""

    passes: Count = 100_000
    """Gateways times workers, of those: a gateway beyond it knows of some workers only. Each takes
    about 300 bytes of the root's shard; a hundred gateways of a thousand workers have so many."""

    run_seconds: Seconds = 3600.0
    """Longest that a query runs, whatever its caller allows; then it is stopped."""

    result_bytes: Annotated[int, Meta(ge=1, le=240 * 2**20)] = 64 * 2**20
    """Largest result in one piece: it is in memory whole, at the worker and at the gateway. Larger
    ones can be streamed."""

    stream_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 0
    """Largest result of a stream; 0: as large as it wants to be, since it is never in memory
    whole."""

    tracebacks: bool = True
    """Whether workers tell tracebacks of handlers that fail. Callers of the HTTP door see them only
    if `gateway.tracebacks` allows it as well; clients that are their own gateway always do."""

    shedding: Shedding = field(default_factory=Shedding)


class Queue(Schema, frozen=True, kw_only=True):
    """How the tasks of a queue are kept and handed out."""

    rate_per_second: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Tasks handed out a second, by all partitions together; fractions are meant as they stand."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many a new queue starts with."""

    lease_seconds: Seconds = 10.0
    """A task whose worker has not been heard of for so long is given to another one. Workers say
    that they live three times in it."""

    offer_seconds: Seconds = 60.0
    """Longest that an offer waits for a task; then the worker asks again, perhaps elsewhere."""

    buffer_tasks: Annotated[int, Meta(ge=10, le=1_000_000)] = 2_000
    """Waiting tasks of one priority that a partition has in memory; the others are in the store.
    Enough for a tenth of a second at full speed, in which the next are read."""

    buffer_bytes: Annotated[int, Meta(ge=64 * 1024, le=2**40)] = 32 * 2**20
    """The same, in bytes of their payloads; whichever is reached first. What 2,000 tasks of 16 KiB
    have: most queues never notice, and tasks of a megabyte each do not fill the memory."""

    hold_seconds: Wait = 0.02
    """How long the writing of a task that a worker has already got may wait: if it is done by then
    it need not be written. Only while the queue's tasks usually take less than this."""

    finish_seconds: Wait = 0.02
    """How long finished tasks may wait to be crossed out in the store, many at once. A worker hears
    that its task is finished when this is done; nobody waits for it."""

    recovery_seconds: Wait = 3.0
    """After a crash, how long workers have to say what they are still working on before it is given
    to others. Workers come back within a second."""

    results_kept: Annotated[int, Meta(ge=0, le=10_000_000)] = 50_000
    """Results in memory, of one partition; the oldest go first."""

    results_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 32 * 2**20
    """The same, in bytes."""

    memory_seconds: Wait = 60.0
    """A result that is to be kept for longer than this is written to the store."""

    queries: Queries = field(default_factory=Queries)
    forwarding: Forwarding = field(default_factory=Forwarding)
    scaling: Scaling = field(default_factory=Scaling)


class Querying(Schema, frozen=True, kw_only=True):
    """How whoever asks queries goes about it: a gateway, or a client that is its own."""

    timeout_seconds: Seconds = 30.0
    """For a query that does not say how long it may take."""

    table_rows: Count = 10_000
    """Queries in the query table; when it is full, those that are over longest make room."""

    text_letters: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Of each query, in the table; the rest is cut off."""

    mask: bool = False
    """Whether the table shows no query's text at all: it may hold what not every operator should
    read."""

    under_way: Count = 10_000
    """Queries that wait or run at a time; more are refused."""

    dial_seconds: Seconds = 1.0
    """For a connection to a worker. If there is none by then, the node relays."""

    unreachable_seconds: Seconds = 30.0
    """How long a worker that could not be reached directly is not tried again."""

    idle_seconds: Seconds = 60.0
    """A connection to a worker that was not used for so long is closed."""

    ping_seconds: Seconds = 2.0
    """A worker that has a query and has said nothing for so long is asked whether it lives."""

    hung_seconds: Seconds = 8.0
    """A worker that does not answer that question within this time is given up, with its queries. A
    handler that blocks its loop for longer looks just like it."""

    together: Count = 8
    """Queries for one worker that are written together, at most. Two ends that each wait for all
    that the other one has to say work by turns; with eight a client and its worker do twice as
    much. A gateway with a thousand callers gains nothing by it."""

    warm: bool = True
    """Whether slots that a worker keeps for us are used again without asking the node. A gateway
    with a thousand callers asks always: then the partition decides whose turn it is."""

    window_bytes: Annotated[int, Meta(ge=64 * 1024, le=2**30)] = 4 * 2**20
    """Of a stream, what may be on its way or waiting here before the worker pauses."""


class Gateway(Schema, frozen=True, kw_only=True):
    """The HTTP door, and the gateway behind it."""

    enabled: bool = True
    """Whether `maitred up` starts one."""

    host: Text = "127.0.0.1"
    """Loopback unless told: an open port is a decision."""

    port: Port | None = None
    """Where the HTTP door listens; 0 asks the system for a free one. Unless told 4780, beside a
    node on another port than 4747 a free one: two nodes of a machine do not meet there."""

    connections: Count = 10_000
    """Open at a time; more are refused with 503."""

    header_bytes: Annotated[int, Meta(ge=1024, le=2**24)] = 32 * 1024
    """Largest request line with headers; proxies send a few hundred bytes."""

    body_bytes: Annotated[int, Meta(ge=1024, le=240 * 2**20)] = 2 * 2**20
    """Largest body of a request; the same as for payloads of tasks."""

    header_seconds: Seconds = 10.0
    """From the first byte of a request to the end of its headers."""

    body_seconds: Seconds = 30.0
    """From there to the end of its body, and longest time in which a caller takes nothing of an
    answer."""

    idle_seconds: Seconds = 75.0
    """A connection without a request is closed after so long; browsers and proxies keep theirs for
    a minute."""

    tracebacks: bool = False
    """Whether callers see tracebacks of handlers: they show code and, at times, data."""

    hook: Text | None = None
    """A function as MODULE:NAME that sees every query before a worker is looked for, and may change
    or refuse it."""

    querying: Querying = field(default_factory=lambda: Querying(together=64, warm=False))


class Node(Schema, frozen=True, kw_only=True):
    """One node: what `maitred up` takes from a file, the environment and its options."""

    host: Text = "127.0.0.1"
    """Loopback unless told: an open port is a decision."""

    port: Port = PORT
    """The port that all shards share; 0 asks the system for a free one. Shard n's own port is
    n + 1 above it."""

    shards: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Default: the cores that this process may use."""

    data: Location = "maitred-data"
    """The directory that is this node: its identity, and what it must not lose."""

    spread_batch: Annotated[int, Meta(ge=0)] | dict[str, int | float | str] = 0
    """Partitions of a queue that share a routing key (0: none), or a gradual change of it."""

    store: Hidden | None = None
    """Where tasks are kept: `postgresql://...`, or nothing for files in the data directory."""

    drain_seconds: Seconds = 10.0
    """How long a stopping node waits for what is being worked on."""

    public_without_auth: bool = False
    """Set this to listen on a public address without users: whoever reaches it may do anything."""

    users_file: Location | None = None
    """More users, in a file that is read again when it changes."""

    queues: dict[Text, Queue] = field(default_factory=dict)
    """By `namespace/queue`, `namespace/*` or `*`; the one that says most counts, alone."""

    gateway: Gateway = field(default_factory=Gateway)
    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    users: dict[Text, User] = field(default_factory=dict)
    log: Log = field(default_factory=Log)
    restarts: Restarts = field(default_factory=Restarts)


class Client(Schema, frozen=True):
    """How a client behaves; `maitred.connect` takes each of these by name."""

    timeout_seconds: Seconds = 10.0
    """For a request that does not say how long it may take."""

    in_flight: Annotated[int, Meta(ge=1, le=32_768)] = 1_024
    """Unanswered requests of one connection; the node's own limit counts if it is lower. Further
    requests wait for their turn, as long as their timeout lets them."""

    waiting: Count = 65_536
    """Requests that may wait for a connection or for their turn; more are refused at once."""

    frame_bytes: Annotated[int, Meta(ge=1024)] = 256 * 2**20
    """Largest answer that is taken."""

    connect_seconds: Seconds = 5.0
    """For one attempt at a connection, with its handshake."""

    hedge_seconds: Seconds = 1.0
    """A first attempt at a node that takes longer gets company: the shard that the kernel picked
    may hang, and the next one may not."""

    heartbeat_seconds: Seconds = 20.0
    """A connection on which nothing arrived for so long is asked whether it lives. Well below the
    idle limits of nodes and of most things between."""

    heartbeat_timeout_seconds: Seconds = 5.0
    """A connection that does not answer that question is given up."""

    backoff_first_seconds: Seconds = 0.05
    """Before the second attempt at a connection; doubled each time, with jitter, until..."""

    backoff_longest_seconds: Seconds = 5.0
    """... this. A thousand clients of a restarted node come back spread over as long."""

    port_blocked_seconds: Seconds = 300.0
    """A shard's own port that could not be reached is not tried again for so long, as drivers do:
    it is behind a firewall, or translated."""

    coverage_attempts: Count = 3
    """Without the shards' own ports: connections opened for each shard, at most, until every shard
    has one. More find the last shard, fewer spare the node."""

    close_seconds: Seconds = 5.0
    """How long `close()` waits for requests under way; then they fail."""

    retries: Annotated[int, Meta(ge=0)] = 8
    """How often a request is sent again when that is safe, within its timeout. With the backoff
    above, eight outlast a shard that is started again, and most of the ten seconds."""


class Upstream(Schema, frozen=True, kw_only=True):
    """How a worker asks the HTTP back end that it stands before; `maitred serve-http` has options
    for what people change."""

    connect_seconds: Seconds = 2.0
    """For a connection. A back end on the same machine takes one within a millisecond."""

    timeout_seconds: Seconds = 60.0
    """From the beginning to the end of an answer, with the connection; the query's own time counts
    if it is shorter."""

    keep_seconds: Wait = 4.0
    """How long a connection is kept without being used. Many servers close theirs after 5, and a
    request that crosses that on its way is lost."""

    header_bytes: Annotated[int, Meta(ge=1024, le=2**24)] = 64 * 1024
    """Largest head of an answer."""

    body_bytes: Annotated[int, Meta(ge=0, le=240 * 2**20)] = 16 * 2**20
    """Largest body of an answer: it is in memory whole. The queue's own limit counts if it is
    lower."""


class Worker(Schema, frozen=True, kw_only=True):
    """How a worker behaves; `maitred worker` has an option for what people change."""

    slots: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Tasks and queries that run at a time, of all queues together."""

    threads: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """For plain functions; as many as slots unless told. With fewer, what waits for a thread counts
    as waiting, and the measured limit is what they can do."""

    limit: Literal["measured", "knee", "slots"] = "measured"
    """How the worker knows how many it can take at a time, up to its slots. `measured`: by what is
    served and what waits. `knee`: by where more at a time bring no more done, for handlers that
    only pass on what they get. `slots`: not at all."""

    drain_seconds: Wait = 30.0
    """How long a stopping worker lets running tasks finish, and waits for the node to know."""

    offer_seconds: Seconds = 60.0
    """How long an offer waits at a partition; the node's own limit counts if it is lower."""

    finish_seconds: Seconds = 10.0
    """How long the node may take to write the end of tasks down, before it is told again."""

    young_seconds: Seconds = 1.0
    """A task is mentioned in heartbeats when it has run for so long, or a third of its lease. Most
    are over before, and cost none."""

    stop_seconds: Seconds = 5.0
    """How long an async handler whose time is over may take to clean up, before that is told."""

    host: Text | None = "127.0.0.1"
    """Where gateways reach the worker directly. `none`: nowhere, and the node relays every
    query."""

    port: Port = 0
    """The port for that; 0 asks the system for a free one."""

    attend_seconds: Seconds = 5.0
    """How often the node hears that the worker is there, busy or not."""

    early_seconds: Seconds = 0.5
    """How long a query that comes before the word of its reservation is kept. The word was on its
    way first, so it is usually a few microseconds."""

    warm_seconds: Wait = 0.05
    """How long a slot is kept for the next query of the gateway that has just had it, while others
    are free: it comes within a millisecond, or not at all. 0: not at all."""

    fetch_seconds: Seconds = 0.05
    """How long after a reservation the worker asks the node whether the query is being relayed."""

    chunk_bytes: Annotated[int, Meta(ge=1024, le=16 * 2**20)] = 256 * 1024
    """Rows of a stream that are sent together, at most; those of one turn of the loop are sent at
    its end."""

    links: Count = 1_024
    """Connections of gateways at a time; each gateway has one. More are refused."""

    link_frame_bytes: Annotated[int, Meta(ge=1024, le=256 * 2**20)] = 16 * 2**20
    """Largest query that is taken from a gateway; as large as what a node takes."""

    link_seconds: Seconds = 10.0
    """For a gateway's first words, and for the rest of a frame that has begun. Long enough for a
    bad line."""

    stalled_seconds: Seconds = 30.0
    """A gateway that takes nothing of its answers for so long is given up, with its queries."""

    early_queries: Count = 1_024
    """Queries that may wait for the word of their reservation, of all gateways together. Many more
    than slots make no sense."""

    early_bytes: Count = 64 * 2**20
    """The same, in bytes of their arguments."""
