"""Workers that die, hang, are cut off, or leave in order; and nodes that leave under them."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.node.nodes import wait_until
from tests.tasks.shop import gated, gated_thread, order
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from maitred.app.handler import Handler

SETTINGS = """
[queues."*"]
lease_seconds = {lease_seconds}
recovery_seconds = {recovery_seconds}
"""
runs_once = pytest.mark.parametrize("stage", [(60.0, 60.0)], indirect=True, ids=["long leases"])
"""For tests in which nothing may run twice: these leases end on no machine, however busy."""
TASKS = 8


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    lease, recovery = getattr(request, "param", (1.0, 2.0))
    with Stage(tmp_path, SETTINGS.format(lease_seconds=lease, recovery_seconds=recovery)) as made:
        made.start_node(shards=1)
        yield made


def begun_by(stage: Stage, pid: int) -> set[int]:
    return {line.number for line in stage.journal.lines("began") if line.pid == pid}


@pytest.mark.parametrize("end", ["dies", "hangs"])
def test_a_lost_workers_tasks_are_given_to_another(stage: Stage, tmp_path: Path, end: str) -> None:
    gate = tmp_path / "gate"
    first = stage.start_worker("--slots", str(TASKS), "--queue", "gated")
    tasks = [gated.sync.enqueue(number, str(gate)) for number in range(TASKS)]
    everything = set(range(TASKS))
    wait_until(lambda: begun_by(stage, first.pid) == everything, "the first has all of them")
    second = stage.start_worker("--slots", str(TASKS), "--queue", "gated")
    first.send(signal.SIGKILL if end == "dies" else signal.SIGSTOP)
    wait_until(
        lambda: begun_by(stage, second.pid) == everything,
        "the second has them after the lease",
    )
    gate.touch()
    assert [task.result(30) for task in tasks] == list(range(TASKS))
    if end == "hangs":
        # It wakes up, hears that nothing of it is its own any more, and what it says is too late.
        first.send(signal.SIGCONT)
        told = first.errors
        assert first.stop() == 0, told
    wait_until(lambda: stage.open_tasks("gated") == 0, "nothing is left")
    # Each lost lease is one attempt more. A busy machine may lose some of the second worker's, too.
    lost = stage.measured("gated", "lost")
    repeated = stage.journal.repeated()
    assert repeated.keys() == everything
    assert TASKS <= sum(repeated.values()) - TASKS <= lost
    assert begun_by(stage, first.pid) == begun_by(stage, second.pid) == everything


def test_a_worker_that_wakes_up_stops_what_is_no_longer_its_own(
    stage: Stage, tmp_path: Path
) -> None:
    """Its handlers are cancelled; they need not wait for the gate."""
    gate = tmp_path / "gate"
    first = stage.start_worker("--queue", "gated", "--queue", "gated-threads")
    gated.sync.enqueue(1, str(gate))
    gated_thread.sync.enqueue(2, str(gate))
    wait_until(lambda: begun_by(stage, first.pid) == {1, 2}, "they run")
    first.send(signal.SIGSTOP)
    second = stage.start_worker("--queue", "gated", "--queue", "gated-threads")
    wait_until(lambda: begun_by(stage, second.pid) == {1, 2}, "the other has them")
    first.send(signal.SIGCONT)
    wait_until(
        lambda: (
            {(x.number, x.pid) for x in stage.journal.lines("cancelled")}
            == {(1, first.pid), (2, first.pid)}
        ),
        "the first stops both",
    )
    gate.touch()
    wait_until(lambda: stage.journal.ended() == {1, 2}, "the second ends both")
    assert {line.pid for line in stage.journal.lines("ended")} == {second.pid}


@runs_once
@pytest.mark.parametrize("handler", [gated, gated_thread], ids=["async", "thread"])
def test_a_drained_worker_finishes_what_it_has(
    stage: Stage, tmp_path: Path, handler: Handler[[int, str], int, Any]
) -> None:
    gate = tmp_path / "gate"
    worker = stage.start_worker("--slots", "4")
    tasks = [handler.sync.enqueue(number, str(gate)) for number in range(TASKS)]
    wait_until(lambda: len(begun_by(stage, worker.pid)) == 4, "its slots are full")
    worker.send(signal.SIGTERM)
    worker.errors.wait_for('"stopping: ')
    gate.touch()
    assert worker.wait() == 0, worker.errors
    begun = begun_by(stage, worker.pid)
    assert stage.journal.ended() == begun, "what it began it has ended"
    assert len(begun) == 4, "it took no more"
    other = stage.start_worker("--slots", "4")
    assert [task.result(30) for task in tasks] == list(range(TASKS))
    assert not stage.journal.repeated()
    assert other.stop() == 0


@runs_once
def test_workers_come_and_go_in_order_and_nothing_runs_twice(stage: Stage) -> None:
    """Under load: each is stopped while it is busy, and the next takes its place."""
    producer = stage.start_producer()
    worker = stage.start_worker("--slots", "4")
    for _ in range(3):
        stage.wait_for_more(50)
        following = stage.start_worker("--slots", "4")
        assert worker.stop() == 0, worker.errors
        worker = following
    assert producer.stop() == 0
    wait_until(lambda: stage.acknowledged() <= stage.journal.ended(), "all has run")
    assert producer.output.seen == ["ready", "{}"], "producers notice nothing"
    assert not stage.journal.repeated()


def test_a_second_signal_forces(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = stage.start_worker()
    task = gated_thread.sync.enqueue(1, str(gate))
    wait_until(lambda: bool(stage.journal.lines("began")), "it runs")
    worker.send(signal.SIGINT)
    worker.errors.wait_for('"stopping: ')
    worker.send(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM
    gate.touch()
    stage.start_worker()
    assert task.result(30) == 1, "another one has it after the lease"


@runs_once
def test_the_node_restarts_under_running_tasks(stage: Stage, tmp_path: Path) -> None:
    """What runs goes on, is told to the node that comes back, and is run by nobody else."""
    gate = tmp_path / "gate"
    workers = [stage.start_worker("--slots", "4") for _ in range(2)]
    handles = [gated.sync.enqueue(number, str(gate)) for number in range(TASKS)]
    wait_until(lambda: len(stage.journal.lines("began")) == TASKS, "all run")
    assert stage.stop_node() == 0
    stage.start_node(shards=1)
    # Free slots, and somebody who would run them again if the node did not know better.
    idle = stage.start_worker("--slots", "16")
    wait_until(lambda: stage.measured("gated", "running") == TASKS, "they are known")
    probe = order.sync.enqueue(99)
    assert probe.result(30) == 99
    gate.touch()
    assert [handle.result(30) for handle in handles] == list(range(TASKS))
    assert not stage.journal.repeated()
    wait_until(lambda: stage.open_tasks("gated") == 0, "nothing is left")
    for worker in [*workers, idle]:
        assert worker.stop() == 0, worker.errors


@runs_once
def test_tasks_that_end_while_the_node_is_away_are_told_when_it_is_back(
    stage: Stage, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = stage.start_worker("--slots", str(TASKS))
    handles = [gated.sync.enqueue(number, str(gate)) for number in range(TASKS)]
    wait_until(lambda: len(stage.journal.lines("began")) == TASKS, "all run")
    stage.kill_node()
    gate.touch()
    wait_until(lambda: len(stage.journal.ended()) == TASKS, "all end, and nobody hears of it")
    stage.start_node(shards=1)
    assert [handle.result(30) for handle in handles] == list(range(TASKS))
    wait_until(lambda: stage.open_tasks("gated") == 0, "nothing is left")
    assert not stage.journal.repeated()
    assert worker.stop() == 0, worker.errors


def test_a_worker_that_is_cut_off_gives_its_tasks_back(stage: Stage, tmp_path: Path) -> None:
    """Its way to the node is a relay, which is stopped: nothing arrives, and nothing is refused."""
    gate = tmp_path / "gate"
    relay = stage.start_relay("127.0.0.2")
    far = stage.start_worker("--queue", "gated", "--url", f"maitred://127.0.0.2:{stage.port}")
    task = gated.sync.enqueue(1, str(gate))
    wait_until(lambda: begun_by(stage, far.pid) == {1}, "the far one runs it")
    near = stage.start_worker("--queue", "gated")
    relay.send(signal.SIGSTOP)
    wait_until(lambda: begun_by(stage, near.pid) == {1}, "the near one does")
    gate.touch()
    assert task.result(30) == 1
    wait_until(lambda: len(stage.journal.lines("ended")) == 2, "the far one ends it, too")
    relay.send(signal.SIGCONT)  # and says so, which is too late, and harmless
    assert far.stop() == 0, far.errors
    (stopped,) = far.errors.wait_for('"worker has stopped"')
    # Once for the attempt that it had, and once more if an offer of its own, not older than the
    # lease, was still waiting when that attempt was given up: then the next one went to it, too.
    assert json.loads(stopped)["late"] in (1, 2)
    assert stage.open_tasks("gated") == 0
