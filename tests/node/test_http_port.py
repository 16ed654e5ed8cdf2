"""Where the HTTP API listens if nothing is said of it."""

from __future__ import annotations

import pytest

from maitred.node.gateway_keeper import http_port
from maitred.settings import GatewaySettings, Node


@pytest.mark.parametrize(
    ("port", "shards", "expected"),
    [
        (4747, 2, 4780),
        (5000, 2, 5033),
        (5000, 30, 5033),
        (5000, 31, 5034),  # 5001 to 5031 are the shards', 5032 is for drivers, 5033 for nodes
        (4747, 100, 4850),
        (65_502, 1, 65_535),
        (65_503, 1, 0),
        (0, 2, 0),
    ],
)
def test_it_follows_from_the_port_of_the_node(port: int, shards: int, expected: int) -> None:
    assert http_port(Node(port=port), shards) == expected


@pytest.mark.parametrize("told", [0, 80, 4780])
def test_what_is_told_counts(told: int) -> None:
    assert http_port(Node(port=5000, gateway=GatewaySettings(port=told)), 2) == told
