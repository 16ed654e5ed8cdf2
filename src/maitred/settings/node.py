"""The settings of a node as a whole, and of its gateway, logs and restarts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from maitred.settings.access import Jwt, Limits, Namespace, Tls, Tokens, User, WorkerAddresses
from maitred.settings.basis import (
    PORT,
    Advanced,
    ClusterName,
    Count,
    Hidden,
    Location,
    Origin,
    Port,
    Schema,
    Seconds,
    Text,
    Wait,
)
from maitred.settings.clients import Querying, Telemetry
from maitred.settings.queues import Queue  # noqa: TC001 - msgspec reads the annotations


class Log(Schema, frozen=True, kw_only=True):
    """What is written to standard error."""

    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: for people on a terminal, JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written. `info` has what an operator wants to know the next morning."""


class Audit(Schema, frozen=True, kw_only=True):
    """The audit log: which user did what, from where, and whether it was allowed, as JSON lines in
    files."""

    when: Literal["users", "always", "never"] = "users"
    """Whether the audit log is written. `users`: if the node has users, since records without users
    name no one."""

    directory: Location | None = None
    """Directory of the files, one per process; by default `audit` in the data directory."""

    queries: Advanced[Literal["none", "hash", "text"]] = "none"
    """What is recorded of queries over HTTP: nothing, a SHA-256 hash of their arguments, or the
    arguments; of these only the hash if a handler of the queue hides any, or no handler is known.
    They may be personal data, and one record per query fills the files soon. The arguments of a
    native client's queries bypass the node, and are never recorded."""

    file_bytes: Advanced[Annotated[int, Meta(ge=4096)]] = 16 * 2**20
    """A file that would grow beyond this is closed and the next one begun: some 80,000 records."""

    files: Advanced[Count] = 10
    """Files that each process keeps; the oldest is removed. Copy them elsewhere before that."""

    records_per_second: Advanced[Count] = 200
    """Of each process, for each kind: actions, refusals, queries. What is beyond is counted, and a
    record tells how many. A flood of wrong secrets thus fills a file in seven minutes at most."""


class Restarts(Schema, frozen=True, kw_only=True):
    """How a shard that died is restarted."""

    first_seconds: Seconds = 0.1
    """Pause before the first restart; doubled each time, up to `longest_seconds`."""

    longest_seconds: Seconds = 5.0
    """Longest pause between restarts."""

    give_up_after: Count = 6
    """Deaths within the window after which the node stops: a restart does not help."""

    window_seconds: Seconds = 60.0
    """After this long without a death, earlier ones no longer count."""


class GatewaySettings(Schema, frozen=True, kw_only=True):
    """The HTTP API, and the gateway behind it."""

    enabled: bool = True
    """Whether `maitred up` starts a gateway."""

    host: Text = "127.0.0.1"
    """Address to listen on. Loopback by default: an open port is a decision."""

    port: Port | None = None
    """Port of the HTTP API; 0: a free one. By default it is 4780 beside a node on port 4747, and
    otherwise the node's port + 33 (more with over 30 shards, whose own ports would reach that far),
    so that two nodes on one machine do not collide. A node on port 0 gets a free one."""

    away_seconds: Advanced[Wait] = 2.0
    """How long the node, or a shard of it, may be away before requests for it are answered with 503
    at once; until then they wait. See `away_seconds` of a client."""

    connections: Advanced[Count] = 10_000
    """Most open connections; more are refused with 503. As many TLS handshakes may be in progress
    besides; at that limit the oldest handshake is closed for a new one."""

    header_bytes: Advanced[Annotated[int, Meta(ge=1024, le=2**24)]] = 32 * 1024
    """Largest request line with headers; proxies send a few hundred bytes."""

    body_bytes: Advanced[Annotated[int, Meta(ge=1024, le=240 * 2**20)]] = 2 * 2**20
    """Largest body of a request; the same as for payloads of tasks."""

    stranger_bytes: Advanced[Count] = 16 * 2**20
    """Most bytes of unfinished requests, all callers together that are not authenticated yet. The
    connection that exceeds it is refused. An honest head arrives in one piece."""

    partial_bytes: Advanced[Count] = 48 * 2**20
    """Most bytes of unfinished bodies, all authenticated callers together: 24 of the largest. The
    connection that exceeds it is refused with 429, so that many bodies, each nearly complete, do
    not fill the memory."""

    under_way_bytes: Advanced[Count] = 256 * 2**20
    """Most bytes of complete bodies whose requests are not answered yet. Beyond it, requests with
    more than 4 KiB are refused with 429."""

    unsent_bytes: Advanced[Count] = 48 * 2**20
    """Most bytes of answers that callers have not read, all connections together. The connection
    that exceeds it is cut off."""

    header_seconds: Advanced[Seconds] = 10.0
    """Longest time from the first byte of a request to the end of its headers."""

    body_seconds: Advanced[Seconds] = 30.0
    """Longest time from there to the end of the body, and longest time in which a caller reads
    nothing of an answer."""

    idle_seconds: Advanced[Seconds] = 75.0
    """A connection without a request is closed after this long; browsers and proxies keep theirs
    for a minute."""

    origins: list[Origin] = field(default_factory=list)
    """Origins, such as `https://desk.example`, whose pages may send requests through a browser
    although the gateway has another host name: behind a proxy that changes Host. Others are
    refused, since a browser may add credentials by itself."""

    console: Advanced[bool] = True
    """Whether the gateway serves the web console at `/console`, with its logins and its streams.
    The HTTP API behind it, with which the same can be seen and done, is served without it, too."""

    session_seconds: Advanced[Seconds] = 3600.0
    """How long a login of the console lasts that is not used; an open page in sight uses it. After
    an hour, a computer that somebody left is no longer logged in; over lunch one has to log in
    again."""

    open_metrics: bool = True
    """Whether `/metrics` needs no user. Otherwise it needs the permission `observe`."""

    open_document: Advanced[bool] = True
    """The same for `/openapi.json`."""

    tracebacks: bool = False
    """Whether callers get the tracebacks of handlers, which show code and sometimes data."""

    hook: Advanced[Text | None] = None
    """A function as MODULE:NAME that gets every query before a worker is chosen, and may change or
    refuse it."""

    querying: Querying = field(default_factory=Querying)


