"""`maitred simulate capacity` as a person runs it, and docs/planning.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import maitred

PAGE = (Path(__file__).parent.parent.parent / "docs" / "planning.md").read_text()
SHOWN = [block.strip() for block in re.findall(r"```console\n\$ (.*?)```", PAGE, re.DOTALL)]
SMALL = ("--rate", "20", "--service", "exponential:0.1", "--slots", "2", "--count", "100")


def shape(text: str) -> str:
    """What is printed, but for its numbers, their units and its spaces."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9][0-9.,]*( m?s\b)?", "#", text)).strip()


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.partition("\n")[0][26:60])
def test_what_the_page_shows_is_what_happens(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("times.csv").write_text("seconds\n0.1\n0.2\n0.3\n")
    command, _, printed = shown.partition("\n")
    done = maitred(*shlex.split(command)[1:], "--count", "100")
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stderr, "progress is shown"
    if printed:
        assert shape(done.stdout) == shape(printed)
    if "--picture" in command:
        assert Path("waits.svg").read_bytes().startswith(b"<?xml")


def test_json_has_the_numbers_of_the_table() -> None:
    done = maitred("simulate", "capacity", *SMALL, "--workers", "2", "--json")
    document = json.loads(done.stdout)
    assert [run["workers"] for run in document["runs"]] == [1, 2, 3]
    assert document["settings"]["deadline_seconds"] == 30.0


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--service", "exponentail:1"), "Did you mean 'exponential'?", "unknown-algorithm"),
        (("--service", "exponential"), "Write exponential:MEAN, in seconds", "invalid-argument"),
        (("--service", "csv:none.csv"), "Name a CSV file", "invalid-argument"),
        (("--rate", "0"), "Give a number above 0", "invalid-argument"),
        (("--workers", "0"), "Give a whole number from 1", "invalid-argument"),
        (("--lose", "9:1"), "The workers are numbered 1 to 2", "invalid-argument"),
        (("--slow", "fast"), "Write --slow 1:2.5, say", "invalid-argument"),
        (("--policy", "adaptive"), "Add --work queries", "invalid-argument"),
        (("--picture", "waits.gif"), "end with .svg or .png", "invalid-argument"),
    ],
)
def test_bad_input(options: tuple[str, ...], said: str, code: str) -> None:
    refused = maitred("simulate", "capacity", *SMALL, "--workers", "2", *options)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert f"[{code}]" in refused.stderr
    assert "%" not in refused.stderr, "it is said before anything is run"


def test_a_picture_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    picture = tmp_path / "file" / "waits.svg"
    refused = maitred("simulate", "capacity", *SMALL, "--workers", "1", "--picture", str(picture))
    assert refused.returncode == 1
    assert "[cannot-write]" in refused.stderr
    assert "Traceback" not in refused.stderr
