"""One timer rings for the earliest of many moments, and no more often than it has to."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from maitred.wire.alarm import TIMER_SLACK_SECONDS, Alarm
from tests.wire.by_hand import HandLoop


class Diary:
    """Moments that are to be noticed in time."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.alarm = Alarm(self.loop.as_loop, self._look)
        self.open: list[float] = []
        self.noticed: list[tuple[float, float]] = []
        """Each moment, and when it was noticed."""
        self.rings = 0

    def add(self, moment: float) -> None:
        self.open.append(moment)
        self.alarm.by(moment)

    def _look(self, now: float) -> float:
        assert now == self.loop.now + TIMER_SLACK_SECONDS
        self.rings += 1
        self.noticed += [(moment, self.loop.now) for moment in self.open if moment <= now]
        self.open = [moment for moment in self.open if moment > now]
        return min(self.open, default=inf)


@given(st.lists(st.floats(min_value=1000.0, max_value=2000.0), max_size=20))
def test_every_moment_is_noticed_when_it_comes_with_one_timer(moments: list[float]) -> None:
    diary = Diary()
    for moment in moments:
        diary.add(moment)
        assert len(diary.loop.set_timers) == 1
    diary.loop.advance(3000.0)
    assert sorted(moment for moment, _ in diary.noticed) == sorted(moments)
    for moment, at in diary.noticed:
        assert moment - TIMER_SLACK_SECONDS <= at <= moment
    assert diary.rings <= len(set(moments))
    assert not diary.loop.set_timers
    assert diary.alarm.at == inf


def test_a_later_moment_changes_nothing() -> None:
    diary = Diary()
    diary.add(1001.0)
    (timer,) = diary.loop.set_timers
    diary.add(1002.0)
    assert diary.loop.set_timers == [timer]
    assert diary.alarm.at == 1001.0


def test_a_timer_that_rings_early_notices_its_moment() -> None:
    diary = Diary()
    diary.add(1001.0)
    (timer,) = diary.loop.set_timers
    diary.loop.now = 1001.0 - TIMER_SLACK_SECONDS / 2
    timer.callback()
    assert diary.noticed == [(1001.0, diary.loop.now)]


def test_after_a_stop_only_new_moments_ring() -> None:
    diary = Diary()
    diary.add(1001.0)
    diary.alarm.stop()
    diary.alarm.stop()
    diary.loop.advance(1002.0)
    assert diary.rings == 0
    diary.add(1003.0)
    diary.loop.advance(1003.0)
    assert diary.rings == 1
