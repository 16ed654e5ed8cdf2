"""Messages about the last hour of a shard, and of a worker that attends at it.

A shard answers for itself alone, from its memory; `client/gauge_series.py` asks all of them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from maitred.protocol.frames import Opcode
from maitred.protocol.queue_overview import SERIES_STEPS_MAX, NamePart
from maitred.protocol.requests import Answer, Exchanges, ShardRequest
from maitred.protocol.tasks import Session  # noqa: TC001 - msgspec reads the annotations

Steps = Annotated[int, Meta(ge=1, le=SERIES_STEPS_MAX)]


class ShowWorkerSeries(ShardRequest, array_like=True, gc=False):
    """Ask a shard for the last hour of a worker that attends at it."""

    opcode = Opcode.WORKER_SERIES
    permission = "read"
    anywhere = True
    repeatable = True

    session: Session
    namespace: NamePart = ""
    """Tell only of a worker that serves a queue of this namespace; empty: of any."""
    steps: Steps = SERIES_STEPS_MAX
    """How many of the last steps to tell."""
    within: list[str] | None = None
    """Namespaces that the user may read; None: all. The node fills it in, and does not tell of a
    worker that serves none of them."""


class ShowShardSeries(ShardRequest, array_like=True, gc=False):
    """Ask a shard for its own last hour."""

    opcode = Opcode.SHARD_SERIES
    permission = "read"
    repeatable = True

    steps: Steps = SERIES_STEPS_MAX


class GaugesShown(Answer, array_like=True, gc=False):
    """What was measured in each step, the earliest first."""

    step_seconds: int
    last: int
    """Number of the last step: the unix time at which it began, divided by `step_seconds`. -1: the
    shard has not measured any step yet."""
    columns: dict[str, list[float | None]]
    """The numbers of all steps, by name; None: not measured. Empty: nothing is known of the
    worker."""


GAUGE_SERIES_EXCHANGES: Final[Exchanges] = (
    (ShowWorkerSeries, GaugesShown),
    (ShowShardSeries, GaugesShown),
)
"""Class of each request and of its answer."""
