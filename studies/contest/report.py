"""What the contest's study found: rows to print, JSON to keep, sentences computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import to_builtins

from studies.contest.promises import promise
from studies.contest.scenarios import FAULT_SCENARIOS
from studies.contest.settings import OURS
from studies.queue_model.queueing import interval_95

if TYPE_CHECKING:
    from collections.abc import Callable

    from studies.contest.faults import FaultMeasures
    from studies.contest.measures import ContestMeasures
    from studies.contest.settings import ContestModel
    from studies.contest.study import ContestSettings

METRICS: dict[str, Callable[[ContestMeasures], float]] = {
    "per_second": lambda run: run.per_second,
    "percent_of_bound": lambda run: 100 * run.share_of_bound,
    "failures": lambda run: run.failures,
    "worker_full": lambda run: run.worker_full,
    "gateway_refused": lambda run: run.gateway_refused,
    "timeouts": lambda run: run.timeouts,
    "lost": lambda run: run.lost,
    "errors": lambda run: run.errors,
    "attempts_per_query": lambda run: run.attempts_per_query,
    "p50_ms": lambda run: run.p50_ms,
    "p99_ms": lambda run: run.p99_ms,
    "p999_ms": lambda run: run.p999_ms,
    "high_done_percent": lambda run: 100 * run.high_share_done,
    "low_done_percent": lambda run: 100 * run.low_share_done,
    "followed_ms": lambda run: 1e3 * run.followed_seconds,
}
"""What is averaged over the seeds, by the name of its column."""

GOAL_PERCENT = 99.5
GOAL_OVERLOAD_PERCENT = 99.0
GOAL_P99_RATIO = 1.2
GOAL_FOLLOWED_MS = 500.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One scenario under one policy, over all seeds."""

    scenario: str
    model: ContestModel
    runs: tuple[ContestMeasures, ...] = ()

    @property
    def policy(self) -> str:
        return self.model.policy

    def mean(self, metric: str) -> float:
        return fmean(METRICS[metric](run) for run in self.runs)

    def interval(self, metric: str) -> float:
        """Half the width of the 95 % interval."""
        return interval_95([METRICS[metric](run) for run in self.runs])

    def row(self) -> dict[str, object]:
        row: dict[str, object] = {
            "scenario": self.scenario,
            "policy": self.policy,
            "seeds": len(self.runs),
            "bound_per_second": self.runs[0].bound_per_second,
        }
        for metric in METRICS:
            row[metric] = self.mean(metric)
        for metric in ("per_second", "percent_of_bound", "p99_ms"):
            row[f"{metric}_interval"] = self.interval(metric)
        row["over_time"] = [round(fmean(tenth)) for tenth in self.over_time()]
        return row

    def over_time(self) -> list[tuple[int, ...]]:
        """For each tenth of a second, the successes in every run."""
        return list(zip(*(run.over_time for run in self.runs), strict=True))

    def table_row(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "req/s": round(self.mean("per_second")),
            "% of bound": round(self.mean("percent_of_bound"), 2),
            "±": round(self.interval("percent_of_bound"), 2) if self.runs[1:] else "",
            "worker full": round(self.mean("worker_full")),
            "gateway": round(self.mean("gateway_refused")),
            "timeout": round(self.mean("timeouts")),
            "lost": round(self.mean("lost")),
            "errors": round(self.mean("errors")),
            "p50": round(self.mean("p50_ms")),
            "p99": round(self.mean("p99_ms")),
            "p99.9": round(self.mean("p999_ms")),
        }


