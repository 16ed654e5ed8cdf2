"""What the runs come to: rows, goals, a table, a document."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.contest.load import BUCKET_SECONDS
from benchmarks.contest.policies import OURS, RIVALS
from benchmarks.measuring import Result

if TYPE_CHECKING:
    from benchmarks.contest.scale import Scale
    from benchmarks.contest.stage import Outcome

SHARE_OF_BOUND = 0.985
POINTS_PER_PHASE = 12
DOOR = "maitred"
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""For 95 % intervals, by the number of rounds."""


def way(name: str) -> str:
    """Through what the queries of a policy or a rival go."""
    return name.partition(" ")[0] if name in RIVALS else DOOR


@dataclass
class Contest:
    """All of it."""

    scale: Scale
    delays: dict[str, list[float]] = field(default_factory=dict)
    """Of each way, in seconds: all that is neither service nor waiting for a permit."""
    rows: dict[str, list[Outcome]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    load: tuple[float, float] = (0.0, 0.0)
    """The load average before and after."""

    def delay(self, name: str) -> float:
        return mean(self.delays[way(name)])

    def bound(self, name: str) -> float:
        """A second, over the way that it has."""
        return mean(self.scale.bounds(self.delay(name)))

    @property
    def common_bound(self) -> float:
        """Over the shortest way that anybody has."""
        return mean(self.scale.bounds(min(mean(delays) for delays in self.delays.values())))

    def per_second(self, name: str) -> float:
        return mean(outcome.per_second for outcome in self.rows[name])

    def share(self, name: str) -> float:
        return self.per_second(name) / self.bound(name)

    def interval(self, name: str) -> float:
        """Of the share, 95 %; 0 if there was one round."""
        rounds = self.rows[name]
        if len(rounds) < min(STUDENT):
            return 0.0
        width = stdev(outcome.per_second for outcome in rounds) / math.sqrt(len(rounds))
        return STUDENT.get(len(rounds), 2.0) * width / self.bound(name)

    def failures(self, name: str) -> dict[str, int]:
        """By cause, all rounds together."""
        found: Counter[str] = Counter()
        for outcome in self.rows[name]:
            found.update(outcome.answers.failures)
        return dict(found)

    def luck(self, name: str) -> float:
        """How long the sleeps were that were drawn, beside what they should be on average."""
        drawn = expected = 0.0
        for outcome in self.rows[name]:
            for number, told in enumerate(outcome.told):
                for phase, counts in zip(self.scale.phases, told.phases, strict=False):
                    drawn += counts.slept_ms / 1e3
                    expected += counts.begun * phase[number].mean_seconds
        return drawn / expected if expected else 1.0

    def void(self, name: str) -> str:
        return "; ".join(outcome.void for outcome in self.rows[name] if outcome.void)

    def disturbed(self, name: str) -> str:
        return "; ".join(outcome.disturbed for outcome in self.rows[name] if outcome.disturbed)

    def curve(self, name: str) -> list[float]:
        """Good answers a second, some points a phase, the mean of the rounds."""
        step = max(1, round(self.scale.phase_seconds / POINTS_PER_PHASE / BUCKET_SECONDS))
        rounds = [outcome.answers.over_time for outcome in self.rows[name]]
        return [
            mean(sum(each[at : at + step]) for each in rounds) / (step * BUCKET_SECONDS)
            for at in range(0, len(rounds[0]) - step + 1, step)
        ]

    def figures(self, name: str) -> dict[str, float]:
        """One row of the table."""
        rounds = self.rows[name]
        counts = [outcome.counts for outcome in rounds]
        begun = sum(each.begun for each in counts)
        return {
            "a second": self.per_second(name),
            "% of bound": 100 * self.share(name),
            "±": 100 * self.interval(name),
            "% of common": 100 * self.per_second(name) / self.common_bound,
            "failures": float(sum(self.failures(name).values())),
            "attempts": mean(outcome.attempts for outcome in rounds),
            "p50 ms": mean(outcome.answers.p50_ms for outcome in rounds),
            "p99 ms": mean(outcome.answers.p99_ms for outcome in rounds),
            "p99.9 ms": mean(outcome.answers.p999_ms for outcome in rounds),
            "waited ms": 1e3 * sum(each.waited_seconds for each in counts) / max(1, begun),
            "luck %": 100 * self.luck(name),
            "busiest %": 100 * max(cpu for each in rounds for cpu, _ in each.busiest.values()),
        }

    def results(self) -> list[Result]:
        """The goals, of those who took part."""
        found = []
        rivals = {name: self.per_second(name) for name in RIVALS if name in self.rows}
        for name in OURS:
            if name not in self.rows:
                continue
            void = " (VOID)" if self.void(name) else ""
            ours = f"{name} {self.per_second(name):,.0f}/s{void}"
            found.append(
                Result(
                    f"contest, {self.scale.name}: {name}, share of the bound",
                    self.share(name),
                    SHARE_OF_BOUND,
                    at_least=True,
                    ours=ours,
                    peer=f"bound {self.bound(name):,.0f}/s",
                )
            )
            found += [
                Result(
                    f"contest, {self.scale.name}: {name}, times {rival}",
                    self.per_second(name) / theirs,
                    1.0,
                    at_least=True,
                    ours=ours,
                    peer=f"{theirs:,.0f}/s{' (VOID)' if self.void(rival) else ''}",
                )
                for rival, theirs in rivals.items()
            ]
        return found

    def document(self) -> dict[str, Any]:
        scale = self.scale
        return {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load average before": round(self.load[0], 2),
            "load average after": round(self.load[1], 2),
            "scale": scale.name,
            "divided by": scale.divided,
            "stretched": scale.stretched,
            "phase seconds": scale.phase_seconds,
            "connections": scale.connections,
            "pools": scale.pools,
            "permits and ms": [
                [[one.permits, round(one.average_ms, 1)] for one in phase] for phase in scale.phases
            ],
            "delay ms": {
                of: [round(1e3 * each, 3) for each in delays] for of, delays in self.delays.items()
            },
            "common bound a second": round(self.common_bound, 1),
            "goals": [
                {
                    "goal": result.name,
                    "is": round(result.ratio, 4),
                    "should be": result.goal,
                    "met": result.met,
                    "ours": result.ours,
                    "peer": result.peer,
                }
                for result in self.results()
            ],
            "rows": {name: self._row(name) for name in self.rows},
            "absent": self.absent,
            "commands": self.commands,
        }

    def _row(self, name: str) -> dict[str, Any]:
        return {
            **{of: round(value, 3) for of, value in self.figures(name).items()},
            "bound a second": round(self.bound(name), 1),
            "rounds a second": [round(each.per_second, 1) for each in self.rows[name]],
            "failures by cause": self.failures(name),
            "void": self.void(name),
            "disturbed": self.disturbed(name),
            "cpu and waiting for it, % of a core, worst phase": {
                of: [round(100 * cpu, 1), round(100 * late, 1)]
                for of, (cpu, late) in self.rows[name][-1].busiest.items()
            },
            "over time": [round(value, 1) for value in self.curve(name)],
        }

    # For people

    def table(self) -> str:
        """In Markdown, also readable as it is."""
        told = [self._said()]
        names = [*self.figures(next(iter(self.rows)))] if self.rows else []
        told += ["", f"| policy | {' | '.join(names)} | |", "|---" * (len(names) + 2) + "|"]
        for name in self.rows:
            figures = self.figures(name)
            cells = [_short(of, figures[of]) for of in names]
            cells[names.index("failures")] = _causes(self.failures(name))
            void, late = self.void(name), self.disturbed(name)
            said = f"**void**: {void}" if void else f"waited for a core: {late}" if late else ""
            told.append(f"| {name} | {' | '.join(cells)} | {said} |")
        for name, reason in self.absent.items():
            told.append(f"\n**{name} did not take part**: {reason}")
        return "\n".join(told) + "\n"

    def _said(self) -> str:
        scale = self.scale
        delays = ", ".join(f"{of} {1e3 * mean(each):.2f} ms" for of, each in self.delays.items())
        rounds = max((len(each) for each in self.rows.values()), default=0)
        return (
            f"CPython {platform.python_version()}, {os.cpu_count()} cores, load average "
            f"{self.load[0]:.1f} before and {self.load[1]:.1f} after. {scale.connections} "
            f"connections, pools {'/'.join(map(str, scale.pools))}, times stretched "
            f"{scale.stretched}-fold, ten phases of {scale.phase_seconds:g} s, {rounds} "
            f"round{'s' if rounds > 1 else ''}. Delay of the way: {delays}; "
            f"common bound {self.common_bound:,.0f} a second."
        )


def _short(of: str, value: float) -> str:
    if of in {"% of bound", "±", "% of common", "luck %", "waited ms"}:
        return f"{value:.2f}"
    return f"{value:.3f}" if of == "attempts" else f"{value:,.0f}"


def _causes(failures: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {cause}" for cause, count in failures.items()) or "0"
