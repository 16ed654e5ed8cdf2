"""The settings of clients and workers, and of gateways for their queries."""

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
    Url,
    Wait,
)


class Telemetry(Schema, frozen=True, kw_only=True):
    """Traces and metrics by OpenTelemetry, for any receiver that speaks OTLP. They need the extra
    `otel`. What is not set here, OpenTelemetry's own variables decide, such as
    `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_HEADERS`."""

    traces: bool = False
    """Whether spans of tasks and queries are exported."""

    metrics: bool = False
    """Whether the metrics of `/metrics` are exported as well, under the same names."""

    sample: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """Fraction of the traces that begin at this process and are recorded. A trace that a caller
    began is recorded if the caller records it."""

    endpoint: Url | None = None
    """Where the receiver is, such as `http://127.0.0.1:4317`; with `https` the connection is by
    TLS."""

    protocol: Literal["grpc", "http/protobuf"] | None = None
    """How the receiver is reached; by default what `OTEL_EXPORTER_OTLP_PROTOCOL` says, else
    `grpc`."""

    interval_seconds: Seconds = 15.0
    """Interval between two exports of metrics: the usual one of Prometheus."""


class Querying(Schema, frozen=True, kw_only=True):
    """How a gateway runs queries, or a client that is its own gateway."""

    timeout_seconds: Seconds = 30.0
    """Timeout of a query that sets none."""

    table_rows: Advanced[Count] = 10_000
    """Rows of the query table; a full table drops the queries that ended longest ago."""

    text_letters: Advanced[Annotated[int, Meta(ge=0, le=100_000)]] = 200
    """Characters of each query that the table shows."""

    mask: bool = False
    """Whether the table hides the text of all queries, which may hold data that not every operator
    should read."""

    under_way: Advanced[Count] = 10_000
    """Most queries that wait or run at a time; more are refused."""

    dial_seconds: Advanced[Seconds] = 1.0
    """Longest time to connect to a worker; after that, the node relays."""

    unreachable_seconds: Fixed[Seconds] = 30.0
    """How long a worker that could not be reached directly is not tried again."""

    idle_seconds: Fixed[Seconds] = 60.0
    """A connection to a worker that was not used for this long is closed."""

    ping_seconds: Advanced[Seconds] = 2.0
    """A worker that has a query and was silent for this long gets a ping."""

    hung_seconds: Advanced[Seconds] = 8.0
    """A worker that does not answer a ping within this time is regarded as lost, with its queries.
    A handler that blocks the worker's event loop for longer has the same effect."""

    together: Fixed[Count] = 8
    """Most queries for one worker that are written together. Two ends that each wait for a whole
    batch of the other work alternately; with eight, a client and its worker do twice as much. A
    gateway process with a thousand callers gains nothing by it, and writes 64."""

    warm: Fixed[bool] = True
    """Whether slots that a worker keeps warm for this gateway are used again without asking the
    node. A gateway process with a thousand callers always asks: then the partition decides whose
    turn it is."""

    window_bytes: Fixed[Annotated[int, Meta(ge=64 * 1024, le=2**30)]] = 4 * 2**20
    """Most bytes of a stream that are in flight or buffered here before the worker pauses."""


