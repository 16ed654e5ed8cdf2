"""docs/queries.md: its Python and its curl run, its commands and settings exist, its tables are
true."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest
from msgspec import msgpack

from maitred import errors
from maitred.config import load
from maitred.dispatch.ask import Ask
from maitred.gateway.http.statuses import status_of
from maitred.protocol.queries import QueryRow
from maitred.security.secrets import hash_secret
from tests.cli.running import MAITRED, maitred, maitred_json
from tests.node.nodes import RunningNode, running_node, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = (Path(__file__).parent.parent / "docs" / "queries.md").read_text()
DOOR = "http://127.0.0.1:4780"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


APP, *PROGRAMS, HOOK = blocks("python")
LINES = [line[2:] for block in blocks("console") for line in block.splitlines()]


def table(heading: str) -> list[list[str]]:
    """The rows of the first table behind that heading."""
    body = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    return [row.split("|")[1:-1] for row in body.splitlines()[2:]]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, Path]]:
    """A node, and a worker with the app of the guide."""
    directory = tmp_path_factory.mktemp("desk")
    (directory / "desk.py").write_text(APP)
    with running_node(shards=2, gateway=True) as node, serving(directory, node):
        yield node, directory


@contextmanager
def serving(directory: Path, node: RunningNode) -> Iterator[None]:
    line = re.search(r"`maitred (worker desk:app[^`]*)`", GUIDE)
    assert line
    with subprocess.Popen(
        [str(MAITRED), *shlex.split(line[1]), "--url", node.url],
        cwd=directory,
        stderr=subprocess.DEVNULL,
    ) as worker:
        try:
            wait_until(lambda: len(served(node)) == 3, "the worker is there", seconds=60)
            yield
        finally:
            worker.terminate()
            assert worker.wait(30) == 0


def served(node: RunningNode) -> list[str]:
    workers = maitred_json("admin", "worker", "list", "--url", node.url)["workers"]
    return [queue for one in workers for queue in one["queues"]]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_python_runs(program: str, desk: tuple[RunningNode, Path]) -> None:
    node, directory = desk
    done = subprocess.run(
        [sys.executable, "-c", program.replace("maitred://localhost", node.url)],
        cwd=directory,
        env={**os.environ, "MAITRED_URL": node.url, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "309.0" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("curl") is None, reason="it shows how to use curl")
@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("curl")])
def test_the_lines_with_curl_are_answered(line: str, desk: tuple[RunningNode, Path]) -> None:
    node, _ = desk
    assert DOOR in line
    command = shlex.split(line.replace(DOOR, node.ready["http"]))
    done = subprocess.run(
        [*command, "--silent", "--fail"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    values = [json.loads(one) for one in done.stdout.splitlines()]
    assert values in ([309.0], [103.0], [100.0, 101.0, 102.0, 103.0, 104.0])


def test_the_hook_runs() -> None:
    scope: dict[str, object] = {}
    exec(HOOK, scope)  # noqa: S102 - it is our own page
    check = scope["check"]
    assert callable(check)
    ask = Ask(namespace="n", queue="q", payload=b"", deadline=0.0, user="batch")
    assert check(ask).priority == 4
    ask.payload = msgpack.encode(["DROP TABLE quote"])
    with pytest.raises(errors.PermissionDenied):
        check(ask)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("maitred")])
def test_commands_have_the_options_that_the_page_gives_them(line: str) -> None:
    _, *words = shlex.split(line)
    named = words[: words.index("admin") + 3]
    described = maitred(*named, "--help")
    assert described.returncode == 0, line
    for word in words:
        if word.startswith("--"):
            assert word in described.stdout, line


def test_the_settings_are_a_nodes(tmp_path: Path) -> None:
    toml = next(one for one in blocks("toml") if "[users" in one)
    file = tmp_path / "node.toml"
    file.write_text(toml.replace("scrypt$…", hash_secret("sesame")))
    node = load(str(file), {}, {})
    assert node.users["alice"].queries.concurrent == 8
    assert node.queues["default/EQUITY_MARKET_RDB"].queries.waiting == 1_000


def _by_code() -> dict[str, type[errors.MaitredError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    return {one.code: one for one in found if issubclass(one, errors.MaitredError)}


def test_errors_have_the_statuses_that_the_page_says() -> None:
    body = GUIDE.partition("| status | when | code |")[2].partition("\n\n")[0]
    rows = [row.strip("|").split("|") for row in body.splitlines()[2:]]
    assert len(rows) > 8
    for status, _, codes in rows:
        for code in re.findall(r"`([a-z-]+)`", codes):
            assert str(status_of(_by_code()[code]("Why."))) in status, code


def test_codes_and_classes_that_the_page_names_exist() -> None:
    rows = table("What can go wrong")
    assert len(rows) > 10
    for _, told, codes in rows:
        for code in re.findall(r"`([a-z-]+)`", codes):
            assert code in _by_code(), code
        for name in re.findall(r"`([A-Z]\w+)`", told):
            assert issubclass(getattr(errors, name), errors.MaitredError)


def test_every_status_of_a_query_is_told() -> None:
    body = GUIDE.partition("| status | |")[2].partition("\n\n")[0]
    told = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in body.splitlines()[2:]]
    assert [one for row in told for one in row] == [*get_args(get_type_hints(QueryRow)["status"])]


def test_defaults_are_what_the_page_says() -> None:
    from maitred.settings import Querying, QuerySettings

    for name, value in (
        ("at most 4 MiB ahead", Querying().window_bytes == 4 * 2**20),
        ("`gateway.querying.table_rows`, 10,000", Querying().table_rows == 10_000),
        ("`gateway.querying.text_letters` (200)", Querying().text_letters == 200),
        ("`no_worker_seconds` (5 s)", QuerySettings().no_worker_seconds == 5),
        ("`reservation_seconds` (2 s)", QuerySettings().reservation_seconds == 2),
        (
            "`gateway.querying.ping_seconds` + `hung_seconds` (10 s)",
            Querying().ping_seconds + Querying().hung_seconds == 10,
        ),
        ("| `timeout` | 30 |", Querying().timeout_seconds == 30),
    ):
        assert name in GUIDE.replace("\n", " ")
        assert value, name


def test_every_policy_is_told_and_its_settings_are_the_defaults(tmp_path: Path) -> None:
    from maitred.settings import QuerySettings, Shedding

    told = [re.findall(r"`([a-z0-9-]+)`", row[0]) for row in table("Choosing the worker")]
    policies = get_args(get_type_hints(QuerySettings)["policy"])
    assert sorted(one for row in told for one in row) == sorted(policies)
    assert told[0] == [QuerySettings().policy]
    toml = next(one for one in blocks("toml") if "policy" in one)
    file = tmp_path / "node.toml"
    file.write_text(toml)
    queries = load(str(file), {}, {}).queues["desk/price"].queries
    assert queries.policy == "adaptive"
    assert queries.shedding == Shedding()
