"""Nodes whose clocks are minutes apart work together, and say so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from maitred.app.app import App
from tests.cluster.ledger import NAMESPACE
from tests.cluster.programs import altered_program
from tests.cluster.rig import Rig
from tests.cluster.test_lost_nodes import ALL_KINDS, finished, logs, served_everywhere
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

QUEUES = 4
DELAYED = 32
"""Queues with a delayed task: so many that each node owns some."""
AHEAD_SECONDS = 1_800.0
DELAY_SECONDS = 7_200.0
TOLERANCE_SECONDS = 300.0
"""Far more than the test takes, far less than the clocks differ by."""


def test_nodes_whose_clocks_differ(tmp_path: Path, store: str) -> None:
    settings = "[cluster]\nforward_seconds = 0.5\n"
    with Rig(tmp_path, store, queues=QUEUES, node_settings=settings) as rig:
        rig.start_nodes(1)
        rig.start_nodes(1, program=altered_program(clock=AHEAD_SECONDS))
        right, wrong = rig.nodes
        rig.start_worker()
        producer = rig.start_producer(rate=50, kinds=ALL_KINDS)
        served_everywhere(rig)

        # The log of the node and the command name the difference.
        wrong.log.wait_for("the clocks of this node and the database differ")
        (said,) = wrong.events("the clocks of this node and the database differ: synchronise them")
        assert said["level"] == "warning"
        assert said["node_is_ahead_seconds"] == pytest.approx(AHEAD_SECONDS, abs=1.0)
        wait_until(lambda: None not in clocks(rig).values(), "both nodes have told their clocks")
        told = clocks(rig)
        assert told[wrong.address] == pytest.approx(AHEAD_SECONDS, abs=1.0)
        assert told[right.address] == pytest.approx(0.0, abs=1.0)
        (warning,) = rig.admin("cluster", node=right)["warnings"]
        assert f"The clock of {wrong.address} is 30 min ahead of the database's." in warning

        # Whichever node owns a queue, its delayed tasks are due at the same time.
        found = asyncio.run(stored_tasks(rig))
        assert len({one["member"] for one in found}) == 2, "all queues are at one node"
        due = [one["due_in"] for one in found]
        assert due == pytest.approx([DELAY_SECONDS] * DELAYED, abs=TOLERANCE_SECONDS)

        # Alone with all queues, the node with the wrong clock deletes no result too early.
        assert right.drain() == 0, right.log
        served_everywhere(rig)
        expired, lasting = asyncio.run(store_results(rig, -AHEAD_SECONDS, AHEAD_SECONDS / 2))
        wait_until(lambda: expired not in asyncio.run(stored_results(rig)), "it was deleted")
        assert lasting in asyncio.run(stored_results(rig))
        verdict = finished(rig, producer)
        assert verdict.is_clean, f"{verdict}\n{logs(rig)}"
        assert not rig.ledger.failed, logs(rig)


def clocks(rig: Rig) -> dict[str, float | None]:
    """How far each node says that its clock is ahead; None if it has not measured that yet."""
    members = rig.members(rig.nodes[0])
    return {address: one["clock_ahead_seconds"] for address, one in members.items()}


async def store_results(rig: Rig, *lasting_seconds: float) -> list[int]:
    """Store results that expire in so many seconds by the database's clock; their numbers."""
    connection = await asyncpg.connect(rig.store)
    numbers = []
    for number, seconds in enumerate(lasting_seconds, 2**62):
        await connection.execute(
            "INSERT INTO maitred.results (partition_id, sequence, expires_at, body) "
            "SELECT min(id), $1, extract(epoch FROM clock_timestamp()) + $2, '' "
            "FROM maitred.partitions",
            *(number, seconds),
        )
        numbers.append(number)
    await connection.close()
    return numbers


async def stored_results(rig: Rig) -> set[int]:
    connection = await asyncpg.connect(rig.store)
    rows = await connection.fetch("SELECT sequence FROM maitred.results")
    await connection.close()
    return {row["sequence"] for row in rows}


async def stored_tasks(rig: Rig) -> list[Any]:
    """Add a delayed task to each of many queues; whose they are, and in how many seconds the store
    has them due by the database's clock."""

    async def nothing() -> None: ...

    async with App(NAMESPACE, node=rig.url) as app:
        for number in range(DELAYED):
            handler = app.handler(f"later{number}")(nothing)
            await handler.options(delay=DELAY_SECONDS).enqueue()
    connection = await asyncpg.connect(rig.store)
    rows = await connection.fetch(
        "SELECT split_part(p.owner, '/', 1) AS member, "
        "due - extract(epoch FROM clock_timestamp())::double precision AS due_in "
        "FROM maitred.later AS l JOIN maitred.partitions AS p ON p.id = l.partition_id"
    )
    await connection.close()
    return list(rows)
