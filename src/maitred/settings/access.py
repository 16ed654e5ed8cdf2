"""Who may come in, and how much of what."""

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
    """What one shard takes from its connections."""

    frame_bytes: Advanced[Annotated[int, Meta(ge=1024, le=256 * 2**20)]] = 16 * 2**20
    """Largest body of a frame. It is held in memory whole, so it bounds what a connection costs."""

    payload_bytes: Annotated[int, Meta(ge=0, le=256 * 2**20 - 64 * 1024)] = 2 * 2**20
    """Largest payload of a task or a query. Larger things belong into a store, with a reference."""

    connections: Count = 10_000
    """Connections of one shard; some 10 KiB each when idle. As many TLS handshakes may be under way
    besides; at that limit the oldest handshake gives way to a new one."""

    in_flight: Advanced[Annotated[int, Meta(ge=1, le=32_768)]] = 1_024
    """Unanswered requests of one connection; CQL's stream ids allow 32,768. At a millisecond each,
    this many are a million requests a second."""

    handshake_seconds: Advanced[Seconds] = 10.0
    """From the connection to READY. Long enough for TLS over a bad line. A login over HTTP waits
    for so long to be verified, at most."""

    frame_seconds: Advanced[Seconds] = 30.0
    """From the first byte of a frame to its last, and longest time in which a peer takes nothing of
    what is written to it. A phone on a train is faster; one byte a second is not."""

    idle_seconds: Advanced[Seconds] = 300.0
    """A connection on which nothing arrives for so long is closed. Drivers beat every 30 s."""

    turn_frames: Fixed[Count] = 64
    """Requests of one connection that are served before the others get their turn."""

    write_buffer_bytes: Fixed[Count] = 256 * 1024
    """Unsent answers from which on nothing more is read from that connection."""

    partial_bytes: Advanced[Count] = 256 * 2**20
    """Incomplete frames of all connections of a shard together. Whoever goes beyond is closed, so
    that ten thousand large frames, each nearly sent, do not fill the memory."""

    handshake_bytes: Fixed[Count] = 16 * 2**20
    """The same for those who have not finished their handshake: strangers cannot use up what users
    need. An honest handshake has some hundred bytes."""

    verifications: Fixed[Count] = 4_096
    """Secrets that may wait to be verified in one process, all addresses together; while half as
    many wait, each address has room for four. A long queue delays only those who made it long,
    because addresses take turns. A waiting secret takes 2 KiB at most."""

    verifications_per_address: Fixed[Count] = 64
    """Secrets of one address (IPv6: of one /64) that may wait; more are refused and may try again.
    Two are verified at a time, in some 40 ms each, so the last of them waits for less than two
    seconds."""

    failures_per_user: Advanced[Count] = 10
    """Wrong secrets that one address may send in the name of one user; further attempts from there
    in that name are refused until a failure is forgiven."""

    failures_per_address: Fixed[Count] = 20
    """Wrong secrets that one address may send in any name; then its logins wait behind those of
    all other addresses. They are not refused: behind one address there may be many users."""

    failures_per_name: Fixed[Count] = 100
    """Wrong secrets in the name of one user from all addresses; then an address that has failed in
    this name already is refused. One that has not is let in as always, so nobody can lock a user
    out."""

    failure_seconds: Advanced[Seconds] = 5.0
    """After so long one failure is forgiven: at most 17,000 guesses a day from one address in one
    name, at each process of the node (`failures_per_user`, `failures_per_name`)."""

    address_failure_seconds: Fixed[Seconds] = 300.0
    """The same for `failures_per_address`. A longer time only makes addresses that fail wait
    behind others, and only while others wait."""

    under_way_bytes: Advanced[Count] = 256 * 2**20
    """Bodies of all requests of a shard that are under way and not answered yet. Beyond it further
    ones are refused, however few each connection has."""

    unsent_bytes: Advanced[Count] = 256 * 2**20
    """Answers that wait in a shard for peers that do not take them, all connections together.
    Whoever goes beyond is cut off: no other connection has to suffer for one that does not read."""

    forward_buffer_bytes: Fixed[Count] = 16 * 2**20
    """Unsent requests to another shard from which on requests for it are refused."""

    queues: Advanced[Count] = 20_000
    """Queues in the store, of all namespaces together; a new one beyond it is refused. Each takes a
    row, and up to 50 KiB of memory while somebody uses it."""

    waiting_bytes: Advanced[Count] = 256 * 2**20
    """Payloads of waiting tasks that a shard keeps in memory, all queues together; beyond it each
    line of a queue has 64 KiB in memory, and the rest is read when its turn comes. Eight queues
    with a large backlog reach it; workers notice only with tasks of many kilobytes."""

    free_disk_bytes: Bytes = 256 * 2**20
    """Room that must be left on the disk of the data directory; below it, new tasks are refused.
    What was acknowledged needs room as well: retries, results, marks, and SQLite's log of some
    16 MiB a shard. 0: tasks are taken until a write fails. A PostgreSQL server watches its own
    disk."""

    new_queues_per_second: Advanced[Rate] = 20.0
    """New queues of one user that the node makes. Each shard allows its share. A deployment names
    its queues once; a program that names a new one for each task wants another way."""

    new_queues: Advanced[Count] = 200
    """The same at once, before that rate applies: what a deployment starts with."""

    loading: Fixed[Count] = 1_000
    """Partitions of one namespace that may wait to be loaded from the store, in one shard; requests
    for more are refused. Namespaces take turns, so one that loads many delays itself alone."""


