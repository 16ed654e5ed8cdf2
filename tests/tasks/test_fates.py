"""What people ask of tasks, end to end: cancel, delay, priority, expiry, dead letters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from maitred.errors import TaskCancelled, TaskExpired, TaskFailed, TaskForgotten, UnknownTask
from tests.node.nodes import wait_until
from tests.tasks import shop
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from maitred.app.handler import Handler

DELAY_SECONDS = 0.5
SETTINGS = """
[queues."*"]
lease_seconds = 60
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), SETTINGS) as made:
        made.start_node(shards=2)
        yield made


def test_cancelling_what_waits(stage: Stage) -> None:
    """Now, or for its time: it is never begun."""
    queued = shop.printed.sync.enqueue(1)
    later = shop.printed.options(delay=3600).sync.enqueue(2)
    kept = shop.printed.sync.enqueue(3)
    assert (queued.cancel(), later.cancel()) == ("cancelled", "cancelled")
    for task in (queued, later):
        with pytest.raises(TaskCancelled):
            task.result(30)
        assert task.cancel() == "cancelled"
    worker = stage.start_worker("--queue", "prints")
    assert kept.result(30) == 3
    assert kept.cancel() == "over"
    assert worker.stop() == 0
    assert stage.open_tasks("prints") == 0
    assert set(stage.journal.numbers("began")) & {1, 2} == set()


@pytest.mark.parametrize("handler", [shop.gated, shop.gated_thread], ids=["async", "thread"])
def test_cancelling_what_runs(
    stage: Stage, tmp_path: Path, handler: Handler[[int, str], int, Any]
) -> None:
    number = 11 if handler.is_async else 12
    worker = stage.start_worker("--queue", handler.queue)
    task = handler.sync.enqueue(number, str(tmp_path / "never"))
    wait_until(lambda: number in stage.journal.numbers("began"), "it runs")
    assert task.cancel() == "cancelling"
    with pytest.raises(TaskCancelled):
        task.result(30)
    wait_until(lambda: number in stage.journal.numbers("cancelled"), "it was stopped")
    assert number not in stage.journal.ended()
    assert worker.stop() == 0


def test_a_delay_is_kept_and_an_expired_task_never_begins(stage: Stage) -> None:
    began = time.time()
    delayed = shop.order.options(delay=DELAY_SECONDS).sync.enqueue(21)
    expiring = shop.order.options(expires=0.05).sync.enqueue(22)
    added = time.time()
    patient = shop.order.options(expires=3600).sync.enqueue(23)
    wait_until(lambda: time.time() > added + 0.1, "its time is over")
    worker = stage.start_worker("--queue", "orders")
    assert delayed.result(30) == 21
    (line,) = [one for one in stage.journal.lines("began") if one.number == 21]
    assert line.at >= began + DELAY_SECONDS
    with pytest.raises(TaskExpired):
        expiring.result(30)
    assert patient.result(30) == 23
    assert 22 not in stage.journal.numbers("began")
    assert worker.stop() == 0


def test_priorities(stage: Stage) -> None:
    """Within each, first in first out."""
    wanted = {
        number: shop.unserved.options(priority=priority).sync.enqueue(number)
        for number, priority in enumerate([4, 2, 0, 2, 4, 1, 3, 0], start=30)
    }
    worker = stage.start_worker("--slots", "1", "--queue", "unserved")
    for number, task in wanted.items():
        assert task.result(30) == number
    order = [number for number in stage.journal.numbers("began") if number in wanted]
    assert order == [32, 37, 35, 31, 33, 36, 30, 34]
    assert worker.stop() == 0


def test_dead_letters(stage: Stage) -> None:
    worker = stage.start_worker("--queue", "failing")
    tasks = [shop.fail.sync.enqueue(number) for number in (41, 42, 43)]
    for task in tasks:
        with pytest.raises(TaskFailed):
            task.result(30)
    letters = stage.admin("dead", "list", "shop/failing")["letters"]
    assert [one["attempts"] for one in letters] == [2, 2, 2]
    shown = stage.admin("dead", "show", "shop/failing", letters[0]["id"])
    assert shown["payload"] == [41]
    assert shown["failure"]["message"] == "not 41"
    before = stage.journal.numbers("began").count(42)
    assert stage.admin("dead", "retry", "shop/failing", letters[1]["id"], "--yes")["done"] == 1
    wait_until(lambda: stage.journal.numbers("began").count(42) == before + 2, "it is tried again")
    assert stage.admin("dead", "drop", "shop/failing", letters[2]["id"], "--yes")["done"] == 1
    wait_until(lambda: stage.measured("failing", "dead") == 2, "one is gone, one is back")
    assert stage.journal.numbers("began").count(43) == 2
    assert worker.stop() == 0


def test_partitions_change_under_load(stage: Stage) -> None:
    """Producers and workers learn of it by themselves; nothing is lost, nothing refused."""
    producer = stage.start_producer()
    workers = [stage.start_worker("--queue", "orders", "--queue", "prints") for _ in range(2)]
    for read, write in ((4, 4), (4, 2), (2, 2), (5, 3)):
        stage.wait_for_more(60)
        if read == 2:
            wait_until(
                lambda: [one.state for one in stage.partitions("orders")[2:]] == ["drained"] * 2,
                "those that go are empty",
            )
        counts = ("--read", str(read), "--write", str(write))
        stage.admin("update-partitions", "shop/orders", *counts)
    wait_until(
        lambda: all(one.added > 0 for one in stage.partitions("orders")[:3]),
        "a producer that began with one partition writes to all three",
    )
    assert producer.stop() == 0
    wait_until(lambda: stage.acknowledged() <= stage.journal.ended(), "all has run")
    assert producer.output.seen == ["ready", "{}"], "nothing was refused"
    assert not {n for n in stage.journal.repeated() if n in stage.acknowledged()}
    assert [worker.stop() for worker in workers] == [0, 0]
    assert stage.open_tasks("orders") == 0
    used = {one.partition for one in stage.journal.lines("began") if "/orders/" in one.task}
    assert used >= {0, 1, 2, 3}


def test_results_are_kept_for_as_long_as_was_asked(stage: Stage) -> None:
    """Whatever becomes of the node meanwhile; those of which nothing was asked, it forgets."""
    worker = stage.start_worker("--queue", "prints")
    kept = shop.printed.options(retention=3600).sync.enqueue(51)
    short = shop.printed.options(retention=59).sync.enqueue(52)
    assert (kept.result(30), short.result(30)) == (51, 52)
    stage.stop_node()
    stage.start_node(shards=2)
    # A handle that has its end asks no node: these ask.
    kept, short = (shop.app.sync.task(task.id) for task in (kept, short))
    assert (kept.result(30), short.result(30)) == (51, 52), "it stopped in order"
    assert (kept.cancel(), short.cancel()) == ("over", "over")
    lost = shop.printed.options(retention=59).sync.enqueue(53)
    assert lost.result(30) == 53
    assert worker.stop() == 0
    stage.kill_node()
    stage.start_node(shards=3)
    assert kept.result(30) == 51
    with pytest.raises(TaskForgotten, match=lost.id):
        shop.app.sync.task(lost.id).result(30)
    with pytest.raises(UnknownTask):
        shop.app.sync.task(f"{lost.id}000").result(30)
    assert [stage.journal.numbers("began").count(n) for n in (51, 52, 53)] == [1, 1, 1]
