"""Slots that may be used once more: the freshest first, and never after their time."""

from __future__ import annotations

from maitred.dispatch.warm_slots import SHARE, SWEPT_AT, WarmSlots
from maitred.protocol.queries import Allocation

KEY = ("default", "quotes", "ann")


def allocation(token: bytes = b"") -> Allocation:
    return Allocation(0, token, b"session", "worker", "host:1")


def test_the_one_that_was_kept_last_is_taken_first_and_once() -> None:
    warm = WarmSlots()
    warm.keep(KEY, allocation(b"one"), 1.0, 10.0)
    warm.keep(KEY, allocation(b"two"), 1.0, 10.1)
    taken = warm.take(KEY, 10.2)
    assert taken is not None
    assert taken.token == b"two"
    taken = warm.take(KEY, 10.2)
    assert taken is not None
    assert taken.token == b"one"
    assert warm.take(KEY, 10.2) is None


def test_nothing_is_taken_after_its_time_or_by_somebody_else() -> None:
    warm = WarmSlots()
    warm.keep(KEY, allocation(), 1.0, 10.0)
    assert warm.take(("default", "quotes", "bob"), 10.0) is None
    assert warm.take(("default", "trades", "ann"), 10.0) is None
    assert warm.take(KEY, 10.0 + SHARE) is None
    assert warm.take(KEY, 10.0) is None, "forgotten"


def test_those_that_nobody_takes_are_forgotten() -> None:
    warm = WarmSlots()
    for number in range(5 * SWEPT_AT):
        warm.keep(KEY, allocation(), 1.0, float(number))
    assert len(warm.kept[KEY]) <= SWEPT_AT
