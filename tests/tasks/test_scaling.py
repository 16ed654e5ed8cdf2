"""A queue's partitions follow its load by themselves, and no task is lost over it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tests.node.nodes import wait_until
from tests.tasks import shop
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

MOST = 3
TASKS_PER_SECOND, PAUSE_SECONDS = 100, 0.04
SETTINGS = f"""
[queues."*".scaling]
tasks_per_second = 25
up_after_seconds = 0.5
down_after_seconds = 0.5
down_share = 0.95
look_seconds = 0.3
partitions_max = {MOST}
"""


class Load(threading.Thread):
    """More tasks a second than two partitions should take, until it is stopped.

    Each time as many as are due: where a request takes long there are more in the next one.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.added = 0
        self._enough = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self._enough.wait(PAUSE_SECONDS):
            due = int((time.monotonic() - began) * TASKS_PER_SECOND)
            numbers = range(self.added, due)
            shop.order.sync.enqueue_many([shop.order.call(number) for number in numbers])
            self.added = due

    def stop(self) -> int:
        """How many it has added."""
        self._enough.set()
        self.join(10)
        assert not self.is_alive()
        return self.added


def test_partitions_follow_the_load(tmp_path: Path) -> None:
    with Stage(tmp_path, SETTINGS) as stage:
        stage.start_node(shards=2)
        worker = stage.start_worker("--queue", "orders")
        assert shop.order.sync.enqueue(-1).result(30) == -1
        assert [one.counts.read for one in stage.partitions("orders")] == [1]
        load = Load()
        load.start()
        wait_until(lambda: len(stage.partitions("orders")) == MOST, "it has grown")
        wait_until(
            lambda: all(one.finished > 0 for one in stage.partitions("orders")),
            "tasks come and go in all of them",
        )
        assert shop.order.sync.enqueue(-2).result(30) == -2
        added = load.stop()
        wait_until(lambda: len(stage.partitions("orders")) == 1, "it has shrunk again")
        assert stage.partitions("orders")[0].counts.write == 1
        assert shop.order.sync.enqueue(-3).result(30) == -3
        # Those before it were begun before it, but need not have ended.
        wait_until(lambda: stage.open_tasks("orders") == 0, "the node knows that all have ended")
        assert stage.journal.ended() == {-3, -2, -1, *range(added)}
        assert not stage.journal.repeated()
        grown = [one for one in stage.node.events("partitions changed") if one["write"] > 1]
        assert grown, "by itself"
        assert worker.stop() == 0
