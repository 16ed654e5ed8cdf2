"""What can go wrong with a task, and the outcome of each: the table of docs/tasks.md, run for real.

A node, workers and producers are real processes. What the parts do with bad input on their own is
in tests/app and tests/worker.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maitred import errors
from maitred.errors import (
    DeadlineExceeded,
    InvalidArgument,
    InvalidArguments,
    InvalidTaskId,
    NoHandlerFits,
    PayloadTooLarge,
    TaskFailed,
    UnknownChoice,
    UnknownQueue,
    UnknownTask,
)
from maitred.protocol.description import VERSIONS
from maitred.worker import outcomes
from tests.cli.running import MAITRED
from tests.node.nodes import wait_until
from tests.tasks import shop
from tests.tasks.stage import ROOT, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVED = ("failing", "unwritable", "endless", "endless-threads", "orders")
SETTINGS = """
[limits]
payload_bytes = 100000
[queues."*"]
lease_seconds = 2
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), SETTINGS) as made:
        made.start_node(shards=1)
        queues = [part for queue in SERVED for part in ("--queue", queue)]
        made.start_worker("--slots", "2", *queues)
        yield made


def failure(task: Any) -> TaskFailed:  # noqa: ANN401 - of any type
    with pytest.raises(TaskFailed) as caught:
        task.result(20)
    return caught.value


def worker_refuses(*arguments: str) -> str:
    """It exits with 2, and says why."""
    done = subprocess.run(
        [str(MAITRED), "worker", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


# Queues and tasks that are not there


def test_a_task_that_nobody_serves_waits(stage: Stage) -> None:
    task = shop.unserved.sync.enqueue(7)
    with pytest.raises(DeadlineExceeded, match="did not end within"):
        task.result(0.05)
    assert stage.open_tasks("unserved") == 1
    worker = stage.start_worker("--queue", "unserved")
    assert task.result(30) == 7
    assert worker.stop() == 0


def test_a_queue_that_the_app_has_not() -> None:
    said = worker_refuses("tests.tasks.shop:app", "--queue", "order")
    assert "[unknown-choice]" in said
    assert "Did you mean 'orders'?" in said


@pytest.mark.parametrize(
    ("name", "error"),
    [("shop/orders/0/123456", UnknownTask), ("shop/never/0/4294967296", UnknownQueue)],
)
def test_a_task_that_never_was(stage: Stage, name: str, error: type[Exception]) -> None:
    assert stage.open_tasks("orders") == 0
    task = shop.app.sync.task(name)
    with pytest.raises(error):
        task.result(30)
    with pytest.raises(error):
        task.cancel()
    with pytest.raises(InvalidTaskId):
        shop.app.task(name.replace("shop", "elsewhere"))


# Handlers


def test_a_handler_that_raises(stage: Stage) -> None:
    problem = failure(shop.fail.sync.enqueue(5))
    assert (problem.kind, problem.message, problem.attempts) == ("ValueError", "not 5", 2)
    assert "shop.py" in problem.remote_traceback
    assert [x.attempt for x in stage.journal.lines("began") if x.number == 5] == [1, 2]
    (letter,) = stage.admin("dead", "list", "shop/failing")["letters"]
    assert letter["reason"] == "failed"


def test_a_result_that_cannot_be_written(stage: Stage) -> None:
    assert failure(shop.unwritable.sync.enqueue(0)).kind == "unserialisable-result"
    assert failure(shop.unwritable.sync.enqueue(200_000)).kind == "payload-too-large"
    assert stage.measured("unwritable", "failed") == 2


def test_a_handler_that_never_returns(stage: Stage) -> None:
    problem = failure(shop.endless.sync.enqueue(31))
    assert (problem.kind, problem.attempts) == ("timed-out", 1)
    wait_until(lambda: 31 in stage.journal.numbers("cancelled"), "it is cancelled")


def test_a_thread_that_never_returns_keeps_its_slot(stage: Stage, tmp_path: Path) -> None:
    """Told at once, but a thread cannot be stopped: two of them, and the worker is full."""
    gate = tmp_path / "gate"
    tasks = [shop.endless_thread.sync.enqueue(number, str(gate)) for number in (41, 42)]
    assert {failure(task).kind for task in tasks} == {"timed-out"}
    waiting = shop.order.sync.enqueue(43)
    with pytest.raises(DeadlineExceeded):
        waiting.result(0.1)
    gate.touch()
    assert waiting.result(30) == 43
    # Each thread looks at the gate by itself: the slot of one is enough for 43.
    wait_until(lambda: stage.journal.ended() >= {41, 42, 43}, "both threads have ended")


# Arguments


def test_arguments_that_do_not_fit(stage: Stage) -> None:
    before = stage.measured("orders", "added")
    with pytest.raises(InvalidArguments, match="'number' of order does not fit"):
        shop.order.sync.enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="lacks its argument 'number'"):
        shop.order.sync.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="has no parameter 'size'"):
        shop.order.sync.enqueue(1, size=2)  # type: ignore[call-arg]
    assert stage.measured("orders", "added") == before


