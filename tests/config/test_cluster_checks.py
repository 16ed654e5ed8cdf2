"""Which nodes may begin to belong to a cluster, and where they say that they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.config import check, load
from maitred.errors import InvalidSetting
from maitred.security.announced_address import announced, parse_announced
from maitred.settings import ClusterSettings, Node, Tls
from tests.security.test_cluster_authority import made

if TYPE_CHECKING:
    from pathlib import Path

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is tested
STORE = "postgresql://me:secret@db/tasks"


def node(cluster: dict[str, Any] | None = None, **settings: Any) -> Node:  # noqa: ANN401
    """A node with a PostgreSQL store, open to all callers."""
    given = {"store": STORE, "public_without_auth": True, **settings}
    return Node(cluster=ClusterSettings(**cluster or {}), **given)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7", "10.0.0.7", None),
        ("10.0.0.7:4747", "10.0.0.7", 4747),
        ("node-1.example:1", "node-1.example", 1),
        ("fe80::1", "fe80::1", None),
        ("[fe80::1]", "fe80::1", None),
        ("[fe80::1]:4747", "fe80::1", 4747),
        ("köln.example", "köln.example", None),
        ("a_b", "a_b", None),
    ],
)
def test_addresses_that_can_be_announced(text: str, host: str, port: int | None) -> None:
    assert parse_announced(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (EVERYWHERE, "stands for all addresses"),
        ("0.0.0.0:4747", "stands for all addresses"),
        ("::", "stands for all addresses"),
        ("[::]:4747", "stands for all addresses"),
        (":4747", "does not name a host"),
        ("[]:4747", "does not name a host"),
        ("a:", "has the port ''"),
        ("a:b", "has the port 'b'"),
        ("a:99999999999", "has the port"),
        ("a:0", "has the port 0"),
        ("a:65536", "has the port 65,536"),
        ("a:1:2", "not a host"),
        ("maitred://a", "has the port"),
        ("a/b", "not a host"),
        ("a b", "not a host"),
        ("a..b", "not a host"),
        (".a", "not a host"),
        ("-a", "not a host"),
        ("a" * 64, "not a host"),
        (".".join(["a" * 50] * 5), "not a host"),
        ("224.0.0.1", "not a host"),
        ("a,b", "separates hosts"),
        ("a\n", "control characters"),
    ],
)
def test_addresses_that_lead_nowhere(text: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        parse_announced(text)


def test_what_a_node_announces() -> None:
    assert announced(node(), 4747) == ("127.0.0.1", 4747)
    assert announced(node(host="10.0.0.7"), 5000) == ("10.0.0.7", 5000)
    assert announced(node({"announce": "a"}, host=EVERYWHERE), 5000) == ("a", 5000)
    assert announced(node({"announce": "[fe80::1]:5000"}), 5000) == ("fe80::1", 5000)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_a_store_alone_makes_a_cluster(host: str) -> None:
    check(node(host=host))
    check(node({"announce": "127.0.0.2"}, host=host))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("announce", "10.0.0.7"),
        ("authorities", "ca.pem"),
        ("name", "other"),
        ("beat_seconds", 0.5),
        ("lease_seconds", 9.0),
        ("forward_seconds", 0.0),
    ],
)
def test_sqlite_is_for_one_machine(name: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match="SQLite stores are for one machine") as refused:
        load(None, {}, {f"cluster.{name}": value})
    assert refused.value.sentence.startswith(f"cluster.{name} (from the command line) is for nodes")
    assert "--store postgresql://" in str(refused.value.remedy)
    load(None, {}, {f"cluster.{name}": value, "cluster.enabled": False})


@pytest.mark.parametrize("host", [EVERYWHERE, "::"])
def test_all_addresses_are_not_one(host: str) -> None:
    with pytest.raises(InvalidSetting, match="all addresses of this machine") as refused:
        check(node(host=host))
    assert "--announce HOST" in str(refused.value.remedy)
    check(Node(host=host, public_without_auth=True))


@pytest.mark.parametrize(
    ("host", "announce", "name"),
    [
        ("10.0.0.7", None, "host is '10.0.0.7'"),
        (EVERYWHERE, "node-1", "host is '0.0.0.0'"),
        (EVERYWHERE, "127.0.0.1", "host is '0.0.0.0'"),
        ("127.0.0.1", "node-1", "cluster.announce is 'node-1'"),
    ],
)
def test_beyond_loopback_nodes_need_certificates(
    host: str, announce: str | None, name: str
) -> None:
    with pytest.raises(InvalidSetting, match=name) as refused:
        check(node({"announce": announce}, host=host))
    assert "maitred admin cluster init-tls" in str(refused.value.remedy)
    check(node({"announce": announce, "enabled": False}, host=host))


def test_certificates_of_the_cluster(tmp_path: Path) -> None:
    files = made(tmp_path, "node-1,10.0.0.1", "node-2")
    first, second = (Tls(certificate=str(one.certificate), key=str(one.key)) for one in files.nodes)
    authorities = str(files.certificate)
    check(node({"announce": "node-1", "authorities": authorities}, host=EVERYWHERE, tls=first))
    check(node({"authorities": authorities}, host="10.0.0.1", tls=first))
    with pytest.raises(InvalidSetting, match="not valid for 'node-1'"):
        check(node({"announce": "node-1", "authorities": authorities}, host=EVERYWHERE, tls=second))
    with pytest.raises(InvalidSetting, match=r"cluster\.authorities verifies .* has none"):
        check(node({"announce": "node-1", "authorities": authorities}, host=EVERYWHERE))
    with pytest.raises(InvalidSetting, match="needs TLS"):
        check(node({"announce": "node-1"}, host=EVERYWHERE, tls=first))
    with pytest.raises(InvalidSetting, match=r"authorities .* cannot be read"):
        check(node({"authorities": str(tmp_path / "none.pem")}, host="10.0.0.1", tls=first))


def test_ports_are_announced_as_they_are() -> None:
    check(node({"announce": "localhost:4747"}))
    with pytest.raises(InvalidSetting, match="has the port 5000, and port is 4747"):
        check(node({"announce": "localhost:5000"}))
    with pytest.raises(InvalidSetting, match="has the port 5000, and port is 0"):
        check(node({"announce": "localhost:5000"}, port=0))


def test_a_lease_has_room_for_a_lost_heartbeat() -> None:
    check(node({"beat_seconds": 1.0, "lease_seconds": 3.0}))
    with pytest.raises(InvalidSetting, match="one late heartbeat") as refused:
        check(node({"beat_seconds": 2.0}))
    assert refused.value.remedy == "Use 6 or more."


def test_the_port_for_probes_has_to_exist() -> None:
    check(node(port=65_529, shards=4))
    with pytest.raises(InvalidSetting) as refused:
        check(node(port=65_530, shards=4))
    assert refused.value.remedy == "Use a port up to 65,529."
    check(node({"enabled": False}, port=65_530, shards=4))
