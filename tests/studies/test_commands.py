"""The studies as a person runs them; what they compute is tested elsewhere."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from studies.__main__ import STUDIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int | str | None
    stdout: str
    stderr: str


PLACEMENT = ("placement", "--cluster", "8:128:1", "--batch-size", "0")
SELECTION = ("selection", "--quick", "--scenario", "stable", "--tasks", "60")
MATCHING = (
    *("matching", "--quick", "--tasks", "40"),
    *("--scenario", "default", "--scenario", "published-2-2", "--scenario", "published-4-2"),
)
CONTEST = (
    *("contest", "--scenario", "contest", "--policy", "adaptive"),
    *("--seed", "3", "--stretch", "0.01"),
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs `python -m studies.NAME` in this process, which spares each test the imports."""

    def run(name: str, *arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", [f"studies.{name}", *map(str, arguments)])
        status: int | str | None = 0
        try:
            runpy.run_module(f"studies.{name}", run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        return Done(status, *capsys.readouterr())

    return run


def test_they_are_listed_and_each_can_be_run() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "studies"], capture_output=True, text=True, check=True
    ).stdout
    for name in STUDIES:
        assert f"python -m studies.{name} " in listed
    shown = subprocess.run(
        [sys.executable, "-m", "studies.limits", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PATH" in shown.stdout


@pytest.mark.parametrize("name", sorted(STUDIES.keys() - {"limits"}))
def test_each_explains_itself(name: str, run: Callable[..., Done]) -> None:
    done = run(name, "--help")
    assert done.status == 0
    assert "--picture" in done.stdout


@pytest.mark.parametrize(
    ("command", "picture", "row"),
    [
        (PLACEMENT, "svg", r"^- .+"),
        (SELECTION, "png", r"^- .+"),
        (MATCHING, "svg", r"^default +\d(.|\n)*^- With 4 partitions to read"),
        (CONTEST, "svg", r"^contest +adaptive +\d(.|\n)*^- .+"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_study_prints_a_table_and_leaves_json_and_a_picture(
    command: tuple[str, ...], picture: str, row: str, run: Callable[..., Done], tmp_path: Path
) -> None:
    name = command[0]
    done = run(*command, "--output", tmp_path, "--picture", picture)
    assert done.status == 0, done.stderr
    assert "100%" in done.stderr, "progress is shown"
    assert re.search(row, done.stdout, re.MULTILINE), "findings are said"
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["findings"]
    drawn = (tmp_path / f"{name}.{picture}").read_bytes()
    assert drawn.startswith(b"<?xml" if picture == "svg" else b"\x89PNG")
    as_json = run(*command, "--output", tmp_path, "--picture", "none", "--json")
    assert json.loads(as_json.stdout) == document, "the same seeds give the same numbers"


def test_one_seed_can_be_replayed(run: Callable[..., Done], tmp_path: Path) -> None:
    command = ("matching", "--scenario", "burst", "--tasks", "40", "--seed", "7")
    done = run(*command, "--output", tmp_path, "--picture", "none", "--json")
    document = json.loads(done.stdout)
    assert document["settings"]["first_seed"] == 7
    assert [row["seeds"] for row in document["results"]] == [1]
    assert document["sweep"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("placement", "--cluster", "8"), "'8' is not a cluster"),
        (("placement", "--cluster", "1:8"), "it takes 2 hosts to lose one"),
        (("placement", "--cluster", "99999999999:1"), "too large to study"),
        (("placement", "--cluster", "\u0663:5"), "is not a cluster"),
        (("placement", "--cluster", "8:8:9"), "Cannot lose 9 of 8 hosts"),
        (("placement", "--batch-size", "65"), "65 is more than the 64 partitions"),
        (("placement", "--placement", "wrapp"), "Did you mean 'wrap'?"),
        (("selection", "--algorithm", "wighted"), "Did you mean 'weighted'?"),
        (("selection", "--partitions", "0"), "partitions is 0"),
        (("selection", "--rate", "-1"), "rate_per_second is -1.0"),
        (("selection", "--rate", "1e-300"), "rate_per_second is 1e-300"),
        (("selection", "--forwarding", "up"), "kind of forwarding"),
        (("matching", "--scenario", "brust"), "Did you mean 'burst'?"),
        (("matching", "--tasks", "0"), "tasks is 0"),
        (("matching", "--seeds", "0"), "seeds is 0"),
        (("matching", "--seed", "-1"), "first_seed is -1"),
        (("contest", "--scenario", "dropp"), "Did you mean 'drop'?"),
        (("contest", "--policy", "two-phases"), "Did you mean 'two-phase'?"),
        (("contest", "--seeds", "0"), "seeds is 0"),
        (("contest", "--stretch", "0"), "stretch is 0"),
    ],
)
def test_bad_input(
    arguments: tuple[str, ...], said: str, run: Callable[..., Done], tmp_path: Path
) -> None:
    refused = run(*arguments, "--output", tmp_path)
    assert refused.status == 2
    assert said in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_plainly(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = run(*PLACEMENT, "--output", tmp_path / "file" / "results")
    assert refused.status == 1
    assert "Cannot write" in refused.stderr


def test_small_queues_can_be_placed_too(run: Callable[..., Done], tmp_path: Path) -> None:
    done = run(
        *("placement", "--cluster", "4:20:1", "--per-queue", "5", "--batch-size", "5"),
        *("--output", tmp_path, "--picture", "none"),
    )
    assert done.status == 0, done.stderr
