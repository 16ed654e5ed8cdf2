"""Three nodes that are told a database, and nothing else, are a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.metrics import families
from tests.cluster.rig import Rig, RigNode
from tests.monitor.scraping import scrape
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.metrics.exposition import Family

QUEUES = 9
"""So many that each node owns one of them, most likely, and the test holds if it does not."""


def test_nodes_with_one_store_are_a_cluster(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path, store, queues=QUEUES) as rig:
        rig.start_nodes(1)
        first = rig.nodes[0]
        assert first.ready["cluster"]["others"] == []

        # Both come at once, so either may see the other one.
        rig.start_nodes(2)
        for node in rig.nodes[1:]:
            others = node.ready["cluster"]["others"]
            assert first.address in others
            assert node.address not in others

        # Every node tells the same.
        told = [rig.admin("cluster", node=node) for node in rig.nodes]
        assert all(one["cluster"] == "maitred" for one in told)
        wait_until(
            lambda: len({rig.admin("cluster", node=node)["version"] for node in rig.nodes}) == 1,
            "all have one version",
        )

        # A worker that was told one node serves what a producer adds through another one.
        rig.start_worker(url=rig.nodes[0].url)
        producer = rig.start_producer(
            url=rig.nodes[1].url, rate=60, kinds={"enqueue": 1, "result": 1, "query": 1}
        )
        wait_until(lambda: _used(rig) == QUEUES, "every queue was used")
        assert producer.stop() == 0, producer.errors
        wait_until(lambda: not rig.ledger.missing(), "all tasks have run")
        verdict = rig.ledger.verdict()
        assert not verdict.failures, verdict
        assert not verdict.repetitions, verdict.repetitions
        assert not verdict.wrong
        assert verdict.answered

        # The metrics of all nodes together count every task once, wherever it was forwarded to.
        tasks = len(rig.ledger.acknowledged)
        assert tasks
        wait_until(lambda: _summed(rig, families.ENDED) == tasks, "all ends are counted")
        assert _summed(rig, families.ADDED) == tasks
        assert _summed(rig, families.BACKLOG) == 0

        # Whoever asks for a queue hears which node and shard have its partitions.
        owners = {
            partition["node"]
            for number in range(QUEUES)
            for partition in rig.admin("queue", "describe", f"shop/q{number}")["partitions"]
        }
        assert owners <= {node.ready["node"] for node in rig.nodes}
        assert len(owners) > 1, "all queues are at one node"


def test_a_node_tells_people_whom_it_joined(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path, store) as rig:
        rig.start_nodes(1)
        second = RigNode(rig, 1)
        second.start(as_json=False, wait=False)
        lines = second.running.output.wait_for("cluster ")
        assert rig.nodes[0].address in lines[0]


def _summed(rig: Rig, family: Family) -> float:
    """The sum over all nodes and queues."""
    pages = [scrape(node.ready["monitor"]) for node in rig.nodes]
    return sum(sum(page.values(family.name, namespace="shop").values()) for page in pages)


def _used(rig: Rig) -> int:
    return len({entry["q"] for entry in rig.ledger.entries("resulted")})
