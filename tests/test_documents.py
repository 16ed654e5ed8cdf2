"""What the documents show is what happens: examples, README, links."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import MAITRED

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_runs_and_prints_the_same_twice(example: Path) -> None:
    first, second = (
        subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""
    assert first.stdout == second.stdout != ""


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, check=True
        )
        assert done.stdout


def test_the_readmes_command_prints_what_the_readme_shows() -> None:
    shown = re.search(r"```console\n\$ \.venv/bin/(maitred .*?)\n(.*?)```", README, re.DOTALL)
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


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    lines = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set "))
    ]
    assert lines == ["exec make test"]
    assert "$ make test" in README
