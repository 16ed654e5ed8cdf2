"""What a run is judged by: Cadence's measures, and who waited for whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from maitred.simulation.selection.queueing import quantile

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
    """Of every hop of the tree."""
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
    """The longest that an offer waited while some task waited elsewhere, all the time."""
    idle_bound: float
    """What it may be at most."""
    read_partitions: int
    """At the end of the arrivals; and the most there were."""
    read_partitions_max: int
    messages: int
    """All that were sent, for every task and poll."""
    partitions: tuple[PartitionMeasures, ...]

    @property
    def written_share(self) -> float:
        return self.written / self.tasks

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "written_share": self.written_share}


class Gauge:
    """Who waits for whom: offers that nobody has used, and tasks that nobody has got."""

    __slots__ = ("_open", "_since", "longest", "longest_at", "waiting")

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        """Numbers of tasks."""
        self._since = 0.0
        """Since when there are any."""
        self._open: dict[object, float] = {}
        """Offers, in the order in which they came."""
        self.longest = 0.0
        self.longest_at = 0.0

    def task_waits(self, number: int, now: float) -> None:
        if not self.waiting:
            self._since = now
        self.waiting.add(number)

    def task_seated(self, number: int, now: float) -> None:
        if number not in self.waiting:
            return
        self.waiting.remove(number)
        if not self.waiting and self._open:
            self._waited(next(iter(self._open.values())), now)

    def offer_opens(self, offer: object, now: float) -> None:
        self._open[offer] = now

    def offer_ends(self, offer: object, now: float) -> None:
        opened = self._open.pop(offer, None)
        if opened is not None and self.waiting:
            self._waited(opened, now)

    def _waited(self, opened: float, now: float) -> None:
        waited = now - max(opened, self._since)
        if waited > self.longest:
            self.longest = waited
            self.longest_at = now
