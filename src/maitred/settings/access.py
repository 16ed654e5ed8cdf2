"""Users, their authentication, and the limits and quotas of a node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from maitred.errors import PermissionDenied
from maitred.settings.basis import (
    Advanced,
    Bytes,
    Count,
    Fixed,
    Hidden,
    Location,
    Permission,
    Port,
    Rate,
    Schema,
    Seconds,
    Text,
)


class Limits(Schema, frozen=True, kw_only=True):
    """Limits of one shard for its connections."""

    frame_bytes: Advanced[Annotated[int, Meta(ge=1024, le=256 * 2**20)]] = 16 * 2**20
    """Largest body of a frame. It is held in memory as a whole, so it bounds the memory of a
    connection."""

    payload_bytes: Annotated[int, Meta(ge=0, le=256 * 2**20 - 64 * 1024)] = 2 * 2**20
    """Largest payload of a task or a query. Put larger data into a store, and pass a reference."""

    connections: Count = 10_000
    """Most connections of one shard; some 10 KiB each when idle. As many TLS handshakes may be in
    progress besides; at that limit the oldest handshake is closed for a new one."""

    in_flight: Advanced[Annotated[int, Meta(ge=1, le=32_768)]] = 1_024
    """Most unanswered requests of one connection; CQL's stream ids allow 32,768. At a millisecond
    per request, this many are a million requests per second."""

    handshake_seconds: Advanced[Seconds] = 10.0
    """Longest time from the connection to READY. Long enough for TLS over a bad line. A login over
    HTTP waits at most this long to be verified."""

    frame_seconds: Advanced[Seconds] = 30.0
    """Longest time from the first byte of a frame to its last, and longest time in which a peer
    reads none of its answers. A phone on a train is faster; one byte per second is not."""

    idle_seconds: Advanced[Seconds] = 300.0
    """A connection on which nothing arrives for this long is closed. Drivers send a heartbeat every
    30 s."""

    turn_frames: Fixed[Count] = 64
    """Requests of one connection that are served before other connections get their turn."""

    write_buffer_bytes: Fixed[Count] = 256 * 1024
    """With this many bytes of unsent answers, nothing more is read from the connection."""

    partial_bytes: Advanced[Count] = 256 * 2**20
    """Most bytes of incomplete frames, all connections of a shard together. The connection that
    exceeds it is closed, so that ten thousand large frames, each nearly complete, do not fill the
    memory."""

    handshake_bytes: Fixed[Count] = 16 * 2**20
    """The same for connections that have not finished their handshake: strangers cannot use up the
    memory of users. An honest handshake has some hundred bytes."""

    verifications: Fixed[Count] = 4_096
    """Most secrets that wait to be verified in one process, all addresses together; while half as
    many wait, each address has room for four. A long queue delays only the addresses that made it
    long, because addresses take turns. A waiting secret takes 2 KiB at most."""

    verifications_per_address: Fixed[Count] = 64
    """Most secrets of one address (IPv6: of one /64) that wait; more are refused and may be
    retried. Two are verified at a time, in some 40 ms each, so the last one waits for less than two
    seconds."""

    failures_per_user: Advanced[Count] = 10
    """Wrong secrets that one address may send in the name of one user; further attempts from there
    in that name are refused until a failure is forgiven."""

    failures_per_address: Fixed[Count] = 20
    """Wrong secrets that one address may send in any name; then its logins wait behind those of all
    other addresses. They are not refused: many users may share an address."""

    failures_per_name: Fixed[Count] = 100
    """Wrong secrets in the name of one user from all addresses; then an address that has failed in
    this name already is refused. Other addresses are not affected, so an attacker cannot lock a
    user out."""

    failure_seconds: Advanced[Seconds] = 5.0
    """Interval at which one failure is forgiven: at most 17,000 guesses a day from one address in
    one name, at each process of the node (`failures_per_user`)."""

    address_failure_seconds: Fixed[Seconds] = 300.0
    """The same for `failures_per_address`. A longer time only makes addresses that failed wait
    behind others, and only while others wait."""

    under_way_bytes: Advanced[Count] = 256 * 2**20
    """Most bytes of requests that are not answered yet, all connections of a shard together.
    Further requests are refused, however few their connection has."""

    unsent_bytes: Advanced[Count] = 256 * 2**20
    """Most bytes of answers that peers have not read, all connections of a shard together. The
    connection that exceeds it is cut off, so that one that does not read harms no other."""

    forward_buffer_bytes: Fixed[Count] = 16 * 2**20
    """With this many bytes of unsent requests to another shard, further requests for that shard are
    refused."""

    queues: Advanced[Count] = 20_000
    """Most queues in the store, all namespaces together; a new one beyond it is refused. Each takes
    a row, and up to 50 KiB of memory while it is in use."""

    waiting_bytes: Advanced[Count] = 256 * 2**20
    """Most bytes of waiting tasks' payloads that a shard keeps in memory, all queues together;
    beyond it, each priority of a queue keeps 64 KiB in memory and reads the rest when it is due.
    Eight queues with a large backlog reach it; workers notice only if tasks have many kilobytes."""

    history_bytes: Advanced[Count] = 64 * 2**20
    """Most bytes of tasks that are over and that a shard keeps in memory for operators, all queues
    together: some 90,000 tasks with small arguments. Beyond it, the queue whose task ends next
    drops its oldest ones."""

    free_disk_bytes: Bytes = 256 * 2**20
    """Free space that must be left on the disk of the data directory; below it, new tasks are
    refused. Acknowledged tasks need space as well: retries, results, marks, and SQLite's log of
    some 16 MiB per shard. 0: tasks are accepted until a write fails. A PostgreSQL server watches
    its own disk."""

    new_queues_per_second: Advanced[Rate] = 20.0
    """Rate at which one user may create queues; each shard allows its share. A deployment creates
    its queues once; a program that creates a queue for each task needs another design."""

    new_queues: Advanced[Count] = 200
    """Queues that one user may create at once, before that rate applies: as many as a deployment
    starts with."""

    loading: Fixed[Count] = 1_000
    """Most partitions of one namespace that wait to be loaded from the store, in one shard;
    requests for more are refused. Namespaces take turns, so one that loads many delays only itself.
   """


class Namespace(Schema, frozen=True, kw_only=True):
    """Quotas for the queues of one namespace together."""

    queues: Count = 1_000
    """Most queues; a new one beyond it is refused until one is deleted, or forgotten because it was
    idle."""

    stored_tasks: Count | None = None
    """Most tasks in the store, including dead letters, of all its queues; new ones beyond it are
    refused. No limit by default: a stored task counts at least 64 bytes of `stored_bytes`."""

    stored_bytes: Bytes | None = 16 * 2**30
    """The same in bytes, including results. A hundred million small tasks, or 16,000 of a megabyte:
    more is a mistake or an attack, and several namespaces share a disk."""


class Tls(Schema, frozen=True, kw_only=True):
    """Files in PEM form."""

    certificate: Location
    """The node's certificate, followed by the intermediate certificates."""

    key: Location
    """The certificate's key."""

    client_authorities: Location | None = None
    """If set, clients must present a certificate signed by one of these authorities."""

    client_users: dict[Text, Text] = field(default_factory=dict)
    """Maps a name in a client's certificate (`CN:ann`, `DNS:ci.example.org`,
    `URI:spiffe://shop/ci`, `email:ann@example.org`) to the user that needs no secret with it. Every
    authority in `client_authorities` can issue such a certificate."""


