"""The study of matching: Cadence's scenarios on the real partitions, and the defaults swept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace as changed

from maitred.balancing import SelectorSettings
from maitred.errors import UnknownAlgorithm
from studies.matching.model import run_matching
from studies.matching.report import Cell, MatchingStudy, SweepCell
from studies.matching.scenarios import (
    BACKLOGS,
    BUSY,
    CHILDREN,
    OFFERS,
    RATES_PER_SECOND,
    SCENARIOS,
    SWEPT,
    TASKS,
    THRESHOLDS,
    WAITS_SECONDS,
)
from studies.queue_model.settings import (
    TASKS_MAX,
    InvalidModelSetting,
    check_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from studies.matching.measures import MatchingMeasures
    from studies.matching.settings import MatchingModel

SEEDS_MAX = 10_000

Step: TypeAlias = tuple[str, "Cell | SweepCell", int]


@dataclass(frozen=True, slots=True)
class MatchingSettings:
    """The scenarios, seeds and sizes of a study."""

    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    tasks: int | None = None
    """None leaves it to the scenario."""
    seeds: int = 5
    first_seed: int = 1
    sweep: bool = True
    sweep_seeds: int = 2

    def __post_init__(self) -> None:
        for name in self.scenarios:
            if name not in SCENARIOS:
                raise UnknownAlgorithm.named("scenario", name, SCENARIOS)
        if not self.scenarios:
            raise InvalidModelSetting("A study needs a scenario.")
        if self.tasks is not None:
            check_whole("tasks", self.tasks, 1, TASKS_MAX)
        check_whole("seeds", self.seeds, 1, SEEDS_MAX)
        check_whole("sweep_seeds", self.sweep_seeds, 1, SEEDS_MAX)
        check_whole("first_seed", self.first_seed, 0, 2**63)

    @classmethod
    def quick(cls) -> MatchingSettings:
        """A few seconds: enough to see the shape."""
        return cls(tasks=300, seeds=2, sweep=False)

    def model(self, scenario: str) -> MatchingModel:
        model = SCENARIOS[scenario].model
        return model if self.tasks is None else replace(model, tasks=self.tasks)


def matching_study(
    settings: MatchingSettings, progress: Callable[[int, int, str], None]
) -> MatchingStudy:
    """Run everything; `progress` gets the runs done, all runs, and what was run last.

    Raises `Violation` if in any run something is lost, done twice or idle for too long.
    """
    plan = list(_plan(settings))
    total = sum(seeds for _, _, seeds in plan)
    done = 0
    cells: list[Cell] = []
    sweep: list[SweepCell] = []
    known: dict[tuple[MatchingModel, int], MatchingMeasures] = {}
    for what, cell, seeds in plan:
        runs = []
        for seed in range(settings.first_seed, settings.first_seed + seeds):
            run = known.get((cell.model, seed)) or run_matching(cell.model, seed)
            known[cell.model, seed] = run  # several are the defaults under another name
            runs.append(run)
            done += 1
            progress(done, total, what)
        if isinstance(cell, Cell):
            cells.append(replace(cell, runs=tuple(runs)))
        else:
            sweep.append(replace(cell, runs=tuple(runs)))
    return MatchingStudy(settings, tuple(cells), tuple(sweep))


def _plan(settings: MatchingSettings) -> Iterator[Step]:
    for scenario in settings.scenarios:
        yield scenario, Cell(scenario, settings.model(scenario)), settings.seeds
    if not settings.sweep:
        return
    for scenario, model in SWEPT.items():
        for setting, value, other in _variants(model):
            cell = SweepCell(scenario, setting, value, other)
            yield f"{scenario}, {setting} {value}", cell, settings.sweep_seeds
    weighted = replace(SWEPT["backlog"], algorithm="weighted")
    bases = {
        f"backlog of {backlog}": replace(weighted, backlog=(0, 0, 0, backlog))
        for backlog in BACKLOGS
    }
    for scenario, base in {**bases, "busy": BUSY}.items():
        for threshold in THRESHOLDS:
            model = replace(base, selector=SelectorSettings(weight_threshold=threshold))
            cell = SweepCell(scenario, "weight_threshold", f"{threshold:g}", model)
            yield f"{scenario}, threshold {threshold:g}", cell, settings.sweep_seeds


def _variants(model: MatchingModel) -> Iterator[tuple[str, str, MatchingModel]]:
    """One setting at a time, the others as they are by default."""
    limits = model.forwarding
    yield "defaults", "", model
    for offers in OFFERS:
        yield "offers", f"{offers}", replace(model, forwarding=changed(limits, offers=offers))
    for tasks in TASKS:
        yield "tasks", f"{tasks}", replace(model, forwarding=changed(limits, tasks=tasks))
    for rate in RATES_PER_SECOND:
        other = changed(limits, tasks_per_second=rate)
        yield "tasks_per_second", f"{rate:g}", replace(model, forwarding=other)
    for wait in WAITS_SECONDS:
        other = changed(limits, task_wait_seconds=wait)
        yield "task_wait_seconds", f"{wait:g}", replace(model, forwarding=other)
    for wait in WAITS_SECONDS:
        other = changed(limits, offer_wait_seconds=wait)
        yield "offer_wait_seconds", f"{wait:g}", replace(model, forwarding=other)
    if model.read > min(CHILDREN) + 1:
        for children in CHILDREN:
            other = changed(limits, children=children)
            yield "children", f"{children}", replace(model, forwarding=other)