class Namespace(Schema, frozen=True, kw_only=True):
    """What the queues of one namespace may take together."""

    queues: Count = 1_000
    """Queues in it; a new one beyond it is refused until one is deleted, or forgotten because it
    lay idle."""

    stored_tasks: Count | None = None
    """Tasks in the store, dead letters included, of all its queues; new ones beyond it are refused.
    Not limited unless told: a stored task counts at least 64 bytes of `stored_bytes`."""

    stored_bytes: Bytes | None = 16 * 2**30
    """The same in bytes, with results that are kept. A hundred million small tasks, or 16,000 of a
    megabyte: more is a mistake or an attack, and several namespaces share a disk."""


class Tls(Schema, frozen=True, kw_only=True):
    """Files in PEM form."""

    certificate: Location
    """The node's certificate, followed by those that vouch for it."""

    key: Location
    """The certificate's key."""

    client_authorities: Location | None = None
    """If given, clients must show a certificate signed by one of these."""

    client_users: dict[Text, Text] = field(default_factory=dict)
    """By a name in a client's certificate (`CN:ann`, `DNS:ci.example.org`, `URI:spiffe://shop/ci`,
    `email:ann@example.org`), the user that needs no secret with it. Every authority above can make
    such a certificate."""


class Tokens(Schema, frozen=True, kw_only=True):
    """API tokens, made with `maitred admin token create`."""

    most: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """API tokens in the store; making one more is refused. All of them are written when one is made
    or revoked, and read by every shard: a thousand take a shard some 1 ms, ten thousand 8."""

    lifetime_seconds: Seconds = 365 * 86_400.0
    """Longest time for which a token may be made: a token that nobody remembers ends by itself."""


class WorkerAddresses(Schema, frozen=True, kw_only=True):
    """Which addresses workers may announce for gateways to dial, besides the one that their
    connection to the node comes from."""

    networks: list[Text] = field(default_factory=list)
    """Networks in CIDR notation (`10.0.0.0/8`) in which workers may announce any address: for
    workers with several addresses, and behind address translation. A user with the permission
    `work` makes gateways connect to any address in them."""

    lowest_port: Advanced[Port] = 1024
    """Lowest port that a worker may announce. Well-known services of the worker's host are below
    1024."""


class Jwt(Schema, frozen=True, kw_only=True):
    """JSON Web Tokens of one issuer, signed with RS256, ES256 or EdDSA."""

    issuer: Text
    """The `iss` claim that a token must have, to the letter."""

    audience: list[Text]
    """Of these, the `aud` claim of a token must name one: a token that was made for another service
    is not for this one."""

    jwks_file: Location | None = None
    """The issuer's keys, in a file that is read again when it changes. This or `jwks_url`."""

    jwks_url: Text | None = None
    """The issuer's keys, at an https address. Each shard fetches them; while that fails, it keeps
    those it has."""

    jwks_authorities: Advanced[Location | None] = None
    """Who vouches for the certificate of that address; the system's authorities unless given."""

    refresh_seconds: Advanced[Annotated[float, Meta(ge=10, le=86_400)]] = 300.0
    """How often the keys are fetched. Also when a token names a key that is not known, every ten
    seconds at most. A key that the issuer withdraws is trusted for so long."""

    user_claim: Text = "sub"
    """The claim that names the user. Dots lead inside of claims: `profile.name`."""

    permissions_claim: Text = "groups"
    """The claim whose values grant permissions: a list, or a text with spaces, such as `scope`."""

    permissions: dict[Text, dict[Text, list[Permission]]] = field(default_factory=dict)
    """By value of that claim, then by namespace (`*` stands for every one), as for users. A token
    without such a value is refused."""

    local_users: Advanced[bool] = False
    """Whether a token that names a user of the node is that user, with the user's permissions and
    limits. Otherwise it is refused: whoever picks names at the issuer must not become `admin`."""

    leeway_seconds: Advanced[Annotated[float, Meta(ge=0, le=300)]] = 30.0
    """By so much the clocks of the issuer and the node may differ."""

    lifetime_seconds: Advanced[Seconds] = 86_400.0
    """Longest time for which a token may be good. It cannot be revoked, so it should end soon."""


class QueryLimits(Schema, frozen=True, kw_only=True):
    """Limits of one user's queries, the same at every listener. An empty field sets no limit."""

    queues: list[Text] | None = None
    """Queues that may be asked, as `namespace/queue` or `namespace/*`; nothing: all of the
    namespaces in which the user may query."""

    concurrent: Count | None = None
    """Queries under way at a time, across the node; more are refused. Such a user's queries ask the
    node for every slot."""

    waiting: Advanced[Count | None] = None
    """Queries that wait for a worker at a time, in one queue; more are refused."""

    rate_per_second: Rate | None = None
    """Queries a second, with bursts of as many as a second has; more are refused."""

    run_seconds: Advanced[Seconds | None] = None
    """Longest that a query runs; then it is stopped. The queue's own counts if it is lower."""

    result_bytes: Advanced[Annotated[int, Meta(ge=1, le=2**40)] | None] = None
    """Largest result, streamed or not. The queue's own counts if it is lower."""

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
    """Who may come in, and what for."""

    secret: Hidden
    """What `maitred hash-secret` prints; never the secret itself."""

    previous_secret: Hidden | None = None
    """A second secret that is valid as well, for as long as clients are moved from one to the
    other; connections that were opened with it end when it is removed."""

    permissions: dict[Text, list[Permission]] = field(default_factory=dict)
    """By namespace; `*` stands for every one."""

    queries: QueryLimits = field(default_factory=QueryLimits)
