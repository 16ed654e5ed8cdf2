"""The last hour of a shard: what is measured in each step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from maitred.metrics.histogram import SHORT_BOUNDS, SIZE_BOUNDS, Histogram
from maitred.node.shard_gauges import ShardGauges
from maitred.node.vitals import LagGauge, Vitals
from maitred.protocol.gauge_series import ShowShardSeries


def test_each_step_has_what_happened_in_it() -> None:
    clock = SimpleNamespace(now=0.0, cpu=0.0)
    loop = SimpleNamespace(time=lambda: clock.now)
    shard: Any = SimpleNamespace(loop=loop, requests=0)
    writer: Any = SimpleNamespace(
        commits=0,
        failed_commits=0,
        commit_seconds=Histogram(SHORT_BOUNDS),
        commit_rows=Histogram(SIZE_BOUNDS),
    )
    lag = LagGauge()
    gauges = ShardGauges(shard, Vitals(1, lambda: 2**20, lambda: clock.cpu), lag, writer)

    def step(number: int, cpu: float, requests: int, rows: list[int], failed: int) -> None:
        clock.now += 10.0
        clock.cpu += cpu
        shard.requests += requests
        writer.commits += len(rows)
        writer.failed_commits += failed
        for one in rows:
            writer.commit_seconds.add(0.01)
            writer.commit_rows.add(one)
        lag.look(number / 1_000)
        asyncio.run(gauges.sample(number))

    step(7, 2.5, 30, [4, 8], 1)
    # The clock was set back: what happens meanwhile belongs to the next step.
    step(6, 1.0, 10, [3], 2)
    step(8, 5.0, 1, [], 0)
    told = gauges._show(ShowShardSeries(0, 0, steps=3))
    assert told.last == 8
    quantiles = {name: told.columns.pop(name) for name in ("commit_p50", "commit_p99")}
    assert told.columns == {
        "load": [None, 0.25, 0.3],
        "loop_lag": [None, 0.007, 0.008],
        "memory": [None, 2**20, 2**20],
        "requests": [None, 30, 11],
        "commits": [None, 2, 1],
        "failed_commits": [None, 1, 2],
        "commit_rows": [None, 6, 3],
    }
    for before, *seconds in quantiles.values():
        assert before is None
        for one in seconds:
            assert one is not None
            assert 0.005 <= one <= 0.02

    step(9, 0.0, 0, [], 0)
    told = gauges._show(ShowShardSeries(0, 0, steps=1))
    for name in (*quantiles, "commit_rows"):
        assert told.columns[name] == [None], "nothing was committed"
