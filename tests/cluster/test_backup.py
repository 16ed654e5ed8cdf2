"""A cluster goes on from a backup of its database, as docs/cluster.md says."""

from __future__ import annotations

import asyncio
import re
import subprocess
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from maitred.app.app import App
from maitred.errors import TaskForgotten
from tests.cluster.ledger import NAMESPACE
from tests.cluster.rig import ROOT, Rig, RigNode
from tests.cluster.shop import work
from tests.node.nodes import wait_until
from tests.store.postgres_server import new_database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEFORE, AFTER = range(1, 9), range(11, 14)
SECONDS = 90.0
"""The longest wait for anything, on a machine that runs other tests at the same time."""


def test_a_cluster_goes_on_from_a_backup(
    tmp_path: Path,
    store: str,
    postgres_server: Any,  # noqa: ANN401 - the package's own class
) -> None:
    dump, programs = tmp_path / "maitred.dump", postgres_server.bin_path
    with Rig(tmp_path / "before", store, queues=1) as rig:
        rig.start_nodes(1)
        port = rig.nodes[0].port
        asyncio.run(enqueued(rig, BEFORE))
        dump.write_bytes(printed(programs / "pg_dump", "--format=custom", f"--dbname={store}"))
        # A next owner after the backup, and after the restoration, would give the same numbers.
        assert rig.nodes[0].drain() == 0, rig.nodes[0].log
        rig.nodes[0].start()
        late = asyncio.run(enqueued(rig, AFTER))
        rig.start_worker()
        wait_until(lambda: begun(rig) == [*BEFORE, *AFTER], "all have run", SECONDS)
        assert rig.nodes[0].drain() == 0, rig.nodes[0].log

    restored = new_database(postgres_server)
    printed(programs / "pg_restore", "--exit-on-error", f"--dbname={restored}", str(dump))
    asyncio.run(execute(restored, statements_of_the_guide()))
    with Rig(tmp_path / "after", restored, queues=1) as rig:
        # The backup remembers a node at this address as active; the new one takes its place.
        rig.nodes.append(RigNode(rig, 0))
        rig.nodes[0].port = port
        rig.nodes[0].start()
        rig.start_nodes(1)
        # The number of a task that the backup does not have means no other task.
        asyncio.run(forgotten(rig, late))
        new = asyncio.run(enqueued(rig, AFTER))
        assert not {*late} & {*new}
        asyncio.run(forgotten(rig, late))
        rig.start_worker()
        wait_until(lambda: begun(rig) == [*BEFORE, *AFTER], "all have run again", SECONDS)


def statements_of_the_guide() -> str:
    """What operators are told to execute after they have restored a database."""
    guide = (ROOT / "docs" / "running.md").read_text()
    (found,) = re.findall(r"After restoring one, .*?```sql\n(.*?)```", guide, re.DOTALL)
    return str(found)


def printed(program: Path, *options: str) -> bytes:
    """Run a program; what it prints."""
    done = subprocess.run([program, *options], capture_output=True, check=False, timeout=SECONDS)
    assert not done.returncode, done.stderr.decode()
    return done.stdout


async def execute(location: str, statements: str) -> None:
    connection = await asyncpg.connect(location)
    await connection.execute(statements)
    await connection.close()


async def enqueued(rig: Rig, numbers: Sequence[int]) -> list[str]:
    """Add a task for each number; their ids."""
    async with App(NAMESPACE, node=rig.url) as app:
        handler = app.handler("q0")(work)
        return [str((await handler.enqueue(number)).id) for number in numbers]


async def forgotten(rig: Rig, ids: Sequence[str]) -> None:
    async with App(NAMESPACE, node=rig.url) as app:
        for one in ids:
            with pytest.raises(TaskForgotten):
                await app.task(one).result(timeout=SECONDS)


def begun(rig: Rig) -> list[int]:
    """The numbers of the tasks that have begun, each as often as it did."""
    return sorted(entry["n"] for entry in rig.ledger.entries("began"))
