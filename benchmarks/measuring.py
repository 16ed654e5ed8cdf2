"""How we measure on a machine whose speed changes from one second to the next.

Absolute times mean little here, so every figure is a ratio of two things measured alternately in
short rounds. Each side's time is its fastest round: noise only ever adds.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results"
ROUNDS = 25


@dataclass(frozen=True, slots=True)
class Result:
    """One figure, the goal it has to reach, and what it was made from."""

    name: str
    ratio: float
    goal: float
    at_least: bool
    """Whether the ratio has to be at least the goal; else at most."""
    ours: str
    peer: str

    @property
    def met(self) -> bool:
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return (
            f"{'ok  ' if self.met else 'MISS'} {self.name}: {self.ratio:.2f} "
            f"(goal {sign} {self.goal:g}); {self.ours}; {self.peer}"
        )


def alternately(*calls: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of CPU that each call takes, the fastest of its rounds."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            started = time.process_time_ns()
            call()
            best[number] = min(best[number], (time.process_time_ns() - started) / 1e9)
    return best


def report(name: str, results: list[Result]) -> None:
    """Print the results and write them beside the benchmarks."""
    print(*results, sep="\n")
    RESULTS.mkdir(exist_ok=True)
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "results": [asdict(result) | {"met": result.met} for result in results],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
