"""The soak and the tour as a person runs them; what they compute is tested elsewhere."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import maitred, maitred_json


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
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str) -> None:
    refused = maitred("simulate", *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


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
