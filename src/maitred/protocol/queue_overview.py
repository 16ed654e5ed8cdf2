"""Messages about many queues at once: their last hour.

A shard answers for itself alone, from its memory. Callers ask every shard of every node, and add
the answers up: `client/series.py`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Exchanges, Natural, ShardRequest

SERIES_STEPS_MAX: Final = 360
"""Most steps of a series: the hour that shards keep."""

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


QUEUE_OVERVIEW_EXCHANGES: Final[Exchanges] = ((ShowSeries, SeriesShown),)
"""Class of each request and of its answer."""
