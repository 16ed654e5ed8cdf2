"""A cluster whose nodes have certificates by `maitred admin cluster init-tls`."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from tests.cluster.ledger import NAMESPACE
from tests.cluster.rig import WAIT_SECONDS, Rig, RigNode
from tests.node.nodes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = bytes((4, 0, 0, 0, 5, 0, 0, 0, 0))
"""A request of the protocol, to which every node that talks without TLS answers."""
ANSWERS = b"\x84"


def test_a_gateway_talks_tls_to_other_nodes(tmp_path: Path, store: str) -> None:
    with Rig(tmp_path / "rig", store) as rig:
        nodes = rig.nodes = [RigNode(rig, number) for number in range(2)]
        first, second = nodes
        made = tmp_path / "tls"
        # The HTTP API of the first node listens at the usual address.
        hosts = [f"{first.host.address},127.0.0.1", second.host.address]
        words = ["admin", "cluster", "init-tls", "--out", str(made), *hosts]
        done = rig.maitred("init-tls", rig.users, words)
        assert done.wait() == 0, done.errors
        ca = made / "cluster-ca.pem"
        for node in nodes:
            place = made / node.host.address
            settings = {
                "tls.certificate": f"{place}.pem",
                "tls.key": f"{place}.key",
                "cluster.authorities": str(ca),
            }
            options = [word for each in settings.items() for word in ("--set", "=".join(each))]
            node.start(*options, wait=False, gateway=node is first)
        for node in nodes:
            node.wait_until_up()
        rig.wait_for_members(2)
        rig.start_worker(url=f"maitreds://{second.address}?ca={ca}")
        wait_until(lambda: bool(links(first, second)), "the gateway reaches the second node")
        before = links(first, second)
        place = urlsplit(first.ready["http"])
        assert (place.scheme, place.hostname) == ("https", "127.0.0.1")
        context = ssl.create_default_context(cafile=ca)
        with closing(
            http.client.HTTPSConnection(
                "127.0.0.1", place.port, timeout=WAIT_SECONDS, context=context
            )
        ) as connection:
            for number in range(rig.queues):
                assert ask(connection, f"ask{number}", number) == 2 * number
        # The second node has kept the connection that the gateway opened: it was by TLS.
        assert before & links(first, second)
        with socket.create_connection((second.host.address, second.port)) as plain:
            plain.settimeout(WAIT_SECONDS)
            plain.sendall(OPTIONS)
            assert not plain.recv(100).startswith(ANSWERS)


def links(node: RigNode, other: RigNode) -> set[tuple[str, int]]:
    """The near ends of the connections that the gateway of the one has to the other."""
    gateway = psutil.Process(node.ready["gateway_pid"])
    return {
        tuple(one.laddr)
        for one in gateway.net_connections("tcp")
        if one.raddr and one.raddr.ip == other.host.address
    }


def ask(connection: http.client.HTTPSConnection, queue: str, *values: object) -> Any:  # noqa: ANN401
    """The answer of a queue through the HTTP API."""
    path = f"/v1/{NAMESPACE}/queues/{queue}/query"
    connection.request("POST", path, json.dumps(values), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    assert answer.status == 200, said
    return said
