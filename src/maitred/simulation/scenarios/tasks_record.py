"""The record of every task of a run: its place, its attempts, and how it ended.

The record raises `Violation` at once for what must never happen. After the run, `ends` checks
whether each task came to one end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import NOTHING
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.record import ScenarioRecord

if TYPE_CHECKING:
    from maitred.errors import MaitredError


_TRUE_OF: Final = {
    "done": {"done"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
    "expired": {"expired"},
    "over": {"done", "failed", "expired"},
    "cancelling": {"done", "failed", "cancelled", "expired"},
    "forgotten": set(),
}
"""Which ends an answer allows. Results are kept for longer than a run takes, so no caller may be
told that a task is forgotten."""

_UNTIL_REVIVED: Final = {"failed", "over"}
"""The answers that were right before a dead letter was tried again."""


@dataclass(slots=True)
class Run:
    """One call of the handler."""

    worker: str
    attempt: int
    began_at: float
    place: tuple[int, int]
    ended: bool = False


@dataclass(slots=True)
class Story:
    """One task, as its producer made it and as workers met it."""

    number: int
    retries: int
    priority: int = 2
    delayed: bool = False
    may_expire: bool = False
    fails: int = 0
    """How many of the task's first attempts raise."""
    runs_seconds: float = 0.0
    queue: str = ""
    place: tuple[int, int] | None = None
    """Partition and sequence number, since it was acknowledged."""
    revoked: bool = False
    """Whether a caller asked to cancel the task."""
    cancelled: bool = False
    """Whether that caller was told that the task will not begin."""
    refused: bool = False
    """Whether the producer was told that nothing was added."""
    revived: bool = False
    """Whether the task was a dead letter, and the admin had it tried again."""
    answers: list[str] = field(default_factory=list)
    """The answers to requests for its result and to cancel it."""
    runs: list[Run] = field(default_factory=list)
    completed: int = 0
    """How often the handler returned."""

    @property
    def may_be_over(self) -> bool:
        """Whether the task was done or cancelled, or may have expired before it ran."""
        return bool(self.completed) or self.cancelled or (self.may_expire and not self.runs)


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantees of a run, given its faults."""

    exactly_once: bool
    """No worker is lost: no task begins while it runs, or after it was done."""
    in_order: int
    """The number of partitions in which tasks are first in, first out: none, the root and its
    children, or all. That needs one worker with one slot, and no fault. A task that is forwarded
    further than to the parent may be overtaken on the way by one that meets an offer there."""
    overlap_after_seconds: float
    """The shortest time from the start of an attempt to that of the next one elsewhere."""
    counts_runs: bool = False
    """No attempt is counted that did not run: a task that a worker gives back has none."""
    errorless: bool = False
    """No request of a producer fails."""
    other_errors: frozenset[str] = frozenset()
    """The codes of errors besides the usual ones with which waiting for a result may fail."""
    one_owner_seconds: float = 0.0
    """No attempt is given out twice within this time: only two owners of one partition could do
    that."""
    loses: bool = False
    """The store may forget what it confirmed, so that hardly anything is certain."""
    ends_get_lost: bool = False
    """The store may be away, so that the end of an attempt is only in the memory of its owner, and
    another owner may give the attempt out again once it has ended."""


class TasksRecord(ScenarioRecord):
    """Holds the stories of all tasks of a run, and checks them."""

    noun = "task"

    def __init__(self, promise: Promise) -> None:
        super().__init__()
        self.promise = promise
        self.stories: list[Story] = []
        self.duplicates = 0
        self.overlaps = 0
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._revived: set[tuple[str, tuple[int, int]]] = set()
        """The places of tasks that were revived; their producers may not know them."""
        self._running: dict[str, int] = {}
        """Handlers that run, by worker."""

    def told(self, **wishes: Any) -> Story:  # noqa: ANN401 - the fields of a story
        """Add the story of a new task, and return it."""
        story = Story(len(self.stories), **wishes)
        self.stories.append(story)
        return story

    def begins(
        self, number: int, worker: str, attempt: int, place: tuple[int, int], now: float
    ) -> Run:
        """Record that a worker calls the handler; raise `Violation` if it must not."""
        story = self.stories[number]
        if attempt < 1 or attempt > story.retries + 1:
            raise self.violation(story, f"began attempt {attempt}")
        if not self.promise.loses:
            self._check_begin(story, worker, attempt, place, now)
        run = Run(worker, attempt, now, place)
        story.runs.append(run)
        return run

    def _check_begin(
        self, story: Story, worker: str, attempt: int, place: tuple[int, int], now: float
    ) -> None:
        if story.place not in (None, place) or any(run.place != place for run in story.runs):
            raise self.violation(story, f"is at {place} as well")
        if self.promise.counts_runs and attempt > len(story.runs) + 1:
            raise self.violation(story, f"began attempt {attempt} at {worker}")
        if story.cancelled:
            raise self.violation(story, f"begins at {worker}, and was cancelled")
        if story.refused:
            raise self.violation(story, f"begins at {worker}, and was never added")
        running = [run for run in story.runs if not run.ended]
        if self.promise.exactly_once and (running or story.completed):
            raise self.violation(story, f"begins again at {worker}, attempt {attempt}, at {now}")
        others = running if self.promise.ends_get_lost else story.runs
        leased_since = now - self.promise.one_owner_seconds
        again = any(run.attempt == attempt and run.began_at > leased_since for run in others)
        if again and (story.queue, place) not in self._revived:
            raise self.violation(story, f"was given out again at {place} to {worker} at {now}")
        for run in running:
            self.overlaps += 1
            since = now - run.began_at
            if run.attempt != attempt and since < self.promise.overlap_after_seconds:
                raise self.violation(
                    story, f"began at {worker}, attempt {attempt}, {since} s after {run}"
                )
        if place[0] < self.promise.in_order and attempt == 1 and not story.delayed:
            self._check_order(story, place)

    def _check_order(self, story: Story, place: tuple[int, int]) -> None:
        partition, sequence = place
        line = (partition, story.priority)
        before, number = self._last.get(line, (-1, -1))
        if sequence < before:
            raise self.violation(story, f"at {place} began after {self.stories[number]}")
        self._last[line] = (sequence, story.number)

    def takes_slot(self, worker: str, slots: int) -> None:
        """Record that a handler takes a slot of a worker that has `slots` of them."""
        running = self._running[worker] = self._running.get(worker, 0) + 1
        if running > slots:
            found = Violation(f"{worker} runs {running} tasks in {slots} slots.")
            self.found.append(found)
            raise found

    def leaves_slot(self, worker: str) -> None:
        """Record that a handler has ended."""
        self._running[worker] -= 1

    def fails(self, story: Story, problem: MaitredError) -> None:
        """Record that a request for the result of a task, or to cancel it, failed."""
        if self.promise.errorless:
            raise self.violation(story, f"was asked for, and the caller heard {problem!r}")

    def refuses(self, story: Story, problem: MaitredError) -> None:
        """Record that the producer got an error instead of the task's place."""
        if self.promise.errorless:
            raise self.violation(story, f"was refused with {problem!r}")
        if problem.outcome is not NOTHING or self.promise.loses:
            return
        story.refused = True
        if story.runs:
            raise self.violation(story, f"has begun, and its producer heard {problem!r}")

    def revives(self, queue: str, place: tuple[int, int]) -> None:
        """Record that a dead letter is to be tried again."""
        self._revived.add((queue, place))
        for story in self.stories:
            if (story.queue, story.place) == (queue, place):
                story.revived = True

    def ends(self, story: Story, ends: set[str], *, lost: bool) -> None:
        """Check what the disk holds of an acknowledged task after the run: one end, and the one
        that callers were told. With `lost` there may be none if the task can have ended before it
        had to be stored, because a task that is over is acknowledged without a commit."""
        if len(ends) > 1:
            raise self.violation(story, f"has ended in several ways, {sorted(ends)}")
        if not ends:
            if not (lost and story.may_be_over):
                raise self.violation(story, "was acknowledged, and is lost")
            return
        (end,) = ends
        if end == "done" and not story.completed:
            raise self.violation(story, "is done, and no worker ran it")
        if end == "cancelled" and not story.revoked:
            raise self.violation(story, "is cancelled, and no caller asked for it")
        if end == "expired" and not story.may_expire:
            raise self.violation(story, "has expired, and had no such time")
        for answer in story.answers:
            if end not in _TRUE_OF[answer] and not (story.revived and answer in _UNTIL_REVIVED):
                raise self.violation(story, f"ended as {end}, and a caller was told {answer}")

    def completes(self, number: int) -> None:
        """Record that the handler returned."""
        story = self.stories[number]
        story.completed += 1
        if story.completed > 1:
            self.duplicates += 1

    def worker_gone(self, worker: str) -> None:
        """Record that a worker died, and its handlers with it."""
        for story in self.stories:
            for run in story.runs:
                if run.worker == worker:
                    run.ended = True
