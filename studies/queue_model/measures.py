"""What a run is judged by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from studies.queue_model.queueing import (
    even_p_value,
    jain_index,
    largest_deviation,
    quantile,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Waits:
    """How long tasks waited, in seconds."""

    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, waits: Sequence[float]) -> Waits:
        ordered = sorted(waits)
        return cls(
            mean=sum(ordered) / len(ordered),
            p50=quantile(ordered, 0.5),
            p99=quantile(ordered, 0.99),
            max=ordered[-1],
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly picks fell on the partitions."""

    counts: tuple[int, ...]
    jain: float
    largest_deviation: float
    """From 1/N, as a share of all picks."""
    even_p_value: float
    """Of the chi-square test that each pick is uniform and on its own; 1 is more even than that."""

    @classmethod
    def of(cls, counts: Sequence[int]) -> Spread:
        return cls(
            counts=tuple(counts),
            jain=jain_index(counts),
            largest_deviation=largest_deviation(counts),
            even_p_value=even_p_value(counts),
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """One run, in numbers."""

    waits: Waits
    """From the arrival at the producer to the start of the service."""
    ideal_waits: Waits
    """Of the same arrivals and services in a single queue without network or store."""
    idle_while_waiting: float
    """Share of the pollers' time in which they had no task although some task was waiting."""
    avoidable_idle: float
    """The same, counting no more idle pollers than waiting tasks: capacity that was missed."""
    span_seconds: float
    """Until the last task was started."""
    ideal_span_seconds: float
    writes: Spread
    polls: Spread
    waiting: tuple[float, ...]
    """By the partition it was written to: its share of all waiting, which is U_i."""
    tasks: int
    arrivals: int
    """Of these, the tasks that were not in a backlog from the start."""
    stored: int
    """Of the arrivals, those that were written to a backlog."""
    sync_matches: int
    """Tasks that found a poller without being written."""
    poll_forwards: int
    """Like all that follows, of every task and poll until the last measured task was started."""
    task_forwards: int
    refused_handovers: int
    empty_polls: int

    @property
    def stored_share(self) -> float:
        return self.stored / self.arrivals

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "stored_share": self.stored_share}


class Gauge:
    """Integrates what pollers miss, as tasks come and pollers go."""

    __slots__ = ("_at", "_idle", "_waiting", "avoidable", "idle_while_waiting")

    def __init__(self, pollers: int, waiting: int) -> None:
        self._at = 0.0
        self._idle = pollers
        self._waiting = waiting
        self.idle_while_waiting = 0.0
        self.avoidable = 0.0

    def change(self, now: float, *, idle: int = 0, waiting: int = 0) -> None:
        passed = now - self._at
        if self._waiting:
            self.idle_while_waiting += passed * self._idle
            self.avoidable += passed * min(self._idle, self._waiting)
        self._at = now
        self._idle += idle
        self._waiting += waiting
