"""Health, readiness and metrics of real nodes and workers, while all is well and otherwise."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maitred.metrics import families
from maitred.metrics.busiest import REST
from tests.monitor.scraping import get, lint, parsed, scrape
from tests.node.nodes import is_alive, wait_until
from tests.store.postgres_server import new_database, running_server
from tests.tasks.blocking_shop import app as blocking_app
from tests.tasks.blocking_shop import block
from tests.tasks.shop import app, endless, fail, gated, order, printed, unserved
from tests.tasks.stage import READY, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.metrics.exposition import Family
    from tests.tasks.stage import Child

SERVED = ("orders", "prints", "gated", "failing", "endless")
"""The queues of a worker that serves many."""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Any]:
    base = tmp_path_factory.getbasetemp()
    with running_server(str(base if worker_id == "master" else base.parent)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A node of two shards, with each store."""
    store = None
    if request.param == "postgres":
        store = new_database(request.getfixturevalue("postgres"))
    with Stage(tmp_path, store=store) as stage:
        stage.start_node(shards=2)
        yield stage


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Stage]:
    """A node of two shards."""
    with Stage(tmp_path) as stage:
        stage.start_node(shards=2)
        yield stage


def monitor(stage: Stage) -> str:
    return str(stage.node.ready["monitor"])


def pages(worker: Child) -> str:
    """Where the worker's pages are, as its log says."""
    line = worker.errors.wait_for(READY)[-1]
    return str(json.loads(line)["monitor"])


def is_ready(url: str) -> bool:
    return get(f"{url}/ready")[0] == 200


def failed(task: Any) -> None:  # noqa: ANN401 - of any handler
    with pytest.raises(Exception, match=r"."):
        task.result(timeout=60)


def test_what_happens_to_tasks_is_counted(stage: Stage, tmp_path: Path) -> None:
    """Ten things that happen, each in its own metric; many queues on one worker."""
    worker = stage.start_worker(*(word for queue in SERVED for word in ("--queue", queue)))
    node, at_worker = monitor(stage), pages(worker)
    for number in range(20):
        assert order.sync.enqueue(number).result(timeout=60) == number
    assert printed.sync.enqueue(1).result(timeout=60) == 1
    failed(fail.sync.enqueue(1))
    failed(endless.sync.enqueue(1))
    gate = tmp_path / "gate"
    open_task = gated.sync.enqueue(1, str(gate))
    waiting = [unserved.sync.enqueue(number) for number in range(3)]
    delayed = order.options(delay=3_600).sync.enqueue(7)
    wait_until(lambda: "began 1" in stage.journal.path.read_text(), "all have begun")
    wait_until(
        lambda: scrape(node).value(families.RUNNING.name, queue="gated") == 1, "one task runs"
    )
    _, text = get(f"{node}/metrics")
    lint(text)
    found = parsed(text)

    def of(family: Family, queue: str, **labels: str) -> float:
        return found.value(family.name, namespace="shop", queue=queue, **labels)

    assert of(families.ADDED, "orders") == 21
    assert of(families.ENDED, "orders", status="done") == 20
    assert of(families.DELAYED, "orders") == 1
    assert of(families.BACKLOG, "unserved") == 3
    assert of(families.OLDEST, "unserved") > 0
    assert of(families.SLOTS_FREE, "unserved") == 0
    assert of(families.SLOTS_FREE, "orders") > 0
    assert of(families.RETRIES, "failing") == 1
    assert of(families.ATTEMPTS_FAILED, "failing", cause="failed") == 2
    assert of(families.DEAD_LETTERS, "failing") == 1
    assert of(families.ENDED, "failing", status="failed") == 1
    assert of(families.ATTEMPTS_FAILED, "endless", cause="timed-out") == 1
    assert of(families.SLOTS_WANTED, "gated") >= 1
    assert of(families.SLOTS_WANTED, "unserved") > 0
    assert found.value("maitred_queue_wait_seconds_count", queue="orders") == 20
    assert found.value("maitred_queue_run_seconds_count", queue="orders") == 20
    assert found.value("maitred_queue_run_seconds_sum", queue="endless") >= 0.2
    assert found.value("maitred_partition_backlog_tasks", queue="unserved") == 3
    assert found.value("maitred_store_commits_total", outcome="done") > 0
    assert found.value("maitred_store_commit_rows_sum") > 0
    assert found.value("maitred_queues_summed") == 0
    assert found.value("maitred_process_memory_bytes", process="shard-0") > 2**20
    assert found.value("maitred_node_ready") == 1
    if stage.store is not None:  # a cluster of one node
        assert found.value("maitred_cluster_members", state="active") == 1

    _, text = get(f"{at_worker}/metrics")
    lint(text)
    mine = parsed(text)
    assert mine.value("maitred_worker_run_seconds_count", queue="orders") == 20
    assert mine.value("maitred_worker_queue_running", queue="gated") == 1
    assert mine.value("maitred_worker_slots_busy") == 1
    assert mine.value("maitred_worker_slots_limit") >= 1
    assert mine.value("maitred_worker_ended_total", outcome="timed-out") == 1
    assert mine.value("maitred_worker_ended_total", outcome="failed") == 2

    gate.touch()
    open_task.result(timeout=60)
    for one in (*waiting, delayed):
        one.cancel()
    assert scrape(node).value("maitred_queue_tasks_ended_total", status="cancelled") == 4


