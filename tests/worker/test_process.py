"""`maitred worker` as people run it: real processes, a real node, signals."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.errors import TaskFailed
from tests.cli.running import FORKS
from tests.node.nodes import Lines, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.forks import Forked

SHOP = """
import asyncio, pathlib, time
from maitred import App

app = App("shop")

@app.handler("thumbnails", retries=0)
async def thumbnail(url: str, size: int) -> str:
    if size < 0:
        raise ValueError("too small")
    return f"{url}@{size}"

@app.handler("napping", retries=0)
def nap(begun: str, end: str) -> str:
    pathlib.Path(begun).touch()
    while not pathlib.Path(end).exists():
        time.sleep(0.01)
    return "rested"
"""

WAIT_SECONDS = 30


class RunningWorker:
    def __init__(self, process: Forked) -> None:
        self.process = process
        self.errors = Lines()
        self.reader = threading.Thread(
            target=self.errors.follow, args=(process.stderr,), daemon=True
        )
        self.reader.start()

    def ready(self) -> dict[str, Any]:
        (line,) = self.errors.wait_for("worker is ready", seconds=WAIT_SECONDS)
        found: dict[str, Any] = json.loads(line)
        return found

    def wait(self) -> int:
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def running_worker(place: Path, *options: str, url: str = "") -> Iterator[RunningWorker]:
    (place / "shop.py").write_text(SHOP)
    environment = {name: value for name, value in os.environ.items() if name != "MAITRED_URL"}
    if url:
        environment["MAITRED_URL"] = url
    with FORKS.start("worker", *options, environment=environment, directory=place) as process:
        worker = RunningWorker(process)
        try:
            yield worker
        finally:
            process.kill()
            worker.reader.join(WAIT_SECONDS)  # before the stream is closed under it


def the_app(url: str) -> tuple[App, Any, Any]:
    app = App("shop", node=url)

    @app.handler("thumbnails", retries=0)
    async def thumbnail(url: str, size: int) -> str:
        raise NotImplementedError

    @app.handler("napping", retries=0)
    def nap(begun: str, end: str) -> str:
        raise NotImplementedError

    return app, thumbnail.sync, nap.sync


def wait_for(path: Path) -> None:
    from tests.node.nodes import wait_until

    wait_until(path.exists, f"{path.name} to appear")


def test_a_worker_works_and_leaves_in_order(tmp_path: Path) -> None:
    with (
        running_node(shards=2) as node,
        running_worker(tmp_path, "shop:app", url=node.url) as worker,
    ):
        ready = worker.ready()
        assert ready["queues"] == ["thumbnails", "napping"]
        assert ready["slots"] == 32
        app, thumbnail, nap = the_app(node.url)
        with app.sync:
            assert thumbnail.enqueue("u", size=3).result(timeout=20) == "u@3"
            with pytest.raises(TaskFailed, match="ValueError: too small") as caught:
                thumbnail.enqueue("u", size=-3).result(timeout=20)
            assert "shop.py" in caught.value.remote_traceback
            (line,) = worker.errors.wait_for("a task failed")
            told = json.loads(line)
            assert (told["queue"], told["handler"]) == ("shop/thumbnails", "thumbnail")
            assert (told["error"], told["message"]) == ("ValueError", "too small")
            assert "shop.py" in told["exception"]
            resting = nap.enqueue(str(tmp_path / "begun"), str(tmp_path / "end"))
            wait_for(tmp_path / "begun")
            worker.process.send_signal(signal.SIGTERM)
            worker.errors.wait_for("stopping")
            (tmp_path / "end").touch()
            assert resting.result(timeout=20) == "rested"
        assert worker.wait() == 0
        (line,) = worker.errors.wait_for("worker has stopped")
        assert json.loads(line)["done"] == 2


def test_a_second_signal_forces(tmp_path: Path) -> None:
    with (
        running_node(shards=1) as node,
        running_worker(tmp_path, "shop:app", "--node", node.url, "--queue", "napping") as worker,
    ):
        assert worker.ready()["queues"] == ["napping"]
        app, _, nap = the_app(node.url)
        with app.sync:
            nap.enqueue(str(tmp_path / "begun"), str(tmp_path / "never"))
        wait_for(tmp_path / "begun")
        worker.process.send_signal(signal.SIGTERM)
        worker.errors.wait_for("stopping")
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait() == 130


def test_a_thread_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    with (
        running_node(shards=1) as node,
        running_worker(tmp_path, "shop:app", "--drain-seconds", "0.1", url=node.url) as worker,
    ):
        worker.ready()
        app, _, nap = the_app(node.url)
        with app.sync:
            nap.enqueue(str(tmp_path / "begun"), str(tmp_path / "never"))
        wait_for(tmp_path / "begun")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == 4


def test_a_worker_waits_for_its_node_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    with running_worker(tmp_path, "shop:app", url="maitred://127.0.0.1:1?connect_seconds=0.1") as (
        worker
    ):
        worker.errors.wait_for("no node answers yet")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["shop"], "cannot-load"),
        (["shop:apps"], "It has shop:app."),
        (["nowhere:app"], "There is no module 'nowhere'"),
        (["shop:app", "--slots", "0"], "slots"),
        (["shop:app", "--slots", "many"], "slots"),
        (["shop:app", "--drain-seconds", "-1"], "drain_seconds"),
        (["shop:app", "--queue", "thumbnail"], "Did you mean 'thumbnails'?"),
        (["shop:app", "--node", "http://x"], "invalid-address"),
        (["shop:app", "--name", "n" * 201], "--name"),
        (["shop:app", "--log-level", "loud"], "loud"),
        (["shop:app", "--listen-port", "70000"], "--listen-port"),
    ],
)
def test_what_is_typed_wrong_is_said_in_words(
    tmp_path: Path, options: list[str], words: str
) -> None:
    with running_worker(tmp_path, *options) as worker:
        assert worker.wait() == 2
        worker.errors.wait_for_end()
        assert words in str(worker.errors)
        assert "Traceback" not in str(worker.errors)
