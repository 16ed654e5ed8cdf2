"""Checks how the tasks of a run ended: on the disk, in the memory of nodes, and in the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import msgpack

from maitred.matching.controls import CONTROLS_ROW
from maitred.matching.stored_history import decode_history
from maitred.matching.task_ends import decode_ended
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.record import until_nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.simulation.scenarios.simulated_node import SimulatedNode
    from maitred.simulation.scenarios.tasks_record import TasksRecord
    from maitred.simulation.store import SimulatedDisk


HISTORY_SPARE_SECONDS: Final = 30.0
"""Time for the nodes to stop, in which nothing that is checked expires."""

TaskPlace = tuple[str, int, int]
"""Queue, partition and number of a task."""


class TasksEnd:
    """Looks at nodes and their disk from outside of the world, when it is calm."""

    def __init__(
        self, record: TasksRecord, disk: SimulatedDisk, nodes: Sequence[SimulatedNode]
    ) -> None:
        self._record = record
        self._disk = disk
        self._nodes = nodes

    async def until_over(self, seconds: float) -> None:
        """Wait until every task that the nodes have is over, in memory and on disk."""

        def left() -> list[object]:
            found = self._left()
            if found:
                self._record.check()
            return found

        await until_nothing(left, f"After {seconds} s of calm this is left", seconds)

    def _left(self) -> list[object]:
        left: list[object] = []
        for key, found in self._disk.contents.all().items():
            if found.backlog or any(found.segments) or found.marks or found.later:
                left.append(
                    (
                        f"on disk, partition {key.partition}, backlog {found.backlog}",
                        [sorted(line) for line in found.segments],
                        sorted(found.marks),
                        sorted(found.later),
                    )
                )
        for partitions in [one for node in self._nodes for one in node.partitions()]:
            # Producers may have left, and their tasks are added as soon as it is there.
            left += [f"partition {key.partition} is being loaded" for key in partitions.loading]
            for owned in partitions.owned.values():
                partition = owned.partition
                own = partition.own_tasks
                if own.open_tasks or own.tasks or partition.ledger.stored:
                    left.append(
                        f"in memory, partition {partition.key.partition}: {own.open_tasks} "
                        f"open, {[(t.sequence, t.state.name) for t in own.tasks.values()]}, "
                        f"{partition.ledger.stored} stored"
                    )
        return left

    def check_stories(self, *, lost: bool) -> int:
        """Check the end of every acknowledged task, and return how many there are. With `lost` a
        task that was over before it had to be stored may have left no trace."""
        self._record.check()
        dead = {
            (key.queue, key.partition, sequence)
            for key, found in self._disk.contents.all().items()
            for sequence in found.dead
        }
        told = {
            (key.queue, key.partition, sequence): decode_ended(result.body)
            for key, found in self._disk.contents.all().items()
            for sequence, result in found.results.items()
            if result.body and sequence > CONTROLS_ROW  # else it is a task that is tried again
        }
        history = self._history()
        acknowledged = 0
        for story in self._record.stories:
            if story.place is None:
                continue
            acknowledged += 1
            place = (story.queue, *story.place)
            status, _, body = told.get(place, ("", 0, b""))
            if status == "failed" and place not in dead:
                raise self._record.violation(story, "has failed, and no dead letter says so")
            ends = {status} if status else set()
            if place in dead:
                ends.add("failed")
            if ends and place in history:  # a result that was lost is forgotten, whatever it was
                ends.add(history[place])
            self._record.ends(story, ends, lost=lost)
            if status == "done" and msgpack.decode(body) != story.number:
                raise self._record.violation(story, f"has the forged result {body!r}")
        return acknowledged

    def _history(self) -> dict[TaskPlace, str]:
        """Return how tasks ended, as the histories on the disk tell it."""
        return {
            (key.queue, key.partition, one.record.sequence): one.status
            for key, found in self._disk.contents.all().items()
            for number, row in found.results.items()
            if number < 0 and row.body
            for one in decode_history(row.body).ended
        }

    def history_in_memory(self) -> dict[TaskPlace, str]:
        """Return how tasks ended that partitions keep in memory and are to have in the store."""
        return {
            (key.queue, key.partition, task.sequence): task.status
            for node in self._nodes
            for partitions in node.partitions()
            for key, owned in partitions.owned.items()
            if owned.partition.settings.history.stored
            for task in owned.partition.ended_tasks.last_first(
                partitions.loop.time() + HISTORY_SPARE_SECONDS
            )
        }

    def check_history(self, before: dict[TaskPlace, str]) -> None:
        """Check that the disk has what memory had before the nodes stopped in order."""
        missing = before.items() - self._history().items()
        if missing:
            raise Violation(f"These are in no history: {sorted(missing)}")

    def held(self) -> list[object]:
        """Return what the nodes still hold of clients that have left."""
        left = [one for node in self._nodes for one in node.held_by_shards()]
        for partitions in [one for node in self._nodes for one in node.partitions()]:
            for owned in partitions.owned.values():
                partition = owned.partition
                held = (
                    partition.offers.free,
                    partition.tree.offers_away,
                    partition.tree.tasks_away,
                    len(partition.own_tasks.leases),
                    len(partition.results.tokens()),
                    len(owned.asked),
                    partition.backlog.ready,
                )
                if any(held):
                    left.append((owned.key.partition, held))
        return left
