"""The study of the selectors: which one, when, and at what price.

Four scenarios, every algorithm, without the forwarding tree, with it as Cadence has it, and with
the mended rule that a forwarded poll goes on listening at home. The seeds give the same tasks to
every algorithm. Sweeps follow: the threshold of the weighted algorithm against the size of a
backlog in one partition, the half-life of its weights, the rate at which the tree may forward
tasks, and into how many client processes, each with a selector that knows only its own polls, the
same pollers are split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from maitred.balancing import ALGORITHMS, SelectorSettings
from maitred.errors import UnknownAlgorithm
from studies.queue_model.model import run_model
from studies.queue_model.settings import (
    PARTITIONS_MAX,
    POLLERS_MAX,
    RATE_MIN,
    TASKS_MAX,
    InvalidModelSetting,
    ModelSettings,
    check_number,
    check_whole,
)
from studies.selection.report import Cell, SelectionStudy, SweepCell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORWARDING = ("both", "on", "off")
SEEDS_MAX = 10_000
THRESHOLDS = (0, 10, 100, 1_000)
SKEWS = (10, 30, 100, 300, 1_000, 3_000)
HALF_LIVES_SECONDS = (1.0, 10.0, 1e9)
FORWARD_RATES_PER_SECOND = (10.0, 100.0, 1_000.0)
CLIENT_SHARES = (0.0, 0.25, 0.5, 1.0)
"""Clients as a share of the pollers, and at least one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A situation that the algorithms are put into; the load is given, the rate follows from it."""

    sentence: str
    partitions: int
    pollers: int
    utilization: float
    backlog_share: float = 0.0
    """Tasks that lie in the last partition at the beginning, as a share of those that arrive."""
    phases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)


SCENARIOS = {
    "stable": Scenario("a steady load of 70 %, two pollers a partition", 4, 8, 0.7),
    "few-pollers": Scenario("twice as many partitions as pollers, a load of 50 %", 8, 4, 0.5),
    "backlog": Scenario(
        "a backlog in the last partition alone, a load of 50 % besides", 4, 8, 0.5, 1.0
    ),
    "overload": Scenario(
        "half of the tasks come at 150 % of the capacity, the others at 50 %",
        4,
        8,
        utilization=1.0,
        phases=((0.5, 1.5), (0.5, 0.5)),
    ),
}


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What to study; None leaves a number to the scenario."""

    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    algorithms: tuple[str, ...] = ALGORITHMS
    forwarding: str = "both"
    """With the tree ("on", in both variants), without it ("off"), or "both"."""
    partitions: int | None = None
    pollers: int | None = None
    rate_per_second: float | None = None
    service_seconds: float = 0.05
    tasks: int = 2_000
    worker_clients: int = 2
    """Worker processes that share the pollers, each with a selector of its own; and as many
    producers. The more there are, the less each of them knows."""
    network_seconds: float = 0.0005
    seeds: int = 5
    first_seed: int = 1
    sweep: bool = True
    sweep_seeds: int = 3

    def __post_init__(self) -> None:
        for name in self.scenarios:
            if name not in SCENARIOS:
                raise UnknownAlgorithm.named("scenario", name, SCENARIOS)
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise UnknownAlgorithm.named("selection algorithm", name, ALGORITHMS)
        if not self.scenarios or not self.algorithms:
            raise InvalidModelSetting("A study needs a scenario and an algorithm.")
        if self.forwarding not in FORWARDING:
            raise UnknownAlgorithm.named("kind of forwarding", self.forwarding, FORWARDING)
        if self.partitions is not None:
            check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        if self.pollers is not None:
            check_whole("pollers", self.pollers, 1, POLLERS_MAX)
        if self.rate_per_second is not None:
            check_number("rate_per_second", self.rate_per_second, above=RATE_MIN)
        check_number("service_seconds", self.service_seconds, above=0.0)
        check_number("network_seconds", self.network_seconds)
        check_whole("tasks", self.tasks, 1, TASKS_MAX)
        check_whole("worker_clients", self.worker_clients, 1, POLLERS_MAX)
        check_whole("seeds", self.seeds, 1, SEEDS_MAX)
        check_whole("sweep_seeds", self.sweep_seeds, 1, SEEDS_MAX)
        check_whole("first_seed", self.first_seed, 0, 2**63)

    @classmethod
    def quick(cls) -> SelectionSettings:
        """A few seconds: enough to see the shape, not to judge a few per cent."""
        return cls(seeds=2, tasks=300, sweep=False)

    @property
    def modes(self) -> tuple[str, ...]:
        """Without the tree, with it, and with polls that keep listening at home."""
        return {"both": ("off", "on", "home"), "on": ("on", "home"), "off": ("off",)}[
            self.forwarding
        ]

    def model(self, scenario: str, algorithm: str, mode: str) -> ModelSettings:
        """The modelled queue of one scenario."""
        given = SCENARIOS[scenario]
        partitions = self.partitions or given.partitions
        pollers = self.pollers or given.pollers
        backlog = round(given.backlog_share * self.tasks)
        return ModelSettings(
            algorithm=algorithm,
            read_partitions=partitions,
            write_partitions=partitions,
            pollers=pollers,
            worker_clients=self.worker_clients,
            producer_clients=self.worker_clients,
            tasks=self.tasks,
            rate_per_second=self.rate_per_second
            or given.utilization * pollers / self.service_seconds,
            phases=given.phases,
            initial_backlog=(0,) * (partitions - 1) + (backlog,) if backlog else (),
            service_seconds=self.service_seconds,
            network_seconds=self.network_seconds,
            forwarding=mode != "off",
            listen_at_home=mode == "home",
        )