class Tokens(Schema, frozen=True, kw_only=True):
    """API tokens, made with `maitred admin token create`."""

    most: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Most API tokens in the store; creating one more is refused. Each change writes all of them,
    and every shard reads them: a thousand take a shard some 1 ms, ten thousand 8."""

    lifetime_seconds: Seconds = 365 * 86_400.0
    """Longest lifetime of a token, so that forgotten tokens expire."""


class WorkerAddresses(Schema, frozen=True, kw_only=True):
    """Which addresses workers may announce for gateways to connect to, besides the one that their
    connection to the node comes from."""

    networks: list[Text] = field(default_factory=list)
    """Networks in CIDR notation (`10.0.0.0/8`) in which workers may announce any address: for
    workers with several addresses, and behind address translation. A user with the permission
    `work` can make gateways connect to any address in them."""

    lowest_port: Advanced[Port] = 1024
    """Lowest port that a worker may announce. Well-known services of the worker's host use ports
    below 1024."""


class Jwt(Schema, frozen=True, kw_only=True):
    """JSON Web Tokens of one issuer, signed with RS256, ES256 or EdDSA."""

    issuer: Text
    """The exact `iss` claim that a token must have."""

    audience: list[Text]
    """The `aud` claim of a token must name one of these: a token for another service is refused."""

    jwks_file: Location | None = None
    """File with the issuer's keys, which is reloaded when it changes. Set this or `jwks_url`."""

    jwks_url: Text | None = None
    """https address of the issuer's keys. Each shard fetches them; while that fails, it keeps those
    it has."""

    jwks_authorities: Advanced[Location | None] = None
    """File with the authorities that may sign the certificate of that address; by default those of
    the system."""

    refresh_seconds: Advanced[Annotated[float, Meta(ge=10, le=86_400)]] = 300.0
    """Interval at which the keys are fetched; a token that names an unknown key triggers a fetch,
    at most every ten seconds. A key that the issuer withdraws stays trusted for this long."""

    user_claim: Text = "sub"
    """Claim that names the user. Dots lead into nested claims: `profile.name`."""

    permissions_claim: Text = "groups"
    """Claim whose values grant permissions: a list, or a text with spaces, such as `scope`."""

    permissions: dict[Text, dict[Text, list[Permission]]] = field(default_factory=dict)
    """Permissions by value of that claim, then by namespace (`*` for every namespace), as for
    users. A token without a mapped value is refused."""

    local_users: Advanced[bool] = False
    """Whether a token that names a user of the node authenticates as that user, with the user's
    permissions and limits. Otherwise it is refused, so that a name chosen at the issuer cannot
    become `admin`."""

    leeway_seconds: Advanced[Annotated[float, Meta(ge=0, le=300)]] = 30.0
    """Largest difference between the clocks of the issuer and the node."""

    lifetime_seconds: Advanced[Seconds] = 86_400.0
    """Longest lifetime of a token. It cannot be revoked, so it should expire soon."""


