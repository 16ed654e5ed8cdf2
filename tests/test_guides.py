"""docs/running.md and docs/client.md: their Python runs, their files are accepted, and so on."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from maitred import errors
from maitred.cli.main import cli
from maitred.node.exits import MEANINGS
from maitred.schema import rows
from maitred.security.users import read_users
from maitred.settings import Limits
from tests.cli.running import maitred
from tests.node.nodes import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parent.parent / "docs"
RUNNING = (DOCS / "running.md").read_text()
CLIENT = (DOCS / "client.md").read_text()
GUIDES = {"running.md": RUNNING, "client.md": CLIENT}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node(shards=2) as one:
        yield one


@pytest.mark.parametrize("block", blocks(CLIENT, "python"))
def test_the_python_of_the_clients_page_runs(block: str, node: RunningNode) -> None:
    here = block.replace("maitred://localhost", node.url)
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_what_an_address_is_said_to_look_like() -> None:
    block = next(one for one in blocks(CLIENT, "python") if "p%40ss" in one)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert f"`{done.stdout.strip()}`" in CLIENT


@pytest.mark.parametrize("page", GUIDES)
def test_commands_have_the_options_that_the_page_gives_them(page: str) -> None:
    commands = re.findall(r"(?:^\$ |`)maitred ([a-z-]+(?: [^`\n]*)?)", GUIDES[page], re.MULTILINE)
    assert commands
    for command in commands:
        name, *arguments = shlex.split(command)
        options = [argument for argument in arguments if argument.startswith("--")]
        before = arguments[: arguments.index(options[0])] if options else []
        described = CliRunner().invoke(cli, [name, *before, "--help"])
        assert described.exit_code == 0, command
        for option in options:
            assert option in described.output, command


def test_codes_that_the_pages_name_exist() -> None:
    codes = {
        one.code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.MaitredError)
    }
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", CLIENT + RUNNING))
    assert len(named) > 10
    assert named <= codes


def test_every_limit_of_a_node_is_told() -> None:
    told = set(re.findall(r"`limits\.(\w+)`", RUNNING))
    assert told == {row.name for row in rows(Limits)}


def test_exit_statuses_are_told_as_they_are() -> None:
    for status, meaning in MEANINGS:
        assert f"| {status} | {meaning} |" in RUNNING


def test_users_and_tls_are_written_as_a_node_takes_them(tmp_path: Path) -> None:
    users, tls = blocks(RUNNING, "toml")
    (tmp_path / "users.toml").write_text(users)
    assert set(read_users(str(tmp_path / "users.toml"))) == {"alice", "operator"}
    assert set(tomllib.loads(tls)["tls"]) == {"certificate", "key", "client_authorities"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it shows how to use openssl")
def test_the_certificates_of_the_page_let_a_client_in(tmp_path: Path) -> None:
    (script,) = blocks(RUNNING, "sh")
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    (tmp_path / "node.toml").write_text(blocks(RUNNING, "toml")[1])
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
    options = "&".join(f"{option}={tmp_path / name}" for option, name in files.items())
    with running_node("--config", str(tmp_path / "node.toml"), shards=1) as node:
        done = maitred("ping", "--count", "1", "--url", f"{node.url}?{options}")
    assert done.returncode == 0, done.stderr
