"""The last hour of a queue, or of many: asks every shard of every node, and adds the answers up.

Each shard has the past of the partitions that it had. The past of a partition that moved to another
node stays where it was, so the sum is right at every moment; it is lost when its shard ends.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple, cast

from maitred.client.statistics import answers_of
from maitred.metrics.histogram import WORK_BOUNDS
from maitred.metrics.points import STEP_SECONDS, STEPS, Points, PointSum, charted, last_of
from maitred.protocol.queue_overview import SeriesShown, ShowSeries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.requester import ShardRequester
    from maitred.client.statistics import Unreachable


class GatheredSeries(NamedTuple):
    """The points of a series, over all shards that answered."""

    step_seconds: int
    start: float
    """When the first step began, in seconds since 1970."""
    points: dict[str, list[float | None]]
    """By name, one number for each step: `added`, `ended`, `failed`, `dead`, `retried` (within the
    step), `backlog`, `running`, `slots_free` (at its end), `wait_p50`, `wait_p99` (seconds). None
    where no shard knows anything, and for waits also where no task began."""
    unreachable: list[Unreachable]
    """Shards that did not answer, and are missing from the sums."""


async def gather_series(
    client: ShardRequester,
    *,
    namespace: str = "",
    queue: str = "",
    seconds: float = STEPS * STEP_SECONDS,
    within: Sequence[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> GatheredSeries:
    """Return the last `seconds` of a queue, of a namespace, or of everything that may be read.

    `within` are the namespaces that the caller of a gateway may read, None meaning all. For other
    clients the node fills it in. Raises the first error if no shard answers.
    """
    steps = min(max(ceil(seconds / STEP_SECONDS), 1), STEPS)
    allowed = None if within is None else list(within)
    outcomes = await client.ask_shards(
        lambda _, shard: ShowSeries(shard, 0, namespace, queue, steps, allowed), timeout
    )
    answers, silent = answers_of(outcomes)
    told = [_points(cast("SeriesShown", one.answer)) for one in answers]
    found = PointSum(last_of(one.last for one in told), steps)
    for points in told:
        found.add(points)
    start = float((found.last - steps + 1) * STEP_SECONDS)
    return GatheredSeries(STEP_SECONDS, start, charted(found.points()), silent)


def _points(answer: SeriesShown) -> Points:
    """Return the points of an answer. A node of another release may measure other steps, which
    cannot be added, or count waits in other buckets."""
    if answer.step_seconds != STEP_SECONDS:
        return Points(-1, [], {}, [])
    waits = answer.waits if tuple(answer.bounds) == WORK_BOUNDS else []
    return Points(answer.last, [bool(one) for one in answer.known], answer.columns, waits)
