"""The settings of one run; the defaults are those of Cadence's default scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from maitred.balancing import ALGORITHMS, SelectorSettings
from maitred.errors import UnknownAlgorithm
from maitred.matching.tasks_away import HOME_SECONDS
from maitred.routing.tree import depth
from maitred.settings import Forwarding, Queue, Scaling
from studies.queue_model.settings import (
    PARTITIONS_MAX,
    POLLERS_MAX,
    RATE_MIN,
    TASKS_MAX,
    InvalidModelSetting,
    check_number,
    check_whole,
)


@dataclass(frozen=True, slots=True)
class MatchingModel:
    """One queue, the hosts of its partitions, its producers and workers. Times in seconds."""

    hosts: int = 4
    read: int = 4
    write: int = 4
    pollers: int = 8
    """Workers of one slot each."""
    worker_clients: int = 2
    """Processes that the pollers belong to, each with a selector of its own."""
    producer_clients: int = 2
    tasks: int = 3_000
    rate_per_second: float = 80.0
    phases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """The arrivals in turn: a share of the tasks, and by what to multiply the rate meanwhile."""
    work_seconds: float = 0.001
    work: str = "constant"
    """Or "exponential"."""
    algorithm: str = "random"
    selector: SelectorSettings = field(default_factory=SelectorSettings)
    backlog: tuple[int, ...] = ()
    """Tasks that lie in the store, by partition, when the run begins."""
    forwards: bool = True
    """Whether partitions forward to parents."""
    forwarding: Forwarding = field(default_factory=Forwarding)
    scaling: Scaling = field(default_factory=lambda: Scaling(adaptive=False))
    hold_seconds: float = Queue().hold_seconds
    network_seconds: float = 0.0005
    network_jitter: float = 0.0
    """The longest additional delay of a message, as a share of `network_seconds`; with it messages
    on different links overtake each other."""
    commit_seconds: float = 0.005
    """A group commit and its fsync; a read of the store takes as long."""
    offer_seconds: float = 60.0
    run_seconds_max: float = 3_600.0

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UnknownAlgorithm.named("selection algorithm", self.algorithm, ALGORITHMS)
        if self.work not in ("exponential", "constant"):
            raise UnknownAlgorithm.named("kind of work", self.work, ("exponential", "constant"))
        check_whole("hosts", self.hosts, 1, PARTITIONS_MAX)
        check_whole("read", self.read, 1, PARTITIONS_MAX)
        check_whole("write", self.write, 1, self.read)
        for name in ("pollers", "worker_clients", "producer_clients"):
            check_whole(name, getattr(self, name), 1, POLLERS_MAX)
        check_whole("tasks", self.tasks, 1, TASKS_MAX)
        check_number("rate_per_second", self.rate_per_second, above=RATE_MIN)
        for name in ("work_seconds", "commit_seconds", "offer_seconds", "run_seconds_max"):
            check_number(name, getattr(self, name), above=0.0)
        for name in ("network_seconds", "network_jitter", "hold_seconds"):
            check_number(name, getattr(self, name))
        if len(self.backlog) > self.read:
            raise InvalidModelSetting("The backlog names more partitions than are read.")
        for tasks in self.backlog:
            check_whole("backlog", tasks, 0, TASKS_MAX)
        for share, factor in self.phases:
            check_number("the share of a phase", share, above=0.0)
            check_number("the rate factor of a phase", factor, above=0.0)

    @property
    def queue(self) -> Queue:
        """The settings of the queue."""
        forwarding = self.forwarding
        return Queue(
            partitions=self.read,
            hold_seconds=self.hold_seconds,
            offer_seconds=self.offer_seconds,
            forwarding=forwarding,
            scaling=self.scaling,
        )

    @property
    def depth(self) -> int:
        """The depth of the tree: forwards from the farthest partition to the root."""
        most = max(self.read, self.scaling.partitions_max if self.scaling.adaptive else 0)
        return depth(most - 1, self.forwarding.children)

    @property
    def idle_bound_seconds(self) -> float:
        """The longest time an offer may wait while a task waits anywhere: see the study's page."""
        limits = self.forwarding
        way = self.network_seconds * (1 + self.network_jitter)
        deep = self.depth
        # The offer waits at home and climbs, the task does, and the answer comes down.
        path = limits.offer_wait_seconds + limits.task_wait_seconds + 3 * deep * way
        # Others are before it: those of its own partition go up a few at a time, and before each of
        # these there may be all others. All of them need tasks, a few at a time and so many a
        # second. A turn is there and back, twice, if the task came too late and was given back.
        rounds = ceil(self.pollers / limits.offers)
        turns = ceil(self.pollers / limits.tasks) * 4 * deep * way
        line = rounds * (self.pollers / limits.tasks_per_second + turns)
        # What is in the store alone has to be read first.
        # Where offers came shortly before, tasks stay at home for a moment.
        return path + line + HOME_SECONDS + self.commit_seconds + way
