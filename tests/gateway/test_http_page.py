"""The curl lines of docs/http.md about the admin API work as printed, in their order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from maitred.gateway.http.admin import BODIES
from maitred.gateway.http.routes import ROUTES
from tests.gateway.test_processes import http_of
from tests.node.nodes import running_node

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
ADMIN = PAGE[PAGE.index("## The admin API") : PAGE.index("## Health and metrics")]


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", ADMIN, re.DOTALL)
    return [
        line.removeprefix("$ ").partition("  #")[0]
        for block in blocks
        for line in block.splitlines()
    ]


def answer(command: str, base: str) -> Any:  # noqa: ANN401
    words = shlex.split(command.replace("$MAITRED", base))
    assert words[0] == "curl"
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--fail-with-body", *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("curl") is None, reason="NO curl HERE: the lines were not tried")
def test_the_lines_of_the_page_work_as_printed() -> None:
    with running_node(shards=1, gateway=True) as node:
        base = http_of(node)
        told = [(line, answer(line, base)) for line in commands()]

    def of(part: str) -> Any:  # noqa: ANN401
        (found,) = [said for line, said in told if part in line]
        return found

    assert [len(of(f"state={state}")["tasks"]) for state in ("waiting", "delayed")] == [1, 1]
    assert of("run-now")["matched"] == 1
    assert of("a bad release")["controls"]["pause"]["reason"] == "a bad release"
    assert of("older_than")["tasks"] == {"waiting": 0}
    assert of("force=true")["tasks"] == 2
    assert of("seconds=600")["step_seconds"] == 10


def test_the_page_names_every_route_and_every_field_of_a_body() -> None:
    rows = re.findall(r"^\| (`(?:GET|POST|PATCH|DELETE) [^|]+) \|", ADMIN, re.MULTILINE)
    named = " ".join(rows)
    for route in ROUTES:
        if route.handler in BODIES or route.handler == "delete_queue":
            last = route.path.rpartition("/")[2]
            assert route.method in named
            assert last in named, route.path
    for kind in BODIES.values():
        for field in kind.__struct_fields__:
            assert f"`{field}`" in ADMIN, field
