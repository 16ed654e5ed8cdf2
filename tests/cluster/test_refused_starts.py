"""Nodes that cannot belong to the cluster end with an error that says why, and disturb nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.cluster.rig import Rig, RigNode
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60.0
"""A joining node tries for a while to reach the others."""


@pytest.fixture
def rig(tmp_path: Path, store: str) -> Iterator[Rig]:
    """One node runs."""
    with Rig(tmp_path, store, node_settings="[cluster]\nbeat_seconds = 0.5\n") as rig:
        rig.start_nodes(1)
        yield rig
        # It noticed nothing.
        rig.wait_for_members(1)
        assert rig.nodes[0].running.runs


def refused(rig: Rig, *options: str, port: int = 0, store: str | None = None) -> str:
    """Start a second node with these options, which ends; what it said."""
    node = RigNode(rig, 1)
    node.port = port
    node.start(*options, wait=False, store=store)
    status = node.running.wait(SECONDS)
    assert status in (1, 2), node.log
    node.log.wait_for_end()
    assert not node.running.output.seen
    assert "Traceback" not in str(node.log)
    return " ".join(str(node.log).split())


def test_two_nodes_announce_one_address(rig: Rig) -> None:
    first = rig.nodes[0]
    said = refused(rig, "--announce", first.host.address, port=first.port)
    assert f"announces the address {first.host.address}" in said
    assert "[cannot-start]" in said


def test_another_cluster_in_the_same_database(rig: Rig) -> None:
    said = refused(rig, "--set", "cluster.name=other")
    assert "belongs to another cluster" in said
    assert "alive: maitred" in said
    assert "[cannot-start]" in said


def test_a_node_without_a_cluster_on_the_database_of_one(rig: Rig) -> None:
    said = refused(rig, "--set", "cluster.enabled=false")
    assert f"{rig.nodes[0].address} of the cluster maitred use this database" in said
    assert "[cannot-start]" in said


def test_a_database_that_does_not_exist(rig: Rig) -> None:
    path, _, options = rig.store.partition("?")
    elsewhere = path.rpartition("/")[0] + "/nowhere" + ("?" + options if options else "")
    said = refused(rig, store=elsewhere)
    assert "database" in said
    assert "[" in said


def test_an_announced_address_at_which_nobody_listens(rig: Rig) -> None:
    said = refused(rig, "--announce", "127.0.0.99")
    assert "127.0.0.99" in said
    assert "not reached" in said
    assert "cluster.announce" in said
    assert "[cannot-start]" in said


def test_another_secret(rig: Rig) -> None:
    """As after a restore of the wrong backup: the table says one thing, and the nodes know
    another."""

    async def change() -> None:
        connection = await asyncpg.connect(rig.store)
        await connection.execute("UPDATE maitred.clusters SET secret = sha256('other'::bytea)")
        await connection.close()

    asyncio.run(change())
    node = RigNode(rig, 1)
    node.start(wait=False)
    # It tries for half a minute, should the others restart.
    said = node.log.wait_for("does not prove that it belongs to this cluster", seconds=SECONDS)
    assert rig.nodes[0].address in said[0]
    assert node.drain() == 0
    assert not node.running.output.seen


def test_beyond_loopback_without_certificates(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path, store) as rig:
        said = refused(rig, "--announce", "10.0.0.7")
    assert "maitred admin cluster init-tls" in said


def test_a_node_that_comes_back_to_its_address(rig: Rig) -> None:
    """The same address, announced by the node that had it: after a kill nobody has to wait."""
    first = rig.nodes[0]
    first.kill()
    first.start()
    wait_until(lambda: len(rig.members()) == 1, "one member")
