"""Messages about many queues at once: their last hour, and what they have now.

A shard answers for itself alone, from its memory. Callers ask every shard of every node, and add
the answers up: `client/series.py` and `client/queue_states.py`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from maitred.matching.controls import Pause  # noqa: TC001 - msgspec reads it
from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Exchanges, Natural, ShardRequest

SERIES_STEPS_MAX: Final = 360
"""Most steps of a series: the hour that shards keep."""

STATES_MAX: Final = 500
"""Most queues of one answer: some 60 kilobytes, and a few milliseconds of the shard."""

QueueSort = Literal["name", "backlog", "oldest", "added", "dead"]
"""The order of a list of queues: by name, or by one of these numbers, the highest first."""

NamePart = Annotated[str, Meta(max_length=500)]


class ShowSeries(ShardRequest, array_like=True, gc=False):
    """Ask a shard for the last hour of a queue, of a namespace, or of all namespaces that the user
    may read."""

    opcode = Opcode.SERIES
    permission = "read"
    anywhere = True
    repeatable = True

    namespace: NamePart = ""
    """Empty: all."""
    queue: NamePart = ""
    """Empty: all of the namespace. Refused without a namespace."""
    steps: Annotated[int, Meta(ge=1, le=SERIES_STEPS_MAX)] = SERIES_STEPS_MAX
    """How many of the last steps to tell."""
    within: list[str] | None = None
    """Namespaces that the user may read; None: all. The node fills it in."""


class SeriesShown(Answer, array_like=True, gc=False):
    """The points of one series at one shard, the earliest first."""

    step_seconds: int
    last: int
    """Number of the last step: the unix time at which it began, divided by `step_seconds`. -1: the
    shard has not measured any step yet."""
    known: bytes
    """One byte for each step: 1 if the shard knows it, else 0."""
    columns: dict[str, list[Natural]] = field(default_factory=dict)
    """The numbers of all steps, by name. Counted within each step: `added`, `ended`, `failed`,
    `dead`, `retried`. At its end: `backlog`, `running`, `slots_free`. A name that is absent was 0
    in all steps."""
    bounds: list[float] = field(default_factory=list)
    """Upper bounds in seconds of the buckets in `waits`, which has one more: without a bound."""
    waits: list[list[Natural]] = field(default_factory=list)
    """How many tasks began after such a wait, by bucket and step. An empty bucket has no
    numbers."""


class ListQueueStates(ShardRequest, array_like=True, gc=False):
    """Ask a shard for what the queues have at it: all that have a partition loaded there, and those
    with stored tasks or dead letters whose root belongs there. A list is no snapshot."""

    opcode = Opcode.QUEUE_STATES
    permission = "read"
    anywhere = True
    repeatable = True

    namespace: NamePart = ""
    """Empty: all."""
    match: NamePart = ""
    """A part of the name; upper and lower case are alike."""
    sort: QueueSort = "name"
    """Sorted by a number, the list has no queues for which it is 0."""
    after: tuple[float, NamePart, NamePart] | None = None
    """Where to go on: a number (0 if sorted by name), a namespace and the name of a queue, as
    `cursor` of the last answer has them. None: at the beginning."""
    most: Annotated[int, Meta(ge=1, le=STATES_MAX)] = 200
    names: Annotated[list[tuple[NamePart, NamePart]], Meta(max_length=STATES_MAX)] = field(
        default_factory=list
    )
    """Namespace and name of the queues to tell of, whatever else the request says; empty: those
    that match."""
    within: list[str] | None = None
    """Namespaces that the user may read; None: all. The node fills it in."""


class QueueStateRow(Struct, array_like=True, gc=False):
    """What a queue has at one shard. All numbers are sums over the partitions there, so that they
    can be summed over shards, except `oldest_seconds` and `partitions`: the highest counts."""

    namespace: str
    queue: str
    backlog: int
    """Tasks that are not over and not at a worker, delayed ones included. Of a queue that no shard
    has loaded: as the store has it."""
    oldest_seconds: float
    """For how long the first task of the backlog could have been run."""
    running: int
    slots_free: int
    added_per_second: float
    finished_per_second: float
    failed: int
    """Attempts that failed, timed out or whose worker was lost, since the shard began."""
    died: int
    """Tasks that became dead letters since the shard began."""
    dead: int
    """Dead letters in the store, of all partitions, about a second ago. The shard of the root tells
    it; the others tell 0."""
    partitions: int
    """Partitions that the queue has; 0: not known, because none is loaded."""
    loaded: int
    """Partitions that are loaded at the shard."""
    workers: int
    """Workers that attend. The shard of the root tells it; the others tell 0."""
    queries_waiting: int
    pause: Pause | None = None
    """Set if the queue is paused."""
    delayed: Natural = 0
    """Tasks of the backlog that wait for their time, as far as they are in memory: delays and
    retries."""
    recent_failed: Natural = 0
    """Attempts that failed, timed out or whose worker was lost, in the last five to ten minutes."""
    recent_runs: list[Natural] = field(default_factory=list)
    """How many of the attempts of these minutes ran how long, by the buckets of
    `maitred_queue_run_seconds`; empty: none has ended."""


class QueueStatesListed(Answer, array_like=True, gc=False):
    """Some of the queues, in the order of the request."""

    rows: list[QueueStateRow]
    cursor: tuple[float, str, str] | None
    """The place of the last row, to go on after it; None: there are no more. Its number is the one
    by which the list is sorted, which may be some seconds older than the row."""
    total: int
    """How many queues match, at this shard."""


QUEUE_OVERVIEW_EXCHANGES: Final[Exchanges] = (
    (ShowSeries, SeriesShown),
    (ListQueueStates, QueueStatesListed),
)
"""Class of each request and of its answer."""
