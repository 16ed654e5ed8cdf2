"""What a root remembers of the handlers that serve its queue."""

from __future__ import annotations

import pytest

from maitred.matching.signatures import (
    ATTENDING_SECONDS,
    FURTHER,
    REWRITES,
    SIGNATURES_MAX,
    QueueSignatures,
)

DAY = 86_400.0
HOUR = DAY / REWRITES


def test_a_signature_is_known_for_a_day_after_its_last_worker() -> None:
    known = QueueSignatures(DAY)
    known.announce(b"old", 0.0)
    known.announce(b"new", 10.0)
    assert known.known(DAY) == [b"new", b"old"], "the newest first"
    assert known.last_seen(DAY) == 10.0
    known.announce(b"old", DAY)
    assert known.known(DAY + HOUR + 11.0) == [b"old"]
    assert known.known(3 * DAY) == []
    assert known.last_seen(3 * DAY) is None


def test_the_row_is_written_for_news_and_a_few_times_a_day() -> None:
    known = QueueSignatures(DAY)
    known.announce(b"one", 0.0)
    assert known.due(0.0) is None, "an earlier owner's row would be overwritten"
    known.merge(None, 0.0)
    first = known.due(0.0)
    assert first is not None
    assert known.due(1.0) is None
    known.announce(b"one", HOUR - 1.0)
    assert known.due(HOUR - 1.0) is None
    known.announce(b"two", HOUR - 1.0)
    assert known.due(HOUR - 1.0) is not None
    known.announce(b"one", 2 * HOUR)
    last = known.due(2 * HOUR)
    assert last is not None
    # The next owner knows as much, and for as long.
    after = QueueSignatures(DAY)
    after.announce(b"three", 2 * HOUR)
    after.merge(last, 2 * HOUR)
    assert set(after.known(2 * HOUR)) == {b"one", b"two", b"three"}
    assert set(after.known(HOUR - 1.0 + DAY)) == {b"one", b"three", b"two"}
    after = QueueSignatures(DAY)
    after.merge(first, 3 * DAY)
    assert after.known(3 * DAY) == []
    after.merge(b"damaged", 3 * DAY)
    assert after.is_complete


def test_whoever_announces_without_end_turns_the_check_off_and_fills_nothing() -> None:
    known = QueueSignatures(DAY)
    known.merge(None, 0.0)
    known.announce(b"ours", 0.0)
    for number in range(10_000):
        known.announce(b"%08d" % number, 1.0)
    assert len(known.known(1.0)) == SIGNATURES_MAX + 1
    assert {FURTHER, b"ours"} <= set(known.known(1.0))
    row = known.due(1.0)
    assert row is not None
    assert len(row) < 1_000
    # A day later it counts again.
    known.announce(b"ours", 2 * DAY)
    assert known.known(2 * DAY) == [b"ours"]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_while_workers_are_there_their_signatures_are_known(seconds: float) -> None:
    known = QueueSignatures(seconds)
    known.announce(b"one", 0.0)
    assert known.known(ATTENDING_SECONDS) == [b"one"]
    assert known.known(ATTENDING_SECONDS + 1.0) == []
    if not seconds:
        assert known.due(0.0) is None
