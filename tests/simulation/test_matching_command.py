"""`maitred simulate matching` as a person runs it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.cli.running import maitred

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (
    *("simulate", "matching", "--quick", "--tasks", "40"),
    *("--scenario", "default", "--scenario", "published-2-2", "--scenario", "published-4-2"),
)


def test_it_prints_a_table_and_leaves_json_and_a_picture(tmp_path: Path) -> None:
    done = maitred(*COMMAND, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stderr
    assert re.search(r"^default +\d", done.stdout, re.MULTILINE)
    assert re.search(r"^- With 4 partitions to read", done.stdout, re.MULTILINE)
    document = json.loads((tmp_path / "matching.json").read_text())
    assert (tmp_path / "matching.svg").read_bytes().startswith(b"<?xml")
    again = maitred(*COMMAND, "--output", str(tmp_path), "--picture", "none", "--json")
    assert json.loads(again.stdout) == document, "the same seeds give the same numbers"


def test_one_seed_can_be_replayed(tmp_path: Path) -> None:
    command = ("simulate", "matching", "--scenario", "burst", "--tasks", "40", "--seed", "7")
    done = maitred(*command, "--output", str(tmp_path), "--picture", "none", "--json")
    document = json.loads(done.stdout)
    assert document["settings"]["first_seed"] == 7
    assert [row["seeds"] for row in document["results"]] == [1]
    assert document["sweep"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scenario", "brust"), "Did you mean 'burst'?"),
        (("--tasks", "0"), "tasks is 0"),
        (("--seeds", "0"), "seeds is 0"),
        (("--seed", "-1"), "first_seed is -1"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    refused = maitred("simulate", "matching", *arguments, "--output", str(tmp_path))
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []
