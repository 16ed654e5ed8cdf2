"""docs/cluster.md, docs/scaling.md and examples/cluster: what they show is accepted and adds up."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml  # type: ignore[import-untyped]  # the driver of ScyllaDB brings it
from click.testing import CliRunner

from maitred import errors
from maitred.cli.main import cli
from maitred.cli.up import flags, up
from maitred.client.address import parse_address
from maitred.config import describe, load
from maitred.settings import ClusterSettings, Node
from maitred.store import postgres_warnings
from tests.cli.running import maitred

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "cluster.md").read_text()
SCALING = (ROOT / "docs" / "scaling.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "examples/cluster/compose.yaml").read_text())
NODES = ("node-1", "node-2", "node-3")
SOURCE = ROOT / "src" / "maitred"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def check_command(arguments: Sequence[str]) -> click.Context:
    """Parse a command line as the program does, without running it."""
    command: click.Command = cli
    words = list(arguments)
    # click keeps the first help option that a command makes, which other tests show.
    context = click.Context(cli, info_name="maitred", **cli.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        if below is None:
            break
        command = below
        words.pop(0)
        if not isinstance(command, click.Group):
            break
    try:
        return command.make_context("maitred", words, parent=context)
    except click.MissingParameter:  # a page may name a command without its arguments
        return context


def test_the_commands_of_the_page_are_accepted() -> None:
    commands = re.findall(r"(?:^\$ |`)maitred ([a-z][^`\n]*)", PAGE, re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        check_command(shlex.split(command))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the page's `init-tls` makes."""
    place = tmp_path_factory.mktemp("cluster")
    line = re.search(r"^\$ maitred (admin cluster init-tls .*)$", PAGE, re.MULTILINE)
    assert line
    out = str(place / "cluster-tls")
    done = maitred(*shlex.split(line[1]), "--out", out)
    assert done.returncode == 0, done.stderr
    shown = PAGE.partition(f"{line[0]}\n")[2].partition("...\n")[0]
    assert (
        _without(shown) == _without(done.stdout.replace(out, "cluster-tls"))[: len(_without(shown))]
    )
    return place / "cluster-tls"


def _without(text: str) -> list[str]:
    """The words, without the dates."""
    return [word for word in text.split() if not re.fullmatch(r"\d{4}-\d\d-\d\d", word)]


def test_a_node_starts_with_the_settings_of_the_page(certificates: Path) -> None:
    (block,) = blocks("toml")
    (certificates / "node.toml").write_text(block)
    (certificates / "users.toml").write_text("")
    environment = {"MAITRED_STORE": "postgresql://maitred:secret@db-1,db-2/maitred"}
    node = load(str(certificates / "node.toml"), environment, {})
    assert (node.cluster.announce, node.host) == ("node-1", "0.0.0.0")  # noqa: S104 - as shown
    parse_address(f"maitreds://node-1,node-2,node-3?ca={certificates / 'cluster-ca.pem'}")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="it checks units")
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    (block,) = blocks("ini")
    unit = tmp_path / "maitred.service"
    program = shutil.which("true")
    assert program
    here = block.replace("/opt/maitred/bin/maitred", program)
    unit.write_text(here.replace("User=maitred\n", ""))  # there is no such user here
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    if "Failed to" in done.stderr and "maitred" not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr[:200]}")
    assert not [line for line in done.stderr.splitlines() if "maitred.service" in line]
    start = re.search(r"^ExecStart=\S+ (.*)$", block, re.MULTILINE)
    assert start
    check_command(shlex.split(start[1]))


def test_settings_codes_and_defaults_that_the_page_names() -> None:
    known = {row.name for row in describe()}
    named = set(re.findall(r"`((?:cluster|tls)\.[a-z_]+)\b", PAGE + SCALING))
    assert {"cluster.announce", "cluster.authorities", "cluster.enabled"} <= named <= known
    codes = {
        one.code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.MaitredError)
    }
    assert {"store-unavailable", "unavailable"} <= codes
    cluster, node = ClusterSettings(), Node()
    assert f"`cluster.lease_seconds` of {cluster.lease_seconds:g}" in PAGE
    assert f"`cluster.forward_seconds` ({cluster.forward_seconds:g})" in PAGE
    assert f"`drain_seconds` ({node.drain_seconds:g})" in PAGE
    assert f"`cluster.beat_seconds` ({cluster.beat_seconds:g})" in SCALING


def test_the_log_has_the_events_that_the_page_names() -> None:
    files = [*(SOURCE / "node").glob("*.py"), *(SOURCE / "membership").glob("*.py")]
    written = " ".join(re.sub(r'"\s+"', "", path.read_text()) for path in files)
    events = (
        "member is accused",
        "member is gone",
        "it sent no heartbeat for",
        "this member is dead and stops",
        "node is up again",
        "member does not answer probes",
        "membership table is away",
        "membership table is back",
        "the clocks of this node and the database differ: synchronise them",
        "lease not renewed; stored tasks and slots are withheld",
    )
    for event in events:
        assert event in PAGE
        assert event in written, event


# The compose file


@pytest.mark.parametrize("name", NODES)
def test_the_nodes_of_the_compose_file_start(
    name: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = COMPOSE["services"][name]
    program, command, *arguments = service["command"]
    assert (program, command) == ("maitred", "up")
    environment = {
        key: value.replace("/tls/", f"{certificates}/")
        for key, value in service["environment"].items()
    }
    for key in environment:
        monkeypatch.delenv(key, raising=False)
    # Without the program as its parent, click would remember other names of --help for the command.
    program_context = click.Context(cli, info_name="maitred", **cli.context_settings)
    context = up.make_context("up", list(arguments), parent=program_context)
    given = {
        key: value
        for key, value in context.params.items()
        if key not in {"file", "others", "accepted", "example", "as_json"}
    }
    node = load(None, environment, flags(given, ()))
    assert node.cluster.announce == name
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > node.drain_seconds + node.cluster.forward_seconds + 10
    assert any(volume == f"{name}:/data" for volume in service["volumes"])


def test_the_rest_of_the_compose_file() -> None:
    services = COMPOSE["services"]
    assert set(services) == {*NODES, "postgres", "certificates", "tools"}
    shell, option, script = services["certificates"]["command"]
    assert (shell, option) == ("sh", "-c")
    program, *arguments = shlex.split(script.partition("||")[2])
    assert program == "maitred"
    assert set(NODES) < set(arguments)
    check_command(arguments)
    check_command(services["tools"]["command"][1:])
    url = services["tools"]["environment"]["MAITRED_URL"]
    assert [node.host for node in parse_address(url).nodes] == list(NODES)
    database = services["postgres"]["environment"]
    store = COMPOSE["x-settings"]["MAITRED_STORE"]
    user, secret = database["POSTGRES_USER"], database["POSTGRES_PASSWORD"]
    assert store == f"postgresql://{user}:{secret}@postgres/{database['POSTGRES_DB']}"
    mounted = {
        volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())
    }
    assert mounted == set(COMPOSE["volumes"])
    for line in re.findall(r"^#   (docker compose .*)$", _text("compose.yaml"), re.MULTILINE):
        words = shlex.split(line)
        if "tools" in words:
            check_command(words[words.index("maitred") + 1 :])
        assert (ROOT / words[words.index("-f") + 1]).exists()
    built = services["node-1"]["build"]
    assert (ROOT / "examples/cluster" / built["context"] / built["dockerfile"]).exists()


def _text(name: str) -> str:
    return (ROOT / "examples" / "cluster" / name).read_text()


# The arithmetic of docs/scaling.md


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its first two lines."""
    section = SCALING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    first = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert first
    lines = first[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_connections_add_up() -> None:
    assert f"| {postgres_warnings.CONNECTIONS} a shard, 1 a node" in SCALING
    for nodes, shards, most, fits in rows("Connections"):
        needed = number(nodes) * (number(shards) * postgres_warnings.CONNECTIONS + 1)
        assert needed == number(most)
        assert fits.startswith("yes") == (needed <= 97)


def test_heartbeats_add_up() -> None:
    for nodes, commits, counters, _ in rows("Heartbeats and votes"):
        assert number(commits) == number(nodes) / ClusterSettings().beat_seconds
        assert number(counters) == number(nodes) ** 2
    links = re.search(r"3 nodes have (\d+) links, 30 have (\d+), 300 have ([\d,]+)", SCALING)
    assert links
    watched = [many * min(10, many - 1) for many in (3, 30, 300)]
    assert [number(one) for one in links.groups()] == watched


def test_partitions_that_move_add_up() -> None:
    for nodes, partitions, moved, each in rows("When a node goes"):
        assert number(moved) == number(partitions) // number(nodes)
        assert number(each) == round(number(partitions) / number(nodes) / (number(nodes) - 1))


def test_help_of_commands_that_the_pages_share() -> None:
    for words in (
        ("admin", "cluster"),
        ("admin", "node", "drain"),
        ("admin", "cluster", "init-tls"),
    ):
        assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0
