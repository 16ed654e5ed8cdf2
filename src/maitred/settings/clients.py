"""Those at the other end of the wire: clients, workers, and how a gateway asks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from maitred.settings.basis import (
    Advanced,
    Count,
    Fixed,
    Location,
    Port,
    Schema,
    Seconds,
    Text,
    Wait,
)


class Querying(Schema, frozen=True, kw_only=True):
    """How whoever asks queries goes about it: a gateway, or a client that is its own."""

    timeout_seconds: Seconds = 30.0
    """For a query that does not say how long it may take."""

    table_rows: Advanced[Count] = 10_000
    """Queries in the query table; when it is full, those that are over longest make room."""

    text_letters: Advanced[Annotated[int, Meta(ge=0, le=100_000)]] = 200
    """Of each query, in the table; the rest is cut off."""

    mask: bool = False
    """Whether the table shows no query's text at all: it may hold what not every operator should
    read."""

    under_way: Advanced[Count] = 10_000
    """Queries that wait or run at a time; more are refused."""

    dial_seconds: Fixed[Seconds] = 1.0
    """For a connection to a worker. If there is none by then, the node relays."""

    unreachable_seconds: Fixed[Seconds] = 30.0
    """How long a worker that could not be reached directly is not tried again."""

    idle_seconds: Fixed[Seconds] = 60.0
    """A connection to a worker that was not used for so long is closed."""

    ping_seconds: Fixed[Seconds] = 2.0
    """A worker that has a query and has said nothing for so long is asked whether it lives."""

    hung_seconds: Advanced[Seconds] = 8.0
    """A worker that does not answer that question within this time is given up, with its queries. A
    handler that blocks its loop for longer looks just like it."""

    together: Fixed[Count] = 8
    """Queries for one worker that are written together, at most. Two ends that each wait for all
    that the other one has to say work by turns; with eight a client and its worker do twice as
    much. A gateway process with a thousand callers gains nothing by it, and writes 64."""

    warm: Fixed[bool] = True
    """Whether slots that a worker keeps warm for this gateway are used again without asking the
    node. A gateway process with a thousand callers always asks: then the partition decides whose
    turn it is."""

    window_bytes: Fixed[Annotated[int, Meta(ge=64 * 1024, le=2**30)]] = 4 * 2**20
    """Of a stream, what may be on its way or waiting here before the worker pauses."""


class ClientSettings(Schema, frozen=True):
    """How a client behaves; `maitred.connect` takes each of these by name."""

    timeout_seconds: Seconds = 10.0
    """For a request that does not say how long it may take."""

    in_flight: Advanced[Annotated[int, Meta(ge=1, le=32_768)]] = 1_024
    """Unanswered requests of one connection; the node's own limit counts if it is lower. Further
    requests wait for their turn, as long as their timeout lets them."""

    waiting: Advanced[Count] = 65_536
    """Requests that may wait for a connection or for their turn; more are refused at once."""

    frame_bytes: Advanced[Annotated[int, Meta(ge=1024)]] = 256 * 2**20
    """Largest answer that is taken."""

    connect_seconds: Advanced[Seconds] = 5.0
    """For one attempt at a connection, with its handshake."""

    hedge_seconds: Advanced[Seconds] = 1.0
    """A first attempt at a node that takes longer gets company: the shard that the kernel picked
    may hang, and the next one may not."""

    away_seconds: Wait = 2.0
    """How long a node, or a shard of it, may be away before requests for it are refused at once
    with `node-unreachable`. Until then they wait for it, as long as their timeout lets them: a
    shard that died is started again within half a second, and most restarts are not even noticed.
    It counts from when the node was last heard, so only requests at the beginning of an outage
    wait. Requests of a worker, and waiting for a task's result, are not refused but wait."""

    silence_seconds: Advanced[Seconds] = 2.0
    """A connection that owes an answer, and on which nothing arrived for so long, is asked whether
    it lives."""

    heartbeat_seconds: Advanced[Seconds] = 20.0
    """A connection on which nothing arrived for so long is asked the same, though it owes nothing.
    Well below the idle limits of nodes and of most things between."""

    heartbeat_timeout_seconds: Advanced[Seconds] = 5.0
    """A connection that does not answer that question is given up."""

    backoff_first_seconds: Advanced[Seconds] = 0.05
    """Before the second attempt at a connection; doubled each time, with jitter, until..."""

    backoff_longest_seconds: Advanced[Seconds] = 1.5
    """... this. A thousand clients of a restarted node come back spread over as long. Longer spares
    the node, and clients notice later that it is back."""

    port_blocked_seconds: Advanced[Seconds] = 300.0
    """A shard's own port that could not be reached is not tried again for so long, as drivers do:
    it is behind a firewall, or translated."""

    coverage_attempts: Advanced[Count] = 3
    """Without the shards' own ports: connections opened for each shard, at most, until every shard
    has one. More find the last shard, fewer spare the node."""

    close_seconds: Advanced[Seconds] = 5.0
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


class WorkerSettings(Schema, frozen=True, kw_only=True):
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

    blocked_seconds: Seconds = 1.0
    """An event loop that has had no turn for so long is blocked: the worker logs which handler does
    it, and another thread renews the leases. A blocked loop is noticed up to half a second later.
    Keep it below half of the shortest lease."""

    stop_seconds: Seconds = 5.0
    """How long an async handler whose time is over may take to clean up, before that is told."""

    host: Text | None = "127.0.0.1"
    """Where gateways reach the worker directly. `none`: nowhere, and the node relays every
    query."""

    port: Port = 0
    """The port for that; 0 asks the system for a free one."""

    certificate: Location | None = None
    """The certificate that the listener shows, in PEM form. Without it, a worker that reaches its
    node by TLS makes one at its start. Gateways accept exactly the one that is announced."""

    key: Location | None = None
    """The certificate's key; nothing if it is in the same file."""

    public_without_tls: bool = False
    """Set this to listen where others can reach it without TLS, at a node without TLS: whoever can
    read the network reads arguments and results."""

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
    """Connections of gateways at a time; each gateway has one. More are refused, but one that has
    proved nothing yet gives way to a new one. As many TLS handshakes may be under way besides."""

    link_frame_bytes: Annotated[int, Meta(ge=1024, le=256 * 2**20)] = 16 * 2**20
    """Largest query that is taken from a gateway; as large as what a node takes."""

    link_seconds: Seconds = 10.0
    """For a gateway's first words, and for the rest of a frame that has begun. Long enough for a
    bad line."""

    link_idle_seconds: Seconds = 300.0
    """A gateway that has no query under way and says nothing for so long is disconnected.
    Longer than `querying.idle_seconds` of all gateways, which close first."""

    stalled_seconds: Seconds = 30.0
    """A gateway that takes nothing of its answers for so long is given up, with its queries."""

    early_queries: Count = 1_024
    """Queries that may wait for the word of their reservation, of all gateways together. Many more
    than slots make no sense."""

    early_bytes: Count = 64 * 2**20
    """The same, in bytes of their arguments."""
