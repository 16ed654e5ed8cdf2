"""A task that is over is shown after everything was killed, where its queue asks for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.monitor.scraping import scrape
from tests.node.nodes import wait_until
from tests.tasks import shop
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.app.task import SyncTask

SECONDS = 60


def events(task: SyncTask[Any]) -> list[tuple[object, ...]]:
    """What the history of the task says, but for the moments."""
    return [(one.what, one.attempt, one.worker, one.by, one.error) for one in task.history()]


def test_what_ended_is_shown_after_the_node_was_killed(tmp_path: Path) -> None:
    """Where the queue asks for it, once it is stored: the metric says so."""
    with Stage(tmp_path, '[queues."*".history]\nstored = true\n') as stage:
        node = stage.start_node(shards=2)
        worker = stage.start_worker("--queue", "orders")
        task = shop.order.sync.enqueue(61)
        assert task.result(SECONDS) == 61
        worker.kill()
        cancelled = shop.order.sync.enqueue(62)
        assert cancelled.cancel() == "cancelled"
        before = [events(one) for one in (task, cancelled)]

        def stored() -> float:
            page = scrape(str(node.ready["monitor"]))
            return page.value("maitred_store_history_tasks_total", outcome="stored")

        wait_until(lambda: stored() == 2, "both are stored")
        stage.kill_node()
        stage.start_node(shards=2)
        found = shop.order.sync.tasks(state="ended", argument=("number", 61))
        assert [one.id for one in found] == [task.id]
        assert (task.status().state, task.status().arguments["number"]) == ("done", 61)
        assert cancelled.status().state == "cancelled"
        assert [events(one) for one in (task, cancelled)] == before
