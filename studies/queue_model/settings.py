"""Everything that can be set about one modelled queue, with Cadence's defaults where it has one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from maitred.balancing import ALGORITHMS, SelectorSettings
from maitred.errors import InvalidArgument, UnknownAlgorithm


class InvalidModelSetting(InvalidArgument):
    """A number that no queue, network or study can have."""

    code = "invalid-model-setting"


PARTITIONS_MAX = 1_000
POLLERS_MAX = 10_000
TASKS_MAX = 1_000_000
"""Beyond these a run would take hours, which is more likely a slip than a wish."""


RATE_MIN = 1e-4
"""Slower arrivals than one in three hours would outlast the longest run."""

POLL_TIMEOUT_SECONDS_MIN = 0.1
"""Without a network, polls that end as they begin would keep the clock from ever going on."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One queue with its partitions, workers and producers; every time is in seconds."""

    algorithm: str = "round-robin"
    selector: SelectorSettings = field(default_factory=SelectorSettings)

    read_partitions: int = 4
    write_partitions: int = 4
    pollers: int = 8
    worker_clients: int = 2
    """The pollers are dealt to this many processes, each with a selector of its own."""
    producer_clients: int = 2
    tasks: int = 2_000
    rate_per_second: float = 112.0
    tasks_after_max: int = 10_000
    """Arrivals go on at the last rate until every one of `tasks` and the backlog has started, but
    by no more than this. Else the last tasks would be measured in a queue that has fallen quiet,
    where a poller at an empty partition is freed by nothing but its timeout."""
    phases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """The arrivals in turn: a share of the tasks, and by what to multiply the rate meanwhile."""
    initial_backlog: tuple[int, ...] = ()
    """Tasks that lie in the partitions' backlogs when the run begins, besides `tasks`."""
    service_seconds: float = 0.05
    service: str = "exponential"
    """Or "constant"."""

    network_seconds: float = 0.0005
    """One way, between a client and a partition and between a partition and its parent."""
    store_write_seconds: float = 0.005
    """Until a task that found no poller lies in the backlog: a group commit and its fsync."""

    forwarding: bool = True
    listen_at_home: bool = False
    """Whether a poll that was forwarded can still take a task of the partition it came to."""
    degree: int = 20
    """Children of a partition; 1 to 20 belong to the root, 21 to 40 to partition 1."""
    local_wait_seconds: float = 0.010
    """How long a task or a poll waits for a partner at home before it may be forwarded."""
    forward_polls_max: int = 1
    forward_tasks_max: int = 1
    forward_rate_per_second: float = 10.0
    """Forwards of tasks a second and partition; as many may be saved up for a burst."""
    add_budget_seconds: float = 0.2
    """How long a new task may look for a poller before it is written to the backlog."""
    backlog_forward_seconds: float = 2.0
    """How long a task of the backlog waits at the root before it goes back."""
    poll_timeout_seconds: float = 60.0
    hint_backlog_max: int | None = None
    """What the backlog in a hint saturates at: Cadence knows no more than about 1,001."""

    run_seconds_max: float = 1e6
    """A run that takes longer in its own time is stuck, and fails."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UnknownAlgorithm.named("selection algorithm", self.algorithm, ALGORITHMS)
        if self.service not in ("exponential", "constant"):
            raise UnknownAlgorithm.named("service time", self.service, ("exponential", "constant"))
        check_whole("read_partitions", self.read_partitions, 1, PARTITIONS_MAX)
        check_whole("write_partitions", self.write_partitions, 1, PARTITIONS_MAX)
        check_whole("pollers", self.pollers, 1, POLLERS_MAX)
        check_whole("worker_clients", self.worker_clients, 1, POLLERS_MAX)
        check_whole("producer_clients", self.producer_clients, 1, POLLERS_MAX)
        check_whole("tasks", self.tasks, 1, TASKS_MAX)
        check_whole("tasks_after_max", self.tasks_after_max, 0, TASKS_MAX)
        check_whole("degree", self.degree, 1, PARTITIONS_MAX)
        check_whole("forward_polls_max", self.forward_polls_max, 1, POLLERS_MAX)
        check_whole("forward_tasks_max", self.forward_tasks_max, 1, POLLERS_MAX)
        if self.hint_backlog_max is not None:
            check_whole("hint_backlog_max", self.hint_backlog_max, 0, TASKS_MAX)
        check_number("rate_per_second", self.rate_per_second, above=RATE_MIN)
        for name in (
            "service_seconds",
            "backlog_forward_seconds",
            "run_seconds_max",
        ):
            check_number(name, getattr(self, name), above=0.0)
        check_number(
            "poll_timeout_seconds", self.poll_timeout_seconds, least=POLL_TIMEOUT_SECONDS_MIN
        )
        for name in (
            "network_seconds",
            "store_write_seconds",
            "local_wait_seconds",
            "forward_rate_per_second",
            "add_budget_seconds",
        ):
            check_number(name, getattr(self, name))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.write_partitions > self.read_partitions:
            raise InvalidModelSetting(
                f"{self.write_partitions} partitions are written to but only "
                f"{self.read_partitions} are read: some tasks would wait for ever.",
                remedy="Read at least as many partitions as are written to.",
            )
        if len(self.initial_backlog) > self.read_partitions:
            raise InvalidModelSetting("The initial backlog names more partitions than are read.")
        for backlog in self.initial_backlog:
            check_whole("initial_backlog", backlog, 0, TASKS_MAX)
        if not self.phases:
            raise InvalidModelSetting("There has to be a phase of arrivals.")
        for share, factor in self.phases:
            check_number("the share of a phase", share, above=0.0)
            check_number("the rate factor of a phase", factor, above=0.0)
        if not math.isclose(sum(share for share, _ in self.phases), 1.0):
            raise InvalidModelSetting("The shares of the phases have to sum up to 1.")

    @property
    def utilization(self) -> float:
        """The load over the capacity; above 1 the queue grows."""
        return self.rate_per_second * self.service_seconds / self.pollers

    @property
    def steady(self) -> bool:
        """Whether the arrivals are those of one endless, stable queue that begins empty."""
        # Next to the capacity, rounding can let one of the two pass and not the other.
        below_capacity = (
            self.utilization < 1 and self.rate_per_second < self.pollers / self.service_seconds
        )
        return not any(self.initial_backlog) and len(self.phases) == 1 and below_capacity


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise `InvalidModelSetting` unless it is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidModelSetting(
            f"{name} is {value!r}; it has to be a whole number from {least} to {most}."
        )


def check_number(name: str, value: object, above: float | None = None, least: float = 0.0) -> None:
    """Raise `InvalidModelSetting` unless it is finite and above a limit, or at least another."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (value < least if above is None else value <= above):  # type: ignore[operator]
        range_ = f"of {least:g} or more" if above is None else f"above {above:g}"
        raise InvalidModelSetting(f"{name} is {value!r}; it has to be a number {range_}.")
