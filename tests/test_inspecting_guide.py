"""docs/inspecting.md: its Python and its commands run, in their order, on a node with its app."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

import maitred
import maitred.errors
from maitred.app.task_listing import FILTERS
from maitred.client.task_changes import APPLIES
from maitred.protocol.inspection import TaskState
from tests.cli.running import MAITRED
from tests.node.nodes import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parent.parent / "docs" / "inspecting.md").read_text()
APP, PROGRAM, REPAIR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ maitred (.*)$", PAGE, re.MULTILINE)
(SHOWN,) = re.findall(r"```text\n(.*?)…\n```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How a program reaches a node whose worker serves the app, after the page's program ran."""
    directory = tmp_path_factory.mktemp("shop")
    (directory / "shop.py").write_text(APP)
    with running_node(shards=1) as node:
        found = {name: value for name, value in os.environ.items() if "MAITRED" not in name}
        path = os.pathsep.join(filter(None, (str(directory), found.get("PYTHONPATH"))))
        found |= {"MAITRED_URL": node.url, "PYTHONPATH": path}
        with subprocess.Popen(
            [str(MAITRED), "worker", "shop:app", "--name", "desk"],
            env=found,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                yield found
            finally:
                worker.terminate()
                assert worker.wait(60) == 0


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_the_page_runs_from_top_to_bottom(environment: dict[str, str]) -> None:
    """The commands come after the program, whose task has the first id of the queue."""
    printed = run(environment, sys.executable, "-c", PROGRAM)
    assert "dead 2 desk ConnectionError {'to': 'ann@example.com', 'code': '[hidden]'}" in printed
    assert "failed, attempt 2 at desk: ConnectionError: ann@example.com does not" in printed
    assert printed.splitlines()[-1].startswith("shop/mails/0/")
    acting = PROGRAM.replace("run(main())", "run(repair())").replace(
        "async def main", f"{REPAIR}\n\nasync def main"
    )
    assert run(environment, sys.executable, "-c", acting).splitlines()[-1].startswith("0 ")
    shown = ""
    for line in COMMANDS:
        told = run(environment, str(MAITRED), *shlex.split(line))
        if line == "admin task show shop/mails/0/4294967296":
            shown = told
    for label in ("state", "why", "next", "added", "options", "function", "where", "History"):
        assert re.search(rf"^{label}\b", SHOWN, re.MULTILINE), label
        assert re.search(rf"^{label}\b", shown, re.MULTILINE), label
    for words in re.findall(r"(?:added by|started, attempt|failed, attempt) ", SHOWN):
        assert words in shown


def test_the_page_has_every_command_state_and_filter() -> None:
    actions = re.findall(r"^\| `([a-z-]+)` \| `", PAGE, re.MULTILINE)
    assert set(actions) == APPLIES.keys()
    named = set(re.findall(r"`([a-z-]+)`", PAGE))
    assert named >= set(get_args(TaskState)) | {"ended"}
    assert named | {"argument"} >= set(FILTERS)
    for name in re.findall(r"`(Task\w+|TimelineEvent)`", PAGE):
        assert name in maitred.__all__ or hasattr(maitred.errors, name)
