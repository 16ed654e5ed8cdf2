"""A cluster goes on without a node that is killed, frozen, or restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.rig import Rig
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.ledger import Verdict
    from tests.cluster.rig import Child, RigNode

QUEUES = 6
SECONDS = 90.0
"""The longest wait for anything, on a machine that runs other tests at the same time."""

ALL_KINDS = {"enqueue": 1, "result": 1, "query": 1}
DURATIONS = [0.0, 0.0, 0.02]


def served_everywhere(rig: Rig) -> None:
    """Wait until a task of every queue that is sent from now on has its result."""
    before = len(rig.ledger.entries("resulted"))

    def served() -> bool:
        return len({one["q"] for one in rig.ledger.entries("resulted")[before:]}) == rig.queues

    wait_until(served, "every queue is served", SECONDS)


def finished(rig: Rig, producer: Child) -> Verdict:
    """Stop the load, wait for what was acknowledged, and judge."""
    assert producer.stop(SECONDS) == 0, producer.errors
    try:
        wait_until(lambda: not rig.ledger.missing(), "all acknowledged tasks have run", SECONDS)
    except AssertionError:
        pytest.fail(f"lost: {rig.ledger.missing()}\n{rig.ledger.verdict()}\n{logs(rig)}")
    return rig.ledger.verdict()


def logs(rig: Rig) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in rig.directory.glob("*.log"))


def id_of(rig: Rig, node: RigNode, *, asking: RigNode) -> str | None:
    """The id of the active member at the node's address."""
    member: dict[str, Any] = rig.members(asking).get(node.address, {})
    return member["id"] if member.get("state") == "active" else None


def test_all_queues_go_on_without_a_killed_node(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path, store, queues=QUEUES) as rig:
        rig.start_nodes(3)
        victim = rig.nodes[0]
        # All are told one node, and learn of the others from it.
        for _ in range(2):
            rig.start_worker(url=victim.url, wait=False)
        producer = rig.start_producer(url=victim.url, rate=30, kinds=ALL_KINDS, durations=DURATIONS)
        served_everywhere(rig)
        rig.book.note("fault", id=0, kind="kill", victims=[victim.address])
        victim.kill()
        served_everywhere(rig)
        rig.wait_for_members(2)
        served_everywhere(rig)
        verdict = finished(rig, producer)
        assert verdict.is_clean, f"{verdict}\n{logs(rig)}"


def test_a_rolling_restart_fails_no_request(tmp_path: Path, store: str) -> None:
    settings = "[cluster]\nforward_seconds = 0.5\n"
    with Rig(tmp_path, store, queues=QUEUES, node_settings=settings) as rig:
        rig.start_nodes(3)
        rig.start_worker()
        producer = rig.start_producer(rate=30, kinds=ALL_KINDS, durations=DURATIONS)
        served_everywhere(rig)
        for node in rig.nodes:
            assert node.drain() == 0, node.log
            node.start()
            rig.wait_for_members(3)
        served_everywhere(rig)
        verdict = finished(rig, producer)
        failed = [str(entry) for entry in rig.ledger.failed]
        assert not failed, "\n".join([*failed, logs(rig)])
        assert not verdict.repetitions, "\n".join([*map(str, verdict.repetitions), logs(rig)])
        assert verdict.is_clean, verdict


def test_a_frozen_node_is_evicted_and_comes_back_as_a_new_member(
    tmp_path: Path, store: str
) -> None:
    settings = "[cluster]\nbeat_seconds = 0.5\nlease_seconds = 2.5\n"
    with Rig(tmp_path, store, queues=QUEUES, node_settings=settings) as rig:
        rig.start_nodes(3)
        rig.start_worker()
        producer = rig.start_producer(rate=30, kinds=ALL_KINDS, durations=DURATIONS)
        served_everywhere(rig)
        frozen, other = rig.nodes[2], rig.nodes[0]
        before = id_of(rig, frozen, asking=other)
        assert before is not None
        rig.book.note("fault", id=0, kind="freeze", victims=[frozen.address])
        frozen.freeze()
        wait_until(
            lambda: id_of(rig, frozen, asking=other) is None, "the frozen node is evicted", SECONDS
        )
        served_everywhere(rig)
        frozen.thaw()
        wait_until(
            lambda: id_of(rig, frozen, asking=other) not in (None, before),
            "it is a new member",
            SECONDS,
        )
        rig.book.note("healed", id=0)
        served_everywhere(rig)
        verdict = finished(rig, producer)
        assert verdict.is_clean, f"{verdict}\n{logs(rig)}"
