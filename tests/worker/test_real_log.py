"""What an operator reads: the logs of a real node and a real worker whose handlers misbehave."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.errors import TaskFailed
from tests.cli.running import FORKS
from tests.node.nodes import running_node
from tests.worker.test_process import WAIT_SECONDS, RunningWorker, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.forks import Forked

CARD = "4111-1111-2222-3333"

SHOP = """
import asyncio, logging, pathlib, time
from maitred import App

logging.basicConfig(level=logging.DEBUG, format="mine: %(message)s")  # has no effect here
log = logging.getLogger(__name__)
app = App("shop")

@app.handler("charges", retries=1, backoff=0, hide=["card"])
async def charge(order: int, card: str) -> None:
    log.info("charging %s for order %d", card, order, extra={"order": order})
    log.debug("not at this level")
    print("printed as it is", flush=True)
    raise ValueError(f"order {order}: no such card: {card}")

@app.handler("slow", retries=0, timeout=0.2)
async def slow() -> None:
    await asyncio.sleep(3600)

@app.handler("blocking")
async def block() -> str:
    time.sleep(2.0)
    return "unblocked"

@app.handler("threads")
def in_a_thread(order: int) -> str:
    try:
        raise LookupError("nothing there")
    except LookupError:
        log.exception("looked in vain\\nfor it")
    log.warning("%d orders", "many")
    return "looked"

@app.handler("napping", retries=0)
def nap(begun: str) -> None:
    pathlib.Path(begun).touch()
    time.sleep(3600)
"""


class Producer:
    """The same handlers, as a producer has them."""

    def __init__(self, url: str) -> None:
        self.app = app = App("shop", node=url)

        @app.handler("charges", retries=1, backoff=0)
        async def charge(order: int, card: str) -> None: ...

        @app.handler("slow", retries=0, timeout=0.2)
        async def slow() -> None: ...

        @app.handler("blocking")
        async def block() -> str:
            raise NotImplementedError

        @app.handler("threads")
        def in_a_thread(order: int) -> str:
            raise NotImplementedError

        @app.handler("napping", retries=0)
        def nap(begun: str) -> None: ...

        self.charge, self.slow, self.block = charge.sync, slow.sync, block.sync
        self.in_a_thread, self.nap = in_a_thread.sync, nap.sync


def started(place: Path, url: str) -> Forked:
    (place / "shop.py").write_text(SHOP)
    environment = {**os.environ, "MAITRED_URL": url}
    return FORKS.start(
        "worker", "shop:app", "--name", "ant", environment=environment, directory=place
    )


def lines(worker: RunningWorker, event: str, count: int = 1) -> list[dict[str, Any]]:
    """The worker's lines with this event, as soon as there are so many."""
    found = worker.errors.wait_for(f'"event":"{event}', count=count, seconds=WAIT_SECONDS)
    return [json.loads(line) for line in found]


@pytest.mark.timeout(180)
def test_what_goes_wrong_is_in_the_logs(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[queues."*"]\nlease_seconds = 2\n')
    settings = ("--config", str(file))
    data = tmp_path / "data"
    with running_node(*settings, shards=1, data=data) as node, started(tmp_path, node.url) as it:
        port = node.port
        worker = RunningWorker(it)
        worker.ready()
        producer = Producer(node.url)
        with producer.app.sync:
            # A handler that fails: a line for each attempt, one traceback, no card.
            task: Any = producer.charge.enqueue(7, CARD)
            with pytest.raises(TaskFailed, match=r"order 7: no such card: \[hidden\]"):
                task.result(timeout=WAIT_SECONDS)
            first, second = lines(worker, "a task failed", 2)
            assert (first["level"], first["next"]) == ("warning", "retry")
            assert first["attempts_left"] == 1
            assert (second["level"], second["next"]) == ("warning", "dead letter")
            assert [one["task"] for one in (first, second)] == [task.id] * 2
            assert [one["attempt"] for one in (first, second)] == [1, 2]
            assert [one["times"] for one in (first, second)] == [1, 2]
            assert first["failure"] == second["failure"]
            assert (first["queue"], first["handler"]) == ("shop/charges", "charge")
            assert "in charge" in first["exception"]
            assert "exception" not in second
            (dead,) = node.wait_for_event("a task became a dead letter")
            assert (dead["task"], dead["attempts"], dead["error"]) == (task.id, 2, "ValueError")

            # Its own lines, with what they belong to.
            said = lines(worker, "charging", 2)
            assert said[0]["event"] == "charging [hidden] for order 7"
            assert {name: said[0][name] for name in ("level", "logger", "order")} == {
                "level": "info",
                "logger": "shop",
                "order": 7,
            }
            assert [(one["task"], one["attempt"]) for one in said] == [(task.id, 1), (task.id, 2)]
            task = producer.in_a_thread.enqueue(8)
            assert task.result(timeout=WAIT_SECONDS) == "looked"
            (looked,) = lines(worker, "looked in vain")
            assert looked["exception"].endswith("LookupError: nothing there")
            assert (looked["task"], looked["queue"]) == (task.id, "shop/threads")
            (unfit,) = lines(worker, "%d orders")
            assert unfit["format_error"].startswith("TypeError")

            # A timeout, and a handler that blocks the loop.
            task = producer.slow.enqueue()
            with pytest.raises(TaskFailed):
                task.result(timeout=WAIT_SECONDS)
            (late,) = lines(worker, "a task timed out")
            assert (late["task"], late["error"], late["next"]) == (
                task.id,
                "timed-out",
                "dead letter",
            )
            task = producer.block.enqueue()
            assert task.result(timeout=WAIT_SECONDS) == "unblocked"
            (blocked,) = lines(worker, "a handler blocks the event loop")
            assert (blocked["task"], blocked["attempt"]) == (task.id, 1)
            assert "time.sleep(2.0)" in blocked["stack"]

            # The worker is killed while it runs a task.
            begun = tmp_path / "begun"
            task = producer.nap.enqueue(str(begun))
            wait_for(begun)
            it.send_signal(signal.SIGKILL)
            (gone,) = node.wait_for_event("a worker is gone")
            assert (gone["level"], gone["worker"]) == ("warning", "ant")
            assert "shop/napping" in gone["queues"]
            (ended,) = node.wait_for_event("leases ended: their worker was not heard of")
            assert (ended["queue"], ended["tasks"], ended["session"]) == (
                "napping",
                1,
                gone["session"],
            )
            lost = node.wait_for_event("a task became a dead letter", 3)[-1]
            assert (lost["task"], lost["error"]) == (task.id, "lost")

            # It is started again, and the node goes away and returns.
            with started(tmp_path, node.url) as again:
                second_worker = RunningWorker(again)
                second_worker.ready()
                (back,) = node.wait_for_event("a worker is back")
                assert (back["worker"], back["session"] != gone["session"]) == ("ant", True)
                node.stop()
                lines(second_worker, "the node does not answer; trying again")
                with running_node(*settings, shards=1, data=data, port=port):
                    (answers,) = lines(second_worker, "the node answers again")
                    assert answers["seconds"] > 0
                again.terminate()
                again.wait(WAIT_SECONDS)
        written = f"{worker.errors}{second_worker.errors}{node.errors}"
        assert "4111-1" not in written
        assert "not at this level" not in written
        assert "mine:" not in written
        for line in (*worker.errors.seen, *node.errors.seen):
            json.loads(line)
