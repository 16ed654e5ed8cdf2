"""A task as an operator finds it, in a list or by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from maitred.matching.task import QueueTask

Place = tuple[float, int]
"""A place in a list. Running and delayed tasks: a unix time and the number of the task. Ended ones
likewise, counted down. Ready ones: priority and number. Dead letters: 0 and number."""

FIRST: Place = (0.0, 0)

SightedState = Literal[
    "running", "waiting", "delayed", "dead", "done", "cancelled", "expired", "failed"
]
"""`failed`: its dead letter is gone. The others are those of `TaskState` in the protocol."""


class SightedTask(NamedTuple):
    """A task, and where an operator finds it."""

    state: SightedState
    task: QueueTask
    at: Place
    died_at: float = 0.0
    """When a dead letter died, as a unix time."""
    reason: str = ""
    """Why a dead letter died: `failed`, `timed-out` or `lost`; empty for other tasks."""
