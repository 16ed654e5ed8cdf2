"""`maitred status` and `maitred ping`, against a real node."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from maitred.cli.ping import targets
from maitred.cli.status import duration
from maitred.client.client import NodeView
from tests.cli.running import maitred, maitred_json
from tests.node.nodes import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node(shards=3) as running:
        yield running


@pytest.fixture
def stopped_shard(node: RunningNode) -> Iterator[int]:
    """Shard 1 does not run for as long as the test does."""
    os.kill(node.shards[1].pid, signal.SIGSTOP)
    yield 1
    os.kill(node.shards[1].pid, signal.SIGCONT)


def url_of(node: RunningNode, shard: int) -> str:
    """By way of that shard: the shared port may lead to one that hangs."""
    return f"maitred://{node.host}:{node.shards[shard].port}"


def test_a_row_for_every_shard(node: RunningNode) -> None:
    done = maitred("status", "--url", node.url)
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading.split("  ")[0] == "shard"
    assert len(rows) == 3
    for shard, row in zip(node.shards, rows, strict=True):
        number, pid, address, state, *_ = row.split()
        assert (int(number), int(pid)) == (shard.number, shard.pid)
        assert address == f"127.0.0.1:{shard.port}"
        assert state == "serving"


def test_status_as_json(node: RunningNode) -> None:
    told = maitred_json("status", "--url", node.url)
    assert [one["pid"] for one in told] == [shard.pid for shard in node.shards]
    assert {one["node"] for one in told} == {node.ready["node"]}
    assert all(one["state"] == "serving" and one["memory_bytes"] > 2**20 for one in told)
    assert told[0]["parts"].keys() == {
        "memory",
        "logins",
        "partitions",
        "writer",
        "permits",
        "relays",
        "query_tables",
        "series",
        "worker_series",
    }
    assert told[0]["parts"]["query_tables"] == {"gateways": 0, "requests": 0}


def test_a_shard_that_hangs_is_a_row_with_the_reason(node: RunningNode, stopped_shard: int) -> None:
    url = url_of(node, 0)
    done = maitred("status", "--url", url, "--timeout", "0.5")
    assert done.returncode == 1
    rows = done.stdout.splitlines()
    assert [row.split()[3] for row in rows[1:4] if row.split()[0] != "1"] == ["serving"] * 2
    (row,) = [row for row in rows[1:4] if row.split()[0] == str(stopped_shard)]
    assert "unreachable" in row
    assert f"shard {stopped_shard}: " in rows[-1]
    assert "[deadline-exceeded]" in rows[-1]
    as_json = maitred("status", "--url", url, "--timeout", "0.5", "--json")
    assert as_json.returncode == 1
    entry = json.loads(as_json.stdout)[stopped_shard]
    assert entry["state"] == "unreachable"
    assert entry["error"]["code"] == "deadline-exceeded"


def test_ping_reaches_every_shard(node: RunningNode) -> None:
    told = maitred_json("ping", "--url", node.url, "--count", "5")
    assert [one["shard"] for one in told] == [0, 1, 2]
    for one in told:
        assert one["echoes"] == 5
        assert 0 < one["min ms"] <= one["p50 ms"] <= one["max ms"]
        assert one["problem"] is None
    shown = maitred("ping", "--url", node.url, "--count", "2")
    assert shown.returncode == 0
    assert len(shown.stdout.splitlines()) == 4


def test_ping_says_who_is_silent(node: RunningNode, stopped_shard: int) -> None:
    done = maitred("ping", "--url", url_of(node, 0), "--timeout", "0.5", "--count", "1")
    assert done.returncode == 1
    assert f"shard {stopped_shard}: " in done.stdout
    assert "[deadline-exceeded]" in done.stdout


@pytest.mark.parametrize("command", ["status", "ping"])
def test_no_node_there(command: str) -> None:
    with running_node(shards=1) as node:
        assert node.stop() == 0
    done = maitred(command, "--url", node.url, "--timeout", "0.3")
    assert done.returncode == 1
    assert "[unavailable]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["status", "ping"])
@pytest.mark.parametrize("url", ["http://localhost", "maitred://", "maitred://a:b:c"])
def test_an_address_that_is_none(command: str, url: str) -> None:
    done = maitred(command, "--url", url)
    assert done.returncode == 2
    assert "[invalid-address]" in done.stderr


def test_the_address_can_come_from_the_environment(node: RunningNode) -> None:
    done = maitred("ping", "--count", "1", environment={**os.environ, "MAITRED_URL": node.url})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("batch", ["0", "3"])
def test_a_queue_is_found_for_every_shard_of_every_node(batch: str) -> None:
    views = [
        NodeView(address=f"10.0.0.{n}:4747", node=str(n), shards=shards, spread_batch=batch)
        for n, shards in enumerate((1, 3, 64))
    ]
    silent = NodeView(address="10.0.0.9:4747")
    found = list(targets([*views, silent], "ping", 0.0))
    assert [(target.node, target.shard) for target in found] == [
        (view.address, shard) for view in views for shard in range(view.shards)
    ]
    assert list(targets([silent], "ping", 0.0)) == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (86_400 * 3 + 3_600 * 4, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
