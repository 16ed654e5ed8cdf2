"""The results of the study: rows to print, JSON to keep, and sentences computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import to_builtins

from studies.queue_model.queueing import interval_95

if TYPE_CHECKING:
    from collections.abc import Callable

    from studies.matching.measures import MatchingMeasures
    from studies.matching.settings import MatchingModel
    from studies.matching.study import MatchingSettings

METRICS: dict[str, Callable[[MatchingMeasures], float]] = {
    "mean_ms": lambda run: 1e3 * run.latency.mean,
    "p50_ms": lambda run: 1e3 * run.latency.p50,
    "p75_ms": lambda run: 1e3 * run.latency.p75,
    "p95_ms": lambda run: 1e3 * run.latency.p95,
    "p99_ms": lambda run: 1e3 * run.latency.p99,
    "max_ms": lambda run: 1e3 * run.latency.max,
    "acknowledged_mean_ms": lambda run: 1e3 * run.acknowledged.mean,
    "acknowledged_p99_ms": lambda run: 1e3 * run.acknowledged.p99,
    "span_seconds": lambda run: run.span_seconds,
    "polls_with_task": lambda run: run.polls_with_task,
    "polls_without": lambda run: run.polls_without,
    "forwarded_polls": lambda run: run.forwarded_polls,
    "forwarded_tasks": lambda run: run.forwarded_tasks,
    "given_back": lambda run: run.given_back,
    "written": lambda run: run.written,
    "written_share": lambda run: run.written_share,
    "commits": lambda run: run.commits,
    "sync_matches": lambda run: run.sync_matches,
    "async_matches": lambda run: run.async_matches,
    "messages_per_task": lambda run: run.messages / run.tasks,
    "idle_while_waiting_max_ms": lambda run: 1e3 * run.idle_while_waiting_max,
    "read_partitions_max": lambda run: run.read_partitions_max,
}
"""Measures that are averaged over the seeds, by the name of their column."""

PUBLISHED = {
    "2/2": {"p99_ms": 23, "max_ms": 133, "written": 22, "forwards": 158, "sync_matches": 1_480},
    "4/2": {
        "p99_ms": 2_325,
        "max_ms": 2_977,
        "written": 481,
        "forwards": 1_219,
        "sync_matches": 1_115,
    },
}
"""Cadence's own numbers for the two scenarios of 1,500 tasks (its PR 6229)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario, over all seeds."""

    scenario: str
    model: MatchingModel
    runs: tuple[MatchingMeasures, ...] = ()

    def mean(self, metric: str) -> float:
        return fmean(METRICS[metric](run) for run in self.runs)

    def interval(self, metric: str) -> float:
        """Half the width of the 95 % interval."""
        return interval_95([METRICS[metric](run) for run in self.runs])

    def row(self) -> dict[str, object]:
        row: dict[str, object] = {
            "scenario": self.scenario,
            "seeds": len(self.runs),
            "tasks": self.runs[0].tasks,
        }
        for metric in METRICS:
            row[metric] = self.mean(metric)
        for metric in ("mean_ms", "p99_ms", "written_share"):
            row[f"{metric}_interval"] = self.interval(metric)
        row["idle_bound_ms"] = 1e3 * self.runs[0].idle_bound
        row["partitions"] = to_builtins(self.runs[0].partitions)
        return row

    def table_row(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "avg ms": round(self.mean("mean_ms"), 1),
            "±": round(self.interval("mean_ms"), 1),
            "p50": round(self.mean("p50_ms"), 1),
            "p75": round(self.mean("p75_ms"), 1),
            "p95": round(self.mean("p95_ms"), 1),
            "p99": round(self.mean("p99_ms"), 1),
            "max": round(self.mean("max_ms"), 1),
            "polls": round(self.mean("polls_with_task")),
            "empty": round(self.mean("polls_without")),
            "polls up": round(self.mean("forwarded_polls")),
            "tasks up": round(self.mean("forwarded_tasks")),
            "written": round(self.mean("written")),
            "sync": round(self.mean("sync_matches")),
            "async": round(self.mean("async_matches")),
            "added by partition": " ".join(str(one.added) for one in self.runs[0].partitions[:8])
            + (" ..." if len(self.runs[0].partitions) > 8 else ""),
        }


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One setting changed, in one scenario."""

    scenario: str
    setting: str
    value: str
    model: MatchingModel
    runs: tuple[MatchingMeasures, ...] = ()

    def mean(self, metric: str) -> float:
        return fmean(METRICS[metric](run) for run in self.runs)

    def row(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "setting": self.setting,
            "value": self.value,
            "seeds": len(self.runs),
            **{
                metric: self.mean(metric)
                for metric in (
                    "mean_ms",
                    "p99_ms",
                    "written_share",
                    "messages_per_task",
                    "given_back",
                    "acknowledged_mean_ms",
                    "idle_while_waiting_max_ms",
                    "span_seconds",
                )
            },
        }


@dataclass(frozen=True, slots=True)
class MatchingStudy:
    """The results, with the settings that led to them."""

    settings: MatchingSettings
    cells: tuple[Cell, ...]
    sweep: tuple[SweepCell, ...]

    def rows(self) -> list[dict[str, object]]:
        return [cell.row() for cell in self.cells]

    def table(self) -> list[dict[str, object]]:
        """The columns that fit a terminal, rounded."""
        return [cell.table_row() for cell in self.cells]

    def as_json(self) -> dict[str, object]:
        return {
            "settings": to_builtins(self.settings),
            "models": {cell.scenario: to_builtins(cell.model) for cell in self.cells},
            "published": PUBLISHED,
            "results": self.rows(),
            "sweep": [cell.row() for cell in self.sweep],
            "findings": self.findings(),
        }

    def cell(self, scenario: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.scenario == scenario), None)

    # What the numbers say

    def findings(self) -> list[str]:
        found = (
            self._published("", "random"),
            self._published("-weighted", "weighted"),
            self._writes(),
            self._bound(),
            self._waits(),
            self._forwarding(),
            self._backlog(),
            self._adaptive(),
            self._swept(),
        )
        return [sentence for sentence in found if sentence]

    def _published(self, suffix: str, algorithm: str) -> str | None:
        """More read partitions than write partitions: what does it cost?"""
        even, more = self.cell(f"published-2-2{suffix}"), self.cell(f"published-4-2{suffix}")
        if even is None or more is None:
            return None
        theirs = PUBLISHED["4/2"]["p99_ms"] / PUBLISHED["2/2"]["p99_ms"]
        ours = more.mean("p99_ms") / even.mean("p99_ms")
        return (
            f"With 4 partitions to read and 2 to write the P99 is {ours:.2f} times that with 2 and "
            f"2 under {algorithm} selection ({more.mean('p99_ms'):.1f} against "
            f"{even.mean('p99_ms'):.1f} ms); Cadence published {theirs:.0f} times (2,325 against "
            f"23 ms). {more.mean('written'):.1f} of {more.runs[0].tasks:,} tasks are written "
            f"(Cadence: 481 of 1,500)."
        )

    def _writes(self) -> str | None:
        names = ("default", "more-read-partitions", "round-robin", "weighted", "throughput")
        cells = [cell for name in names if (cell := self.cell(name)) is not None]
        if not cells:
            return None
        parts = [f"{100 * cell.mean('written_share'):.2f} % ({cell.scenario})" for cell in cells]
        return f"Of the tasks that come while workers are free, {', '.join(parts)} are written."

    def _bound(self) -> str | None:
        """Say how near the runs came to the bound."""
        cells: list[Cell | SweepCell] = [*self.cells, *self.sweep]
        runs = [
            run for cell in cells if cell.model.forwards and cell.model.depth for run in cell.runs
        ]
        if not runs:
            return None
        nearest = max(run.idle_while_waiting_max / run.idle_bound for run in runs)
        return (
            f"In {len(runs):,} runs no offer waited longer than the bound while a task waited "
            f"elsewhere; the nearest came to {nearest:.0%} of it."
        )

    def _waits(self) -> str | None:
        names = ("wait-for-both", "no-wait-for-poll", "no-wait-for-add", "no-wait-for-both")
        cells = [cell for name in names if (cell := self.cell(name)) is not None]
        if len(cells) < 2:
            return None
        parts = [
            f"{cell.mean('p99_ms'):.1f} ms ({cell.scenario}, {cell.mean('written'):.0f} written)"
            for cell in cells
        ]
        return f"By the local waits, the P99 of the default load is {', '.join(parts)}."

    def _forwarding(self) -> str | None:
        without, normal = self.cell("no-forwarding"), self.cell("default")
        if without is None or normal is None:
            return None
        return (
            f"Without the tree the default load waits {without.mean('mean_ms'):,.0f} ms on average "
            f"(P99 {without.mean('p99_ms'):,.0f}) and {without.mean('written'):,.0f} tasks are "
            f"written; with it {normal.mean('mean_ms'):.1f} ms (P99 {normal.mean('p99_ms'):.1f}) "
            f"and {normal.mean('written'):.1f}."
        )

    def _backlog(self) -> str | None:
        random, weighted = self.cell("with-backlog"), self.cell("weighted-with-backlog")
        if random is None or weighted is None:
            return None
        return (
            "With a backlog in one partition a task waits "
            f"{random.mean('mean_ms'):,.0f} ms on average under random and "
            f"{weighted.mean('mean_ms'):,.0f} ms under weighted selection, and "
            f"{random.mean('forwarded_tasks'):,.0f} against "
            f"{weighted.mean('forwarded_tasks'):,.0f} tasks are forwarded."
        )

    def _adaptive(self) -> str | None:
        parts = [
            f"{cell.mean('read_partitions_max'):.1f} ({cell.scenario}, P99 "
            f"{cell.mean('p99_ms'):.1f} ms against {fixed.mean('p99_ms'):.1f} with 4)"
            for cell in self.cells
            if cell.model.scaling.adaptive
            and (fixed := self.cell(cell.scenario.removesuffix("-adaptive"))) is not None
        ]
        if not parts:
            return None
        return f"From one partition the scaler goes up to {', '.join(parts)}."

    def _swept(self) -> str | None:
        """Is there a value that beats the default?"""
        base = {cell.scenario: cell for cell in self.sweep if cell.setting == "defaults"}
        if not base:
            return None
        better = [
            f"{cell.setting} {cell.value} ({cell.scenario}: {cell.mean('mean_ms'):.1f} against "
            f"{base[cell.scenario].mean('mean_ms'):.1f} ms)"
            for cell in self.sweep
            if cell.scenario in base
            and cell.mean("mean_ms") < 0.9 * base[cell.scenario].mean("mean_ms")
        ]
        if not better:
            return "No value of any limit or wait that was tried beats the defaults by a tenth."
        return f"These beat the default's mean latency by more than a tenth: {', '.join(better)}."
