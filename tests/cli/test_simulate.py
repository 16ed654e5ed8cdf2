"""The soak as a person runs it; what it computes is tested elsewhere."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import maitred


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
