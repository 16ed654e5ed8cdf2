"""A node: all of the above, and what its processes are told."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from maitred.settings.access import Jwt, Limits, Namespace, Tls, Tokens, User, WorkerAddresses
from maitred.settings.basis import (
    PORT,
    Advanced,
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
from maitred.settings.clients import Querying
from maitred.settings.queues import Queue  # noqa: TC001 - msgspec reads the annotations


class Log(Schema, frozen=True, kw_only=True):
    """What is written to standard error."""

    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: for people on a terminal, JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written. `info` is what a person would want to know the next morning."""


class Audit(Schema, frozen=True, kw_only=True):
    """Who did what to what, from where, and whether it was allowed: JSON lines in files."""

    when: Literal["users", "always", "never"] = "users"
    """Whether it is written. `users`: if the node has users, since without them nobody can be
    named."""

    directory: Location | None = None
    """Where the files are, one for each process; `audit` in the data directory unless told."""

    queries: Advanced[Literal["none", "hash", "text"]] = "none"
    """What is told of queries over HTTP: nothing, a SHA-256 hash of their arguments, or these. They
    may be personal data, and one record a query fills the files soon. The arguments of a native
    client's queries go to the worker past the node, and are never told."""

    file_bytes: Advanced[Annotated[int, Meta(ge=4096)]] = 16 * 2**20
    """A file that would grow beyond this is closed and the next one begun: some 80,000 records."""

    files: Advanced[Count] = 10
    """Files that each process keeps; the oldest is removed. Ship them elsewhere before."""

    records_per_second: Advanced[Count] = 200
    """Of each process, for each kind: actions, refusals, queries. What is beyond is counted, and a
    record tells how many. A flood of wrong secrets thus fills a file in seven minutes at most."""


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


class GatewaySettings(Schema, frozen=True, kw_only=True):
    """The HTTP API, and the gateway behind it."""

    enabled: bool = True
    """Whether `maitred up` starts one."""

    host: Text = "127.0.0.1"
    """Loopback unless told: an open port is a decision."""

    port: Port | None = None
    """The port of the HTTP API; 0 asks the system for a free one. Unless set, it is 4780 beside a
    node on port 4747, and otherwise the node's port + 33 (more with over 31 shards, whose own ports
    would reach that far), so that two nodes on one machine do not collide. A node on port 0 gets a
    free one."""

    away_seconds: Advanced[Wait] = 2.0
    """How long the node, or a shard of it, may be away before requests for it are answered with 503
    at once; until then they wait for it. As `away_seconds` of a client, which says more."""

    connections: Advanced[Count] = 10_000
    """Open at a time; more are refused with 503. As many TLS handshakes may be under way besides;
    at that limit the oldest handshake gives way to a new one."""

    header_bytes: Advanced[Annotated[int, Meta(ge=1024, le=2**24)]] = 32 * 1024
    """Largest request line with headers; proxies send a few hundred bytes."""

    body_bytes: Annotated[int, Meta(ge=1024, le=240 * 2**20)] = 2 * 2**20
    """Largest body of a request; the same as for payloads of tasks."""

    stranger_bytes: Advanced[Count] = 16 * 2**20
    """Unfinished requests of all callers that have not shown who they are, together. Whoever goes
    beyond is refused. An honest head arrives in one piece."""

    partial_bytes: Advanced[Count] = 48 * 2**20
    """Unfinished bodies of all callers that may come in, together: 24 of the largest. Whoever goes
    beyond is refused with 429, so that many bodies, each nearly sent, do not fill the memory."""

    under_way_bytes: Advanced[Count] = 256 * 2**20
    """Complete bodies of all requests that are not answered yet. Beyond it requests with more than
    4 KiB are refused with 429."""

    unsent_bytes: Advanced[Count] = 48 * 2**20
    """Answers that wait for callers that do not read, all connections together. Whoever goes beyond
    is cut off."""

    header_seconds: Advanced[Seconds] = 10.0
    """From the first byte of a request to the end of its headers."""

    body_seconds: Advanced[Seconds] = 30.0
    """From there to the end of its body, and longest time in which a caller takes nothing of an
    answer."""

    idle_seconds: Advanced[Seconds] = 75.0
    """A connection without a request is closed after so long; browsers and proxies keep theirs for
    a minute."""

    origins: list[Origin] = field(default_factory=list)
    """Origins, such as `https://desk.example`, whose pages may send requests through a browser
    although the gateway is called by another name: behind a proxy that changes Host. All others are
    refused, since a browser may add credentials by itself."""

    open_metrics: bool = True
    """Whether `/metrics` can be read without a user. If not, it needs the permission `observe`."""

    open_document: Advanced[bool] = True
    """The same for `/openapi.json`."""

    tracebacks: bool = False
    """Whether callers see tracebacks of handlers: they show code and, at times, data."""

    hook: Advanced[Text | None] = None
    """A function as MODULE:NAME that sees every query before a worker is looked for, and may change
    or refuse it."""

    querying: Querying = field(default_factory=Querying)


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

    spread_batch: Advanced[Annotated[int, Meta(ge=0)] | dict[str, int | float | str]] = 0
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

    namespaces: dict[Text, Namespace] = field(default_factory=dict)
    """Quotas by namespace, or for `*`; the one that says most counts, alone."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
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
        """Whether those who connect have to say who they are."""
        return bool(self.users) or self.users_file is not None or self.jwt is not None
