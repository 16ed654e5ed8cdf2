"""A paused queue of a real node: its tasks wait through restarts, and other queues are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.errors import DeadlineExceeded
from tests.tasks.shop import app, big, order, printed
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = """
[queues."*"]
partitions = 2
recovery_seconds = 0.0
"""
ORDERS, OTHERS = 20, 10
QUEUES_OF_THE_WORKER = 10


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_one_paused_queue_of_many_on_one_worker(tmp_path: Path, end: str) -> None:
    assert len(app.handlers) >= QUEUES_OF_THE_WORKER
    with Stage(tmp_path, SETTINGS) as stage:
        stage.start_node(shards=2)
        stage.start_worker("--slots", "4")
        assert order.sync.enqueue(1_000).result(30) == 1_000  # the queue exists, and is served
        paused = stage.admin("pause", "shop/orders", "--reason", "a test")
        assert (paused["partitions"], paused["told"]) == (2, 2)
        waiting = [order.sync.enqueue(number) for number in range(ORDERS)]
        for round_ in range(2):
            others = [printed.sync.enqueue(2_000 + number) for number in range(OTHERS)]
            others += [big.sync.enqueue(3_000 + number, "x") for number in range(OTHERS)]
            # Tasks of the other queues came later, and the worker has a slot for each of them.
            for task in others:
                task.result(30)
            began = {line.number for line in stage.journal.lines("began")}
            assert not began & set(range(ORDERS))
            if not round_:
                if end == "killed":
                    stage.kill_node()
                else:
                    assert stage.stop_node() == 0
                stage.start_node(shards=2)
        with pytest.raises(DeadlineExceeded, match="its queue has been paused"):
            waiting[0].result(0.2)
        assert stage.admin("describe", "shop/orders")["controls"]["pause"]["reason"] == "a test"
        stage.admin("resume", "shop/orders")
        assert [task.result(30) for task in waiting] == list(range(ORDERS))
        ran = [line.number for line in stage.journal.lines("began") if line.number < ORDERS]
        assert sorted(ran) == list(range(ORDERS)), "each exactly once"