class ClientSettings(Schema, frozen=True):
    """How a client behaves; `maitred.connect` takes each of these by name."""

    timeout_seconds: Seconds = 10.0
    """Timeout of a request that sets none."""

    in_flight: Advanced[Annotated[int, Meta(ge=1, le=32_768)]] = 1_024
    """Most unanswered requests of one connection; the node's own limit applies if it is lower.
    Further requests wait for their turn, until their timeout."""

    waiting: Advanced[Count] = 65_536
    """Most requests that wait for a connection or for their turn; more are refused at once."""

    frame_bytes: Advanced[Annotated[int, Meta(ge=1024)]] = 256 * 2**20
    """Largest answer that the client accepts."""

    connect_seconds: Advanced[Seconds] = 5.0
    """Longest time of one attempt to connect, including the handshake."""

    hedge_seconds: Advanced[Seconds] = 1.0
    """When the first connection to a node takes longer than this, a second one is tried beside it:
    the shard that the kernel picked may hang, and the next one may not."""

    away_seconds: Wait = 2.0
    """How long a node, or a shard of it, may be away before requests for it are refused at once
    with `node-unreachable`. Until then they wait for it, until their timeout: a shard that died is
    restarted within half a second, and most restarts are not even noticed. The time counts from
    when the node was last heard from, so only requests at the beginning of an outage wait. Requests
    of a worker, and waiting for a task's result, are not refused but wait."""

    takeover_seconds: Advanced[Wait] = 10.0
    """How long a node of a cluster may be away before requests for its partitions are refused at
    once with `node-unreachable`, while other nodes of the cluster are connected and unless
    `away_seconds` is longer. Until then requests wait for the others to declare the node dead and
    take over what it owns. That takes `cluster.lease_seconds` (5), and a heartbeat or two for the
    votes; the default is twice the lease. With 0, nothing is held back from a silent node."""

    silence_seconds: Advanced[Seconds] = 2.0
    """A connection that owes an answer and was silent for this long gets a heartbeat. In a cluster
    of which other nodes are connected, half a second is enough."""

    heartbeat_seconds: Advanced[Seconds] = 20.0
    """A connection that owes no answer and was silent for this long gets a heartbeat, too. Well
    below the idle limits of nodes and of most proxies."""

    heartbeat_timeout_seconds: Advanced[Seconds] = 5.0
    """A connection that does not answer a heartbeat within this time is closed."""

    backoff_first_seconds: Advanced[Seconds] = 0.05
    """Pause before the second attempt to connect; doubled each time, with jitter, up to
    `backoff_longest_seconds`."""

    backoff_longest_seconds: Advanced[Seconds] = 1.5
    """Longest pause between attempts to connect. A thousand clients of a restarted node come back
    spread over this time. A longer one spares the node, and clients notice later that it is back.
   """

    port_blocked_seconds: Advanced[Seconds] = 300.0
    """How long a shard's own port that could not be reached is not tried again, as drivers do: it
    is behind a firewall or address translation."""

    coverage_attempts: Advanced[Count] = 3
    """Without the shards' own ports: most connections opened per shard until every shard has one.
    More find the last shard, fewer spare the node."""

    close_seconds: Advanced[Seconds] = 5.0
    """How long `close()` waits for requests in flight; then they fail."""

    retries: Annotated[int, Meta(ge=0)] = 8
    """How often a request is sent again when that is safe, within its timeout. With the backoff
    above, eight retries outlast the restart of a shard."""


class Upstream(Schema, frozen=True, kw_only=True):
    """How a worker calls the HTTP back end behind it; `maitred serve-http` has options for the
    usual ones."""

    connect_seconds: Seconds = 2.0
    """Longest time to connect. A back end on the same machine takes less than a millisecond."""

    timeout_seconds: Seconds = 60.0
    """Longest time for a whole answer, including the connection; the query's own deadline applies
    if it is earlier."""

    keep_seconds: Wait = 4.0
    """How long an unused connection is kept. Many servers close theirs after 5 s, and a request
    that is sent at that moment is lost."""

    header_bytes: Annotated[int, Meta(ge=1024, le=2**24)] = 64 * 1024
    """Largest head of an answer."""

    body_bytes: Annotated[int, Meta(ge=0, le=240 * 2**20)] = 16 * 2**20
    """Largest body of an answer, which is held in memory as a whole. The queue's own limit applies
    if it is lower."""


