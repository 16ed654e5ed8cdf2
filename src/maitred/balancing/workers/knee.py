"""Find the limit of a back end that reports nothing: the knee of its throughput, by probing.

Behind an HTTP proxy only the requests that go in and the answers that come out are known. More in
flight raises the throughput up to a knee; beyond it, only the latency. The usual rule compares the
latency with the least ever seen; where service times vary, that least is luck, and the limit falls
far too low. So this prober looks at throughput alone: a window at the limit and a window at a limit
a step away, in turn, so that a change of the load affects both.

The prober adds up what all these pairs say about the knee (`Evidence`), and moves the limit to the
highest place at which the knee may well be. Steps up cost only some latency, so they are tried all
the time. Steps down cost throughput: they are tried only while it is plausible that the limit is
far too high. A limit that was not used says nothing, so such windows are left out. Errors and
refusals of the back end are not throughput.

A back end whose capacity drops suddenly must not be overloaded until the probing finds out. So the
prober notices when the throughput falls far with as much in flight (`FallAlarm`). Then either fewer
are served at a time, or each of them takes longer: from outside both look the same. In the first
case a limit that is lower by the same share has the same throughput. So the limit becomes that at
once, for a trial: if the throughput falls further, it is the second case, and the limit goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from maitred.balancing.workers.knee_alarm import FallAlarm
from maitred.balancing.workers.knee_evidence import Evidence, Pair, Window


@dataclass(frozen=True, slots=True)
class KneeSettings:
    """The settings of a `KneeProber`."""

    first: int = 16
    floor: int = 1
    ceiling: int = 10_000
    step_up: float = 0.3
    step_down: float = 0.15
    """How far apart the two compared limits are, as a share. Trying more costs only some latency,
    trying less costs throughput; the wider a step, the sooner its effect is clear."""
    window_seconds_max: float = 1.0
    """A window lasts until enough answers came, or until this time passed and three rounds of as
    many answers as the limit ended."""


USED_SHARE = 0.9
"""A limit is used if in every round this share of it was in flight at some time."""
USED_ENDS = 8
"""Such a round has as many ends as the limit, but at least this many."""
PAUSE_ROUNDS = 2
PAUSE_ENDS = 20
"""If nothing ends for as long as this many rounds, and this many answers, usually take, the window
begins anew."""
TELLING = 16.0
"""A window has this many ends, divided by the square of the logarithm of the ratio of the limits:
then the effect of a step can be three times the random variation."""
ROUNDS_MIN = 3
"""A window has at least this many whole rounds of as many ends as the limit, because answers may
come in batches."""
CLEAR_RISE = 3.0
"""A difference of this many standard errors is not random: if the throughput rises this far above
the usual one, the back end's capacity has grown, and the next step is one up."""
ROOTS_UP = 2.0
ROOTS_DOWN = 1.5
"""A step is at least this many roots of the limit: a small back end answers few requests a second,
and small differences would take minutes to see."""
STRIDE_UP_MAX = 1.0
STRIDE_DOWN_MAX = 0.5
"""The widest steps, as shares: the limit doubles, or is halved."""
WIDE = 0.4
"""If the logarithms of the two limits are further apart than this, the requests of the previous
limit no longer matter after one round; otherwise after two."""
TOO_HIGH_ROOTS = 1.6
"""Steps down are tried while the knee may be lower than the limit by this divided by the root of
the limit, as a share: a closer estimate would cost more than it gains."""
UPS_A_DOWN = 1
"""At least this many steps up are tried for each step down."""
MOVE_SHARE = 0.05
"""The limit does not follow changes of the estimate that are smaller than this share."""
TRIAL_FEWER = 3.0
TRIAL_SLOWER = 2.0
"""A trial is over when it is e^3 times likelier that fewer are served at a time, or e^2 times
likelier that each takes longer: the latter is checked once more, and a long trial is costly."""
TRIAL_ENDS = (8, 80)
TRIAL_ROUNDS = (2, 4)
"""The least and the most ends, and rounds of the limit, that a trial has."""


