"""Checks of the settings by which a node belongs to a cluster.

Nodes talk to each other at the ports of their clients. On loopback, the secret in the shared
database is enough for that. Beyond loopback the connections have to be encrypted and verified, so a
start without certificates is refused. A node that is alone on its database says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidSetting
from maitred.security.announced_address import announced, is_wildcard, parse_announced
from maitred.security.hosts import is_loopback
from maitred.settings import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.settings import Node

BEATS_IN_A_LEASE: Final = 3
"""Fewest heartbeats in the time that one counts: one that is lost and one that is late must not
make the others suspect a node."""

ALONE: Final = "If this node is the only one on its database: cluster.enabled = false."


def check_cluster(node: Node, origin: Callable[[str], str]) -> None:
    """Raise `InvalidSetting` for settings with which the node could not belong to a cluster;
    `origin` appends the source of a setting to its name."""
    if not node.cluster.enabled:
        return
    if node.store is None:
        _check_one_machine(node.cluster, origin)
        return
    _check_times(node.cluster, origin)
    _check_announced(node, origin)
    _check_certificates(node, origin)


def _check_one_machine(cluster: ClusterSettings, origin: Callable[[str], str]) -> None:
    alone = ClusterSettings()
    for name in ClusterSettings.__struct_fields__:
        if getattr(cluster, name) != getattr(alone, name):
            raise InvalidSetting(
                f"{origin(f'cluster.{name}')} is for nodes that share a database, and this node "
                "keeps its tasks in SQLite files. SQLite stores are for one machine: no other "
                "machine can use the files.",
                remedy="Start every node of the cluster with --store postgresql://..., or remove "
                "the settings of cluster.",
            )


def _check_times(cluster: ClusterSettings, origin: Callable[[str], str]) -> None:
    if cluster.lease_seconds < BEATS_IN_A_LEASE * cluster.beat_seconds:
        raise InvalidSetting(
            f"{origin('cluster.lease_seconds')} is {cluster.lease_seconds:g}, less than "
            f"{BEATS_IN_A_LEASE} times {origin('cluster.beat_seconds')}, which is "
            f"{cluster.beat_seconds:g}: one late heartbeat would look like a dead node.",
            remedy=f"Use {BEATS_IN_A_LEASE * cluster.beat_seconds:g} or more.",
        )


def _check_announced(node: Node, origin: Callable[[str], str]) -> None:
    if node.cluster.announce is None:
        if is_wildcard(node.host):
            raise InvalidSetting(
                f"{origin('host')} is {node.host}, which stands for all addresses of this machine, "
                "and the other nodes of the cluster need one at which they reach this node.",
                remedy=f"Name it with --announce HOST, or cluster.announce. {ALONE}",
            )
        return
    setting = origin("cluster.announce")
    given = parse_announced(node.cluster.announce, setting)
    if given.port is not None and given.port != node.port:
        raise InvalidSetting(
            f"{setting} has the port {given.port}, and {origin('port')} is {node.port}. Every "
            "shard has a port of its own above the node's, so ports cannot be translated one by "
            "one.",
            remedy=f"Announce {given.host} alone, and use port {given.port} as port, or have "
            "every port translated to the same number.",
        )


def _check_certificates(node: Node, origin: Callable[[str], str]) -> None:
    host, _ = announced(node, node.port)
    authorities = node.cluster.authorities
    if node.tls is None or authorities is None:
        if authorities is not None:
            raise InvalidSetting(
                f"{origin('cluster.authorities')} verifies the certificates of other nodes, and "
                "this node has none that the others could verify.",
                remedy="Set tls.certificate and tls.key as well; `maitred admin cluster init-tls` "
                "makes them.",
            )
        for name, reached in (("host", node.host), ("cluster.announce", host)):
            if not is_loopback(reached):
                raise InvalidSetting(
                    f"{origin(name)} is {reached!r}, where other machines can reach it, and nodes "
                    "that share a PostgreSQL store talk to each other there. That needs TLS: the "
                    "settings tls and cluster.authorities.",
                    remedy="`maitred admin cluster init-tls HOST...` makes the certificates and "
                    f"prints the settings. {ALONE}",
                )
        return
    from maitred.security.cluster_tls import check_certificate

    check_certificate(node.tls, authorities, host)