@dataclass(frozen=True, slots=True)
class ContestStudy:
    """The results, with the settings that led to them."""

    settings: ContestSettings
    cells: tuple[Cell, ...]

    def table(self) -> list[dict[str, object]]:
        """The columns that fit a terminal, rounded."""
        return [cell.table_row() for cell in self.cells]

    def as_json(self) -> dict[str, object]:
        return {
            "settings": to_builtins(self.settings),
            "models": {cell.scenario: to_builtins(cell.model) for cell in self.cells},
            "results": [cell.row() for cell in self.cells],
            "findings": self.findings(),
        }

    def cell(self, scenario: str, policy: str) -> Cell | None:
        found = (c for c in self.cells if (c.scenario, c.policy) == (scenario, policy))
        return next(found, None)

    # What the numbers say

    def findings(self) -> list[str]:
        found = [self._two_phase()]
        for policy in OURS:
            found += [
                self._contest(policy),
                self._overload(policy),
                self._priorities(policy),
                self._followed(policy),
                self._faults(policy),
                self._gateways(policy),
            ]
        found += [_fault(cell) for cell in self.cells]
        return [sentence for sentence in found if sentence]

    def _two_phase(self) -> str | None:
        cell = self.cell("contest", "two-phase")
        if cell is None:
            return None
        return (
            f"The seed's two-phase rule reaches {cell.mean('percent_of_bound'):.1f} % of the bound "
            "in the contest (97.1 % in the study that it is compared with)."
        )

    def _contest(self, policy: str) -> str | None:
        cell = self.cell("contest", policy)
        if cell is None:
            return None
        percent, failures = cell.mean("percent_of_bound"), cell.mean("failures")
        met = _met(percent >= GOAL_PERCENT and not failures)
        # One run has no interval, which is not one of 0.
        interval = f" ± {cell.interval('percent_of_bound'):.2f}" if cell.runs[1:] else ""
        return (
            f"In the contest {policy} reaches {percent:.2f}{interval} % of the bound with "
            f"{failures:.0f} failures (goal: {GOAL_PERCENT} and none; {met})."
        )

    def _overload(self, policy: str) -> str | None:
        normal, over = self.cell("open-0.7", policy), self.cell("open-1.2", policy)
        if normal is None or over is None:
            return None
        ratio = over.mean("p99_ms") / normal.mean("p99_ms")
        percent = over.mean("percent_of_bound")
        met = _met(percent >= GOAL_OVERLOAD_PERCENT and ratio < GOAL_P99_RATIO)
        return (
            f"At 1.2 of the capacity {policy} does {percent:.2f} % of what is possible, with a P99 "
            f"{ratio:.2f} times that at 0.7 (goal: {GOAL_OVERLOAD_PERCENT:.0f} % and below "
            f"{GOAL_P99_RATIO}; {met})."
        )

    def _priorities(self, policy: str) -> str | None:
        cell = self.cell("priorities", policy)
        if cell is None:
            return None
        return (
            f"With two priorities at 1.2 of the capacity, {policy} answers "
            f"{cell.mean('high_done_percent'):.1f} % of the high and "
            f"{cell.mean('low_done_percent'):.1f} % of the low ones."
        )

    def _followed(self, policy: str) -> str | None:
        cell = self.cell("drop", policy)
        if cell is None:
            return None
        followed = cell.mean("followed_ms")
        return (
            f"{followed:.0f} ms after a worker lost four fifths of its permits nobody piles up "
            f"there any more under {policy} (goal: {GOAL_FOLLOWED_MS:.0f}; "
            f"{_met(followed <= GOAL_FOLLOWED_MS)})."
        )

    def _faults(self, policy: str) -> str | None:
        hung, gone = self.cell("hung", policy), self.cell("vanished", policy)
        if hung is None or gone is None:
            return None
        return (
            f"A worker that hangs costs {policy} {hung.mean('failures'):.0f} queries, one that "
            f"vanishes {gone.mean('failures'):.0f}."
        )

    def _gateways(self, policy: str) -> str | None:
        two, eight = self.cell("two-gateways", policy), self.cell("eight-gateways", policy)
        if two is None or eight is None:
            return None
        return (
            f"With two gateways {policy} reaches {two.mean('percent_of_bound'):.2f} % of the bound "
            f"({two.mean('failures'):.0f} failures), with eight "
            f"{eight.mean('percent_of_bound'):.2f} % ({eight.mean('failures'):.0f})."
        )


def _fault(cell: Cell) -> str | None:
    """What a fault did, and whether that was promised."""
    seen = [run.fault for run in cell.runs if run.fault is not None]
    if cell.scenario not in FAULT_SCENARIOS or not seen:
        return None  # promises are for a tenth of the contest
    promised = promise(cell.policy, cell.scenario)

    def mean(of: Callable[[FaultMeasures], float]) -> float:
        return fmean(of(one) for one in seen)

    honest = mean(lambda one: one.honest_per_second)
    said = f"{mean(lambda one: one.during_per_second):.0f} of {honest:.0f} a second"
    judged = ""
    if promised is not None:
        kept = sum(not promised.broken(one) for one in seen)
        judged = f"; promise kept {kept} of {len(seen)} times"
    return (
        f"{cell.scenario}, {cell.policy}: {said}, "
        f"{100 * mean(lambda one: one.share_first):.1f} and later "
        f"{100 * mean(lambda one: one.share_last):.1f} % of the queries to whom it strikes "
        f"({100 * mean(lambda one: one.share_before):.1f} before), "
        f"{mean(lambda one: one.during_timeouts):.0f} without an answer, normal after "
        f"{mean(lambda one: one.recovered_seconds):.1f} s{judged}."
    )


def _met(yes: bool) -> str:
    return "met" if yes else "missed"