class KneeProber:
    """Finds the limit of a back end from the queries that start and end there."""

    def __init__(self, now: float, settings: KneeSettings | None = None) -> None:
        self._settings = settings or KneeSettings()
        self._base = max(self._settings.floor, min(self._settings.first, self._settings.ceiling))
        self._other = False
        """Whether the current window is the one at the other limit, `_beside`."""
        self._ups_left = 1
        """How many steps up are left before the next step down."""
        self._in_flight = 0
        self._peak = self._good = self._bad = self._round = self._unsettled = 0
        self._enough = 0
        self._began = self._last = now
        self._area = 0.0
        """These describe the current window: the peak in flight, the good and bad ends, the ends of
        this round, the ends still to leave out, the good ends that close the window, its times, and
        the integral of the number in flight over time."""
        self._at_base = Window(self._base, 0.0, 0.0)
        """The last window at the limit."""
        self._evidence = Evidence()
        self._alarm = FallAlarm(now)
        self._fallen: Window | None = None
        """The throughput before the current trial; None while there is no trial."""
        self._before = self._base
        """The limit to return to if the trial fails."""
        self._tried: Window | None = None
        """The throughput of the last failed trial, until it was compared with a later window."""
        self._face(up=True, stride=STRIDE_UP_MAX)
        self._restart(now)

    @property
    def limit(self) -> int:
        """How many queries may be in flight now."""
        return self._beside if self._other else self._base

    @property
    def knee(self) -> int:
        """The current estimate of the knee, without the step that is being tried."""
        return self._base

    def started(self) -> None:
        """Count a query that starts at the back end."""
        self._in_flight += 1
        self.claimed(self._in_flight)

    def claimed(self, in_flight: int) -> None:
        """Record how many queries the gateways count in flight, those on the network included: with
        a fast back end and a slow network, a used limit would otherwise look unused."""
        if in_flight > self._peak:
            self._peak = in_flight

    def ended(self, now: float, *, good: bool = True) -> None:
        """Count a query that ends at the back end; an error is not `good`."""
        before, limit = self._in_flight, self.limit
        self._in_flight = max(0, before - 1)
        if self._fallen is None:
            share = min(1.0, limit / self._base)
            if self._alarm.ended(now, before, limit, share, good=good):
                self._fall(now)
                return
            if self._alarm.usual * (now - self._last) > max(PAUSE_ENDS, PAUSE_ROUNDS * limit):
                # The answers that were delayed now come at once, and say nothing.
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
            # The limit was not used, so this pair of windows is no evidence.
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
        """Return whether the limit is used, as far as the current round tells."""
        self._round += 1
        if self._round < max(USED_ENDS, limit):
            return True
        used = self._peak >= USED_SHARE * limit
        self._round = 0
        self._peak = self._in_flight
        return used

    def _restart(self, now: float) -> None:
        """Begin a window, once the queries of the previous limit have ended."""
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
        """Take in a finished window, and choose the next one."""
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
            if self._up and self._bad > self._good:  # do not raise the limit on mostly errors
                self._face(up=False, least=self._least)
            self._other = window.ends > 0.0

    def _compare(self, window: Window) -> None:
        """Compare a finished window at the other limit with the one at the base limit."""
        base = self._at_base
        if not self._up:
            self._evidence.add(Pair(window, base, up=False))
        elif self._bad > self._good:  # mostly errors: credit no more throughput than at the base
            most = base.ends * window.seconds / base.seconds
            fewer = Window(window.limit, min(window.ends, most), window.seconds)
            self._evidence.add(Pair(base, fewer, up=True))
        else:
            self._evidence.add(Pair(base, window, up=True))
        self._decide()

    def _decide(self) -> None:
        """Move the limit to where the knee may well be, and choose the next step."""
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
        """The lowest plausible knee; 0 if unknown."""
        knees = self._evidence.knees()
        return knees.least if knees else 0.0

    def _next(self) -> None:
        """Choose the next step: up, unless the limit may be far too high."""
        self._ups_left -= self._up
        least = self._least
        too_high = 1.0 + TOO_HIGH_ROOTS / math.sqrt(self._base)
        if self._ups_left <= 0 and least * too_high < self._base:
            self._ups_left = UPS_A_DOWN
            self._face(up=False, least=least)
        else:
            self._face(up=True)

    def _face(self, *, up: bool, stride: float = 0.0, least: float = 0.0) -> None:
        """Set the limit to compare with: a usual step away, or a wider one: up by the share
        `stride`, or down to `least`, the lowest plausible knee."""
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
        """Handle an alarm: try the limit that is right if fewer are served at a time now."""
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
        else:  # the limit is at the floor, or a lower one is being tried already
            self._base = base
            alarm.forget()
            alarm.restart(now)
            self._face(up=True)
            self._restart(now)

    def _try(self, now: float, window: Window, before: Window) -> None:
        """Continue the trial, and end it once it is clear whether the lower limit has the same
        throughput (the knee moved here) or less (the knee is where it was)."""
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
            # This may still be wrong; the next window at the restored limit decides.
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
