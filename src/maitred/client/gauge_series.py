"""The last hour of each shard, and of one worker: asks every shard of every node.

The past of a shard is lost when it ends. A worker is known at each shard at which it attends, or
attended within the hour.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple, cast

from maitred.client.statistics import answers_of
from maitred.metrics.points import STEP_SECONDS, STEPS, aligned, last_of
from maitred.protocol.gauge_series import ShowShardSeries, ShowWorkerSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.client.requester import ShardRequester
    from maitred.client.statistics import ShardAnswer, Unreachable
    from maitred.protocol.gauge_series import GaugesShown
    from maitred.protocol.messages import AnyRequest

Column = list[float | None]

SECONDS_MAX = STEPS * STEP_SECONDS


class ShardPoints(NamedTuple):
    """The series of one shard."""

    address: str
    """The address of the node, as the client knows it."""
    shard: int
    points: dict[str, Column]
    """By name (`COLUMNS` of `node/shard_gauges.py`), one number for each step."""


class GatheredShards(NamedTuple):
    """The series of all shards that answered."""

    start: float
    """When the first step began, in seconds since 1970."""
    shards: list[ShardPoints]
    unreachable: list[Unreachable]


class GatheredWorker(NamedTuple):
    """The series of one worker, joined from all shards that know it."""

    start: float
    points: dict[str, Column]
    """By name (`COLUMNS` of `node/worker_series.py`); empty if no shard knows the worker."""
    unreachable: list[Unreachable]


async def gather_shard_series(
    client: ShardRequester,
    *,
    seconds: float = SECONDS_MAX,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> GatheredShards:
    """Return the last `seconds` of each shard; raise the first error if no shard answers."""
    steps = _steps(seconds)
    told, silent = await _ask(client, lambda _, shard: ShowShardSeries(shard, 0, steps), timeout)
    last = last_of(answer.last for _, answer in told)
    shards = [
        ShardPoints(one.address, one.shard, _aligned(answer, steps, last)) for one, answer in told
    ]
    return GatheredShards(_start(last, steps), shards, silent)


async def gather_worker_series(
    client: ShardRequester,
    session: bytes,
    *,
    seconds: float = SECONDS_MAX,
    within: Sequence[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> GatheredWorker:
    """Return the last `seconds` of one worker. `within` are the namespaces that the caller of a
    gateway may read; for other clients the node fills it in. Raises the first error if no shard
    answers."""
    steps = _steps(seconds)
    allowed = None if within is None else list(within)
    told, silent = await _ask(
        client, lambda _, shard: ShowWorkerSeries(shard, 0, session, "", steps, allowed), timeout
    )
    last = last_of(answer.last for _, answer in told)
    points: dict[str, Column] = {}
    for _, answer in told:
        for name, column in _aligned(answer, steps, last).items():
            known = points.setdefault(name, column)
            points[name] = [
                mine if mine is not None else other
                for mine, other in zip(known, column, strict=True)
            ]
    return GatheredWorker(_start(last, steps), points, silent)


async def _ask(
    client: ShardRequester,
    message: Callable[[str, int], AnyRequest],
    timeout: float | None,  # noqa: ASYNC109 - likewise
) -> tuple[list[tuple[ShardAnswer, GaugesShown]], list[Unreachable]]:
    """Return the answers that count steps as this release does, and the shards that did not
    answer."""
    answers, silent = answers_of(await client.ask_shards(message, timeout))
    told = [(one, cast("GaugesShown", one.answer)) for one in answers]
    return [one for one in told if one[1].step_seconds == STEP_SECONDS], silent


def _steps(seconds: float) -> int:
    return min(max(ceil(seconds / STEP_SECONDS), 1), STEPS)


def _start(last: int, steps: int) -> float:
    return float((last - steps + 1) * STEP_SECONDS)


def _aligned(answer: GaugesShown, steps: int, last: int) -> dict[str, Column]:
    return {
        name: aligned(column, steps, last - answer.last, None)
        for name, column in answer.columns.items()
    }
