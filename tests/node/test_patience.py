"""How long a connection may take, as a rule: at each limit, just before it, and which one first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.node.patience import LINGER_SECONDS, Observed, lost_patience
from maitred.settings import Limits

LIMITS = Limits(handshake_seconds=10, frame_seconds=30, idle_seconds=300)

QUIET = Observed(
    opened_at=0,
    ready=True,
    arrived_at=0,
    partial_since=None,
    stalled_since=None,
    closing_since=None,
    busy=False,
)
HELD_UP = replace(QUIET, busy=True)


@pytest.mark.parametrize(
    ("seen", "limit", "code", "heard", "word"),
    [
        (replace(QUIET, ready=False), 10, "too-slow", True, "handshake"),
        (replace(QUIET, ready=False, busy=True), 10, "too-slow", True, "handshake"),
        (replace(QUIET, ready=False, partial_since=0), 10, "too-slow", True, "handshake"),
        (replace(QUIET, partial_since=0), 30, "too-slow", True, "frame"),
        (replace(HELD_UP, partial_since=0), 30, "too-slow", True, "frame"),
        (replace(QUIET, stalled_since=0), 30, "too-slow", False, "read"),
        (replace(HELD_UP, stalled_since=0), 30, "too-slow", False, "read"),
        (replace(QUIET, stalled_since=0, partial_since=0), 30, "too-slow", False, "read"),
        (QUIET, 300, "idle-too-long", True, "Nothing"),
        (replace(HELD_UP, closing_since=0), LINGER_SECONDS, "too-slow", False, "close"),
        (replace(QUIET, closing_since=0, ready=False), LINGER_SECONDS, "too-slow", False, "close"),
    ],
)
def test_at_the_limit_and_not_before(
    seen: Observed, limit: float, code: str, heard: bool, word: str
) -> None:
    assert lost_patience(seen, LIMITS, limit - 0.001) is None
    farewell = lost_patience(seen, LIMITS, limit)
    assert farewell is not None
    assert farewell.problem.code == code
    assert farewell.heard is heard
    assert word in farewell.problem.sentence


def test_whoever_has_a_request_under_way_is_not_idle() -> None:
    assert lost_patience(HELD_UP, LIMITS, 10_000) is None


def test_whoever_was_idle_is_told_what_to_do() -> None:
    farewell = lost_patience(QUIET, LIMITS, 300)
    assert farewell is not None
    assert "OPTIONS" in (farewell.problem.remedy or "")


def test_last_words_have_their_time_whatever_else_is_late() -> None:
    late = replace(QUIET, ready=False, partial_since=0, stalled_since=0, closing_since=1000)
    assert lost_patience(late, LIMITS, 1000 + LINGER_SECONDS / 2) is None


MOMENTS = st.floats(0, 1000)


@given(
    seen=st.builds(
        Observed,
        opened_at=MOMENTS,
        ready=st.booleans(),
        arrived_at=MOMENTS,
        partial_since=st.none() | MOMENTS,
        stalled_since=st.none() | MOMENTS,
        closing_since=st.none() | MOMENTS,
        busy=st.booleans(),
    ),
    now=MOMENTS,
    later=st.floats(0, 1000),
)
def test_patience_does_not_come_back(seen: Observed, now: float, later: float) -> None:
    """Nothing happens but time: who had to go has to go later as well."""
    if lost_patience(seen, LIMITS, now) is not None:
        assert lost_patience(seen, LIMITS, now + later) is not None
