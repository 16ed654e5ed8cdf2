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

PUBLISHED = Path(__file__).parent / "results"
"""What the documents show; written only when asked to."""

RESULTS = Path("results") / "benchmarks"
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
        return self.beyond >= 1

    @property
    def beyond(self) -> float:
        """How many times better than the goal."""
        return self.ratio / self.goal if self.at_least else self.goal / self.ratio

    def __str__(self) -> str:
        verdict = "ok  " if self.met else "MISS"
        goal = f"goal {'>=' if self.at_least else '<='} {self.goal:g}"
        return f"{verdict} {self.name}: {self.ratio:.2f} ({goal}); {self.ours}; {self.peer}"


def alternately(*calls: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Seconds of CPU that each call takes, the fastest of its rounds."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            started = time.process_time_ns()
            call()
            best[number] = min(best[number], (time.process_time_ns() - started) / 1e9)
    return best


def report(name: str, results: list[Result], folder: Path = RESULTS) -> None:
    """Print the results and write them down."""
    print(*results, sep="\n")
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "results": [asdict(result) | {"met": result.met} for result in results],
    }
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
