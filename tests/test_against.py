"""`--against`: what its numbers say, and that each side runs its own files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks.against import (
    LIMIT,
    ROUNDS,
    Checkout,
    Comparison,
    Slice,
    Verdict,
    checkouts,
    one_round,
    overall,
    spread,
)
from benchmarks.scraping import scraping
from benchmarks.tasks.processes import ROOT, Unavailable
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from benchmarks.against import Loads


def compared(ratios: Sequence[float]) -> Comparison:
    theirs = Slice(items=1_000, seconds=2, cpu_seconds=1)
    return Comparison("x", [(Slice(1_000, 1, ratio), theirs) for ratio in ratios])


def test_ten_rounds_leave_out_the_lowest_and_the_highest() -> None:
    found = spread([1.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8])
    assert (found.low, found.high) == (1.1, 1.8)
    assert found.middle == pytest.approx(1.45)
    assert found.confidence == pytest.approx(1 - 2 * 11 / 1024)


def test_few_rounds_give_the_extremes_and_say_how_sure_that_is() -> None:
    found = spread([2.0, 1.0])
    assert (found.low, found.middle, found.high, found.confidence) == (1.0, 1.5, 2.0, 0.5)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_the_median_lies_in_its_interval(ratios: list[float]) -> None:
    found = spread(ratios)
    assert min(ratios) <= found.low <= found.middle <= found.high <= max(ratios)
    assert found.confidence >= 0.95 or (found.low, found.high) == (min(ratios), max(ratios))


def test_a_slice_is_cpu_an_item_and_items_a_second() -> None:
    both = Slice(100, 1, 0.5) + Slice(300, 3, 0.1)
    assert both.cpu_us == pytest.approx(1_500)
    assert both.rate == pytest.approx(100)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.0] * ROUNDS, Verdict.HOLDS),
        ([LIMIT] * ROUNDS, Verdict.HOLDS),
        ([1.1] * ROUNDS, Verdict.MISSED),
        ([1.0] * 5 + [1.1] * 5, Verdict.UNDECIDED),
        ([1.0] * (ROUNDS - 1), Verdict.UNDECIDED),
        # One bad round of a busy machine, on either side, decides nothing.
        ([1.0] * 9 + [9.0], Verdict.HOLDS),
        ([1.1] * 9 + [0.1], Verdict.MISSED),
    ],
)
def test_the_whole_interval_decides(ratios: list[float], verdict: Verdict) -> None:
    assert compared(ratios).verdict() is verdict


def test_the_rate_is_told_the_same_way() -> None:
    assert compared([1.0] * ROUNDS).rate.middle == pytest.approx(2)


def test_one_load_that_misses_is_enough() -> None:
    holds, misses = compared([1.0] * ROUNDS), compared([2.0] * ROUNDS)
    undecided = compared([1.0])
    assert overall([holds]) is Verdict.HOLDS
    assert overall([holds, undecided]) is Verdict.UNDECIDED
    assert overall([undecided, misses, holds]) is Verdict.MISSED
    assert overall([]) is Verdict.UNDECIDED


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_sides_take_turns_and_the_first_slice_is_not_counted(
    tmp_path: Path, *, ours_first: bool
) -> None:
    turns: list[str] = []

    def start(_stack: ExitStack, checkout: Checkout) -> Loads:
        def load() -> Slice:
            warming = checkout.name not in turns
            turns.append(checkout.name)
            return Slice(1_000_000 if warming else 1, 1, 1)

        return {"load": load}

    pair = (Checkout("ours", tmp_path), Checkout("theirs", tmp_path))
    done = one_round(start, pair, slices=2, ours_first=ours_first)
    first, second = ("ours", "theirs") if ours_first else ("theirs", "ours")
    assert turns == ["ours", "theirs", first, second, second, first]
    assert done == {"load": (Slice(2, 2, 2), Slice(2, 2, 2))}


def test_a_side_without_metrics_is_not_scraped_and_ours_has_to_have_them(tmp_path: Path) -> None:
    old = Checkout("old", tmp_path)
    with scraping(old, []):
        pass
    assert not old.scrapes
    with pytest.raises(Unavailable, match="ours has no metrics of its gateway, node, worker"):  # noqa: SIM117
        with scraping(Checkout("ours", ROOT), []):
            pass


def test_a_checkout_that_is_not_what_is_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    with pytest.raises(Unavailable, match="not its own"):
        Checkout("empty", tmp_path).uses_c()


def test_a_commit_that_does_not_exist_is_named() -> None:
    with pytest.raises(Unavailable, match="there is no commit no-such-commit"):  # noqa: SIM117
        with checkouts("no-such-commit"):
            pass


@pytest.mark.parametrize(
    ("benchmark_", "options", "loads"),
    [("queries", ["--only", "echo"], 2), ("tasks", [], 2)],
)
def test_a_round_for_real(tmp_path: Path, benchmark_: str, options: list[str], loads: int) -> None:
    command = [sys.executable, "-m", f"benchmarks.{benchmark_}", "--against", "HEAD", "--quick"]
    ended = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == Verdict.UNDECIDED, ended.stdout + ended.stderr
    result = tmp_path / "results" / "benchmarks" / f"{benchmark_}-against.json"
    assert result.exists(), ended.stdout + ended.stderr
    document = json.loads(result.read_text())
    for side in ("ours", "theirs"):
        assert document["scrapes"][side].keys() == {"node", "gateway", "worker"}
    found = document["loads"]
    assert len(found) == loads
    for load in found.values():
        (only,) = load["rounds"]
        assert only["cpu_us ours"] > 0
        assert only["cpu_us theirs"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
