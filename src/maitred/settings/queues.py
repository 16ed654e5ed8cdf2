"""How a queue is kept: its partitions, its tasks, its queries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from maitred.settings.basis import Advanced, Bytes, Count, Fixed, Rate, Schema, Seconds, Wait


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

    tasks_per_second: Advanced[Rate] = 5_000.0
    """What one partition should take in. One core does several times that, but has other queues."""

    up_after_seconds: Advanced[Seconds] = 60.0
    """More than the partitions should take, for so long: add some."""

    down_after_seconds: Advanced[Seconds] = 120.0
    """Fewer would do with a quarter to spare, for so long: remove some."""

    down_share: Advanced[Annotated[float, Meta(gt=0, lt=1)]] = 0.75
    """How full the remaining partitions may be after shrinking: the gap that keeps the count from
    swinging."""

    look_seconds: Advanced[Seconds] = 5.0
    """How often the root looks at its partitions, and tells them the counts."""

    partitions_max: Advanced[Annotated[int, Meta(ge=1, le=1024)]] = 64
    """No more than this by itself; by hand there may be more."""


class Shedding(Schema, frozen=True, kw_only=True):
    """What a gateway that picks workers itself does with queries for which none has room."""

    wait_target_seconds: Seconds = 0.02
    """A query that would wait longer than this, at the rate at which slots get free, is refused at
    once: WeChat takes a mean of 20 ms for overload."""

    length: Count = 10_000
    """Queries that wait at one gateway, however fast the workers are; each costs about a kilobyte
    and its connection."""

    holdback: Fixed[Annotated[float, Meta(ge=0, lt=0.25)]] = 0.2
    """Of the line, what each priority leaves to those before it: the lowest are refused first."""

    retry_share: Fixed[Annotated[float, Meta(ge=0, le=10)]] = 0.2
    """Retries of refused queries for each that is let in: a fifth more load at the very most."""

    retries_per_second: Fixed[Annotated[float, Meta(ge=0, le=1e6)]] = 10.0
    """And so many more, so that a quiet queue can retry too."""


class QuerySettings(Schema, frozen=True, kw_only=True):
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
    """How the worker of a query is chosen. With `idle`, a partition gives the query to a worker
    that offered a free slot. With every other policy the gateway picks the worker, which saves that
    hop; `adaptive` picks by the capacity that workers measure of themselves."""

    waiting: Advanced[Count] = 10_000
    """Queries that wait for a worker; more are refused, and told when to come back. At a
    millisecond each and ten slots, the last of them waits for a second."""

    waiting_per_user: Advanced[Count] = 5_000
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

    reservation_seconds: Advanced[Seconds] = 2.0
    """How long a slot that was given to a gateway stays reserved if nothing comes: the longest that
    a gateway's death can cost a slot. The query usually follows within a millisecond."""

    again_seconds: Advanced[Wait] = 10.0
    """How long a gateway that has just been served may use the slot again without asking, while the
    worker has others on offer, so that nobody waits for it. It spares half of the messages; for so
    long a user who is no more, or may no more, can go on. 0: every query asks."""

    pass_seconds: Advanced[Annotated[float, Meta(ge=6, le=3600)]] = 60.0
    """Where gateways pick workers: how long a worker lets a gateway in without hearing of it again
    from the node. So long a user who is no more, or may no more, can go on; and so long, at most,
    do queries go on while the node is away. Each worker hears of each gateway three times in it."""

    subscribers: Fixed[Count] = 1_000
    """Gateways that pick the workers of the queue themselves, and clients that are their own; more
    ask for a slot each time, as with `idle`. Each holds a request at the root partition."""

    passes: Fixed[Count] = 100_000
    """Gateways times workers, of those: a gateway beyond it knows of some workers only. Each takes
    about 300 bytes of the root's shard; a hundred gateways of a thousand workers have so many."""

    run_seconds: Seconds = 3600.0
    """Longest that a query runs, whatever its caller allows; then it is stopped."""

    result_bytes: Annotated[int, Meta(ge=1, le=240 * 2**20)] = 64 * 2**20
    """Largest result in one piece: it is in memory whole, at the worker and at the gateway. Larger
    ones can be streamed."""

    stream_bytes: Advanced[Annotated[int, Meta(ge=0, le=2**50)]] = 0
    """Largest result of a stream; 0: as large as it wants to be, since it is never in memory
    whole."""

    tracebacks: Advanced[bool] = True
    """Whether workers tell tracebacks of handlers that fail. Callers of the HTTP API see them only
    if `gateway.tracebacks` allows it as well; clients that are their own gateway always do."""

    shedding: Advanced[Shedding] = field(default_factory=Shedding)


