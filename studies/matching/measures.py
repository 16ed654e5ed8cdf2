"""The measures of a run: those of Cadence, and how long offers and tasks waited for each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from studies.queue_model.queueing import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Latency:
    """From the call of the producer to the start at the worker, in seconds."""

    mean: float
    p50: float
    p75: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Latency:
        ordered = sorted(sample)
        return cls(
            mean=sum(ordered) / len(ordered),
            p50=quantile(ordered, 0.5),
            p75=quantile(ordered, 0.75),
            p95=quantile(ordered, 0.95),
            p99=quantile(ordered, 0.99),
            max=ordered[-1],
        )


@dataclass(frozen=True, slots=True)
class PartitionMeasures:
    """One partition of a run."""

    added: int
    polls: int
    forwarded_tasks: int
    forwarded_polls: int
    written: int


@dataclass(frozen=True, slots=True)
class MatchingMeasures:
    """One run, in numbers."""

    latency: Latency
    acknowledged: Latency
    """From the call of the producer to its answer: written down, or done already."""
    span_seconds: float
    tasks: int
    polls_with_task: int
    polls_without: int
    forwarded_polls: int
    """Each hop of the tree counts."""
    forwarded_tasks: int
    given_back: int
    """Tasks that reached an offer that had been answered elsewhere."""
    written: int
    """Tasks that were written to the store, of those that were added."""
    commits: int
    sync_matches: int
    """Tasks for which a worker was found before they were written."""
    async_matches: int
    executions: int
    """More than the tasks if some were given out twice."""
    refused_adds: int
    """Because the partition was read-only by then."""
    idle_while_waiting_max: float
    """The longest that an offer and a task waited at the same time, at different partitions."""
    idle_bound: float
    """The bound for it."""
    read_partitions: int
    """At the end of the arrivals; and the most there were."""
    read_partitions_max: int
    messages: int
    """Messages of all tasks and polls."""
    partitions: tuple[PartitionMeasures, ...]

    @property
    def written_share(self) -> float:
        return self.written / self.tasks

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "written_share": self.written_share}


class Gauge:
    """Measures how long an offer and a task wait at the same time, wherever they are."""

    __slots__ = ("_began", "_line", "_open", "longest", "longest_at", "waiting")

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        """Numbers of tasks."""
        self._began: dict[int, float] = {}
        """The time since which each task waits; one that was given back has waited all the time."""
        self._line: list[tuple[float, int]] = []
        """A heap of them; some may not wait any more."""
        self._open: dict[object, float] = {}
        """Offers, in the order in which they came."""
        self.longest = 0.0
        """The longest time that an offer and a task waited at the same time."""
        self.longest_at = 0.0

    def task_waits(self, number: int, now: float) -> None:
        self.waiting.add(number)
        heappush(self._line, (self._began.setdefault(number, now), number))

    def task_matched(self, number: int, now: float) -> None:
        if number not in self.waiting:
            return
        self.waiting.remove(number)
        if self._open:
            opened = next(iter(self._open.values()))
            self._waited(max(opened, self._began[number]), now)

    def offer_opens(self, offer: object, now: float) -> None:
        self._open[offer] = now

    def offer_ends(self, offer: object, now: float) -> None:
        opened = self._open.pop(offer, None)
        line = self._line
        while line and line[0][1] not in self.waiting:
            heappop(line)
        if opened is not None and line:
            self._waited(max(opened, line[0][0]), now)

    def _waited(self, since: float, now: float) -> None:
        if now - since > self.longest:
            self.longest = now - since
            self.longest_at = now
