"""PostgreSQL fails over to a standby without the last commits, under nodes that go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.cluster.rig import WAIT_SECONDS, Rig
from tests.node.nodes import wait_until
from tests.store.failover import fail_over, rows_now

if TYPE_CHECKING:
    from pathlib import Path

RESTORED = "database lost commits of a partition; it was loaded again"
FEW = 20
"""Tasks that the standby has, and again as many that it has not."""


def test_tasks_that_the_database_lost_run_all_the_same(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path, store, queues=2) as rig:
        rig.start_nodes(2)
        producer = rig.start_producer(rate=100, kinds={"enqueue": 1})
        rig.wait_for_acknowledged(FEW)
        standby = asyncio.run(rows_now(store))
        had = len(rig.ledger.acknowledged)
        rig.wait_for_acknowledged(had + FEW)
        assert producer.stop() == 0, producer.errors
        asyncio.run(fail_over(store, standby))
        # Nobody adds anything; the nodes look for what was lost by themselves.
        wait_until(
            lambda: any(node.events(RESTORED) for node in rig.nodes),
            "lost tasks were noticed",
            WAIT_SECONDS,
        )
        rig.start_worker()
        wait_until(lambda: not rig.ledger.missing(), "all tasks have run", WAIT_SECONDS)
        verdict = rig.ledger.verdict()
        assert not verdict.repetitions, verdict.repetitions
        assert not verdict.wrong
        restored = sum(
            entry["tasks_restored"] for node in rig.nodes for entry in node.events(RESTORED)
        )
        assert restored >= FEW
