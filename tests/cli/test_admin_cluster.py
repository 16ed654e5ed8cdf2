"""`maitred admin cluster` and `maitred admin node` against canned answers; `init-tls` for real."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import tomllib
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

from maitred.cli.main import cli
from maitred.config import load
from maitred.errors import (
    InvalidArgument,
    MaitredError,
    NoCluster,
    StoreUnavailable,
    UnknownNode,
    UnsafeMemberChange,
)
from maitred.protocol.cluster import (
    ClusterDescription,
    DescribeCluster,
    DrainNode,
    MemberRow,
    NodeDrained,
)
from maitred.protocol.frames import Opcode
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import maitred, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maitred.node.shard import Shard

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what is refused


def row(number: int, **changes: Any) -> MemberRow:  # noqa: ANN401
    told: dict[str, Any] = {
        "id": f"{number:016x}",
        "node": f"node {number}",
        "address": f"node-{number}:4747",
        "state": "active",
        "release": "0.1.0",
        "protocol": 1,
        "shards": 4,
        "since": 1_700_000_000.0,
        "load": 0.25,
        "beat_seconds_ago": 0.4,
        "partitions": 1_234,
    }
    return MemberRow(**told | changes)


def described(*members: MemberRow, **changes: Any) -> ClusterDescription:  # noqa: ANN401
    told: dict[str, Any] = {
        "cluster": "maitred",
        "version": 17,
        "protocol": 1,
        "members": list(members),
        "lease_seconds": 5.0,
    }
    return ClusterDescription(**told | changes)


class Cluster(CannedNode):
    """A node that tells made-up members."""

    def __init__(self) -> None:
        super().__init__()
        self.told = described(row(1), row(2), row(3))
        self.problem: MaitredError | None = None
        self.next: list[ClusterDescription] = []
        """What it tells after what it told last."""

    def serve(self, shard: Shard) -> None:
        super().serve(shard)

        def describe(message: DescribeCluster) -> ClusterDescription:
            self.asked.append(message)
            if self.problem is not None:
                raise self.problem
            told = self.told
            if self.next:
                self.told = self.next.pop(0)
            return told

        def drain(message: DrainNode) -> NodeDrained:
            self.asked.append(message)
            if self.problem is not None:
                raise self.problem
            state = "draining" if message.drain else "active"
            return NodeDrained(f"{message.name}:4747", state, 18)

        handlers: dict[int, Callable[[Any], Any]] = {
            Opcode.CLUSTER: describe,
            Opcode.DRAIN_NODE: drain,
        }
        shard.handlers.update(handlers)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    canned = Cluster()
    with canned_node(tmp_path, canned=canned):
        yield canned


def command(node: Cluster, *arguments: str) -> Result:
    """As `maitred admin ...`; errors come out as they are."""
    done = CliRunner().invoke(cli, ["admin", *arguments, "--url", node.url], standalone_mode=False)
    expected = SystemExit | MaitredError | click.Abort
    if done.exception is not None and not isinstance(done.exception, expected):
        raise done.exception
    return done


# cluster


def test_the_table_of_members(node: Cluster) -> None:
    node.told = described(
        row(1, clock_ahead_seconds=-0.02),
        row(2, state="draining", partitions=0, held=12),
        row(3, state="joining", partitions=None, load=None, release=""),
        row(4, state="draining", partitions=0, held=0),
    )
    done = command(node, "cluster")
    assert done.exit_code == 0
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == [
        *("node", "state", "since", "release", "protocol", "shards", "partitions", "load"),
        *("heartbeat", "clock"),
    ]
    assert re.fullmatch(r"node-1:4747 +active +\d+ d \d+ h +0\.1\.0 .* 1,234 +0\.25 .*", lines[0])
    assert re.search(r"400 ms ago +ok$", lines[0])
    assert re.search(r"400 ms ago +-$", lines[1])
    assert "12 to hand over" in lines[1]
    assert re.search(r"joining .* - +1 +4 +- +- ", lines[2])
    assert "handed over" in lines[3]
    assert done.stdout.endswith("\ncluster     maitred\nview        version 17\nprotocol    1\n")
    assert done.stderr == ""


def test_members_as_json(node: Cluster) -> None:
    told = json.loads(command(node, "cluster", "--json").stdout)
    assert (told["cluster"], told["version"], told["protocol"]) == ("maitred", 17, 1)
    assert (told["lease_seconds"], told["problem"], told["warnings"]) == (5.0, None, [])
    assert told["members"][0] == {
        "id": "0000000000000001",
        "node": "node 1",
        "address": "node-1:4747",
        "state": "active",
        "release": "0.1.0",
        "protocol": 1,
        "shards": 4,
        "since": 1_700_000_000.0,
        "load": 0.25,
        "beat_seconds_ago": 0.4,
        "partitions": 1_234,
        "held": None,
        "clock_ahead_seconds": None,
        "late": False,
    }


@pytest.mark.parametrize(
    ("told", "said", "status"),
    [
        (
            described(row(1), row(2, beat_seconds_ago=2.6)),
            "node-2:4747 sent its last heartbeat 2.6 s ago. After 5 s the others vote",
            1,
        ),
        (described(row(1), row(2, beat_seconds_ago=2.5)), "", 0),
        (
            described(row(1), row(2, release="0.2.0")),
            "The nodes run different releases: 0.1.0, 0.2.0.",
            0,
        ),
        (
            described(row(1, clock_ahead_seconds=1.9), row(2, clock_ahead_seconds=-312.0)),
            "The clock of node-2:4747 is 5.2 min behind the database's. Synchronise the clocks of",
            0,
        ),
        (
            described(row(1, clock_ahead_seconds=7200.0)),
            "The clock of node-1:4747 is 2 h ahead of the database's.",
            0,
        ),
        (described(row(1), row(2, state="dead", clock_ahead_seconds=900.0)), "", 0),
        (described(row(1), protocol=0), "No version of the protocol is spoken by all", 0),
        (described(row(1, state="draining", held=1)), "No node is active", 0),
        (
            described(row(1, load=None, beat_seconds_ago=None), problem="It is away."),
            "The membership table cannot be read: It is away. These are the nodes of the last view",
            1,
        ),
        (described(row(1), row(2, state="dead", beat_seconds_ago=600.0)), "", 0),
        (described(row(1), version=0), "", 0),
    ],
)
def test_what_an_operator_should_look_at(
    node: Cluster, told: ClusterDescription, said: str, status: int
) -> None:
    node.told = told
    done = command(node, "cluster")
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)
    assert done.exit_code == status
    warnings = json.loads(command(node, "cluster", "--json").stdout)["warnings"]
    assert len(warnings) == bool(said)


def test_before_the_first_view(node: Cluster) -> None:
    node.told = described(row(1, state="joining"), row(2), version=0)
    assert "view        none yet: joining" in command(node, "cluster").stdout


@pytest.mark.parametrize("form", ["table", "json"])
def test_watching(node: Cluster, form: str) -> None:
    node.next = [described(row(1), row(2, state="draining", held=3))]
    options = ["--json"] if form == "json" else []
    with running("admin", "cluster", "--watch", "--url", node.url, *options) as process:
        assert process.stdout is not None
        seen = ""
        while "draining" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (errors, process.returncode) == ("", 0)
    if form == "json":
        first, second = (json.loads(line) for line in seen.splitlines()[:2])
        assert [len(one["members"]) for one in (first, second)] == [3, 2]
    else:
        assert seen.count("heartbeat") == 2
        assert "\033" not in seen, "only a terminal is cleared"


def test_watching_goes_on_after_an_error(node: Cluster) -> None:
    node.problem = StoreUnavailable("It is away.")
    with running("admin", "cluster", "--watch", "--url", node.url) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "It is away. [store-unavailable] Still trying.\n"
        node.problem = None
        assert process.stdout is not None
        assert process.stdout.readline().startswith("node ")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (errors, process.returncode) == ("", 0)


def test_a_node_without_a_cluster(node: Cluster) -> None:
    node.problem = NoCluster("This node belongs to no cluster.", remedy="Start it with a store.")
    for words in (("cluster",), ("node", "drain", "node-1"), ("node", "undrain", "node-1")):
        done = maitred("admin", *words, "--url", node.url)
        assert done.returncode == 2
        assert "This node belongs to no cluster. [no-cluster]" in done.stderr


# node drain, node undrain


def test_draining_until_everything_is_handed_over(node: Cluster) -> None:
    node.told = described(row(1), row(2, state="draining", held=None))
    node.next = [
        described(row(1), row(2, state="draining", held=left)) for left in (40, 10, 0, 1, 0, 0)
    ]
    done = command(node, "node", "drain", "node-2")
    assert done.exit_code == 0
    assert done.stdout == (
        "node-2:4747 has handed over all its partitions, and forwards requests.\n"
    )
    assert "30 of 40 partitions handed over" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("100%")
    (asked,) = [one for one in node.asked if isinstance(one, DrainNode)]
    assert (asked.name, asked.drain) == ("node-2", True)
    assert node.next == []


def test_draining_as_json(node: Cluster) -> None:
    node.told = described(row(1), row(2, state="draining", held=0))
    done = command(node, "node", "drain", "node-2", "--json")
    assert json.loads(done.stdout) == {
        "node": "node-2:4747",
        "state": "draining",
        "version": 18,
        "handed_over": True,
        "present": True,
    }
    assert done.stderr == ""


def test_draining_without_waiting(node: Cluster) -> None:
    done = command(node, "node", "drain", "node-2", "--no-wait")
    assert done.stdout == "node-2:4747 is draining: it hands over its partitions.\n"
    assert not any(isinstance(one, DescribeCluster) for one in node.asked)


def test_a_drained_node_that_leaves(node: Cluster) -> None:
    node.told = described(row(1), row(2, state="draining", held=3))
    node.next = [described(row(1))]
    assert command(node, "node", "drain", "node-2").stdout == (
        "node-2:4747 has left the cluster.\n"
    )


def test_a_drained_node_that_is_put_back(node: Cluster) -> None:
    node.told = described(row(1), row(2, state="draining", held=3))
    node.next = [described(row(1), row(2))]
    problem = command(node, "node", "drain", "node-2").exception
    assert isinstance(problem, UnsafeMemberChange)
    assert "was put back into the ring meanwhile" in problem.sentence


def test_ctrl_c_leaves_the_node_draining(node: Cluster) -> None:
    node.told = described(row(1), row(2, state="draining", held=3))
    with running("admin", "node", "drain", "node-2", "--url", node.url) as process:
        assert process.stderr is not None
        assert "0 of 3 partitions handed over" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output == ""
    assert "node-2:4747 stays out of the ring, and goes on handing over its partitions." in errors
    assert "`maitred admin node undrain node-2:4747` puts it back." in errors


def test_putting_a_node_back(node: Cluster) -> None:
    assert command(node, "node", "undrain", "node-2").stdout == (
        "node-2:4747 is active again: it takes over its partitions.\n"
    )
    (asked,) = node.asked
    assert (asked.name, asked.drain) == ("node-2", False)
    told = json.loads(command(node, "node", "undrain", "node-2", "--json").stdout)
    assert told == {"node": "node-2:4747", "state": "active", "version": 18}


@pytest.mark.parametrize(
    "problem",
    [
        UnknownNode("The cluster has no node called 'x'.", remedy="Did you mean 'y'?"),
        UnsafeMemberChange("The node is the only active one.", remedy="Start another."),
    ],
)
def test_errors_of_the_node_are_shown_as_they_are(node: Cluster, problem: MaitredError) -> None:
    node.problem = problem
    for order in ("drain", "undrain"):
        raised = command(node, "node", order, "x").exception
        assert type(raised) is type(problem)
        assert str(raised) == str(problem)


# queue describe


def test_describe_names_the_node_of_each_partition(node: Cluster) -> None:
    queue = node.queue("shop/thumbnails", read=2, write=2)
    done = command(node, "queue", "describe", "shop/thumbnails")
    assert " node " not in done.stdout, "there is one node"
    identity = "89f2b587-4472-41d5-acc5-10e7e7c6725c"
    queue.changes[1] = {"node": identity}
    done = command(node, "queue", "describe", "shop/thumbnails")
    table = done.stdout.split("\n\n")[1].splitlines()
    assert table[0].split()[:4] == ["partition", "node", "shard", "state"]
    assert table[1].split()[:2] == ["0", "node"]
    assert table[2].split()[:2] == ["1", "89f2b587"]
    told = json.loads(command(node, "queue", "describe", "shop/thumbnails", "--json").stdout)
    assert [(one["node"], one["address"]) for one in told["partitions"]] == [
        ("node", None),
        (identity, None),
    ]


# init-tls


def test_init_tls_makes_what_a_node_starts_with(tmp_path: Path) -> None:
    out = tmp_path / "tls"
    done = maitred("admin", "cluster", "init-tls", "--out", str(out), "node-1,10.0.0.1", "node-2")
    assert done.returncode == 0, done.stderr
    assert "The authority is new" in done.stdout
    for host in ("node-1", "node-2"):
        match = re.search(rf"on {host}:\n\n((?:  .*\n|\n)+)", done.stdout)
        assert match
        settings = tomllib.loads(match[1].replace("/etc/maitred", str(out)))
        assert settings["cluster"]["announce"] == host
        loaded = load(
            None, {}, settings | {"store": "postgresql://db", "public_without_auth": True}
        )
        assert loaded.tls is not None
        assert stat.S_IMODE((out / f"{host}.key").stat().st_mode) == 0o600
    again = maitred("admin", "cluster", "init-tls", "--out", str(out), "node-3", "--json")
    told = json.loads(again.stdout)
    assert told["authority"]["made"] is False
    (one,) = told["nodes"]
    assert (one["host"], one["names"]) == ("node-3", ["node-3"])
    assert tomllib.loads(one["settings"])["tls"]["key"] == "/etc/maitred/node-3.key"


def test_init_tls_replaces_nothing(tmp_path: Path) -> None:
    arguments = ("admin", "cluster", "init-tls", "--out", str(tmp_path), "node-1")
    assert maitred(*arguments).returncode == 0
    before = (tmp_path / "node-1.key").read_bytes()
    done = maitred(*arguments)
    assert done.returncode == 2
    assert "node-1.pem exists already, and is not replaced. [invalid-argument]" in done.stderr
    assert (tmp_path / "node-1.key").read_bytes() == before


def test_init_tls_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = maitred("admin", "cluster", "init-tls", "--out", str(tmp_path / "file"), "node-1")
    assert done.returncode == 1
    assert "[cannot-write]" in done.stderr


def test_the_settings_of_many_nodes_are_not_all_printed(tmp_path: Path) -> None:
    hosts = [f"node-{number}" for number in range(5)]
    done = maitred("admin", "cluster", "init-tls", "--out", str(tmp_path / "tls"), *hosts)
    assert done.stdout.count("[tls]") == 3
    assert "2 more likewise; --json prints the settings of all." in done.stdout


def test_options_of_the_table_do_not_go_with_another_command(tmp_path: Path) -> None:
    for option in (["--json"], ["--watch"], ["--url", "maitred://a"]):
        done = CliRunner().invoke(
            cli,
            ["admin", "cluster", *option, "init-tls", "--out", str(tmp_path / "tls"), "a"],
            standalone_mode=False,
        )
        assert isinstance(done.exception, InvalidArgument)
        assert f"{option[0]} stands before 'init-tls'" in done.exception.sentence
    assert not (tmp_path / "tls").exists()


def test_a_misspelt_command() -> None:
    done = maitred("admin", "cluster", "init-tsl")
    assert done.returncode == 2
    assert "Did you mean 'init-tls'?" in done.stderr


# up


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--announce", "10.0.0.7"), "SQLite stores are for one machine"),
        (
            ("--store", "postgresql://a", "--announce", "10.0.0.7"),
            "maitred admin cluster init-tls",
        ),
        (
            ("--store", "postgresql://a", "--host", EVERYWHERE, "--public-without-auth"),
            "--announce HOST",
        ),
        (
            ("--announce", "a", "--set", "cluster.announce=b"),
            "cluster.announce is given twice",
        ),
    ],
)
def test_up_refuses_a_cluster_that_cannot_work(arguments: tuple[str, ...], said: str) -> None:
    done = maitred("up", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_announced_host_without_an_address(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    host = "nowhere.invalid"
    assert maitred("admin", "cluster", "init-tls", "--out", str(tls), host).returncode == 0
    done = maitred(
        *("up", "--store", "postgresql://a", "--host", EVERYWHERE, "--announce", host),
        *("--public-without-auth", "--data", str(tmp_path / "data")),
        *("--set", f"cluster.authorities={tls / 'cluster-ca.pem'}"),
        *(
            "--set",
            f"tls.certificate={tls / f'{host}.pem'}",
            "--set",
            f"tls.key={tls / f'{host}.key'}",
        ),
    )
    assert done.returncode == 1
    assert "The host 'nowhere.invalid' has no address" in done.stderr
