"""What the study found: rows to print, JSON to keep, and sentences computed from the numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from studies.queue_model.queueing import (
    ErlangC,
    even_p_value,
    interval_95,
    largest_deviation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from studies.queue_model.measures import Measures
    from studies.queue_model.settings import ModelSettings
    from studies.selection.study import SelectionSettings

EVEN_P_VALUE = 0.001
"""Below this the picks are not uniform; one fair study in a thousand is wronged."""

POLLS_EXPECTED_MIN = 5
"""Polls a partition below which the chi-square test is not to be trusted, by the common rule."""

MODE_WORDS = {
    "off": "without the tree",
    "on": "with the tree",
    "home": "listening at home",
}

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
        # A run in which nobody waited has no shares, and would only pull the others down.
        waiting = [run.waiting for run in self.runs if any(run.waiting)]
        if not waiting:
            return [0.0] * len(self.runs[0].waiting)
        return [fmean(column) for column in zip(*waiting, strict=True)]

    def polls_judged(self) -> tuple[str, str]:
        """Whether polls are "even", "uneven" or too "few" to tell; and the numbers, in words.

        "Even" is no proof: it says that the test, for this many polls, finds nothing.
        """
        counts = self.total(lambda run: run.polls.counts)
        words = f"off 1/N by at most {largest_deviation(counts):.2%} of {sum(counts):,} polls"
        if sum(counts) < POLLS_EXPECTED_MIN * len(counts):
            return "few", words
        return ("even" if even_p_value(counts) >= EVEN_P_VALUE else "uneven"), words

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

    def _stable(self, algorithm: str, mode: str) -> Cell | None:
        """The stable scenario, if the numbers given leave it stable and a choice of partitions."""
        cell = self.cell("stable", algorithm, mode)
        if cell is None or not cell.model.steady or cell.model.read_partitions < 2:
            return None
        return cell

    def _even_polls(self) -> str | None:
        """P_i = 1/N when stable: are the picks even?"""
        mode = self._mode()
        judged: dict[str, list[str]] = {}
        for algorithm in self.settings.algorithms:
            cell = self._stable(algorithm, mode)
            if cell is not None:
                verdict, words = cell.polls_judged()
                judged.setdefault(verdict, []).append(f"{algorithm} ({words})")
        if not judged:
            return None
        clauses = [
            f"{words} {_list(judged[verdict])}"
            for verdict, words in (
                ("even", "there is no sign that polls are spread unevenly under"),
                ("uneven", "polls are spread more unevenly than by chance under"),
                ("few", "there are too few polls to judge"),
            )
            if verdict in judged
        ]
        return f"When stable, {MODE_WORDS[mode]}, {'; '.join(clauses)}."

    def _even_waiting(self) -> str | None:
        """And is U_i, which P_i should follow, 1/N as well?"""
        parts = []
        partitions = 1
        for mode in ("off", "on"):
            cell = self._stable("round-robin", mode)
            if cell is None or not any(cell.waiting()):
                continue
            root, *others = cell.waiting()
            partitions = len(others) + 1
            parts.append(
                f"{MODE_WORDS[mode]} the root holds {root:.0%} of the waiting and the "
                f"{'others' if len(others) > 1 else 'other partition'} "
                f"{_span([f'{share:.0%}' for share in sorted(others)])}"
            )
        if not parts:
            return None
        return f"Under round robin, when stable, {'; '.join(parts)}; 1/N is {1 / partitions:.0%}."

    def _equal_shares(self) -> str | None:
        """If P_i is the same, are random and round robin the same?"""
        sure: list[str] = []
        unsure: list[str] = []
        for mode in self.settings.modes:
            random = self._stable("random", mode)
            robin = self._stable("round-robin", mode)
            if random is None or robin is None:
                continue
            if {random.polls_judged()[0], robin.polls_judged()[0]} != {"even"}:
                continue
            ratio = ratio_of(random.mean("mean_ms"), robin.mean("mean_ms"))
            if ratio is None:
                continue
            differ = _surely_less(random, robin, "mean_ms") or _surely_less(
                robin, random, "mean_ms"
            )
            (sure if differ else unsure).append(f"{_times(ratio)} {MODE_WORDS[mode]}")
        if not sure and not unsure:
            return None
        sentence = "Random and round robin show no sign of unequal shares when stable"
        multiplies = "random multiplies round robin's mean wait by"
        if sure:
            sentence += f", but not the same waits: {multiplies} {_list(sure)}"
        if unsure:
            sentence += (
                f"; that {multiplies} {_list(unsure)} can't be told from chance in "
                f"{_seeds(self.settings.seeds)}"
            )
        return sentence + "."

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
        verdict = "better than every other algorithm studied"
        if not all(weighted.mean("mean_ms") < other.mean("mean_ms") for other in others):
            verdict = f"not {verdict}"
        elif not all(_surely_less(weighted, other, "mean_ms") for other in others):
            verdict += f", though {_seeds(len(weighted.runs))} can't rule out chance"
        against = _list([f"{_wait(o.mean('mean_ms'))} under {o.algorithm}" for o in others])
        return (
            f"With a backlog in one partition, {MODE_WORDS[mode]}, weighted is {verdict}: a task "
            f"waits {_wait(weighted.mean('mean_ms'))} on average, against {against}, and "
            f"{_wait(weighted.mean('ideal_mean_ms'))} in a single queue."
        )

    def _threshold(self) -> str | None:
        """Below a threshold of 100 it is safe to fall back: is it?"""
        by_backlog: dict[int, dict[float, SweepCell]] = {}
        for cell in self.sweep:
            if cell.setting == "threshold" and cell.value is not None:
                by_backlog.setdefault(cell.backlog, {})[cell.value] = cell
        parts = []
        for backlog, cells in sorted(by_backlog.items()):
            # Of equals 100 is the best: nothing is lost by it.
            best = min(cells, key=lambda value: (cells[value].mean("mean_ms"), value != 100))
            ratio = ratio_of(cells[100].mean("mean_ms"), cells[best].mean("mean_ms"))
            if ratio is not None:
                where = f"at {backlog:,}" if backlog else "without one"
                parts.append(f"{ratio - 1:.0%} {where} (best: {best:g})")
        if not parts:
            return None
        return (
            "The threshold of 100 costs this much mean wait against the best one tried, by the "
            f"size of the backlog at the start: {', '.join(parts)}."
        )

    def _half_life(self) -> str | None:
        cells = [cell for cell in self.sweep if cell.setting == "half-life"]
        if not cells:
            return None
        waits = [cell.mean("mean_ms") for cell in cells]
        values = [cell.value or 0.0 for cell in cells]
        ratio = ratio_of(max(waits), min(waits))
        if ratio is None:
            return None
        return (
            f"Half-lives from {min(values):g} s to {max(values):,.0f} s change the mean wait by "
            f"{ratio - 1:.1%} at most."
        )

    def _forward_rate(self) -> str | None:
        """Does a backlog in one partition wait for pollers, or for leave to be forwarded?"""
        cells = [cell for cell in self.sweep if cell.setting == "forward-rate"]
        # A partition alone has nowhere to forward to.
        if not cells or len(cells[0].runs[0].waiting) < 2:
            return None
        parts = [
            f"{_wait(cell.mean('mean_ms'))} under {cell.algorithm} at {cell.value:,.0f} a second"
            for cell in cells
        ]
        return (
            "The mean wait with a backlog in one partition, by the rate at which a partition may "
            f"forward tasks: {', '.join(parts)}; {_wait(cells[0].mean('ideal_mean_ms'))} in a "
            "single queue."
        )

    def _tree(self) -> str | None:
        """Does the tree maximize the utilization of pollers?"""
        parts = [
            f"{_times(ratio)} under {on.algorithm} ({on.scenario})"
            for on in self.cells
            if on.forwarding == "on"
            and on.scenario in ("stable", "few-pollers")
            and on.model.read_partitions > 1
            and (off := self.cell(on.scenario, on.algorithm, "off")) is not None
            and (ratio := ratio_of(on.mean("mean_ms"), off.mean("mean_ms"))) is not None
        ]
        if not parts:
            return None
        return f"By scenario, the tree multiplies the mean wait by {', '.join(parts)}."

    def _listening(self) -> str | None:
        """What does listening at home change?"""
        parts = []
        for scenario in self.settings.scenarios:
            ratios = [
                ratio
                for home in self.cells
                if home.forwarding == "home"
                and home.scenario == scenario
                and home.model.read_partitions > 1
                and (on := self.cell(scenario, home.algorithm, "on")) is not None
                and (ratio := ratio_of(home.mean("mean_ms"), on.mean("mean_ms"))) is not None
            ]
            if ratios:
                parts.append(f"{_span([_times(r) for r in sorted(ratios)])} ({scenario})")
        if not parts:
            return None
        return (
            "By scenario, a forwarded poll that keeps listening at home multiplies the mean wait "
            f"by {', '.join(parts)}."
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
                # One poller is one client, whatever the share.
                if len(waits) > 1 and self._stable(algorithm, mode) is not None:
                    parts.append(
                        f"from {_wait(waits[0])} to {_wait(waits[-1])} under {algorithm} "
                        f"{MODE_WORDS[mode]}"
                    )
        if not parts:
            return None
        return (
            "From one client process to one for each poller, the mean wait of a stable queue goes "
            f"{', '.join(parts)}."
        )


def _surely_less(one: Cell, other: Cell, metric: str) -> bool:
    """Less by more than chance: the 95 % interval of the differences, seed by seed, is below 0."""
    differences = [
        METRICS[metric](a) - METRICS[metric](b) for a, b in zip(one.runs, other.runs, strict=True)
    ]
    # One difference has no interval: nothing is known of what chance does.
    return len(differences) > 1 and fmean(differences) + interval_95(differences) < 0


def ratio_of(one: float, other: float) -> float | None:
    """None if there is none, as with enough pollers and no network nobody waits."""
    return one / other if other > 0 else None


def _times(ratio: float) -> str:
    if ratio >= 10:
        return f"{ratio:,.0f}"
    return f"{ratio:.2f}" if ratio >= 0.01 or not ratio else f"{ratio:.1g}"


def _wait(milliseconds: float) -> str:
    """In words, in the unit that suits it."""
    if milliseconds >= 1_000:
        return f"{milliseconds / 1e3:,.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count:,} seeds"


def _span(ordered: Sequence[str]) -> str:
    """From the first to the last, unless they read the same."""
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
