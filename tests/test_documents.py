"""What the documents show is what happens: examples, README, links."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maitred.settings import PORT
from tests.cli.running import MAITRED
from tests.node.nodes import START_SECONDS, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text()
PLACEMENT = (ROOT / "docs" / "placement.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_prints_what_it_says(example: Path) -> None:
    _, _, said = example.read_text().partition("\n# Prints")
    title, _, said = said.partition(":\n")
    mark = "~" if title else "|"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = "".join(f"# {mark} {line}\n" for line in done.stdout.splitlines())
    if mark == "~":  # with other numbers each time
        printed, said = (re.sub(r"[0-9][0-9.,]*", "#", text) for text in (printed, said))
    assert printed == said != ""


@contextmanager
def a_shop(directory: Path, url: str) -> Iterator[dict[str, str]]:
    """The README's `shop.py` in the directory, and its worker; gives the environment for both."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    app = next(block for block in blocks if "@app.handler" in block)
    (directory / "shop.py").write_text(app)
    line = re.search(r"^\$ \.venv/bin/maitred (worker .*)$", README, re.MULTILINE)
    assert line
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAITRED_")
    }
    environment |= {"MAITRED_URL": url, "PYTHONPATH": str(directory)}
    with subprocess.Popen(
        [str(MAITRED), *shlex.split(line[1])],
        cwd=directory,
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as worker:
        try:
            yield environment
        finally:
            worker.terminate()
            assert worker.wait(30) == 0


def test_the_first_pages_python_runs(tmp_path: Path) -> None:
    pages = (README, FIRST_STEPS, PLACEMENT)
    blocks = [re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in pages]
    assert [len(of_page) for of_page in blocks] == [4, 3, 1]
    with (
        running_node("--example", shards=2) as node,
        a_shop(tmp_path, node.url) as environment,
    ):
        for block in chain.from_iterable(blocks):
            if "@app.handler" in block:
                continue
            here = block.replace("maitred://127.0.0.1:4747", node.url)
            done = subprocess.run(
                [sys.executable, "-c", here],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout
            assert not done.stderr


def test_make_run_starts_what_the_readme_shows(tmp_path: Path) -> None:
    """`make run` itself, but for the port, which others may want; tests/cli/test_up_example.py
    tries what it prints."""
    with subprocess.Popen(
        ["make", "--silent", "run", f"UP=--port 0 --shards 1 --data {tmp_path / 'data'}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            shown = ""
            while "Ctrl-C" not in shown:
                line = process.stdout.readline()
                assert line, f"it ended: {shown}"
                shown += line
            commands = re.findall(r"^  (\S*maitred .*)$", shown, re.MULTILINE)
            assert [command.split()[1] for command in commands] == ["admin", "admin", "status"]
            for command in commands:
                _, *arguments = shlex.split(command)
                done = subprocess.run([str(MAITRED), *arguments], capture_output=True, check=False)
                assert done.returncode == 0, done
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def test_the_readmes_console_lines_work_as_printed(tmp_path: Path) -> None:
    """At the default ports, in a directory with a `.venv`. No other test takes these ports."""
    lines = re.findall(r"^\$ (\.venv/bin/maitred (?:admin|status).*)$", README, re.MULTILINE)
    commands = [" ".join(line.split()[1:3]) for line in lines[:-1]]
    assert commands == ["admin problems", "admin queue", "admin queue"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(MAITRED.parent)
    with running_node("--example", port=PORT, shards=2, wait=False) as node:
        with node.output.changed:
            node.output.changed.wait_for(
                lambda: node.output.ended or node.output.seen, START_SECONDS
            )
        if not node.output.seen:
            node.errors.wait_for_end()
            if re.search(r"Port \d+ on 127\.0\.0\.1.* is in use", str(node.errors)):
                pytest.skip(f"THE README'S LINES WERE NOT TRIED: {node.errors}")
        node.wait_until_up()
        with a_shop(tmp_path, node.url) as environment:
            program = (
                "from shop import thumbnail; thumbnail.sync.enqueue('a', 1).result(timeout=30)"
            )
            subprocess.run([sys.executable, "-c", program], env=environment, check=True)
            del environment["MAITRED_URL"]
            session = _try_the_lines_with_curl(tmp_path, environment)
            shown = [_printed(line, tmp_path, environment) for line in lines]
        assert session.splitlines()[0].split()[:4] == ["id", "user", "queue", "query"]
        assert "Nothing is wrong" in shown[0]
        assert "shop/thumbnails" in shown[1]
        assert "1 to read, 1 to write" in shown[2]
        heading, *rows = shown[3].splitlines()
        assert "shard" in heading
        for shard in node.shards:
            assert any(str(shard.number) in row.split() for row in rows), shown[3]
            assert f"{shard.pid}" in shown[3].split()


def _try_the_lines_with_curl(directory: Path, environment: dict[str, str]) -> str:
    """Run the blocks that begin with curl, of the first steps and then of the README, and compare
    what each command prints with what the page shows. Return the table of queries."""
    if shutil.which("curl") is None:
        pytest.skip("NO curl HERE: THE README'S LINES WERE NOT TRIED")
    table = ""
    for page, commands in (
        (FIRST_STEPS, ["curl", "curl", ".venv/bin/maitred"]),
        (README, ["curl"]),
    ):
        block = re.search(r"```console\n(\$ curl .*?)```", page, re.DOTALL)
        assert block
        parts = re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]
        steps = [step.partition("\n") for step in parts]
        assert [command.split()[0] for command, _, _ in steps] == commands
        for command, _, expected in steps:
            line = command.replace("curl ", "curl --silent --show-error ", 1)
            printed = _printed(line, directory, environment)
            if command.startswith("curl"):
                assert printed == expected.rstrip("\n")
            else:
                table = printed
                changing = r"\b[0-9a-f]{8}/|market-\d|\d\d:\d\d:\d\d|[\d.]+ (?:ms|us|s)\b|[ ]+"
                assert re.sub(changing, " ", printed) == re.sub(changing, " ", expected)
    return table


def _printed(line: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stderr == ""
    return done.stdout


def test_route_prints_what_the_page_on_placement_shows() -> None:
    shown = re.search(
        r"```console\n\$ \.venv/bin/(maitred route .*?)\n(.*?)```", PLACEMENT, re.DOTALL
    )
    assert shown
    _, *arguments = shlex.split(shown[1])
    done = subprocess.run([str(MAITRED), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == shown[2]


def test_make_targets_that_the_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for named in re.findall(r"`make ([a-z]+)", page.read_text()):
            assert named in targets, f"{page.name} names make {named}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_a_heading_name_one_that_exists(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        text = (page.parent / target if target else page).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
        assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def test_the_index_lists_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    listed = re.findall(r"\]\(([^)]+)\)", index.read_text())
    assert sorted(listed) == sorted(
        page.name for page in index.parent.glob("*.md") if page != index
    )


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    lines = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set "))
    ]
    assert lines == ["exec make test"]
    assert "$ make test" in README
