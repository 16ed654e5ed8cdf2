"""Stores that are full, or away: producers hear it at once, and it goes on by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import MaitredError, OutcomeUnknown, StoreFull, StoreUnavailable, TaskFailed
from tests.node.nodes import wait_until
from tests.store.postgres_server import new_database, running_server
from tests.tasks.shop import big, fail, order
from tests.tasks.stage import READY, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

AT_ONCE_SECONDS = 8.0
"""Less than the ten seconds that a refusal takes which has waited for the store."""
DISK_BYTES = 8 * 2**20
ATTEMPTS = 5


def refused(number: int) -> MaitredError | None:
    """What a producer hears, and that he hears it at once; None: it was taken."""
    began = time.monotonic()
    heard: MaitredError | None = None
    try:
        order.sync.enqueue(number)
    except MaitredError as problem:
        heard = problem
    took = time.monotonic() - began
    assert took < AT_ONCE_SECONDS, f"{heard!r} took {took:.1f} s"
    return heard


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    options = f"size={DISK_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("NO FULL DISK IS TESTED HERE: this user may not mount a small one.")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data") as disk, Stage(tmp_path) as stage:
        stage.start_node(shards=1, MAITRED_LIMITS__FREE_DISK_BYTES="0")
        taken = 0
        problem: MaitredError | None = None
        while problem is None:
            assert taken < 1_000, "the disk is not small"
            try:
                big.sync.enqueue(taken, "x" * 100_000)
                taken += 1
            except MaitredError as full:
                problem = full
        assert isinstance(problem, StoreFull), problem
        assert problem.remedy
        assert taken > 10
        # A small task may still fit into what is left; in the end nothing does.
        small = 0
        while refused(10_000 + small) is None:
            small += 1
            assert small < 10_000
        heard = [refused(20_000 + number) for number in range(ATTEMPTS)]
        assert all(isinstance(one, StoreFull) for one in heard), heard

        # Somebody makes room; nobody restarts anything.
        grown = f"remount,size={8 * DISK_BYTES}"
        subprocess.run(["mount", "-o", grown, str(disk)], check=True)
        wait_until(lambda: refused(30_000) is None, "it takes tasks again", 10)
        stage.start_worker()
        expected = {*range(taken), *range(10_000, 10_000 + small), 30_000}
        wait_until(lambda: stage.journal.ended() == expected, "what was taken has run")
        assert not stage.journal.repeated()


def test_a_database_server_that_goes_and_comes(tmp_path: Path) -> None:
    with (
        running_server(str(tmp_path)) as server,
        Stage(tmp_path, store=new_database(server)) as stage,
    ):
        stage.start_node(shards=2)
        tasks = [order.sync.enqueue(number) for number in range(50)]
        server.stop()
        heard = [refused(1_000 + number) for number in range(ATTEMPTS)]
        assert None not in heard
        # The first may have been under way: nobody knows. From then on it is known.
        assert all(isinstance(one, StoreUnavailable) for one in heard[1:]), heard
        # One that comes meanwhile is not ready: no partition can be loaded that would know of it.
        worker = stage.start_worker(wait=False)
        worker.errors.wait_for("the node does not answer; trying again")
        server.start()
        worker.errors.wait_for(READY)
        wait_until(lambda: refused(2_000) is None, "it takes tasks again", 15)
        assert [task.result(20) for task in tasks] == list(range(50))
        wait_until(lambda: 2_000 in stage.journal.ended(), "the new one has run, too")
        assert stage.journal.ended() >= {*range(50), 2_000}
        assert not stage.journal.repeated()
        assert worker.stop() == 0, worker.errors


@contextmanager
def stopped(server: Any) -> Iterator[None]:  # noqa: ANN401 - the package's own class
    """The server is not there."""
    server.stop()
    yield
    server.start()


@contextmanager
def frozen(server: Any) -> Iterator[None]:  # noqa: ANN401 - the package's own class
    """The server and all its processes are stopped where they are: nothing answers, or refuses."""
    first = server.get_pid()
    pids = [first]
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"\nPPid:\t{first}\n" in status.read_text():
                pids.append(int(status.parent.name))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("trouble", [stopped, frozen])
def test_what_producers_hear_while_the_database_server_is_away_is_true(
    tmp_path: Path, trouble: Callable[[Any], AbstractContextManager[None]]
) -> None:
    """With a free worker, which may get tasks that were never written. Nobody waits for his own
    deadline: whoever did would hear `DeadlineExceeded`."""
    with (
        running_server(str(tmp_path)) as server,
        Stage(tmp_path, store=new_database(server)) as stage,
    ):
        stage.start_node(shards=1)
        stage.start_worker()
        for number in range(3):  # both queues are loaded, and short tasks need not be written first
            order.sync.enqueue(number).result(30)
            with pytest.raises(TaskFailed):
                fail.sync.enqueue(number).result(30)
        heard: dict[int, MaitredError | None] = {}
        with trouble(server):
            for number in range(100, 112):
                handler = fail if number % 2 else order
                heard[number] = None
                try:
                    handler.sync.enqueue(number)
                except MaitredError as problem:
                    heard[number] = problem
        assert {type(told) for told in heard.values()} <= {
            type(None),
            OutcomeUnknown,
            StoreUnavailable,
        }, heard
        wait_until(lambda: refused(2_000) is None, "it takes tasks again", 30)
        wait_until(lambda: 2_000 in stage.journal.ended(), "the new one has run")
        began = set(stage.journal.numbers("began"))
        for number, told in heard.items():
            if told is None:
                assert number in began, f"{number} was acknowledged, and never ran"
            elif told.outcome == "nothing":
                assert number not in began, f"{number} ran, and its producer heard {told!r}"


def test_a_shard_that_dies_while_its_store_is_away_waits_for_it(tmp_path: Path) -> None:
    """Otherwise it would die again and again, and take the node with it."""
    with (
        running_server(str(tmp_path)) as server,
        Stage(tmp_path, store=new_database(server)) as stage,
    ):
        stage.start_node(shards=2)
        tasks = [order.sync.enqueue(number) for number in range(20)]
        server.stop()
        for shard in stage.node.shards:
            os.kill(shard.pid, signal.SIGKILL)
        wait_until(
            lambda: str(stage.node.errors).count("waiting for the store") == 2, "both wait", 30
        )
        server.start()
        stage.start_worker()
        assert [task.result(40) for task in tasks] == list(range(20))
