"""What the study found: rows to print, JSON to keep, and sentences computed from the numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from maitred.simulation.selection.queueing import ErlangC, even_p_value, interval_95

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.simulation.selection.measures import Measures
    from maitred.simulation.selection.settings import ModelSettings
    from maitred.simulation.selection.study import SelectionSettings

EVEN_P_VALUE = 0.001
"""Below this the picks are not uniform; one fair study in a thousand is wronged."""

METRICS: dict[str, Callable[[Measures], float]] = {
    "mean_ms": lambda run: 1e3 * run.waits.mean,
    "p50_ms": lambda run: 1e3 * run.waits.p50,
    "p99_ms": lambda run: 1e3 * run.waits.p99,
    "max_ms": lambda run: 1e3 * run.waits.max,
    "ideal_mean_ms": lambda run: 1e3 * run.ideal_waits.mean,
    "ideal_p50_ms": lambda run: 1e3 * run.ideal_waits.p50,
    "ideal_p99_ms": lambda run: 1e3 * run.ideal_waits.p99,
    "idle_while_waiting": lambda run: run.idle_while_waiting,
    "avoidable_idle": lambda run: run.avoidable_idle,
    "span_seconds": lambda run: run.span_seconds,
    "ideal_span_seconds": lambda run: run.ideal_span_seconds,
    "write_jain": lambda run: run.writes.jain,
    "write_deviation": lambda run: run.writes.largest_deviation,
    "poll_jain": lambda run: run.polls.jain,
    "poll_deviation": lambda run: run.polls.largest_deviation,
    "stored": lambda run: run.stored,
    "stored_share": lambda run: run.stored_share,
    "sync_matches": lambda run: run.sync_matches,
    "poll_forwards": lambda run: run.poll_forwards,
    "task_forwards": lambda run: run.task_forwards,
    "refused_handovers": lambda run: run.refused_handovers,
    "empty_polls": lambda run: run.empty_polls,
}
"""What is averaged over the seeds, by the name of its column."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One algorithm in one scenario, over all seeds."""

    scenario: str
    algorithm: str
    forwarding: str
    model: ModelSettings
    runs: tuple[Measures, ...]

    def mean(self, metric: str) -> float:
        return fmean(METRICS[metric](run) for run in self.runs)

    def interval(self, metric: str) -> float:
        """Half the width of the 95 % interval."""
        return interval_95([METRICS[metric](run) for run in self.runs])

    def total(self, counts: Callable[[Measures], Sequence[int]]) -> list[int]:
        """Counts by partition, summed up over the seeds."""
        return [sum(column) for column in zip(*(counts(run) for run in self.runs), strict=True)]

    def waiting(self) -> list[float]:
        """U_i: the share of all waiting that tasks of each partition did."""
        return [fmean(column) for column in zip(*(run.waiting for run in self.runs), strict=True)]

    @property
    def erlang(self) -> ErlangC | None:
        """The formula of the ideal, where it applies."""
        if not self.model.steady or self.model.service != "exponential":
            return None
        return ErlangC(self.model.rate_per_second, self.model.service_seconds, self.model.pollers)

    def row(self) -> dict[str, object]:
        erlang = self.erlang
        row: dict[str, object] = {
            "scenario": self.scenario,
            "algorithm": self.algorithm,
            "forwarding": self.forwarding,
            "seeds": len(self.runs),
            "tasks": self.runs[0].tasks,
            "erlang_mean_ms": None if erlang is None else 1e3 * erlang.mean_seconds,
            "erlang_p50_ms": None if erlang is None else 1e3 * erlang.quantile_seconds(0.5),
            "erlang_p99_ms": None if erlang is None else 1e3 * erlang.quantile_seconds(0.99),
            "poll_p_value": even_p_value(self.total(lambda run: run.polls.counts)),
            "write_p_value": even_p_value(self.total(lambda run: run.writes.counts)),
        }
        for metric in METRICS:
            row[metric] = self.mean(metric)
        for metric in ("mean_ms", "p99_ms", "idle_while_waiting", "span_seconds", "stored_share"):
            row[f"{metric}_interval"] = self.interval(metric)
        return row

    def table_row(self) -> dict[str, object]:
        erlang = self.erlang
        return {
            "scenario": self.scenario,
            "algorithm": self.algorithm,
            "tree": self.forwarding,
            "mean ms": round(self.mean("mean_ms"), 1),
            "±": round(self.interval("mean_ms"), 1),
            "p50 ms": round(self.mean("p50_ms"), 1),
            "p99 ms": round(self.mean("p99_ms"), 1),
            "M/M/c": None if erlang is None else round(1e3 * erlang.mean_seconds, 1),
            "ideal": round(self.mean("ideal_mean_ms"), 1),
            "ideal p99": round(self.mean("ideal_p99_ms"), 1),
            "idle %": round(100 * self.mean("idle_while_waiting"), 1),
            "stored %": round(100 * self.mean("stored_share"), 1),
            "polls up": round(self.mean("poll_forwards")),
            "tasks up": round(self.mean("task_forwards")),
            "uneven %": round(100 * self.mean("poll_deviation"), 2),
        }


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One setting changed, of the weighted algorithm, the tree or the clients."""

    setting: str
    value: float | None
    """None for an algorithm that does not have the setting."""
    backlog: int
    algorithm: str
    forwarding: str
    runs: tuple[Measures, ...] = ()

    def mean(self, metric: str) -> float:
        return fmean(METRICS[metric](run) for run in self.runs)

    def interval(self, metric: str) -> float:
        return interval_95([METRICS[metric](run) for run in self.runs])

    def row(self) -> dict[str, object]:
        return {
            "setting": self.setting,
            "value": self.value,
            "backlog": self.backlog,
            "algorithm": self.algorithm,
            "forwarding": self.forwarding,
            "seeds": len(self.runs),
            "mean_ms": self.mean("mean_ms"),
            "mean_ms_interval": self.interval("mean_ms"),
            "p99_ms": self.mean("p99_ms"),
            "span_seconds": self.mean("span_seconds"),
            "span_seconds_interval": self.interval("span_seconds"),
            "ideal_mean_ms": self.mean("ideal_mean_ms"),
            "ideal_span_seconds": self.mean("ideal_span_seconds"),
            "avoidable_idle": self.mean("avoidable_idle"),
        }


@dataclass(frozen=True, slots=True)
class SelectionStudy:
    """The results, with the settings that led to them."""

    settings: SelectionSettings
    cells: tuple[Cell, ...]
    sweep: tuple[SweepCell, ...]

    def rows(self) -> list[dict[str, object]]:
        """One flat row for each algorithm in each scenario and kind of forwarding."""
        return [cell.row() for cell in self.cells]

    def table(self) -> list[dict[str, object]]:
        """The columns that fit a terminal, rounded."""
        return [cell.table_row() for cell in self.cells]

    def sweep_rows(self) -> list[dict[str, object]]:
        """One flat row for each value of each setting that was swept."""
        return [cell.row() for cell in self.sweep]

    def as_json(self) -> dict[str, object]:
        models = {cell.scenario: asdict(cell.model) for cell in self.cells}
        return {
            "settings": asdict(self.settings),
            "models": models,
            "results": [
                row
                | {"polls": cell.total(lambda run: run.polls.counts)}
                | {"writes": cell.total(lambda run: run.writes.counts)}
                | {"waiting_shares": cell.waiting()}
                for cell, row in zip(self.cells, self.rows(), strict=True)
            ],
            "sweep": self.sweep_rows(),
            "findings": self.findings(),
        }

    def cell(self, scenario: str, algorithm: str, forwarding: str) -> Cell | None:
        for cell in self.cells:
            if (cell.scenario, cell.algorithm, cell.forwarding) == (
                scenario, algorithm, forwarding,
            ):  # fmt: skip
                return cell
        return None

    def findings(self) -> list[str]:
        """Plain sentences about the claims that this study can judge."""
        found = (
            self._even_polls(),
            self._even_waiting(),
            self._equal_shares(),
            self._weighted(),
            self._threshold(),
            self._half_life(),
            self._forward_rate(),
            self._tree(),
            self._listening(),
            self._clients(),
        )
        return [sentence for sentence in found if sentence]

    def _mode(self) -> str:
        """The kind of forwarding that claims are judged by: the tree, if it was studied."""
        return "on" if "on" in self.settings.modes else "off"

    def _even_polls(self) -> str | None:
        """P_i = 1/N when stable: are the picks even?"""
        cells = [c for c in self.cells if (c.scenario, c.forwarding) == ("stable", self._mode())]
        if not cells:
            return None
        even: list[str] = []
        uneven: list[str] = []
        for cell in cells:
            counts = cell.total(lambda run: run.polls.counts)
            farthest = max(abs(n / sum(counts) - 1 / len(counts)) for n in counts)
            ok = even_p_value(counts) >= EVEN_P_VALUE
            (even if ok else uneven).append(f"{cell.algorithm} (off by {farthest:.2%} at most)")
        sentence = "When stable, "
        if even:
            sentence += f"every partition gets 1/N of the polls under {_list(even)}"
        if uneven:
            sentence += (", but not under " if even else "not every one does under ") + _list(
                uneven
            )
        return sentence + "."

    def _even_waiting(self) -> str | None:
        """And is U_i, which P_i should follow, 1/N as well?"""
        parts = []
        partitions = 1
        for mode, words in (("off", "without the tree"), ("on", "with it")):
            cell = self.cell("stable", "round-robin", mode)
            if cell is not None and len(cell.waiting()) > 1:
                shares = cell.waiting()
                partitions = len(shares)
                parts.append(
                    f"{words} the root holds {shares[0]:.0%} of the waiting and the others "
                    f"{min(shares[1:]):.0%} to {max(shares[1:]):.0%}"
                )
        if not parts:
            return None
        return f"Under round robin {_list(parts)}; 1/N would be {1 / partitions:.0%}."

    def _equal_shares(self) -> str | None:
        """If P_i is the same, are random and round robin the same?"""
        parts = []
        for mode, words in (
            ("off", "without the tree"),
            ("on", "with it"),
            ("home", "listening at home"),
        ):
            random = self.cell("stable", "random", mode)
            robin = self.cell("stable", "round-robin", mode)
            if random is not None and robin is not None:
                ratio = random.mean("mean_ms") / robin.mean("mean_ms")
                parts.append(f"{ratio:.1f} times {words}")
        if not parts:
            return None
        return (
            "Random and round robin have the same shares when stable, but not the same waits: a "
            f"task waits {', '.join(parts)} as long under random."
        )

    def _weighted(self) -> str | None:
        """With a backlog, weighted is better than the other two: is it?"""
        mode = self._mode()
        weighted = self.cell("backlog", "weighted", mode)
        others = [
            cell
            for name in ("random", "round-robin", "fewest-polls")
            if (cell := self.cell("backlog", name, mode)) is not None
        ]
        if weighted is None or not others:
            return None
        if all(_surely_less(weighted, other, "mean_ms") for other in others):
            verdict = "better than all others"
        elif all(weighted.mean("mean_ms") < other.mean("mean_ms") for other in others):
            verdict = (
                f"better than all others, though {len(weighted.runs)} seeds can't rule out chance"
            )
        else:
            verdict = "not better than all others"
        against = _list([f"{o.mean('mean_ms') / 1e3:.1f} s under {o.algorithm}" for o in others])
        return (
            f"With a backlog in one partition, weighted is {verdict}: a task waits "
            f"{weighted.mean('mean_ms') / 1e3:.1f} s on average, against {against}, and "
            f"{weighted.mean('ideal_mean_ms') / 1e3:.1f} s in a single queue."
        )

    def _threshold(self) -> str | None:
        """Below a threshold of 100 it is safe to fall back: is it?"""
        by_backlog: dict[int, dict[float | None, SweepCell]] = {}
        for cell in self.sweep:
            if cell.setting == "threshold":
                by_backlog.setdefault(cell.backlog, {})[cell.value] = cell
        if not by_backlog:
            return None
        parts = []
        for backlog, cells in sorted(by_backlog.items()):
            best = min(
                (c for c in cells.values() if c.value is not None),
                key=lambda c: c.mean("mean_ms"),
            )
            loss = cells[100].mean("mean_ms") / best.mean("mean_ms") - 1
            where = f"at {backlog:,}" if backlog else "without one"
            parts.append(f"{loss:.0%} {where} (best: {best.value:g})")
        return (
            "The threshold of 100 costs this much mean wait against the best one tried, by the "
            f"size of the backlog: {', '.join(parts)}."
        )

    def _half_life(self) -> str | None:
        waits = [cell.mean("mean_ms") for cell in self.sweep if cell.setting == "half-life"]
        if not waits:
            return None
        values = [cell.value or 0.0 for cell in self.sweep if cell.setting == "half-life"]
        return (
            f"Half-lives from {min(values):g} s to {max(values):,.0f} s change the mean wait by "
            f"{max(waits) / min(waits) - 1:.1%} at most."
        )

    def _forward_rate(self) -> str | None:
        """Does a backlog in one partition wait for pollers, or for leave to be forwarded?"""
        parts = [
            f"{cell.mean('mean_ms') / 1e3:.1f} s under {cell.algorithm} at {cell.value:g} a second"
            for cell in self.sweep
            if cell.setting == "forward-rate"
        ]
        if not parts:
            return None
        ideal = next(c.mean("ideal_mean_ms") for c in self.sweep if c.setting == "forward-rate")
        return (
            "The mean wait with a backlog in one partition, by the rate at which a partition may "
            f"forward tasks: {', '.join(parts)}; {ideal / 1e3:.1f} s in a single queue."
        )

    def _tree(self) -> str | None:
        """Does the tree maximize the utilization of pollers?"""
        parts = [
            f"{_times(on.mean('mean_ms') / off.mean('mean_ms'))} "
            f"under {on.algorithm} ({on.scenario})"
            for on in self.cells
            if on.forwarding == "on"
            and on.scenario in ("stable", "few-pollers")
            and (off := self.cell(on.scenario, on.algorithm, "off")) is not None
        ]
        if not parts:
            return None
        return f"The tree multiplies the mean wait by {', '.join(parts)}."

    def _listening(self) -> str | None:
        """What does listening at home change?"""
        parts = []
        for scenario in self.settings.scenarios:
            ratios = [
                home.mean("mean_ms") / on.mean("mean_ms")
                for home in self.cells
                if home.forwarding == "home"
                and home.scenario == scenario
                and (on := self.cell(scenario, home.algorithm, "on")) is not None
            ]
            if ratios:
                parts.append(f"{min(ratios):.2f} to {max(ratios):.2f} ({scenario})")
        if not parts:
            return None
        return (
            "A forwarded poll that keeps listening at home multiplies the mean wait by "
            f"{', '.join(parts)}."
        )

    def _clients(self) -> str | None:
        """What does it cost that every client counts for itself?"""
        parts = []
        for algorithm in dict.fromkeys(c.algorithm for c in self.sweep if c.setting == "clients"):
            for mode in self.settings.modes:
                waits = [
                    cell.mean("mean_ms")
                    for cell in self.sweep
                    if (cell.setting, cell.algorithm, cell.forwarding)
                    == ("clients", algorithm, mode)
                ]
                parts.append(f"{algorithm} {mode} {waits[0]:.0f} to {waits[-1]:.0f} ms")
        if not parts:
            return None
        return (
            "From one client process to one for each poller, the mean wait of a stable queue goes "
            f"from and to: {', '.join(parts)}."
        )


def _surely_less(one: Cell, other: Cell, metric: str) -> bool:
    """Less by more than chance: the 95 % interval of the differences, seed by seed, is below 0."""
    differences = [
        METRICS[metric](a) - METRICS[metric](b) for a, b in zip(one.runs, other.runs, strict=True)
    ]
    return fmean(differences) + interval_95(differences) < 0


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.0e}"


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