def test_a_shard_that_hangs_is_named_and_delays_no_page_for_long(plain: Stage) -> None:
    node = monitor(plain)
    assert is_ready(node)
    hung = plain.node.shards[1].pid
    os.kill(hung, signal.SIGSTOP)
    try:
        status, body = get(f"{node}/ready")
        assert status == 503
        assert json.loads(body)["problems"] == ["Shard 1 does not answer."]
        found = scrape(node)
        assert found.value("maitred_process_up", process="shard-1") == 0
        assert found.value("maitred_process_up", process="shard-0") == 1
        assert found.value("maitred_node_ready") == 0
        assert found.value("maitred_shard_requests_total", shard="0") >= 0
        assert not found.values("maitred_shard_requests_total", shard="1")
        assert get(f"{node}/health")[0] == 200
    finally:
        os.kill(hung, signal.SIGCONT)
    wait_until(lambda: is_ready(node), "the shard answers again", 60)


def test_a_shard_that_dies_is_counted_and_the_node_lives(plain: Stage) -> None:
    node = monitor(plain)
    os.kill(plain.node.shards[0].pid, signal.SIGKILL)
    wait_until(
        lambda: scrape(node).value("maitred_process_restarts_total", process="shard-0") == 1,
        "it is started again",
        60,
    )
    assert get(f"{node}/health")[0] == 200
    wait_until(lambda: is_ready(node), "it serves again", 60)


def test_a_worker_without_its_node_is_alive_and_not_ready(plain: Stage) -> None:
    worker = plain.start_worker("--queue", "orders")
    url = pages(worker)
    wait_until(lambda: is_ready(url), "the node knows it")
    plain.kill_node()
    wait_until(lambda: not is_ready(url), "it has noticed")
    status, body = get(f"{url}/ready")
    assert status == 503
    assert "no connection" in body
    assert get(f"{url}/health")[0] == 200
    assert scrape(url).value("maitred_worker_ready") == 0
    plain.start_node(shards=2)
    wait_until(lambda: is_ready(url), "the node is back", 60)


def test_a_worker_answers_before_it_has_found_a_node(plain: Stage) -> None:
    plain.kill_node()
    worker = plain.start_worker("--queue", "orders", "--monitor-port", "0", wait=False)
    line = worker.errors.wait_for("no node answers yet")[0]
    assert worker.process.poll() is None, line
    plain.start_node(shards=2)
    assert is_ready(pages(worker))


