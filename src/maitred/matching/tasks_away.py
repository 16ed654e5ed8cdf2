"""The partition's own tasks that went to the parent, and when they are called back.

An offer at home calls those that are away back first, so that none that came later overtakes them.
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
"""How long those that were called back from the parent are waited for, at most: an exchange between
two shards takes less than a millisecond. And how long tasks stay at home afterwards, at most."""

STAY_SECONDS = 0.002
"""How long after an offer no task goes to the parent, if tasks were called back from there: where
all workers are busy the next offer comes sooner, and each call costs it an exchange. Longer would
keep workers idle elsewhere: docs/matching-study.md has the numbers."""


class TasksAway:
    """Those at the parent, in the order in which they went."""

    __slots__ = ("_back_early", "_effects", "_stay_until_max", "home_by", "rest_until", "tasks")

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self.tasks: dict[int, QueueTask] = {}
        self.home_by = -inf
        """Those that were called home are waited for until then, so that none overtakes them."""
        self._stay_until_max = -inf
        """Where there are offers at home, tasks need not go away at once; but then they do."""
        self.rest_until = -inf
        """Until then no task is passed on."""
        self._back_early: set[int] = set()
        """Tasks that were given back before the parent said that any worker had them."""

    def went(self, task: QueueTask) -> None:
        """It is on its way to the parent."""
        self.tasks[task.sequence] = task

    def answered(self, task: QueueTask) -> bool:
        """The parent has answered, or never will; returns whether the worker that took the task
        there has already given it back."""
        self.tasks.pop(task.sequence, None)
        if task.called and not any(other.called for other in self.tasks.values()):
            self.home_by = -inf  # there is nobody left to wait for
        back = task.sequence in self._back_early
        self._back_early.discard(task.sequence)
        return back

    def given_back_early(self, task: QueueTask) -> None:
        """A worker gave it back sooner than the parent told who has it."""
        self._back_early.add(task.sequence)

    def must_be_awaited(self, now: float) -> bool:
        """There is an offer at home: call those that are away, and return whether to wait for them.

        They are waited for only for a moment, in case the parent does not answer.
        """
        if self._call_home(list(self.tasks.values()), now):
            self._stay_until_max = now + HOME_SECONDS
        return now < self.home_by

    def call_those_behind(self, task: QueueTask, now: float) -> None:
        """The task stands in its line again: those that went after it come back as well."""
        place = task.priority, task.place
        self._call_home(
            [one for one in self.tasks.values() if (one.priority, one.place) > place], now
        )

    def stay(self, now: float) -> None:
        """Tasks find offers at home: if some were called back lately, none goes for a moment."""
        if now < self._stay_until_max:
            self.rest(min(now + STAY_SECONDS, self._stay_until_max))

    def rest(self, until: float) -> None:
        """Let no task go before then."""
        self.rest_until = max(self.rest_until, until)

    def _call_home(self, tasks: Iterable[QueueTask], now: float) -> bool:
        """Whether there are any that were not called yet."""
        called = [task for task in tasks if not task.called]
        for task in called:
            task.called = True
            self._effects.append(RecallTask(task))
        if called:
            self.home_by = now + HOME_SECONDS
        return bool(called)
