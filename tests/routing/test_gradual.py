from __future__ import annotations

import math
from datetime import UTC, datetime

import farmhash
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidArgument, InvalidGradualChange, InvalidName
from maitred.routing import GradualChange, fingerprint32, format_time, parse_time
from tests.routing.strategies import keys

moments = st.one_of(st.floats(0, 4e9), st.floats(-1e12, 1e12), st.floats(-1e300, 1e300))
spans = st.one_of(st.floats(1e-3, 1e8), st.just(0.0), st.floats(5e-324, 1e300))


@given(keys, moments, spans, st.floats(-0.5, 1.5))
def test_the_rule(key: str, start: float, span: float, at: float) -> None:
    change = GradualChange("old", "new", start, start + span)
    now = start + at * span
    if now >= change.end:
        expected = "new"
    elif now <= start:
        expected = "old"
    else:
        fraction = (now - start) / (change.end - start)
        flipped = farmhash.fingerprint32(key) < int(fraction * (2**32 - 1))
        expected = "new" if flipped else "old"
    assert change.value(key, now) == expected


@given(keys, moments, spans)
def test_when_is_the_exact_moment_of_the_flip(key: str, start: float, span: float) -> None:
    change = GradualChange(0, 8, start, start + span)
    moment = change.when(key)
    assert moment is not None
    assert start <= moment <= change.end
    assert change.value(key, moment) == 8
    assert change.value(key, math.nextafter(moment, -math.inf)) == 0


def test_a_flip_at_time_zero_is_found_at_once() -> None:
    # Near 0 there are more floats than anybody can step through.
    share = fingerprint32("k") / (2**32 - 1)
    change = GradualChange(0, 1, -share * 3_600, (1 - share) * 3_600)
    moment = change.when("k")
    assert moment is not None
    assert abs(moment) < 1e-5
    assert change.value("k", moment) == 1


@given(keys, st.floats(0, 4e9), st.floats(1, 1e6))
def test_the_moment_as_text_is_not_before_the_flip(key: str, start: float, span: float) -> None:
    change = GradualChange(0, 8, start, start + span)
    moment = change.when(key)
    assert moment is not None
    said = parse_time(format_time(moment))
    assert moment <= said <= moment + 2e-6
    assert change.value(key, said) == 8


@given(keys, st.floats(0, 4e9), st.lists(st.floats(0, 1), min_size=2))
def test_a_key_flips_once(key: str, start: float, fractions: list[float]) -> None:
    change = GradualChange(0, 1, start, start + 3_600)
    values = [change.value(key, start + 3_600 * fraction) for fraction in sorted(fractions)]
    assert values == sorted(values)


def test_flips_are_spread_evenly_over_the_time() -> None:
    change = GradualChange(0, 8, 1_000.0, 2_000.0)
    flips = [change.when(f"ns:/_sys/queue/{n}:1") or 0.0 for n in range(1, 10_001)]
    for tenth in range(1, 10):
        share = sum(moment <= 1_000 + 100 * tenth for moment in flips) / len(flips)
        # Binomial: a standard deviation is at most 0.5 %; five of them.
        assert abs(share - tenth / 10) < 0.025


def test_a_plain_value_never_changes() -> None:
    change = GradualChange[int].parse(8)
    assert change.value("key", 0.0) == change.value("key", 9e9) == 8
    assert change.when("key") is None


def test_parsing() -> None:
    text = {"old": 0, "new": 8, "start": "2026-11-15T20:00:00Z", "end": "2026-11-15T22:00:00+01:00"}
    change = GradualChange[int].parse(text)
    start = datetime(2026, 11, 15, 20, tzinfo=UTC).timestamp()
    assert change == GradualChange(0, 8, start, start + 3_600)
    assert GradualChange.parse({"old": 0, "new": 8, "start": start, "end": start + 3_600}) == change
    assert parse_time("1763236800") == parse_time(1763236800) == 1763236800.0
    assert parse_time("2026-11-15T20:00:00.250Z") == start + 0.25
    assert parse_time(format_time(start + 0.25)) == start + 0.25
    assert format_time(1e18) == "1e+18 s"
    assert parse_time("2016-12-31T23:59:60Z") == parse_time("2017-01-01T00:00:00Z")
    assert parse_time("-1.5e3") == -1_500.0


def test_a_clock_that_gives_no_time_is_refused() -> None:
    with pytest.raises(InvalidGradualChange, match="NaN"):
        GradualChange(0, 1, 0.0, 1.0).value("key", math.nan)
    for ask in (
        GradualChange(0, 1, 0.0, 1.0).when,
        lambda k: GradualChange(0, 1, 0.0, 1.0).value(k, 0.5),
    ):
        with pytest.raises(InvalidName):
            ask("\ud800")


def test_values_are_converted() -> None:
    given_change = {"old": "1", "new": "2", "start": 0, "end": 1}
    assert GradualChange.parse(given_change, int) == GradualChange(1, 2, 0.0, 1.0)

    def refuse(value: object) -> int:
        raise InvalidArgument(f"no {value}")

    with pytest.raises(InvalidArgument, match="no x"):
        GradualChange.parse("x", refuse)


GOOD = {"old": 0, "new": 8, "start": 0, "end": 1}


@pytest.mark.parametrize(
    ("given_change", "sentence"),
    [
        (GOOD | {"start": 2}, "starts at 1970-01-01T00:00:02Z, after its end"),
        ({"old": 0, "new": 8, "start": 0}, "lacks end"),
        ({}, "lacks old, new, start, end"),
        (GOOD | {"until": 3}, "unknown 'until'"),
        (GOOD | {"start": "yesterday"}, "'yesterday' is not a time"),
        (GOOD | {"start": "2026-11-15"}, "not a time"),
        (GOOD | {"start": "2026-11-15T20:00:00"}, "not a time"),
        (GOOD | {"start": "2026-13-15T20:00:00Z"}, "not a time"),
        (GOOD | {"start": None}, "not a time"),
        (GOOD | {"start": True}, "not a time"),
        (GOOD | {"start": "1_0"}, "not a time"),
        (GOOD | {"start": "\u0663"}, "not a time"),
        (GOOD | {"start": " 5 "}, "not a time"),
        (GOOD | {"end": 10**400}, "not a time"),
        (GOOD | {"start": -1.7e308, "end": 1.7e308}, "longer than numbers go"),
        (GOOD | {"end": math.inf}, "end of a gradual change is inf"),
        (GOOD | {"start": math.nan}, "start of a gradual change is nan"),
    ],
)
def test_bad_changes(given_change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidGradualChange, match=sentence) as caught:
        GradualChange.parse(given_change)
    assert caught.value.code == "invalid-gradual-change"
