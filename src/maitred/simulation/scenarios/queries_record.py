"""The record of every query of a run: its gateway, its workers, and its answer.

The record raises `Violation` at once for what must never happen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from maitred.simulation.scenarios.record import ScenarioRecord


@dataclass(slots=True)
class QueryRun:
    """One call of the handler."""

    worker: str
    began_at: float
    ended_at: float | None = None


@dataclass(slots=True)
class QueryStory:
    """One query, as its caller asked it and as workers met it."""

    number: int
    gateway: str
    priority: int
    idempotent: bool
    rows: int
    """The number of rows of the stream; 0 means an ordinary result."""
    runs_seconds: float
    asked_at: float
    deadline: float
    cancelled_at: float | None = None
    """When the caller left, or its gateway died; None if neither happened."""
    outcome: str | None = None
    """`done`, or the code of the error; None until the caller is told, or if its gateway died."""
    answers: int = 0
    runs: list[QueryRun] = field(default_factory=list)
    completed: int = 0


@dataclass(frozen=True, slots=True)
class QueryPromise:
    """The guarantees of a run, given its faults."""

    in_order: bool
    """One slot, one partition, one priority, nothing fails: first come, first served."""
    order_slack_seconds: float
    """Two that were asked within this time of each other may be served in either order: it is what
    a message takes."""
    overtakers: int
    """How many queries may overtake one. A request for several slots that gets fewer is repeated,
    and slots that become free meanwhile go to others."""
    stop_seconds: float
    """How long after its caller left, or its gateway died, a query may still run."""
    outcomes: frozenset[str]
    """The outcomes that callers may get besides `done`, `cancelled` and `deadline-exceeded`."""
    limit: int | None = None
    """How many queries without rows may run at a time; None means no limit."""
    unheard_seconds: float = 0.0
    """How long after some trouble the node may not know of all that run, and let others in."""


class QueryRecord(ScenarioRecord):
    """Holds the stories of all queries of a run, and checks them."""

    noun = "query"

    def __init__(self, promise: QueryPromise) -> None:
        super().__init__()
        self.promise = promise
        self.stories: list[QueryStory] = []
        self.told: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        """Answers that are `done`, by gateway."""
        self._active: Counter[str] = Counter()
        self._begun: list[QueryStory] = []
        self._limited: list[QueryRun] = []
        """The runs that count against the limit; some of them may have ended."""
        self.troubled_at = -inf
        """When a process was last unreachable or dead; infinite while that lasts."""

    def asked(self, story: QueryStory) -> QueryStory:
        """Add a new query, and number it."""
        story.number = len(self.stories)
        self.stories.append(story)
        return story

    def begins(self, number: int, worker: str, slots: int, now: float) -> QueryRun:
        """Record that a worker calls the handler; raise `Violation` if it must not."""
        story = self.stories[number]
        if story.runs and not story.idempotent:
            raise self.violation(story, f"begins again at {worker} at {now}")
        if any(run.ended_at is None and run.worker == worker for run in story.runs):
            raise self.violation(story, f"begins twice at {worker}")
        self._active[worker] += 1
        if self._active[worker] > slots:
            raise self.violation(story, f"has no slot: {worker} has {slots} and runs more")
        if self.promise.in_order:
            self._check_order(story)
        run = QueryRun(worker, now)
        story.runs.append(run)
        if self.promise.limit is not None and not story.rows:
            self._check_limit(story, run, self.promise.limit)
        return run

    def _check_limit(self, story: QueryStory, run: QueryRun, limit: int) -> None:
        self._limited = [one for one in self._limited if one.ended_at is None]
        self._limited.append(run)
        unheard = run.began_at <= self.troubled_at + self.promise.unheard_seconds
        if len(self._limited) > limit and not unheard:
            raise self.violation(story, f"is one too many: {self._limited}")

    def _check_order(self, story: QueryStory) -> None:
        border = story.asked_at + self.promise.order_slack_seconds
        before = [one for one in self._begun if one.asked_at > border]
        if len(before) > self.promise.overtakers:
            raise self.violation(story, f"was overtaken by {len(before)}, such as {before[0]}")
        self._begun.append(story)

    def ends(self, number: int, run: QueryRun, now: float, *, completed: bool) -> None:
        """Record that the handler returned or was stopped."""
        story = self.stories[number]
        self._active[run.worker] -= 1
        run.ended_at = now
        story.completed += completed
        left = story.cancelled_at
        if left is not None and now > max(left, run.began_at) + self.promise.stop_seconds:
            raise self.violation(story, f"ran for {now - left} s after its caller had left")

    def worker_gone(self, worker: str, now: float) -> None:
        """Record that a worker died, and its handlers with it."""
        self._active[worker] = 0
        for story in self.stories:
            for run in story.runs:
                if run.worker == worker and run.ended_at is None:
                    run.ended_at = now

    def gateway_gone(self, gateway: str, now: float) -> None:
        """Record that a gateway died, and its callers with it."""
        for story in self.stories:
            if story.gateway == gateway and story.outcome is None and story.cancelled_at is None:
                story.cancelled_at = now

    def answered(self, story: QueryStory, outcome: str) -> None:
        """Record the outcome that the caller was told."""
        story.answers += 1
        self.told[outcome] += 1
        if outcome == "done":
            self.served[story.gateway] += 1
        if story.answers > 1:
            raise self.violation(story, f"was answered again: {outcome}")
        story.outcome = outcome
        if outcome == "done" and not story.completed:
            raise self.violation(story, "is done, and no worker completed it")
        usual = outcome in ("done", "cancelled", "deadline-exceeded")
        if not usual and outcome not in self.promise.outcomes:
            raise self.violation(story, f"was refused, and nothing had gone wrong: {outcome}")
