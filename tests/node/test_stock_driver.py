"""scylla-driver as PyPI has it, against a real node: it connects, and finds every shard."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cassandra import InvalidRequest, ProtocolVersion
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session
from cassandra.protocol import SyntaxException

import maitred
from maitred.security.secrets import hash_secret
from tests.node.nodes import RunningNode, running_node, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONNECT_SECONDS = 20


@contextmanager
def driver(node: RunningNode, **options: Any) -> Iterator[tuple[Cluster, Session]]:  # noqa: ANN401
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    cluster = Cluster([node.host], port=node.port, connect_timeout=CONNECT_SECONDS, **options)
    try:
        yield cluster, cluster.connect()
    finally:
        cluster.shutdown()


def pool_of(session: Session) -> Any:  # noqa: ANN401 - the driver has no types
    (pool,) = session.get_pools()
    return pool


def shards_of(session: Session) -> list[int]:
    """The shards that the driver has a connection to, once for each connection."""
    pool = pool_of(session)
    return sorted(pool._connections) + [-1] * len(pool._excess_connections)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_driver_opens_exactly_one_connection_for_each_shard(shards: int) -> None:
    with running_node(shards=shards) as node, driver(node) as (cluster, session):
        wait_until(lambda: shards_of(session) == list(range(shards)), "all shards connected")
        assert cluster.protocol_version == ProtocolVersion.V4
        connections = pool_of(session)._connections
        for number, connection in connections.items():
            features = connection.features
            assert features.shard_id == number
            assert features.sharding_info.shards_count == shards
            assert features.sharding_info.sharding_ignore_msb == 12
        # The node is asked as well: one for each shard, and the control connection somewhere.
        with maitred.connect(node.url) as ours:
            ours.covered()

            def drivers() -> list[int]:
                """Connections of each shard that are not our own."""
                return [ours.status(number).connections - 1 for number in range(shards)]

            assert ours.statistics().connections == shards
            # Connections that reached a shard which has one already are closed, soon.
            wait_until(lambda: sum(drivers()) <= shards + 1, "the driver has closed the others")
            assert sorted(drivers()) == [1] * (shards - 1) + [2]


def test_system_tables_tell_the_truth() -> None:
    with running_node(shards=2) as node, driver(node) as (cluster, session):
        (local,) = session.execute("SELECT * FROM system.local WHERE key='local'")
        assert local.host_id == UUID(node.ready["node"])
        assert local.rpc_address == node.host
        assert local.cluster_name == cluster.metadata.cluster_name == "maitred"
        assert local.partitioner == "org.apache.cassandra.dht.Murmur3Partitioner"
        assert list(session.execute("SELECT * FROM system.peers")) == []
        (host,) = cluster.metadata.all_hosts()
        assert host.is_up
        assert str(host.endpoint) == f"{node.host}:{node.port}"
        # The schema is that of the system tables: nothing that a user could write to.
        assert sorted(cluster.metadata.keyspaces) == ["system", "system_schema"]
        described = cluster.metadata.keyspaces["system"].tables["local"]
        assert list(described.columns) == list(local._fields)


def test_its_heartbeats_live() -> None:
    # Idle connections are closed after one second here; heartbeats come every half.
    with (
        running_node("--set", "limits.idle_seconds=1", shards=2) as node,
        driver(node, idle_heartbeat_interval=0.4, idle_heartbeat_timeout=5) as (_, session),
    ):
        wait_until(lambda: shards_of(session) == [0, 1], "both shards connected")
        before = dict(pool_of(session)._connections)
        wait_until(uptime_over(node, seconds=3.0), "three seconds of the node's")
        assert dict(pool_of(session)._connections) == before
        assert all(not connection.is_closed for connection in before.values())
        session.execute("SELECT host_id FROM system.local")


def uptime_over(node: RunningNode, seconds: float) -> Callable[[], bool]:
    """A condition that is true when the node has run for so much longer."""

    def uptime() -> float:
        with maitred.connect(node.url) as client:
            return client.status(0).uptime_seconds

    end = uptime() + seconds
    return lambda: uptime() >= end


def test_statements_over_data_are_refused_in_words_and_the_connection_lives() -> None:
    with running_node(shards=1) as node, driver(node) as (_, session):
        before = dict(pool_of(session)._connections)
        with pytest.raises(InvalidRequest, match=r"Table shop\.orders does not exist"):
            session.execute("SELECT * FROM shop.orders")
        with pytest.raises(SyntaxException, match="is not understood"):
            session.execute("DROP TABLE shop.orders")
        assert dict(pool_of(session)._connections) == before
        assert list(session.execute("SELECT key FROM system.local"))


def test_a_shard_that_dies_is_connected_again() -> None:
    # The driver finds out by a heartbeat that a connection is dead.
    beats = {"idle_heartbeat_interval": 0.4, "idle_heartbeat_timeout": 5}
    with running_node(shards=2) as node, driver(node, **beats) as (_, session):
        wait_until(lambda: shards_of(session) == [0, 1], "both shards connected")
        dead = pool_of(session)._connections[1]
        os.kill(node.shards[1].pid, signal.SIGKILL)
        node.wait_for_event("shard ready again")

        def again() -> bool:
            # Meanwhile it may take the whole host for down, and have no pool.
            return any(
                sorted(pool._connections) == [0, 1] and pool._connections[1] is not dead
                for pool in session.get_pools()
            )

        wait_until(again, "a new connection to shard 1")


def test_users(tmp_path: Path) -> None:
    config = tmp_path / "maitred.toml"
    config.write_text(
        f"[users.ada]\nsecret = {hash_secret('analytical')!r}\n"
        '[users.ada.permissions]\n"*" = ["admin"]\n'
    )
    with running_node("--config", str(config), shards=2) as node:
        provider = PlainTextAuthProvider("ada", "analytical")
        with driver(node, auth_provider=provider) as (_, session):
            wait_until(lambda: shards_of(session) == [0, 1], "both shards connected")
        wrong = PlainTextAuthProvider("ada", "wrong")
        with pytest.raises(NoHostAvailable, match="secret is wrong"):  # noqa: SIM117
            with driver(node, auth_provider=wrong):
                pass
