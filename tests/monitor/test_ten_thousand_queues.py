"""Ten thousand queues at one shard: the page stays small, and gathering it stalls nothing."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

import maitred
from maitred.matching.queue_meters import QueueMeters
from maitred.metrics import families
from maitred.metrics.busiest import REST
from maitred.node import shard_metrics
from maitred.node.queue_gauges import QueueGauges
from maitred.node.shard_metrics import ShardMetrics
from maitred.protocol.tasks import Add
from maitred.routing.names import TASKS
from maitred.settings import Monitor
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.monitor.scraping import get, lint, parsed, scrape
from tests.node.in_process import Portions, in_a_loop, node
from tests.node.nodes import running_node, wait_until

if TYPE_CHECKING:
    from pathlib import Path

QUEUES = 10_000
SETTINGS = f"""
[limits]
queues = {2 * QUEUES}
new_queues = {2 * QUEUES}
[namespaces."*"]
queues = {2 * QUEUES}
"""
PAGE_BYTES = 2 * 2**20
"""Bounds the page: 50 named queues with some 60 lines of a hundred bytes, and as much again."""
AT_ONCE = 500


async def fill(url: str) -> None:
    """Add one task to each queue."""
    async with maitred.connect(url) as client:
        gate = asyncio.Semaphore(AT_ONCE)

        async def add(number: int) -> None:
            async with gate:
                message = Add("many", f"queue-{number}", TASKS, 0, 0, version=0, payloads=[b"\xc0"])
                await client.request(message, timeout=120)

        await asyncio.gather(*(add(number) for number in range(QUEUES)))


@pytest.mark.timeout(600)
def test_ten_thousand_queues_make_a_small_page(tmp_path: Path) -> None:
    settings = tmp_path / "node.toml"
    settings.write_text(SETTINGS)
    with running_node("--config", str(settings), shards=1) as running:
        asyncio.run(fill(running.url))
        monitor = str(running.ready["monitor"])
        # A shard that takes too long is left out; on a busy machine the next try is faster.
        wait_until(lambda: scrape(monitor).value("maitred_process_up") == 1, "it is measured", 60)
        _, text = get(f"{monitor}/metrics")
        lint(text)
        found = parsed(text)
        assert found.value("maitred_queues_named") == 50
        assert found.value("maitred_queues_summed") == QUEUES - 50
        assert found.value("maitred_queue_backlog_tasks") == QUEUES
        assert found.value("maitred_queue_tasks_added_total", queue=REST) == QUEUES - 50
        assert found.value("maitred_queue_tasks_added_total") == QUEUES
        assert len(found.values("maitred_partition_backlog_tasks")) == 20
        assert len(text) < PAGE_BYTES


@in_a_loop
async def test_a_shard_measures_its_queues_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_metrics, "PORTION", 10)
    async with node(tmp_path) as running:
        shard = running.shard
        partitions = shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        async with maitred.connect(f"maitred://127.0.0.1:{running.port}") as client:
            for number in range(100):
                message = Add("many", f"queue-{number}", TASKS, 0, 0, version=0, payloads=[b"\xc0"])
                await client.request(message, timeout=120)
        metrics = ShardMetrics(shard, partitions, Monitor(queues=5))
        portions = Portions()
        for kind, name in ((QueueGauges, "add"), (QueueMeters, "look")):
            monkeypatch.setattr(kind, name, portions.counted(getattr(kind, name)))
        lines = await metrics.measure()
        metrics.stop()
    assert len(lines[families.BACKLOG.name]) == 5 + 1
    assert 10 <= portions.longest <= 20, "partitions and queues in one turn"
