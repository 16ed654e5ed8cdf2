"""The study of the contest: every scenario, policy and seed, one run after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maitred.errors import UnknownAlgorithm
from studies.contest.model import run_contest
from studies.contest.report import Cell, ContestStudy
from studies.contest.scenarios import SCENARIOS
from studies.contest.settings import POLICIES
from studies.queue_model.settings import InvalidModelSetting, check_number, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ContestSettings:
    """What to study."""

    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    policies: tuple[str, ...] | None = None
    """None leaves it to the scenario."""
    seeds: int = 5
    variant_seeds: int = 5
    """Of whatever is not the contest itself."""
    first_seed: int = 1
    stretch: float = 1.0
    """By what the phases are longer; services take as long as ever."""

    def __post_init__(self) -> None:
        for name in self.scenarios:
            if name not in SCENARIOS:
                raise UnknownAlgorithm.named("scenario", name, SCENARIOS)
        for name in self.policies or ():
            if name not in POLICIES:
                raise UnknownAlgorithm.named("worker policy", name, POLICIES)
        if not self.scenarios:
            raise InvalidModelSetting("A study needs a scenario.")
        check_whole("seeds", self.seeds, 1, SEEDS_MAX)
        check_whole("variant_seeds", self.variant_seeds, 1, SEEDS_MAX)
        check_whole("first_seed", self.first_seed, 0, 2**63)
        check_number("stretch", self.stretch, above=0.0)

    @classmethod
    def quick(cls) -> ContestSettings:
        """A few seconds: enough to see the shape."""
        return cls(
            scenarios=("contest", "open-0.7", "open-1.2", "drop"),
            policies=("two-phase", "adaptive", "idle"),
            seeds=1,
            variant_seeds=1,
            stretch=0.2,
        )

    def cells(self) -> list[Cell]:
        """What is to be run."""
        cells = []
        for scenario in self.scenarios:
            base = SCENARIOS[scenario]
            model = replace(
                base.model,
                phase_seconds=base.model.phase_seconds * self.stretch,
                warm_seconds=base.model.warm_seconds * self.stretch,
            )
            cells += [
                Cell(scenario, replace(model, policy=policy))
                for policy in self.policies or base.policies
            ]
        return cells


def contest_study(
    settings: ContestSettings, progress: Callable[[int, int, str], None]
) -> ContestStudy:
    """Run everything; `progress` gets the runs done, all runs, and what was run last."""
    plan = [
        (cell, settings.seeds if cell.scenario == "contest" else settings.variant_seeds)
        for cell in settings.cells()
    ]
    total = sum(seeds for _, seeds in plan)
    done = 0
    cells = []
    for cell, seeds in plan:
        runs = []
        for seed in range(settings.first_seed, settings.first_seed + seeds):
            runs.append(run_contest(cell.model, seed))
            done += 1
            progress(done, total, f"{cell.scenario}, {cell.policy}")
        cells.append(replace(cell, runs=tuple(runs)))
    return ContestStudy(settings, tuple(cells))
