"""A node that is started again with another number of shards: nothing is lost, order is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.node.nodes import wait_until
from tests.tasks.shop import order, unserved
from tests.tasks.stage import READY, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.app.handler import Handler
    from tests.tasks.stage import Child

EACH_TIME = 24
BATCHES = 3
SETTINGS = """
[queues."shop/orders"]
partitions = 3
recovery_seconds = 1
[queues."shop/unserved"]
partitions = 2
recovery_seconds = 1
buffer_tasks = 10
offer_seconds = 0.2
forwarding = {offer_wait_seconds = 3600, task_wait_seconds = 3600}
"""
"""Order has exceptions (docs/tasks.md): a task that is away at the parent may be overtaken if the
parent takes more than 20 ms to send it home, which it does on a busy machine. So one of the queues
is worked on at home only; its worker comes round to all partitions."""


def fill(handler: Handler[[int], int, Any], first: int) -> set[int]:
    """One by one and in small batches, so that they are spread over the partitions."""
    numbers = range(first, first + EACH_TIME)
    half = EACH_TIME // 2
    for number in numbers[:half]:
        handler.sync.enqueue(number)
    for batch in range(BATCHES):
        handler.sync.enqueue_many([handler.call(n) for n in numbers[half + batch :: BATCHES]])
    return set(numbers)


def one_by_one(stage: Stage) -> list[Child]:
    """Workers that have one task at a time, and no reason to give one back."""
    return [
        stage.start_worker("--slots", "1", "--queue", name, wait=False)
        for name in ("orders", "unserved")
    ]


def test_another_number_of_shards(tmp_path: Path, store: str | None) -> None:
    added: set[int] = set()
    with Stage(tmp_path, SETTINGS, store=store) as stage:
        for round_, shards in enumerate((4, 1, 3)):
            stage.start_node(shards)
            for place, handler in enumerate((order, unserved)):
                added |= fill(handler, 1_000 * round_ + 100_000 * place)  # type: ignore[arg-type]
            backlog = stage.open_tasks("orders") + stage.open_tasks("unserved")
            assert backlog == len(added) - len(stage.journal.ended())
            if round_ == 0:
                assert stage.stop_node() == 0
            elif round_ == 1:
                # A part of it is done here, and the rest by the next.
                workers = one_by_one(stage)
                stage.wait_for_ended(EACH_TIME)
                for worker in workers:
                    worker.errors.wait_for(READY)
                assert [worker.stop() for worker in workers] == [0, 0]
                stage.kill_node()
        one_by_one(stage)
        wait_until(lambda: stage.journal.ended() == added, "everything is done")
        assert not stage.journal.repeated()
        assert stage.open_tasks("orders") == stage.open_tasks("unserved") == 0
        lines: dict[str, list[int]] = {}
        for line in stage.journal.lines("began"):
            lines.setdefault(line.task.rpartition("/")[0], []).append(line.sequence)
        at_home = [f"shop/unserved/{n}" for n in range(2)]
        assert sorted(lines) == [*(f"shop/orders/{n}" for n in range(3)), *at_home]
        for partition in at_home:
            assert lines[partition] == sorted(lines[partition]), f"{partition} is out of order"
