"""The settings of a queue: its partitions, its tasks, its queries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from maitred.settings.basis import Advanced, Bytes, Count, Fixed, Rate, Schema, Seconds, Wait


class Forwarding(Schema, frozen=True, kw_only=True):
    """How tasks and offers of a partition go up the tree to its parent.

    Chosen by simulation: docs/matching-study.md has the numbers.
    """

    children: Fixed[Annotated[int, Meta(ge=1, le=10_000)]] = 20
    """Partitions that have one parent: two levels reach 20 partitions, three reach 420. Each
    further level costs two messages and their time; twenty children are no burden to a parent."""

    offers: Fixed[Count] = 4
    """Offers of one partition that may wait at its parent at a time, each with all its slots. One
    is enough while workers are few; sixteen were no better than four."""

    tasks: Fixed[Count] = 4
    """Tasks of one partition that may wait at its parent at a time. With one, workers of other
    partitions idle for as long as a message takes; sixteen were no faster than four, and an offer
    at the task's own partition recalls all of them: a seventh more messages."""

    tasks_per_second: Fixed[Rate] = 1_000.0
    """Most tasks that one partition forwards per second. Cadence's 10 keep the workers of other
    partitions from helping with a backlog: 30 s instead of 0.7."""

    task_wait_seconds: Wait = 0.0
    """How long a task waits for an offer of its own partition before it is forwarded. Every
    millisecond is added to the latency, and more tasks are persisted although a worker is free."""

    offer_wait_seconds: Wait = 0.001
    """How long an offer waits for a task of its own partition before it is forwarded; it keeps
    waiting there as well. A millisecond saves messages in a busy queue at no cost; ten leave
    workers idle while tasks wait."""


class Scaling(Schema, frozen=True, kw_only=True):
    """How the number of partitions follows the load."""

    adaptive: bool = True
    """Whether the root partition changes the number of partitions by itself."""

    tasks_per_second: Advanced[Rate] = 5_000.0
    """Target for one partition. One core handles several times as many, but has other queues to
    serve."""

    up_after_seconds: Advanced[Seconds] = 60.0
    """Partitions are added when the load has exceeded `tasks_per_second` for this long."""

    down_after_seconds: Advanced[Seconds] = 120.0
    """Partitions are removed when fewer would have sufficed, with a quarter to spare, for this
    long."""

    down_share: Advanced[Annotated[float, Meta(gt=0, lt=1)]] = 0.75
    """Largest load of the remaining partitions after a removal, as a share of `tasks_per_second`:
    the gap keeps the number of partitions from oscillating."""

    look_seconds: Advanced[Seconds] = 5.0
    """Interval at which the root checks its partitions and sends them the partition counts."""

    partitions_max: Advanced[Annotated[int, Meta(ge=1, le=1024)]] = 64
    """Most partitions that the root creates by itself; `maitred admin queue update-partitions` can
    create more."""


class Shedding(Schema, frozen=True, kw_only=True):
    """How a gateway that picks workers itself refuses queries when none has free capacity."""

    wait_target_seconds: Seconds = 0.02
    """A query that would wait longer than this, at the rate at which slots become free, is refused
    at once. WeChat regards a mean wait of 20 ms as overload."""

    length: Count = 10_000
    """Most queries that one gateway queues, however fast the workers are; each takes about a
    kilobyte and its connection."""

    holdback: Fixed[Annotated[float, Meta(ge=0, lt=0.25)]] = 0.2
    """Share of the queue that each priority leaves to the one above it: the lowest priorities are
    refused first."""

    retry_share: Fixed[Annotated[float, Meta(ge=0, le=10)]] = 0.2
    """Retries of refused queries per admitted query: at most a fifth more load."""

    retries_per_second: Fixed[Annotated[float, Meta(ge=0, le=1e6)]] = 10.0
    """Retries that are allowed besides, so that a quiet queue can retry too."""


class History(Schema, frozen=True, kw_only=True):
    """For how long operators see tasks that are over. Tasks that are not over, and dead letters,
    are always seen."""

    tasks: Advanced[Annotated[int, Meta(ge=0, le=100_000)]] = 1_000
    """Most tasks that are over and that each partition keeps in memory; some 700 bytes each, with
    arguments of up to 16 KiB. Without `stored`, a partition in which more than a tenth of them end
    a second, for longer than a burst, keeps a tenth a second and leaves the others out. 0: none."""

    seconds: Advanced[Seconds] = 3600.0
    """How long each of them is kept. All partitions of a shard together keep
    `limits.history_bytes` in memory."""

    stored: Advanced[bool] = False
    """Whether they are also written to the store, within a second or two, so that a partition that
    is loaded again, or moves to another node, still has them. Then each partition keeps its last
    `tasks` that ended, without leaving any out. They count against the quotas of stored bytes."""


