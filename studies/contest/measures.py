"""What a run of the contest is judged by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from studies.contest.faults import fault_measures

if TYPE_CHECKING:
    from studies.contest.faults import FaultMeasures
    from studies.contest.settings import ContestModel

LATENCY_STEP_SECONDS = 1e-4
BUCKET_SECONDS = 0.1


class Tally:
    """Counts while a run goes on."""

    def __init__(self, seconds: float, timeout_seconds: float) -> None:
        self.latencies = [0] * (int(timeout_seconds / LATENCY_STEP_SECONDS) + 2)
        self.bucket_seconds = BUCKET_SECONDS
        self.count = count = round(seconds / BUCKET_SECONDS)
        self.buckets = [0] * (count + 2)
        """Good answers, by tenths of a second, as all that follows."""
        self.failed = [0] * (count + 2)
        self.timeouts = [0] * (count + 2)
        self.came = [0] * (count + 2)
        """What was asked."""
        self.sent = [0] * (count + 2)
        self.struck_sent = [0] * (count + 2)
        """What was sent to those whom a fault strikes."""
        self.struck_done = [0] * (count + 2)
        """What they answered well."""
        self.done = 0
        self.asked = [0, 0]
        """By priority: high, low."""
        self.done_by = [0, 0]
        self.failures = {"worker-full": 0, "gateway": 0, "timeout": 0, "lost": 0, "error": 0}
        self.attempts = 0
        self.retries = 0
        self.pile_seen_at = 0.0
        """When, in the second phase, too many were last seen to wait where permits were cut."""

    def succeeded(self, latency: float, now: float) -> None:
        step = int(latency / LATENCY_STEP_SECONDS)
        if step >= len(self.latencies):
            step = len(self.latencies) - 1
        self.latencies[step] += 1
        self.buckets[int(now / BUCKET_SECONDS)] += 1
        self.done += 1

    def share_sent(self, first: int, end: int) -> float:
        """What went to those whom a fault strikes, from one tenth of a second to another."""
        return sum(self.struck_sent[first:end]) / max(1, sum(self.sent[first:end]))

    def quantile_ms(self, share: float) -> float:
        """By the upper edge of its step; 0 if nothing succeeded."""
        wanted = share * self.done
        seen = 0
        for step, count in enumerate(self.latencies):
            seen += count
            if seen >= wanted and seen:
                return 1e3 * LATENCY_STEP_SECONDS * (step + 1)
        return 0.0


@dataclass(frozen=True, slots=True)
class ContestMeasures:
    """One run, in numbers."""

    per_second: float
    bound_per_second: float
    worker_full: int
    """Failures: a worker refused and nobody tried elsewhere."""
    gateway_refused: int
    timeouts: int
    lost: int
    errors: int
    """A worker answered with an error."""
    attempts_per_query: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    high_share_done: float
    """Of the queries of the highest priority that were asked."""
    low_share_done: float
    followed_seconds: float
    """From the first change of phase until nobody piled up where permits were cut; up to the
    length of a phase."""
    over_time: tuple[int, ...]
    """Successes in each tenth of a second."""
    fault: FaultMeasures | None = None

    @property
    def failures(self) -> int:
        return self.worker_full + self.gateway_refused + self.timeouts + self.lost + self.errors

    @property
    def share_of_bound(self) -> float:
        return self.per_second / self.bound_per_second

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "failures": self.failures,
            "share_of_bound": self.share_of_bound,
        }


def measures(model: ContestModel, tally: Tally) -> ContestMeasures:
    """What was counted in a run of that model."""
    failures = tally.failures
    ended = tally.done + sum(failures.values())
    return ContestMeasures(
        per_second=tally.done / (model.seconds - model.warm_seconds),
        bound_per_second=model.bound_per_second,
        worker_full=failures["worker-full"],
        gateway_refused=failures["gateway"],
        timeouts=failures["timeout"],
        lost=failures["lost"],
        errors=failures["error"],
        attempts_per_query=tally.attempts / max(1, ended),
        p50_ms=tally.quantile_ms(0.5),
        p99_ms=tally.quantile_ms(0.99),
        p999_ms=tally.quantile_ms(0.999),
        high_share_done=tally.done_by[0] / max(1, tally.asked[0]),
        low_share_done=tally.done_by[1] / max(1, tally.asked[1]),
        followed_seconds=max(0.0, tally.pile_seen_at - model.phase_seconds),
        over_time=tuple(tally.buckets[: int(model.seconds * 10)]),
        fault=fault_measures(model, tally),
    )
