"""Whether a partition may hand out work: tasks of the store, and slots for queries.

An owner in a cluster may have been replaced without knowing it: its process was stopped for a
while, or it is cut off. It can be sure that no other owner hands out the same tasks while its
node's lease lasts. Afterwards it hands out nothing that another owner might hand out as well. New
tasks, which only this owner knows, still go to workers that wait: the store has no copy of them, so
no other owner has them. If such a task does not end before it has to be written, the commit is
refused and its producer hears that the outcome is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.task import QueueTask


def always() -> bool:
    """Return True: a node that is alone owns its partitions for as long as it runs."""
    return True


class HandOut:
    """Tells the parts of a partition what they may hand out now."""

    __slots__ = ("is_leaving", "is_paused", "is_trusted")

    def __init__(self, is_trusted: Callable[[], bool]) -> None:
        self.is_trusted = is_trusted
        """Returns whether the node's lease still lasts; asked before anything is handed out."""
        self.is_leaving = False
        """Whether the partition is being handed over: it hands out nothing more."""
        self.is_paused = False
        """Whether the queue is paused: its tasks wait, and slots still go to queries."""

    @property
    def withholds(self) -> bool:
        """Whether slots for queries, and tasks that the store has, may not be handed out."""
        return self.is_leaving or not self.is_trusted()

    def allows(self, task: QueueTask) -> bool:
        """Return whether the task may go to a worker or to the parent: none while the queue is
        paused; while the lease is not to be trusted, only a task that no other owner can have. The
        owner of a visitor decides for it."""
        if self.is_leaving or self.is_paused:
            return False
        is_known = task.stored or task.writing or task.maybe_stored
        return task.origin >= 0 or not is_known or self.is_trusted()


def not_trusted() -> Unavailable:
    """Return the error for a request that the partition cannot serve until its node's lease is
    renewed."""
    return Unavailable(
        "The node could not renew its lease in the cluster, so another node may own the partition.",
        remedy="Ask again soon; the node or its successor serves the partition then.",
    )
