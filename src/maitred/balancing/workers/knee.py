"""The limit of a back end that tells nothing: the knee of its throughput, found by trying.

Behind an HTTP proxy there is only what goes in and what comes out. More in flight raises the
throughput up to a knee; beyond it, only the latency. The usual rule compares latency with the least
ever seen; where service times vary that least is luck, and the limit falls far too low. So this
one looks at throughput alone: a window at the limit and a window at a limit a step away, in turn,
so that a load that changes meanwhile changes both.

What all these pairs say about the knee is added up (`Evidence`), and the limit goes to the highest
place at which the knee may well be. Steps up cost only some latency, so they are tried all the
time. Steps down cost throughput: they are tried only while it is plausible that the limit is far
too high. A limit that was not used says nothing, so such windows are left out. Errors and refusals
of the back end are not throughput.

A back end that can do much less all of a sudden must not be drowned until that is found out. So it
is noticed when much less comes out with as much in flight (`FallAlarm`). Either fewer are served at
a time then, or each of them takes longer: from outside both look the same. If it is the first, a
limit that is lower by the same share brings just as much. So that is what the limit becomes at
once, for a trial: if even less comes out now, it is the second, and the limit goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from maitred.balancing.workers.knee_alarm import FallAlarm
from maitred.balancing.workers.knee_evidence import Evidence, Pair, Window


@dataclass(frozen=True, slots=True)
class KneeSettings:
    """What can be set about the search."""

    first: int = 16
    floor: int = 1
    ceiling: int = 10_000
    step_up: float = 0.3
    step_down: float = 0.15
    """How far apart the two limits are that are compared, as a share. Trying more costs only some
    latency, trying less costs throughput; and the wider a step, the sooner it is clear."""
    window_seconds_max: float = 1.0
    """A window lasts until enough ended, or until this is over, and three rounds of the limit."""


USED_SHARE = 0.9
"""A limit is used if in every round so much of it was in flight at some time."""
USED_ENDS = 8
"""Such a round has as many ends as the limit, but not fewer."""
PAUSE_ROUNDS = 2
PAUSE_ENDS = 20
"""If nothing ends for as long as so many rounds take usually, and so many answers, the window
begins anew."""
TELLING = 16.0
"""A window has so many ends, divided by the square of the logarithm of how many times as high the
higher limit is: then what the step may bring is three times as much as chance."""
ROUNDS_MIN = 3
"""It has whole rounds of as many ends as the limit, and so many: answers may come in batches."""
CLEAR_RISE = 3.0
"""A difference of so many standard errors is no chance: if the limit brings so much more than is
usual, it was at the knee of less, and the next step is one up."""
ROOTS_UP = 2.0
ROOTS_DOWN = 1.5
"""A step is at least so many roots of the limit: a small back end answers few a second, and small
differences would take minutes to see."""
STRIDE_UP_MAX = 1.0
STRIDE_DOWN_MAX = 0.5
"""The widest steps, as shares: the limit doubles, or is halved."""
WIDE = 0.4
"""If the logarithms of the limits are so far apart, what is left of the limit before does not
matter after one round; else after two."""
TOO_HIGH_ROOTS = 1.6
"""Steps down are tried while the knee may be lower than the limit by this divided by the root of
the limit, as a share: to know it better than that would cost more than it brings."""
UPS_A_DOWN = 1
"""Steps up for each down, at least."""
MOVE_SHARE = 0.05
"""The limit does not follow smaller changes of what is known."""
TRIAL_FEWER = 3.0
TRIAL_SLOWER = 2.0
"""A trial is over when it is e^3 times likelier that fewer are served at a time, or e^2 times
likelier that each takes longer: that is looked at once more, and every moment of a trial costs."""
TRIAL_ENDS = (8, 80)
TRIAL_ROUNDS = (2, 4)
"""But it has so many ends, and so many rounds of the limit, at least; and no more than that."""


class KneeProber:
    """Told of every query that starts and ends at the back end; knows the limit."""

    def __init__(self, now: float, settings: KneeSettings | None = None) -> None:
        self._settings = settings or KneeSettings()
        self._base = max(self._settings.floor, min(self._settings.first, self._settings.ceiling))
        self._other = False
        """Whether this window is the one at the other limit."""
        self._ups_left = 1
        """Steps up before the next one down."""
        self._in_flight = 0
        self._peak = self._good = self._bad = self._round = self._unsettled = 0
        self._enough = 0
        self._began = self._last = now
        self._area = 0.0
        """Of this window: what was in flight at most, what ended, what of that in this round, what
        is still left out, what ends it, and how much was in flight for how long."""
        self._at_base = Window(self._base, 0.0, 0.0)
        """The last window at the limit."""
        self._evidence = Evidence()
        self._alarm = FallAlarm(now)
        self._fallen: Window | None = None
        """What came out before the trial that is going on,"""
        self._before = self._base
        """and the limit to go back to."""
        self._tried: Window | None = None
        """What came out in the last trial, until it was compared with a window after it."""
        self._face(up=True, stride=STRIDE_UP_MAX)
        self._restart(now)

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return self._beside if self._other else self._base

    @property
    def knee(self) -> int:
        """Where the search stands, without the step that is being tried."""
        return self._base

    def started(self) -> None:
        """One more is at the back end."""
        self._in_flight += 1
        self.claimed(self._in_flight)

    def claimed(self, in_flight: int) -> None:
        """Senders count so many, what is under way included: with a fast back end and a long way
        to the senders, a limit that they use would look unused without this word."""
        if in_flight > self._peak:
            self._peak = in_flight

    def ended(self, now: float, *, good: bool = True) -> None:
        """One less; an error is not good."""
        before, limit = self._in_flight, self.limit
        self._in_flight = max(0, before - 1)
        if self._fallen is None:
            share = min(1.0, limit / self._base)
            if self._alarm.ended(now, before, limit, share, good=good):
                self._fall(now)
                return
            if self._alarm.usual * (now - self._last) > max(PAUSE_ENDS, PAUSE_ROUNDS * limit):
                # What waited meanwhile comes out at once, and says nothing.
                self._other = False
                self._restart(now)
                return
        if self._unsettled > 0:
            # The first ends after a change still belong to the limit before it.
            self._unsettled -= 1
            self._began = self._last = now
            self._peak = 0
            return
        self._area += before * (now - self._last)
        self._last = now
        self._good += good
        self._bad += not good
        length = now - self._began
        if length <= 0.0:
            return
        if self._fallen is not None:
            self._try(now, Window(limit, self._good, length), self._fallen)
        elif not self._used(limit):
            # Nobody wanted that much: no evidence about this pair.
            self._other = False
            self._restart(now)
        else:
            late = length >= self._settings.window_seconds_max
            if self._good >= self._enough or (
                late and self._good + self._bad >= ROUNDS_MIN * limit
            ):
                self._close(Window(limit, self._good, length))
                self._restart(now)

    def _used(self, limit: int) -> bool:
        """Whether the limit is used, as far as this round tells."""
        self._round += 1
        if self._round < max(USED_ENDS, limit):
            return True
        used = self._peak >= USED_SHARE * limit
        self._round = 0
        self._peak = self._in_flight
        return used

    def _restart(self, now: float) -> None:
        """Begin a window, as soon as the limit before it is forgotten."""
        self._began = self._last = now
        self._area = 0.0
        self._good = self._bad = self._round = 0
        self._peak = 0
        limit, apart = self.limit, abs(math.log(self._beside / self._base))
        self._unsettled = limit if apart > WIDE else 2 * limit
        self._unsettled = max(2, self._unsettled + max(0, self._in_flight - limit))
        rounds = math.ceil(TELLING / apart**2 / limit) if apart else ROUNDS_MIN
        self._enough = max(ROUNDS_MIN, rounds) * limit

    def _close(self, window: Window) -> None:
        """A window is over."""
        if self._other:
            self._other = False
            self._compare(window)
            return
        self._at_base = window
        usual, rate = self._alarm.usual, window.ends / window.seconds
        rise = 1.0 + CLEAR_RISE * math.sqrt(2.0 / max(1.0, window.ends))
        if 0.0 < usual * rise < rate and not self._up:
            self._face(up=True)
        if not self._alarm.suspects:
            self._alarm.learn(window.ends, window.seconds, self._area, self._base)
        if self._tried is not None:
            self._evidence.add(Pair(self._tried, window, up=False))
            self._tried = None
            self._decide()
        elif self._beside == self._base:  # at the ceiling, or at the floor
            self._next()
        else:
            if self._up and self._bad > self._good:  # errors are no reason for more
                self._face(up=False, least=self._least)
            self._other = window.ends > 0.0

    def _compare(self, window: Window) -> None:
        """A window at the other limit is over, too."""
        base = self._at_base
        if not self._up:
            self._evidence.add(Pair(window, base, up=False))
        elif self._bad > self._good:  # nor if they come fast
            most = base.ends * window.seconds / base.seconds
            fewer = Window(window.limit, min(window.ends, most), window.seconds)
            self._evidence.add(Pair(base, fewer, up=True))
        else:
            self._evidence.add(Pair(base, window, up=True))
        self._decide()

    def _decide(self) -> None:
        """Go to where the knee may well be, and say what is tried next."""
        knees, base, tried = self._evidence.knees(), self._base, self._beside
        if knees is None:
            return
        goal = max(self._settings.floor, min(round(knees.cautious), self._settings.ceiling))
        if not self._up:
            goal = min(goal, base)
        if abs(math.log(goal / base)) >= MOVE_SHARE:
            self._base = goal
            brings = min(goal, knees.likely) / min(base, knees.likely)
            self._alarm.moved(brings, goal / base)
        if self._up and knees.likely**2 >= base * tried:
            self._face(up=True, stride=2.0 * self._stride if knees.likely >= tried else 0.0)
        else:
            self._next()

    @property
    def _least(self) -> float:
        """Where the knee may be at least."""
        knees = self._evidence.knees()
        return knees.least if knees else 0.0

    def _next(self) -> None:
        """What is tried next; a step up, unless the limit may be far too high."""
        self._ups_left -= self._up
        least = self._least
        too_high = 1.0 + TOO_HIGH_ROOTS / math.sqrt(self._base)
        if self._ups_left <= 0 and least * too_high < self._base:
            self._ups_left = UPS_A_DOWN
            self._face(up=False, least=least)
        else:
            self._face(up=True)

    def _face(self, *, up: bool, stride: float = 0.0, least: float = 0.0) -> None:
        """Begin a comparison; with the usual step, unless a wider one is wanted: so many times as
        much, or down to where the knee may be at least."""
        base, settings = self._base, self._settings
        self._up = up
        if up:
            self._stride = min(max(stride, settings.step_up), STRIDE_UP_MAX)
            step = round(max(self._stride * base, ROOTS_UP * math.sqrt(base)))
            self._beside = min(base + max(1, step), settings.ceiling)
        else:
            step = round(max(settings.step_down * base, ROOTS_DOWN * math.sqrt(base)))
            lowest = max(settings.floor, math.ceil(STRIDE_DOWN_MAX * base))
            self._beside = min(base, max(lowest, min(base - max(1, step), round(least))))

    def _fall(self, now: float) -> None:
        """There is an alarm: try the limit that is right if fewer are served at a time now."""
        alarm, base = self._alarm, self._base
        slow = Window(min(self.limit, base), alarm.slow_ends, alarm.slow_seconds)
        left = min(1.0, slow.ends / slow.seconds / alarm.usual)
        self._other = False
        self._tried = None
        self._base = max(self._settings.floor, round(left * base))
        if self._base < slow.limit:
            self._fallen, self._before = slow, base
            self._face(up=True, stride=base / self._base - 1.0)
            self._restart(now)
            self._unsettled = max(2, self._base // 2 + max(0, self._in_flight - self._base))
        else:  # it is at the floor, or tries less just now
            self._base = base
            alarm.forget()
            alarm.restart(now)
            self._face(up=True)
            self._restart(now)

    def _try(self, now: float, window: Window, before: Window) -> None:
        """The trial goes on: does less in flight bring as much, as if the knee were here now, or
        less, as if it were where it was?"""
        pair = Pair(window, before, up=False)
        slower = pair.likelihood(before.limit) - pair.likelihood(window.limit)
        least = max(TRIAL_ENDS[0], TRIAL_ROUNDS[0] * window.limit)
        most = max(TRIAL_ENDS[1], TRIAL_ROUNDS[1] * window.limit)
        ends = self._good + self._bad
        if ends < least or (ends < most and -TRIAL_FEWER < slower < TRIAL_SLOWER):
            return
        alarm = self._alarm
        self._fallen = None
        self._evidence.clear()
        self._ups_left = 1
        if slower <= 0.0:
            self._evidence.add(pair)
            knees = self._evidence.knees()
            if slower > -TRIAL_FEWER and knees is not None:
                self._base = round(knees.likely)
                self._face(up=True)
        else:
            # It may still be wrong; the next window at this limit tells.
            self._tried = window
            self._base = self._before
            self._face(up=True)
        alarm.judged(right=slower <= 0.0)
        alarm.forget()
        alarm.learn(before.ends, before.seconds, self._base * before.seconds, self._base)
        alarm.restart(now)
        self._restart(now)

    def __repr__(self) -> str:
        return f"<KneeProber, limit {self.limit}, {self._in_flight} in flight>"
