"""The partition's own tasks that went to the parent, and when they are called back.

A new offer at home first calls these tasks back, so that later tasks do not overtake them.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maitred.matching.effects import RecallTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.effects import Effect
    from maitred.matching.task import QueueTask

HOME_SECONDS = 0.02
"""How long the partition waits at most for tasks that it called back: an exchange between two
shards takes less than a millisecond. Also, how long tasks stay at home afterwards, at most."""

STAY_SECONDS = 0.002
"""How long after an offer no task goes to the parent, if tasks were called back from there: where
all workers are busy the next offer comes sooner, and each call back costs an exchange. A longer
time would leave workers of other partitions idle: docs/matching-study.md has the numbers."""


class TasksAway:
    """Tasks at the parent, in the order in which they went."""

    __slots__ = (
        "_back_early",
        "_effects",
        "_ended_early",
        "_stay_until_max",
        "home_by",
        "rest_until",
        "tasks",
    )

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self.tasks: dict[int, QueueTask] = {}
        self.home_by = -inf
        """Until then the partition waits for tasks it called back, before it matches others."""
        self._stay_until_max = -inf
        """Until then, at most, tasks stay at home because offers come there."""
        self.rest_until = -inf
        """Until then no task is passed on."""
        self._back_early: set[int] = set()
        """Tasks that a worker returned before the parent's answer named the worker."""
        self._ended_early: dict[int, bytes] = {}
        """The workers that reported an end of tasks before the parent's answer named a worker."""

    def went(self, task: QueueTask) -> None:
        """Note that a task goes to the parent."""
        self.tasks[task.sequence] = task

    def answered(self, task: QueueTask) -> bool:
        """Note that the parent has answered, or never will; return whether the worker that took the
        task there has already returned it."""
        self.tasks.pop(task.sequence, None)
        if task.called and not any(other.called for other in self.tasks.values()):
            self.home_by = -inf  # all tasks that were called back are here
        back = task.sequence in self._back_early
        self._back_early.discard(task.sequence)
        self._ended_early.pop(task.sequence, None)
        return back

    def given_back_early(self, task: QueueTask) -> None:
        """Note that a worker returned a task before the parent's answer named the worker."""
        self._back_early.add(task.sequence)

    def ended_early(self, task: QueueTask, holder: bytes) -> None:
        """Note that a worker ended a task before the parent's answer named the worker."""
        self._ended_early[task.sequence] = holder

    def was_of_another(self, task: QueueTask, holder: bytes) -> bool:
        """Return whether the end that was reported before the parent's answer came from another
        worker than the answer names: it was the end of an attempt with the same number that an
        earlier owner had given out."""
        return self._ended_early.get(task.sequence, holder) != holder

    def must_be_awaited(self, now: float) -> bool:
        """Call all tasks back, since there is an offer at home; return whether to wait for them.

        The wait is short, in case the parent does not answer.
        """
        if self._call_home(list(self.tasks.values()), now):
            self._stay_until_max = now + HOME_SECONDS
        return now < self.home_by

    def call_those_behind(self, task: QueueTask, now: float) -> None:
        """Call back the tasks that are behind a task which came back."""
        place = task.priority, task.place
        self._call_home(
            [one for one in self.tasks.values() if (one.priority, one.place) > place], now
        )

    def stay(self, now: float) -> None:
        """Keep tasks at home for a moment if some were called back lately: offers come here."""
        if now < self._stay_until_max:
            self.rest(min(now + STAY_SECONDS, self._stay_until_max))

    def rest(self, until: float) -> None:
        """Send no task to the parent before then."""
        self.rest_until = max(self.rest_until, until)

    def _call_home(self, tasks: Iterable[QueueTask], now: float) -> bool:
        """Call tasks back; return False if all of them had been called."""
        called = [task for task in tasks if not task.called]
        for task in called:
            task.called = True
            self._effects.append(RecallTask(task))
        if called:
            self.home_by = now + HOME_SECONDS
        return bool(called)
