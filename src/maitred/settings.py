"""Everything that can be set, in one schema: names, defaults, and the reason for each default.

A limit is a number with a name. Whoever reaches it is refused in words, never slowed down without a
sign. Times are in seconds and sizes in bytes, and say so at the end of their names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

PORT = 4747
"""Where a node listens and a client looks, if nobody says otherwise."""

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Permission = Literal["produce", "work", "query", "admin"]


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings do not change while they are used, and there are none that nobody knows."""


class Limits(Schema):
    """What one shard takes from its connections."""

    frame_bytes: Annotated[int, Meta(ge=1024, le=256 * 2**20)] = 16 * 2**20
    """Largest body of a frame. It is held in memory whole, so it bounds what a connection costs."""

    payload_bytes: Annotated[int, Meta(ge=0)] = 2 * 2**20
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

    forward_buffer_bytes: Count = 16 * 2**20
    """Unsent requests to another shard from which on requests for it are refused."""


class Tls(Schema):
    """Files in PEM form."""

    certificate: str
    """The node's certificate, followed by those that vouch for it."""

    key: str
    """The certificate's key."""

    client_authorities: str | None = None
    """If given, clients must show a certificate signed by one of these."""


class User(Schema):
    """Who may come in, and what for."""

    secret: str
    """What `maitred hash-secret` prints; never the secret itself."""

    permissions: dict[str, list[Permission]] = field(default_factory=dict)
    """By namespace; `*` stands for every one."""


class Log(Schema):
    """What is written to standard error."""

    format: Literal["auto", "human", "json"] = "auto"
    """`auto`: for people on a terminal, JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Restarts(Schema):
    """When a shard dies."""

    first_seconds: Seconds = 0.1
    """Before the first restart; doubled each time, until..."""

    longest_seconds: Seconds = 5.0
    """... this."""

    give_up_after: Count = 6
    """Deaths within the window after which the node stops: it will not heal by itself."""

    window_seconds: Seconds = 60.0
    """A shard that lived for so long starts from nothing."""


class Node(Schema):
    """One node: what `maitred up` takes from a file, the environment and its options."""

    host: str = "127.0.0.1"
    """Loopback unless told: an open port is a decision."""

    port: Port = PORT
    """The port that all shards share; 0 asks the system for a free one. Shard n's own port is
    n + 1 above it."""

    shards: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Default: the cores that this process may use."""

    data: str = "maitred-data"
    """The directory that is this node: its identity, and what it must not lose."""

    spread_batch: int | dict[str, int | float | str] = 0
    """Partitions of a queue that share a routing key (0: none), or a gradual change of it."""

    drain_seconds: Seconds = 10.0
    """How long a stopping node waits for what is being worked on."""

    public_without_auth: bool = False
    """Set this to listen on a public address without users: whoever reaches it may do anything."""

    users_file: str | None = None
    """More users, in a file that is read again when it changes."""

    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    users: dict[str, User] = field(default_factory=dict)
    log: Log = field(default_factory=Log)
    restarts: Restarts = field(default_factory=Restarts)
