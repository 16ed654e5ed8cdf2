"""The studies and the soak as a person runs them; what they compute is tested elsewhere."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.cli.running import maitred, maitred_json

if TYPE_CHECKING:
    from pathlib import Path

PLACEMENT = ("simulate", "placement", "--cluster", "20:640:1", "--batch-size", "0")
SELECTION = ("simulate", "selection", "--quick", "--scenario", "stable", "--tasks", "60")


@pytest.mark.parametrize(
    ("name", "command", "picture"),
    [("placement", PLACEMENT, "svg"), ("selection", SELECTION, "png")],
)
def test_a_study_prints_a_table_and_leaves_json_and_a_picture(
    name: str, command: tuple[str, ...], picture: str, tmp_path: Path
) -> None:
    done = maitred(*command, "--output", str(tmp_path), "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert "100%" in done.stderr, "progress is shown"
    assert re.search(r"^- .+", done.stdout, re.MULTILINE), "findings are said"
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["findings"]
    drawn = (tmp_path / f"{name}.{picture}").read_bytes()
    assert drawn.startswith(b"<?xml" if picture == "svg" else b"\x89PNG")
    as_json = maitred(*command, "--output", str(tmp_path), "--picture", "none", "--json")
    assert json.loads(as_json.stdout) == document, "the same seeds give the same numbers"


def test_soak_of_every_scenario() -> None:
    done = maitred("simulate", "soak", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout


def test_soak_replays_one_seed_exactly() -> None:
    one, other = (
        maitred("simulate", "soak", "--scenario", "streams", "--seed", "7").stdout for _ in range(2)
    )
    assert one == other
    assert "streams seed 7: ok" in one


def test_soak_as_json() -> None:
    done = maitred("simulate", "soak", "--seeds", "1", "--scenario", "servers", "--json")
    (outcome,) = json.loads(done.stdout)
    assert outcome["ok"] is True
    assert outcome["scenario"] == "servers"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("soak", "--scenario", "steams"), "Did you mean 'streams'?"),
        (("soak", "--seeds", "0"), "0 is not in the range"),
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
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    place = () if arguments[0] == "soak" else ("--output", str(tmp_path))
    refused = maitred("simulate", *arguments, *place)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = maitred(*PLACEMENT, "--output", str(tmp_path / "file" / "results"))
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "Cannot write" in refused.stderr


def test_the_tour_runs() -> None:
    done = maitred("tour")
    assert done.returncode == 0, done.stderr
    assert "thumbnails  node-" in done.stdout
    assert "(one single queue)" in done.stdout


def test_the_tour_as_json() -> None:
    told = maitred_json("tour")
    assert [row["partition"] for row in told["where_it_lives"]] == list(range(7))
    assert [row["placement"] for row in told["what_moves"]] == ["basic", "wrap", "steady"]
    assert len(told["which_to_pick"]) == 5


def test_small_queues_can_be_placed_too(tmp_path: Path) -> None:
    done = maitred(
        *("simulate", "placement", "--cluster", "4:20:1", "--per-queue", "5", "--batch-size", "5"),
        *("--output", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
