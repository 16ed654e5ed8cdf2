"""What a change of many tasks has come to so far, in numbers and with some ids."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from maitred.client.task_rows import place_text

if TYPE_CHECKING:
    from maitred.client.answers import Silent
    from maitred.client.task_changes import Place, TasksChange
    from maitred.routing.names import QueueId

TOLD_MAX: Final = 1_000
"""Ids that are kept, of tasks that were left or added; the numbers count all."""


class ChangedTasks:
    """Adds up the answers to the requests of one change."""

    def __init__(self) -> None:
        self.matched = 0
        """Tasks that were named, or passed the filter."""
        self.done = 0
        """Tasks to which it was done, those that are being stopped included."""
        self.left: Counter[str] = Counter()
        """Tasks to which it was not done, by the reason: `over`, `running`, `waiting`, `delayed`,
        `not-delayed`, `not-dead`, `forgotten`, `unknown`, `read-only`, or the code of an error."""
        self.left_ids: dict[str, str] = {}
        """The reason by the id of the task; of the first thousand tasks."""
        self.added: dict[str, str] = {}
        """For `again`: the id of the new task by that of the old one; the first thousand."""
        self.silent: dict[str, Silent] = {}
        """Why partitions did not answer, by their names. What was done there is not known."""

    def __repr__(self) -> str:
        left = "".join(f", {number:,} {why}" for why, number in self.left.items())
        return f"<ChangedTasks {self.done:,} of {self.matched:,} done{left}>"

    def add(self, queue: QueueId, changed: TasksChange) -> None:
        """Add what one request came to."""
        prefix = f"{queue.namespace}/{queue.queue}"

        def name(place: Place) -> str:
            return f"{prefix}/{place_text(place)}"

        self.done += len(changed.done)
        self.left.update(changed.left.values())
        for place, why in changed.left.items():
            if len(self.left_ids) < TOLD_MAX:
                self.left_ids[name(place)] = why
        for old, new in changed.added.items():
            if len(self.added) < TOLD_MAX:
                self.added[name(old)] = name(new)
        self.silent.update({f"{prefix}/{at}": why for at, why in changed.silent.items()})