class Queue(Schema, frozen=True, kw_only=True):
    """How the tasks of a queue are kept and handed out."""

    rate_per_second: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Tasks handed out a second, by all partitions together; fractions are meant as they stand."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many a new queue starts with."""

    lease_seconds: Seconds = 10.0
    """A task whose worker has not been heard of for so long is given to another one. Workers say
    that they live three times in it."""

    offer_seconds: Advanced[Seconds] = 60.0
    """Longest that an offer waits for a task; then the worker asks again, perhaps elsewhere."""

    buffer_tasks: Advanced[Annotated[int, Meta(ge=10, le=1_000_000)]] = 2_000
    """Waiting tasks of one priority that a partition has in memory; the others are in the store.
    Enough for a tenth of a second at full speed, in which the next are read."""

    buffer_bytes: Advanced[Annotated[int, Meta(ge=64 * 1024, le=2**40)]] = 32 * 2**20
    """The same, in bytes of their payloads; whichever is reached first. What 2,000 tasks of 16 KiB
    have: most queues never notice, and tasks of a megabyte each do not fill the memory."""

    hold_seconds: Fixed[Wait] = 0.02
    """How long the writing of a task that a worker has already got may wait: if it is done by then
    it need not be written. Only while the queue's tasks usually take less than this."""

    finish_seconds: Fixed[Wait] = 0.02
    """How long finished tasks may wait to be crossed out in the store, many at once. A worker hears
    that its task is finished when this is done, and does not wait for it. A task whose caller waits
    for the result is crossed out with the next commit."""

    recovery_seconds: Advanced[Wait] = 3.0
    """After a crash, how long workers have to say what they are still working on before it is given
    to others. Workers come back within a second."""

    results_kept: Advanced[Annotated[int, Meta(ge=0, le=10_000_000)]] = 50_000
    """Results in memory, of one partition; the oldest go first."""

    results_bytes: Advanced[Annotated[int, Meta(ge=0, le=2**40)]] = 32 * 2**20
    """The same, in bytes."""

    memory_seconds: Fixed[Wait] = 60.0
    """A result that is to be kept for longer than this is written to the store when its task ends;
    others only when the node stops or the partition moves."""

    stored_tasks: Count | None = None
    """Tasks in the store, dead letters included, of all partitions together; new ones beyond it are
    refused. Not limited unless told: the quota of the namespace holds for all of its queues."""

    stored_bytes: Bytes | None = None
    """The same in bytes, with results that are kept; each row counts 64 bytes besides its body."""

    idle_seconds: Advanced[Seconds] = 300.0
    """A partition that nobody used for so long, and that has nothing to do, leaves the memory."""

    forget_seconds: Advanced[Seconds] = 3600.0
    """A queue that is not in memory for so long, with no tasks, dead letters and results, and as
    many partitions as a new one has, is deleted from the store. Using it again makes it anew."""

    signatures_seconds: Advanced[Wait] = 86_400.0
    """How long the node remembers what arguments a queue's handlers take after their last worker
    has gone, and so keeps the queue. Producers refuse what fits none of them. 0: only while workers
    are there, and not through restarts."""

    queries: QuerySettings = field(default_factory=QuerySettings)
    forwarding: Fixed[Forwarding] = field(default_factory=Forwarding)
    scaling: Scaling = field(default_factory=Scaling)
