"""Stores that are full, or away: producers hear it at once, and it goes on by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from maitred.errors import MaitredError, StoreFull, StoreUnavailable
from tests.node.nodes import wait_until
from tests.store.postgres_server import new_database, running_server
from tests.tasks.shop import big, order
from tests.tasks.stage import READY, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AT_ONCE_SECONDS = 2.0
"""For a refusal, on a machine that is busy with other tests."""
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
