"""The last hour of a shard itself: its load, the lag of its loop, its memory and its commits."""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from maitred.metrics.gauge_series import GaugeSeries
from maitred.metrics.histogram import SHORT_BOUNDS
from maitred.metrics.points import STEP_SECONDS, quantile
from maitred.metrics.series import is_left_out
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.gauge_series import GaugesShown

if TYPE_CHECKING:
    import asyncio

    from maitred.metrics.histogram import Histogram
    from maitred.node.vitals import LagGauge, Vitals
    from maitred.protocol.gauge_series import ShowShardSeries

COLUMNS: Final = (
    *("load", "loop_lag", "memory", "requests"),
    *("commits", "failed_commits", "commit_p50", "commit_p99", "commit_rows"),
)
"""What is measured: the share of the step on the CPU, the longest delay of the loop in seconds,
bytes in RAM at the end of the step, requests that were answered, commits that the store confirmed
and that it did not, their median and 99th percentile in seconds, and how many rows one wrote on
average. In a step without commits the last three are not known."""


class MeasuredShard(Protocol):
    """The shard as it is measured."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def requests(self) -> int:
        """The number of requests that were answered."""


class MeasuredWriter(Protocol):
    """The shard's writer as it is measured; all numbers only grow."""

    commits: int
    failed_commits: int
    commit_seconds: Histogram
    commit_rows: Histogram


class _Totals(NamedTuple):
    """What the shard had counted by the end of a step."""

    at: float
    cpu_seconds: float
    requests: int
    commits: int
    failed_commits: int
    commit_counts: list[int]
    rows: float


class ShardGauges:
    """Keeps the series of one shard, and tells it."""

    def __init__(
        self, shard: MeasuredShard, vitals: Vitals, lag: LagGauge, writer: MeasuredWriter
    ) -> None:
        self._shard = shard
        self._vitals = vitals
        self._lag = lag
        self._writer = writer
        self._before = self._totals()
        self._series = GaugeSeries(len(COLUMNS))
        self.requests = RequestTable(handlers={Opcode.SHARD_SERIES: self._show})

    async def sample(self, step: int) -> None:
        """Add what happened since the step that was added last."""
        if is_left_out(step, self._series.written):
            return
        before, now = self._before, self._totals()
        self._before = now
        seconds = now.at - before.at
        commits = now.commits - before.commits
        counts = list(map(sub, now.commit_counts, before.commit_counts))
        self._series.write(
            step,
            (
                (now.cpu_seconds - before.cpu_seconds) / seconds if seconds > 0 else None,
                self._lag.take_worst(),
                self._vitals.memory_bytes(),
                now.requests - before.requests,
                commits,
                now.failed_commits - before.failed_commits,
                quantile(counts, 0.5, SHORT_BOUNDS),
                quantile(counts, 0.99, SHORT_BOUNDS),
                (now.rows - before.rows) / commits if commits else None,
            ),
        )

    def _totals(self) -> _Totals:
        writer = self._writer
        return _Totals(
            self._shard.loop.time(),
            self._vitals.cpu_seconds(),
            self._shard.requests,
            writer.commits,
            writer.failed_commits,
            list(writer.commit_seconds.counts),
            writer.commit_rows.total,
        )

    def _show(self, message: ShowShardSeries) -> GaugesShown:
        last = self._series.written
        columns = self._series.read(last, message.steps)
        return GaugesShown(STEP_SECONDS, last, dict(zip(COLUMNS, columns, strict=True)))