class Monitor(Schema, frozen=True, kw_only=True):
    """The monitoring port of a node: `/health`, `/ready` and `/metrics`, with or without a
    gateway."""

    enabled: bool = True
    """Whether the node has a monitoring port."""

    host: Text = "127.0.0.1"
    """Address to listen on. Loopback by default: an open port is a decision. Probes of Kubernetes
    need `0.0.0.0`."""

    port: Port | None = None
    """Port of the pages; 0: a free one. By default it is one above the default port of the HTTP
    API: 4781 beside a node on port 4747. A node on port 0 gets a free one."""

    open_metrics: bool = False
    """Whether other machines may read `/metrics`, which names queues. This machine always may, and
    every machine that reaches the port gets `/health` and `/ready`."""

    queues: Annotated[int, Meta(ge=0, le=10_000)] = 50
    """Most queues of each shard that have series of their own, some 60 each. The busiest have; the
    others are summed under the label `:rest`."""

    partitions: Annotated[int, Meta(ge=0, le=10_000)] = 20
    """Most partitions of each shard that have series of their own, 6 each: those with the most
    tasks."""


class ClusterSettings(Schema, frozen=True, kw_only=True):
    """How a node with a PostgreSQL store belongs to a cluster: all nodes that share the database
    and the cluster's name."""

    enabled: Advanced[bool] = True
    """Whether a node with a PostgreSQL store belongs to the cluster of that database. A node that
    does not has to be the only node that uses the database."""

    name: Advanced[ClusterName] = "maitred"
    """Name of the cluster. Several clusters can share a database server, each with a database of
    its own; the name keeps a node out of the wrong one."""

    announce: Text | None = None
    """Host at which clients and the other nodes reach this node; by default `host`. Needed if
    `host` stands for all addresses of the machine (0.0.0.0). HOST:PORT is accepted if PORT is the
    node's own port."""

    authorities: Location | None = None
    """PEM file with the certificate authority of the cluster, by which nodes verify each other.
    Needed beyond loopback, together with `tls`; `maitred admin cluster init-tls` makes both."""

    beat_seconds: Advanced[Seconds] = 1.0
    """Interval of the heartbeats that a node writes to the database."""

    lease_seconds: Advanced[Seconds] = 5.0
    """How long a heartbeat counts. The others suspect a node without a heartbeat for this long; the
    node itself gives out nothing of its backlogs some time before that."""

    forward_seconds: Advanced[Wait] = 3.0
    """How long a node that stops still forwards late requests after it handed over its
    partitions."""


class Node(Schema, frozen=True, kw_only=True):
    """The settings of a node, which `maitred up` reads from a file, variables and its options."""

    host: Text = "127.0.0.1"
    """Address to listen on. Loopback by default: an open port is a decision."""

    port: Port = PORT
    """Port that all shards share; 0: a free one. Shard n's own port is n + 1 above it."""

    shards: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Number of shards; by default the cores that this process may use."""

    data: Location = "maitred-data"
    """The data directory: the node's identity and its durable state."""

    spread_batch: Advanced[Annotated[int, Meta(ge=0)] | dict[str, int | float | str]] = 0
    """Partitions of a queue that share a routing key (0: none), or a gradual change of it."""

    placement: Advanced[Literal["wrap", "steady"]] = "wrap"
    """How the partitions of a batch of spread routing are placed on the nodes of a cluster. `wrap`
    is Temporal's rule; `steady` moves fewer partitions when a node comes or goes."""

    store: Hidden | None = None
    """Where tasks are stored: `postgresql://...`; by default files in the data directory."""

    drain_seconds: Seconds = 10.0
    """How long a stopping node waits for work in flight."""

    public_without_auth: bool = False
    """Whether the node may listen on a public address without users: every caller may then do
    anything."""

    users_file: Location | None = None
    """File with more users, which is reloaded when it changes."""

    queues: dict[Text, Queue] = field(default_factory=dict)
    """Settings by `namespace/queue`, `namespace/*` or `*`; only the most specific entry applies."""

    namespaces: dict[Text, Namespace] = field(default_factory=dict)
    """Quotas by namespace, or for `*`; only the most specific entry applies."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    monitor: Advanced[Monitor] = field(default_factory=Monitor)
    telemetry: Advanced[Telemetry] = field(default_factory=Telemetry)
    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    worker_addresses: WorkerAddresses = field(default_factory=WorkerAddresses)
    users: dict[Text, User] = field(default_factory=dict)
    tokens: Advanced[Tokens] = field(default_factory=Tokens)
    jwt: Jwt | None = None
    log: Log = field(default_factory=Log)
    audit: Audit = field(default_factory=Audit)
    restarts: Advanced[Restarts] = field(default_factory=Restarts)

    @property
    def authenticates(self) -> bool:
        """Whether callers have to authenticate."""
        return bool(self.users) or self.users_file is not None or self.jwt is not None