class QuerySettings(Schema, frozen=True, kw_only=True):
    """How a queue handles queries."""

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
    """How the worker of a query is chosen. With `idle`, a partition gives the query to a worker
    that offered a free slot. With every other policy the gateway picks the worker, which saves that
    hop; `adaptive` picks by the capacity that workers measure of themselves."""

    waiting: Advanced[Count] = 10_000
    """Most queries that wait for a worker; more are refused, with the time after which to retry. At
    a millisecond per query and ten slots, the last one waits for a second."""

    waiting_per_user: Advanced[Count] = 5_000
    """The same for one user, so that no user fills the queue alone."""

    rate_per_second: Rate | None = None
    """Most queries per second of all users together, with bursts of one second's worth; more are
    refused. The gateway and the shard that is asked both count."""

    concurrent: Count | None = None
    """Most queries in progress of all users together, across the node; more are refused. It adds no
    slots to workers. The policy of such a queue is `idle`: each of its queries asks the node for a
    slot."""

    no_worker_seconds: Wait = 5.0
    """How long queries wait for a worker after the last one has left, before they are refused. A
    worker that is restarted is back within this time."""

    reservation_seconds: Advanced[Seconds] = 2.0
    """How long a slot stays reserved for a gateway that sends no query: the longest that the death
    of a gateway can block a slot. The query usually follows within a millisecond."""

    again_seconds: Advanced[Wait] = 10.0
    """How long a gateway may reuse a slot for its next query without asking the node, while the
    worker has other slots on offer. Reuse saves half of the messages. A removed or demoted user may
    continue for this long. 0: every query asks."""

    pass_seconds: Advanced[Annotated[float, Meta(ge=6, le=3600)]] = 60.0
    """Where gateways pick workers: how long a worker admits a gateway without a renewal from the
    node. A removed or demoted user may continue for this long, and so may queries while the node is
    away. Passes are renewed three times in this period."""

    subscribers: Fixed[Count] = 1_000
    """Most gateways, including clients that are their own gateway, that pick the workers of the
    queue themselves; more ask the node for each slot, as with `idle`. Each has a long poll at the
    root partition."""

    passes: Fixed[Count] = 100_000
    """Most pairs of such a gateway and a worker; a gateway beyond it gets some of the workers only.
    Each pair takes about 300 bytes of the root's shard; a hundred gateways with a thousand workers
    have as many."""

    run_seconds: Seconds = 3600.0
    """Longest run of a query, whatever deadline its caller sets; then it is stopped."""

    result_bytes: Advanced[Annotated[int, Meta(ge=1, le=240 * 2**20)]] = 64 * 2**20
    """Largest result in one piece: the worker and the gateway hold all of it in memory. Larger
    results can be streamed."""

    stream_bytes: Advanced[Annotated[int, Meta(ge=0, le=2**50)]] = 0
    """Largest result of a stream; 0: no limit, because a stream is never in memory as a whole."""

    tracebacks: Advanced[bool] = True
    """Whether workers send the tracebacks of handlers that fail. Callers of the HTTP API see them
    only if `gateway.tracebacks` is set as well; clients that are their own gateway always do."""

    shedding: Advanced[Shedding] = field(default_factory=Shedding)


class Queue(Schema, frozen=True, kw_only=True):
    """How the tasks of a queue are stored and handed out."""

    rate_per_second: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Most tasks handed out per second by all partitions together; it may be a fraction."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Number of partitions of a new queue."""

    lease_seconds: Seconds = 10.0
    """A task whose worker was not heard from for this long is redelivered. Workers send three
    heartbeats in this time."""

    offer_seconds: Advanced[Seconds] = 60.0
    """Longest that an offer waits for a task; then the worker offers its slots again, perhaps at
    another partition."""

    buffer_tasks: Advanced[Annotated[int, Meta(ge=10, le=1_000_000)]] = 2_000
    """Most waiting tasks of one priority that a partition keeps in memory; the others are in the
    store. They last for a tenth of a second at full speed, in which the next ones are read."""

    buffer_bytes: Advanced[Annotated[int, Meta(ge=64 * 1024, le=2**40)]] = 32 * 2**20
    """The same in bytes of their payloads; the smaller of the two limits applies. It holds 2,000
    tasks of 16 KiB: most queues never reach it, and tasks of a megabyte each do not fill the
    memory."""

    hold_seconds: Fixed[Wait] = 0.02
    """How long a task that a worker already has may stay unwritten: if it ends within this time, it
    is never written. Applies only while the queue's tasks usually take less than this."""

    finish_seconds: Fixed[Wait] = 0.02
    """How long finished tasks may wait to be deleted from the store in one batch. The worker is
    told that its task is finished when this is done, and does not wait for it. A task whose caller
    waits for the result is deleted with the next commit."""

    recovery_seconds: Advanced[Wait] = 3.0
    """How long workers have after a crash to report the tasks that they still run, before these are
    redelivered. Workers reconnect within a second."""

    results_kept: Advanced[Annotated[int, Meta(ge=0, le=10_000_000)]] = 50_000
    """Most results that one partition keeps in memory; the oldest are dropped first."""

    results_bytes: Advanced[Annotated[int, Meta(ge=0, le=2**40)]] = 32 * 2**20
    """The same in bytes."""

    memory_seconds: Fixed[Wait] = 60.0
    """A result with a longer retention than this is persisted when its task ends; others only when
    the node stops or the partition moves."""

    stored_tasks: Count | None = None
    """Most tasks in the store, including dead letters, of all partitions together; new ones beyond
    it are refused. No limit by default: the quota of the namespace applies to all of its queues."""

    stored_bytes: Bytes | None = None
    """The same in bytes, including results; each row counts 64 bytes besides its body."""

    idle_seconds: Advanced[Seconds] = 300.0
    """A partition that was not used for this long and has no work is evicted from memory."""

    forget_seconds: Advanced[Seconds] = 3600.0
    """A queue that has been out of memory for this long, without tasks, dead letters or results,
    and with its initial number of partitions, is deleted from the store. Using it again creates it
    anew."""

    signatures_seconds: Advanced[Wait] = 86_400.0
    """How long the node remembers the arguments that a queue's handlers take after their last
    worker has left; the queue is kept as long. Producers refuse calls that fit none of the
    handlers. 0: only while workers are connected, and not across restarts."""

    queries: QuerySettings = field(default_factory=QuerySettings)
    history: History = field(default_factory=History)
    forwarding: Advanced[Forwarding] = field(default_factory=Forwarding)
    scaling: Scaling = field(default_factory=Scaling)
