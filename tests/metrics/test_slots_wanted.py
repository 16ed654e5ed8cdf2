"""How many slots a queue wants: the formula of docs/monitoring.md, as properties."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.metrics.slots_wanted import (
    DRAIN_SECONDS,
    LEAST_RATE,
    UTILISATION,
    mean_service_seconds,
    slots_wanted,
    whole_slots,
)

RATE = st.floats(0, 1e5).filter(lambda rate: rate == 0 or rate >= LEAST_RATE)
SECONDS = st.floats(0.001, 1e4)
NUMBER = st.integers(0, 10**7)
QUEUES = st.fixed_dictionaries(
    {"added_per_second": RATE, "service_seconds": SECONDS, "backlog": NUMBER, "running": NUMBER}
)


@given(QUEUES)
def test_these_slots_keep_up_and_are_rid_of_the_backlog_in_time(queue: dict[str, Any]) -> None:
    slots = slots_wanted(**queue)
    per_second = slots / queue["service_seconds"]
    needed = queue["added_per_second"] + queue["backlog"] / DRAIN_SECONDS
    assert per_second >= needed * (1 - 1e-9)


@given(QUEUES, st.none() | st.floats(0.001, 1e5))
def test_a_paused_queue_wants_what_runs(queue: dict[str, Any], limit: float | None) -> None:
    assert slots_wanted(**queue, most_per_second=limit, is_paused=True) == queue["running"]


@given(QUEUES)
def test_nothing_that_runs_is_taken_away(queue: dict[str, Any]) -> None:
    assert slots_wanted(**queue) >= queue["running"]


@given(QUEUES)
def test_a_queue_wants_slots_if_and_only_if_it_has_work(queue: dict[str, Any]) -> None:
    has_work = any(queue[name] for name in ("added_per_second", "backlog", "running"))
    assert (whole_slots(slots_wanted(**queue)) > 0) == has_work


@given(QUEUES, st.sampled_from(["added_per_second", "service_seconds", "backlog", "running"]))
def test_more_of_anything_never_wants_less(queue: dict[str, Any], name: str) -> None:
    more = queue | {name: queue[name] * 2 + (1 if name != "service_seconds" else 0)}
    assert slots_wanted(**more) >= slots_wanted(**queue)


@given(QUEUES, QUEUES)
def test_the_parts_of_a_queue_want_at_least_as_much_as_the_whole(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """So the sum of the metric over shards is never too small."""
    other["service_seconds"] = one["service_seconds"]
    whole = {name: one[name] + other[name] for name in one} | {
        "service_seconds": one["service_seconds"]
    }
    parts = slots_wanted(**one) + slots_wanted(**other)
    assert parts >= slots_wanted(**whole) * (1 - 1e-9)


@given(QUEUES, st.floats(0.01, 1e5))
def test_no_slot_is_wanted_for_more_than_the_limit_of_the_rate(
    queue: dict[str, Any], limit: float
) -> None:
    queue["running"] = 0
    slots = slots_wanted(**queue, most_per_second=limit)
    assert slots <= queue["service_seconds"] * limit / UTILISATION * (1 + 1e-9)
    assert slots <= slots_wanted(**queue) * (1 + 1e-9)
    assert slots_wanted(**queue, most_per_second=inf) == slots_wanted(**queue)


def test_an_unused_queue_wants_nothing_although_its_rate_only_approaches_0() -> None:
    nothing: dict[str, Any] = {"service_seconds": 1.0, "backlog": 0, "running": 0}
    assert slots_wanted(added_per_second=0.0009, **nothing) == 0


def test_the_example_of_the_page() -> None:
    """docs/monitoring.md computes it by hand."""
    wanted = slots_wanted(added_per_second=20, service_seconds=0.5, backlog=1200, running=8)
    assert wanted == pytest.approx(12.5 + 10)
    assert whole_slots(wanted) == 23


@given(st.lists(st.tuples(st.floats(0, 1e5), SECONDS), min_size=1))
def test_the_mean_service_time_is_between_the_least_and_the_most(
    parts: list[tuple[float, float]],
) -> None:
    mean = mean_service_seconds(parts)
    seconds = [one for _, one in parts]
    assert min(seconds) * (1 - 1e-9) <= mean <= max(seconds) * (1 + 1e-9)
    assert mean_service_seconds([]) == 0