class QueryLimits(Schema, frozen=True, kw_only=True):
    """Limits of one user's queries, the same at every listener; each has no limit by default."""

    queues: list[Text] | None = None
    """Queues that the user may query, as `namespace/queue` or `namespace/*`; by default all of the
    namespaces in which the user has the permission `query`."""

    concurrent: Count | None = None
    """Most queries in progress, across the node; more are refused. Each query of such a user asks
    the node for a slot."""

    waiting: Advanced[Count | None] = None
    """Most queries that wait for a worker, in one queue; more are refused."""

    rate_per_second: Rate | None = None
    """Most queries per second, with bursts of one second's worth; more are refused."""

    run_seconds: Advanced[Seconds | None] = None
    """Longest run of a query; then it is stopped. The queue's own limit applies if it is lower."""

    result_bytes: Advanced[Annotated[int, Meta(ge=1, le=2**40)] | None] = None
    """Largest result, streamed or not. The queue's own limit applies if it is lower."""

    def check_queue(self, user: str, namespace: str, queue: str) -> None:
        """Raise `PermissionDenied` unless the user may query this queue."""
        allowed = self.queues
        if allowed is None or f"{namespace}/{queue}" in allowed or f"{namespace}/*" in allowed:
            return
        raise PermissionDenied(
            f"The user {user!r} may not query {namespace}/{queue}.",
            remedy="An operator of the node can grant it: users.*.queries.queues.",
        )


class User(Schema, frozen=True, kw_only=True):
    """A user: secrets, permissions and limits."""

    secret: Hidden
    """The hash that `maitred hash-secret` prints; never the secret itself."""

    previous_secret: Hidden | None = None
    """Hash of a second valid secret, while clients are moved from one to the other; connections
    that were opened with it end when it is removed."""

    permissions: dict[Text, list[Permission]] = field(default_factory=dict)
    """Permissions by namespace; `*` stands for every namespace."""

    queries: QueryLimits = field(default_factory=QueryLimits)