def test_arguments_that_are_too_large(stage: Stage) -> None:
    with pytest.raises(PayloadTooLarge, match="100,000"):
        shop.big.sync.enqueue(1, "x" * 100_001)
    with pytest.raises(UnknownQueue):  # the node has not even heard of it
        stage.partitions("big")


def test_a_worker_whose_handler_is_older(stage: Stage) -> None:
    worker = stage.start_worker(app="old_shop:app")
    # Who gives no more than the old one knows is understood; who does is refused.
    assert shop.versioned.sync.enqueue(1).result(30) == "1, uncoloured"
    with pytest.raises(NoHandlerFits, match="versioned"):
        shop.versioned.sync.enqueue(2, "blue")
    # A worker was there that takes it; but the old one gets it, and says what does not fit.
    newer = stage.start_worker("--queue", "versioned")
    assert newer.stop() == 0
    problem = failure(shop.versioned.sync.enqueue(2, "blue"))
    assert problem.kind == "invalid-arguments"
    assert "versioned" in problem.message
    assert worker.stop() == 0
    (letter,) = stage.admin("dead", "list", "shop/versioned")["letters"]
    stage.admin("dead", "retry", "shop/versioned", letter["id"], "--yes")
    newer = stage.start_worker("--queue", "versioned")
    assert shop.app.sync.task(f"shop/versioned/{letter['id']}").result(30) == "2 in blue"
    assert newer.stop() == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay": -1}, InvalidArgument),
        ({"delay": math.nan}, InvalidArgument),
        ({"timeout": math.inf}, InvalidArgument),
        ({"priority": 5}, InvalidArgument),
        ({"retries": -1}, InvalidArgument),
        ({"retries": 1.5}, InvalidArgument),
        ({"expires": "soon"}, InvalidArgument),
        ({"backoff": (2, 1)}, InvalidArgument),
        ({"delays": 1}, UnknownChoice),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], error: type[Exception]) -> None:
    (name,) = options
    with pytest.raises(error, match=name):
        shop.order.options(**options)


# Workers


@pytest.mark.parametrize("slots", ["10001", "0", "many"])
def test_slots_that_cannot_be(slots: str) -> None:
    said = worker_refuses("tests.tasks.shop:app", "--slots", slots)
    assert "--slots" in said
    assert "[invalid-setting]" in said


def test_two_workers_with_one_name(stage: Stage, tmp_path: Path) -> None:
    """A name is for people: what counts is drawn at random when a worker starts."""
    gate = tmp_path / "gate"
    options = ("--slots", "1", "--queue", "gated", "--name", "twin")
    twins = [stage.start_worker(*options) for _ in range(2)]
    tasks = [shop.gated.sync.enqueue(number, str(gate)) for number in (61, 62)]

    def running() -> set[int]:
        return {line.pid for line in stage.journal.lines("began") if line.number in (61, 62)}

    wait_until(lambda: running() == {twin.pid for twin in twins}, "each has one")
    (root,) = stage.partitions("gated")
    assert [name for name, _, _ in root.worker_details] == ["twin", "twin"]
    twins[0].kill()
    gate.touch()
    assert [task.result(20) for task in tasks] == [61, 62]
    assert twins[1].stop() == 0


OF_ANOTHER_VERSION = """
import sys
from maitred.protocol import description
description.VERSIONS = (int(sys.argv.pop(1)),)
from maitred.cli.main import run
sys.exit(run())
"""


@pytest.mark.parametrize(("version", "whom"), [(0, "client"), (VERSIONS[-1] + 1, "node")])
def test_a_worker_of_another_protocol_version(stage: Stage, version: int, whom: str) -> None:
    """Whoever speaks only versions that the node does not is told so."""
    arguments = [str(version), "worker", "tests.tasks.shop:app", "--url", stage.url]
    done = subprocess.run(
        [sys.executable, "-c", OF_ANOTHER_VERSION, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "[unsupported-version]" in done.stderr
    assert f"Upgrade the {whom}" in done.stderr


def test_the_page_names_codes_that_exist() -> None:
    """Every code of its table is one of ours, and every error that it names is a class."""
    page = (ROOT / "docs" / "tasks.md").read_text().partition("## What can go wrong")[2]
    rows = re.findall(r"^\| (?!what|---)(.*) \| (.*) \| (.*) ?\|$", page, re.MULTILINE)
    assert len(rows) > 20
    known = {
        one.code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.MaitredError)
    }
    kinds = {outcomes.UNSERIALISABLE, outcomes.TOO_LARGE, "timed-out", "lost"}
    for _, outcome, codes in rows:
        assert set(re.findall(r"`(.*?)`", codes)) <= known | kinds
        for name in re.findall(r"`([A-Z]\w+)`", outcome):
            assert hasattr(errors, name), name