class WorkerSettings(Schema, frozen=True, kw_only=True):
    """How a worker behaves; `maitred worker` has options for the usual ones."""

    slots: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Most tasks and queries that run at a time, of all queues together."""

    threads: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Threads for plain functions; as many as slots by default. With fewer, calls that wait for a
    thread count as waiting, and the measured limit reflects the threads."""

    limit: Literal["measured", "knee", "slots"] = "measured"
    """How the worker limits what it runs at a time, up to its slots. `measured`: by completions and
    waiting calls. `knee`: by the point from which more at a time complete no faster, for handlers
    that forward their calls. `slots`: by its slots only."""

    drain_seconds: Wait = 30.0
    """How long a stopping worker waits for running tasks to end, and for the node to acknowledge
    their ends."""

    offer_seconds: Seconds = 60.0
    """Longest that an offer waits at a partition; the node's own limit applies if it is lower."""

    finish_seconds: Seconds = 10.0
    """How long the node may take to acknowledge the ends of tasks, before they are sent again."""

    young_seconds: Seconds = 1.0
    """Age from which on a task is part of heartbeats, at most a third of its lease. Most tasks end
    earlier, and cost no heartbeat."""

    blocked_seconds: Seconds = 1.0
    """An event loop that had no turn for this long is blocked: the worker logs which handler blocks
    it, and another thread renews the leases. A blocked loop is noticed up to half a second later.
    Keep it below half of the shortest lease."""

    stop_seconds: Seconds = 5.0
    """How long an async handler that was cancelled may take to clean up, before the worker logs it.
   """

    host: Text | None = "127.0.0.1"
    """Address at which gateways reach the worker directly. `none`: the worker does not listen, and
    the node relays every query."""

    port: Port = 0
    """Port of that address; 0: a free one."""

    certificate: Location | None = None
    """Certificate of the listener, in PEM form. Without it, a worker that reaches its node by TLS
    makes one at its start. Gateways accept exactly the certificate that the worker announces."""

    key: Location | None = None
    """The certificate's key; by default in the same file."""

    monitor_host: Text | None = "127.0.0.1"
    """Address of the pages for monitoring: `/health`, `/ready` and `/metrics`. `none`: the worker
    has none."""

    monitor_port: Port = 0
    """Port of that address; 0: a free one, which the log tells."""

    monitor_open_metrics: bool = False
    """Whether other machines may read `/metrics`, which names queues. This machine always may."""

    stuck_seconds: Seconds = 600.0
    """`/health` of the worker fails when its event loop has had no turn for this long. A handler
    may block the loop for a while, and the worker keeps its tasks meanwhile; an orchestrator that
    kills it has them run again elsewhere, where they block again."""

    public_without_tls: bool = False
    """Whether the worker may listen on a public address without TLS, at a node without TLS:
    everyone who can read the network can read arguments and results."""

    attend_seconds: Seconds = 5.0
    """Interval at which the worker reports to the node, busy or not."""

    early_seconds: Seconds = 0.5
    """How long a query that arrives before its reservation is kept. The reservation was sent first,
    so it usually arrives within microseconds."""

    warm_seconds: Wait = 0.05
    """How long a slot is kept for the next query of the same gateway, while other slots are free:
    that query comes within a millisecond, or not at all. 0: slots are not kept."""

    fetch_seconds: Seconds = 0.05
    """How long after a reservation the worker asks the node whether the query is relayed."""

    chunk_bytes: Annotated[int, Meta(ge=1024, le=16 * 2**20)] = 256 * 1024
    """Most bytes of a stream's rows that are sent together; the rows of one turn of the event loop
    are sent at its end."""

    links: Count = 1_024
    """Most connections of gateways; each gateway has one. More are refused, but a connection that
    has not authenticated yet is closed for a new one. As many TLS handshakes may be in progress
    besides."""

    link_frame_bytes: Annotated[int, Meta(ge=1024, le=256 * 2**20)] = 16 * 2**20
    """Largest query that is accepted from a gateway; as large as a node accepts."""

    link_seconds: Seconds = 10.0
    """Longest time for a gateway's first frame, and for the rest of a frame that has begun. Long
    enough for a bad line."""

    link_idle_seconds: Seconds = 300.0
    """A gateway that has no query in progress and is silent for this long is disconnected. Longer
    than `querying.idle_seconds` of all gateways, which close first."""

    stalled_seconds: Seconds = 30.0
    """A gateway that reads none of its answers for this long is disconnected, and its queries are
    stopped."""

    early_queries: Count = 1_024
    """Most queries that wait for their reservation, all gateways together. Many more than slots
    make no sense."""

    early_bytes: Count = 64 * 2**20
    """The same in bytes of their arguments."""
