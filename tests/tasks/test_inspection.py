"""What operators and programs see of tasks and do to them, end to end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    TaskCancelled,
    TaskFailed,
    TaskNotChanged,
    UnknownChoice,
    UnknownTask,
)
from tests.cli.running import maitred, maitred_json
from tests.node.nodes import wait_until
from tests.tasks import shop
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as made:
        made.start_node(shards=2)
        made.start_worker("--name", "ant", "--queue", "failing", "--queue", "gated")
        yield made


def asked(stage: Stage, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return maitred_json("admin", "task", *arguments, "--url", stage.url)


def printed(stage: Stage, *arguments: str) -> str:
    done = maitred("admin", "task", *arguments, "--url", stage.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_task_that_failed_for_good(stage: Stage) -> None:
    began = datetime.now(UTC) - timedelta(minutes=5)  # the clocks are those of one machine
    task = shop.fail.sync.enqueue(7)
    with pytest.raises(TaskFailed):
        task.result(SECONDS)

    status = task.status()
    assert (status.state, status.attempts, status.retries) == ("dead", 2, 0)
    assert (status.error, status.message, status.worker) == ("ValueError", "not 7", "ant")
    assert status.arguments == {"number": 7}
    assert "raise ValueError" in status.traceback
    assert status.ended_at is not None
    assert status.added_at is not None
    assert began < status.added_at <= status.ended_at

    history = task.history()
    assert [(one.what, one.attempt) for one in history] == [
        ("added", 0),
        ("started", 1),
        ("failed", 1),
        ("started", 2),
        ("failed", 2),
        ("dead", 0),
    ]
    assert {one.worker for one in history if one.attempt} == {"ant"}
    assert sorted(history, key=lambda one: one.at) == history
    assert "failed, attempt 2 at ant: ValueError: not 7" in str(history)

    found = [one.id for one in shop.fail.sync.tasks(state="dead", error="valueerror", since=300)]
    assert found == [task.id]
    assert [one.id for one in shop.app.sync.tasks(argument=("number", 7))] == [task.id]
    assert list(shop.app.sync.tasks("failing", until=300)) == []

    shown = printed(stage, "show", task.id)
    assert "ValueError: not 7" in shown
    assert "`maitred admin task retry" in shown
    assert "raise ValueError" in shown

    task.retry("by its handle")
    wait_until(lambda: task.status().attempts == 2 and task.status().state == "dead", "it died")
    counted = shop.app.sync.change_tasks("retry", "failing", error="ValueError", dry_run=True)
    assert (counted.matched, counted.done) == (1, 0)
    assert shop.fail.sync.change_tasks("retry", error="nothing like it").matched == 0
    with pytest.raises(TaskNotChanged, match="run-now: the task is not delayed"):
        task.run_now()
    with pytest.raises(UnknownTask):
        shop.app.sync.task(f"{task.id}7").again()
    with pytest.raises(UnknownChoice):
        shop.fail.sync.change_tasks("resume")  # type: ignore[arg-type]
    other = task.again(8)
    with pytest.raises(TaskFailed, match="not 8"):
        other.result(SECONDS)
    copied = other.again()
    with pytest.raises(TaskFailed, match="not 8"):
        copied.result(SECONDS)
    dropped = shop.fail.sync.change_tasks("drop", argument=("number", 8), reason="no longer needed")
    assert (dropped.done, dict(dropped.left), dropped.added) == (2, {}, {})
    with pytest.raises(TaskNotChanged, match="no dead letter"):
        copied.retry()

    again = asked(stage, "retry", "shop/failing", "--error", "ValueError", "--yes")
    assert (again["matched"], again["done"]) == (1, 1)
    wait_until(lambda: task.status().attempts == 2 and task.status().state == "dead", "it died")
    assert stage.journal.numbers("began").count(7) == 6
    assert asked(stage, "drop", task.id, "--yes")["done"] == 1
    assert asked(stage, "list", "shop/failing", "--state", "dead")["tasks"] == []


def test_a_task_that_runs_is_cancelled(stage: Stage, tmp_path: Path) -> None:
    task = shop.gated.sync.enqueue(31, str(tmp_path / "never"))
    wait_until(lambda: 31 in stage.journal.numbers("began"), "it runs")
    status = task.status()
    assert (status.state, status.worker, status.attempts) == ("running", "ant", 1)
    (row,) = asked(stage, "list", "shop/gated", "--state", "running")["tasks"]
    assert (row["id"], row["worker"]) == (task.id, "ant")
    assert "running at ant" in printed(stage, "show", task.id)
    assert printed(stage, "cancel", task.id) == "1 task cancelled, or told to stop.\n"
    with pytest.raises(TaskCancelled):
        task.result(SECONDS)
    assert task.status().state == "cancelled"
    assert task.history()[-2].what == "cancelled"


def test_a_task_that_no_worker_serves(stage: Stage) -> None:
    task = shop.unserved.sync.enqueue(41)
    assert task.status().state == "waiting"
    assert "no worker serves the queue" in printed(stage, "show", task.id)
    counted = asked(stage, "cancel", "shop/unserved", "--all", "--dry-run")
    assert (counted["matched"], counted["done"]) == (1, 0)
    assert asked(stage, "cancel", "shop/unserved", "--all", "--yes")["done"] == 1
    assert task.status().state == "cancelled"


def test_a_delayed_task_is_run_now_and_a_finished_one_again(stage: Stage) -> None:
    task = shop.order.options(delay=3_600).sync.enqueue(51)
    status = task.status()
    assert status.state == "delayed"
    assert status.due_at is not None
    assert status.due_at - datetime.now(UTC) > timedelta(minutes=50)
    assert asked(stage, "run-now", "shop/orders", "--all", "--yes")["done"] == 1
    worker = stage.start_worker("--queue", "orders")
    assert task.result(SECONDS) == 51
    assert "51" in printed(stage, "show", task.id).split("Result")[1]
    added = asked(stage, "again", task.id)["added"]
    new = shop.order.sync.task(added[task.id])
    assert new.result(SECONDS) == 51
    assert stage.journal.numbers("ended").count(51) == 2
    assert {one.id for one in shop.order.sync.tasks(state="done")} == {task.id, new.id}
    assert worker.stop() == 0