def selection_study(
    settings: SelectionSettings, progress: Callable[[int, int, str], None]
) -> SelectionStudy:
    """Run everything; `progress` gets the runs done, all runs, and what was run last."""
    plan = list(_plan(settings))
    total = sum(seeds for _, _, _, seeds in plan)
    done = 0
    cells: list[Cell] = []
    sweep: list[SweepCell] = []
    for what, labels, model, seeds in plan:
        runs = []
        for seed in range(settings.first_seed, settings.first_seed + seeds):
            runs.append(run_model(model, seed))
            done += 1
            progress(done, total, what)
        if isinstance(labels, tuple):
            cells.append(Cell(*labels, model, tuple(runs)))
        else:
            sweep.append(replace(labels, runs=tuple(runs)))
    return SelectionStudy(settings, tuple(cells), tuple(sweep))


Step: TypeAlias = tuple[str, tuple[str, str, str] | SweepCell, ModelSettings, int]
"""What it is, the labels of its result, the queue to model, and how many seeds."""


def _plan(settings: SelectionSettings) -> Iterator[Step]:
    for scenario in settings.scenarios:
        for algorithm in settings.algorithms:
            for mode in settings.modes:
                yield (
                    f"{scenario}, {algorithm}, {mode}",
                    (scenario, algorithm, mode),
                    settings.model(scenario, algorithm, mode),
                    settings.seeds,
                )
    if settings.sweep:
        if "backlog" in settings.scenarios:
            yield from _plan_weights(settings)
        if "stable" in settings.scenarios:
            yield from _plan_clients(settings)


def _plan_weights(settings: SelectionSettings) -> Iterator[Step]:
    mode = "off" if settings.forwarding == "off" else "on"
    base = settings.model("backlog", "weighted", mode)
    # Half the arrivals of the scenario: what matters here is the backlog.
    base = replace(base, tasks=max(1, base.tasks // 2))
    for skew in SKEWS:
        skewed = replace(base, initial_backlog=(0,) * (base.read_partitions - 1) + (skew,))
        yield (
            f"no threshold, backlog {skew}",
            SweepCell("threshold", None, skew, "round-robin", mode),
            replace(skewed, algorithm="round-robin"),
            settings.sweep_seeds,
        )
        for threshold in THRESHOLDS:
            yield (
                f"threshold {threshold}, backlog {skew}",
                SweepCell("threshold", threshold, skew, "weighted", mode),
                replace(skewed, selector=SelectorSettings(weight_threshold=threshold)),
                settings.sweep_seeds,
            )
    # The same thresholds where there is nothing to follow: what does a low one spoil?
    for threshold in THRESHOLDS:
        yield (
            f"threshold {threshold}, stable",
            SweepCell("threshold", threshold, 0, "weighted", mode),
            replace(
                settings.model("stable", "weighted", mode),
                selector=SelectorSettings(weight_threshold=threshold),
            ),
            settings.sweep_seeds,
        )
    for half_life in HALF_LIVES_SECONDS:
        chosen = SelectorSettings(weight_half_life_seconds=half_life)
        yield (
            f"half-life {half_life:g} s",
            SweepCell("half-life", half_life, sum(base.initial_backlog), "weighted", mode),
            replace(base, selector=chosen, worker_clients=base.pollers),
            settings.sweep_seeds,
        )
    if mode == "off":
        return
    for algorithm in ("round-robin", "weighted"):
        for rate in FORWARD_RATES_PER_SECOND:
            yield (
                f"{rate:g} forwards a second, {algorithm}",
                SweepCell("forward-rate", rate, sum(base.initial_backlog), algorithm, mode),
                replace(base, algorithm=algorithm, forward_rate_per_second=rate),
                settings.sweep_seeds,
            )


def _plan_clients(settings: SelectionSettings) -> Iterator[Step]:
    for algorithm in ("round-robin", "fewest-polls"):
        if algorithm not in settings.algorithms:
            continue
        for mode in settings.modes:
            model = settings.model("stable", algorithm, mode)
            counts = sorted({max(1, round(share * model.pollers)) for share in CLIENT_SHARES})
            for clients in counts:
                yield (
                    f"{clients} clients, {algorithm}, {mode}",
                    SweepCell("clients", clients, 0, algorithm, mode),
                    replace(model, worker_clients=clients, producer_clients=clients),
                    settings.sweep_seeds,
                )