def test_a_worker_that_drains_is_not_ready(plain: Stage, tmp_path: Path) -> None:
    worker = plain.start_worker("--queue", "gated")
    url = pages(worker)
    gate = tmp_path / "gate"
    task = gated.sync.enqueue(1, str(gate))
    wait_until(lambda: scrape(url).value("maitred_worker_slots_busy") == 1, "it runs")
    worker.send(signal.SIGTERM)
    wait_until(lambda: not is_ready(url), "it drains")
    assert json.loads(get(f"{url}/ready")[1])["state"] == "stopping"
    assert get(f"{url}/health")[0] == 200
    gate.touch()
    assert task.result(timeout=60) == 1
    assert worker.wait() == 0


def test_a_blocked_loop_does_not_block_the_pages(plain: Stage) -> None:
    """A worker whose handler blocks the loop is alive and says so; it is not to be killed."""
    worker = plain.start_worker("--queue", "blocking", app="blocking_shop:app")
    url = pages(worker)
    blocking_app.node = plain.url
    task = block.sync.enqueue(str(plain.directory / "gate"))
    wait_until(lambda: scrape(url).value("maitred_worker_slots_busy") == 1, "it blocks")
    wait_until(lambda: scrape(url).value("maitred_worker_blocked_total") >= 1, "that is noticed")
    assert get(f"{url}/health")[0] == 200
    (plain.directory / "gate").touch()
    task.result(timeout=60)
    assert scrape(url).value("maitred_loop_lag_seconds_sum") > 0.5
    blocking_app.sync.close()


def test_hostile_names_of_queues_are_only_labels(plain: Stage) -> None:
    from maitred import App

    hostile = ('x"} 1 # TYPE evil', "<script>alert(1)</script>", "back\\slash")
    other = App('na"me', node=plain.url)
    for name in hostile:

        @other.handler(name)
        async def serve() -> None: ...

        serve.sync.enqueue()
    other.sync.close()
    _, text = get(f"{monitor(plain)}/metrics")
    lint(text)
    found = parsed(text)
    names = {dict(labels)["queue"] for labels in found.values("maitred_queue_backlog_tasks")}
    assert set(hostile) <= names
    assert found.families() <= {family.name for family in families.NODE}


def test_the_monitoring_port_of_a_node_can_be_set_and_left_out(tmp_path: Path) -> None:
    with Stage(tmp_path, "[monitor]\nenabled = false\n") as stage:
        stage.start_node(shards=1)
        assert stage.node.ready["monitor"] is None


def test_queues_beyond_the_limit_are_summed(tmp_path: Path) -> None:
    settings = "[monitor]\nqueues = 2\npartitions = 1\n"
    with Stage(tmp_path, settings) as stage:
        stage.start_node(shards=1)
        node = monitor(stage)
        enqueues: tuple[Any, ...] = (order.sync, printed.sync, unserved.sync, fail.sync)
        for number, handler in enumerate(enqueues):
            for _ in range(10 - number):
                handler.enqueue(number)
        found = scrape(node)
        assert found.value("maitred_queues_named") == 2
        assert found.value("maitred_queues_summed") == 2
        assert found.value("maitred_queue_backlog_tasks", queue=REST) == 8 + 7
        assert found.value("maitred_queue_tasks_added_total") == 34
        assert len(found.values("maitred_partition_backlog_tasks")) == 1


def test_a_worker_can_do_without_pages(plain: Stage) -> None:
    worker = plain.start_worker("--queue", "orders", "--monitor-host", "none")
    assert "monitor" not in json.loads(worker.errors.wait_for(READY)[-1])
    app.node = plain.url
    assert order.sync.enqueue(3).result(timeout=60) == 3
    assert is_alive(worker.pid)
    assert re.search(r"maitred-monitor", _threads(worker.pid)) is None


def _threads(pid: int) -> str:
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm"))
