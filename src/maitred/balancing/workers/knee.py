"""The limit of a back end that tells nothing: the knee of its throughput, found by trying.

Behind an HTTP proxy there is only what goes in and what comes out. More in flight raises the
throughput up to a knee; beyond it, only the latency. The usual rule compares latency with the least
ever seen; where service times vary that least is luck, and the limit falls far too low. So this
one looks at throughput alone, and compares instead of trusting a memory: a window at the limit and
a window at a limit a step away, in turn, several times over, so that a load that changes meanwhile
changes both.

- One step **up** brought some of what it would bring below the knee: go up, by as much as it
  brought, for so far away is the knee. If it brought nearly all, try a step twice as wide next.
- One step **down** lost next to nothing of what it would lose below the knee: go down.

A decision is made when the difference is clear beside its noise or when the pairs are used up; a
limit that was not used in a window says nothing about it, so that window is left out. Errors and
refusals of the back end are not throughput.

Steps down are small, and a back end that can do much less all of a sudden must not be drowned
meanwhile. So it is noticed when much less comes out with as much in flight (`FallAlarm`). Either
fewer are served at a time then, or each of them takes longer: from outside both look the same. If
it is the first, a limit that is lower by the same share brings just as much. So that is what the
limit becomes, at once, and the next thing that is tried is the step back up: it pays in the other
case only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from maitred.balancing.workers.knee_alarm import FallAlarm


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
    window_ends: int = 100
    """A window lasts until as many queries ended as ten times the limit, at least so many."""
    window_seconds_max: float = 1.0
    """Or until this is over, and as many ended as three times the limit."""
    pairs_max: int = 6


USED_SHARE = 0.9
KEEP_UP = 0.15
"""A step up has to bring this share of what it would bring below the knee."""
KEEP_DOWN = 0.2
"""A step down may lose this share. It is rather too little, since a limit that is too low costs
throughput, and one that is too high only latency."""
KEEP_WIDE = 0.3
"""Both, for wide steps down and for the step back after an alarm: here all is lost or brought, or
nothing. It is clear soon, and the usual steps come after it."""
WHOLE = 0.7
"""A step up that brought this share was below the knee from its beginning to its end."""
CLEAR = 2.0
"""A difference of so many standard errors is no chance."""
CLEAR_RISE = 3.0
"""The same for a limit that brings more than it did a moment ago: it was at the knee of less."""
BELIEVED = 2.0
"""A pair counts for so many times what its step could change at most: one window full of errors
does not outvote the others."""
UPS_A_DOWN = 3
"""Comparisons upwards for each downwards, where neither pays: these are the dear ones."""
ROOTS_UP = 2.0
ROOTS_DOWN = 1.0
"""A step is at least so many roots of the limit: a small back end answers few a second, and small
differences would take minutes to see."""
STRIDE_UP_MAX = 1.0
STRIDE_DOWN_MAX = 0.5
"""The widest steps, as shares: the limit doubles, or is halved."""
QUICK_ENDS = 50
ROUNDS_MIN = 3
"""Windows of wide steps last for so many ends, and for so many rounds of the limit at least: such a
difference is easily told from noise."""
FORGET = 0.8
"""What is usual at the limit falls to this share in a window at most: a fall that begins in the
middle of one is to be an alarm, not to become usual."""


class KneeProber:
    """Told of every query that starts and ends at the back end; knows the limit."""

    def __init__(self, now: float, settings: KneeSettings | None = None) -> None:
        self._settings = settings or KneeSettings()
        self._base = max(self._settings.floor, min(self._settings.first, self._settings.ceiling))
        self._other = False
        """Whether this window is the one at the other limit."""
        self._ups_left = 1
        """Comparisons upwards before the next one downwards."""
        self._in_flight = 0
        self._peak = self._good = self._bad = self._unsettled = 0
        self._area = 0.0
        """Of this window: what was in flight at most, what ended, what is still left out, and how
        much was in flight for how long."""
        self._pairs: list[float] = []
        """For each pair: the throughput at the other limit, relative to that at the base."""
        self._base_rate = 0.0
        self._alarm = FallAlarm(now)
        self._fell = False
        """Whether the limit is where an alarm put it, and the way back is being tried."""
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

    @property
    def _beside(self) -> int:
        base, settings = self._base, self._settings
        roots = ROOTS_UP if self._up else ROOTS_DOWN
        step = max(1, round(max(self._stride * base, roots * math.sqrt(base))))
        return min(base + step, settings.ceiling) if self._up else max(base - step, settings.floor)

    @property
    def _wide(self) -> bool:
        """Whether the step is so wide that short windows will do."""
        return self._stride > (self._settings.step_up if self._up else self._settings.step_down)

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
        share = min(1.0, limit / self._base)
        if self._alarm.ended(now, before, limit, share, good=good):
            self._fall(now)
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
        if self._wide:
            enough = max(QUICK_ENDS, ROUNDS_MIN * limit)
        else:
            enough = max(self._settings.window_ends, 10 * limit)
        length = now - self._began
        late = length >= self._settings.window_seconds_max
        if length > 0.0 and (
            self._good >= enough or (late and self._good + self._bad >= ROUNDS_MIN * limit)
        ):
            self._close(self._good / length, self._area / length)
            self._restart(now)

    def _restart(self, now: float) -> None:
        """Begin a window, as soon as the limit before it is forgotten."""
        self._began = self._last = now
        self._area = 0.0
        self._good = self._bad = 0
        self._peak = 0
        rounds = 1 if self._wide else 2
        self._unsettled = max(2, rounds * self.limit + max(0, self._in_flight - self.limit))

    def _close(self, rate: float, in_flight: float) -> None:
        """A window is over."""
        if self._peak < USED_SHARE * self.limit:
            # Nobody wanted that much: no evidence about this pair.
            self._other = False
        elif not self._other:
            usual = self._alarm.usual
            noise = CLEAR_RISE * math.sqrt(2.0 / max(1, self._good))
            if 0.0 < usual * (1.0 + noise) < rate:
                self._face(up=True)
            self._alarm.expect(max(rate, FORGET * usual), in_flight)
            self._compare_with(rate)
        else:
            self._other = False
            apart = self._beside / self._base - 1.0
            gain = rate / self._base_rate - 1.0
            if self._up and self._bad > self._good:
                gain = min(gain, 0.0)  # errors that come fast are no reason for more
            self._pairs.append(min(max(gain, -BELIEVED * abs(apart)), BELIEVED * abs(apart)))
            self._ends += self._good
            if self._decide(apart):
                self._alarm.expect(rate, in_flight)
                self._compare_with(rate)

    def _compare_with(self, rate: float) -> None:
        """That is what the base brings; now the other one."""
        self._base_rate = rate
        self._other = rate > 0.0

    def _decide(self, apart: float) -> bool:
        """Move, stay, or compare once more; whether the other limit is the base now."""
        if apart == 0.0:  # at the ceiling, or at the floor
            self._turn(0.0)
            return False
        mean = math.fsum(self._pairs) / len(self._pairs)
        if self._fell or (self._wide and not self._up):
            keep = KEEP_WIDE
        else:
            keep = KEEP_UP if self._up else KEEP_DOWN
        distance = mean - keep * apart
        more = len(self._pairs) < self._settings.pairs_max
        if more and abs(distance) < CLEAR * self._error(mean):
            return False
        if self._fell:
            self._fell = False
            self._alarm.judged(right=distance <= 0.0)
        if distance <= 0.0:
            self._turn(mean)
            return False
        self._ups_left = 1
        if self._up and mean < WHOLE * apart:
            self._base = min(round(self._base * (1.0 + mean)), self._beside)
            self._face(up=True)
            return False
        self._base = self._beside
        self._face(up=self._up, stride=2.0 * self._stride)
        return True

    def _error(self, mean: float) -> float:
        """The standard error of that mean: what the pairs say, but no less than chance makes it."""
        count = len(self._pairs)
        squares = math.fsum((gain - mean) ** 2 for gain in self._pairs)
        return math.sqrt(max(squares / max(1, count - 1) / count, 2.0 / max(1, self._ends)))

    def _turn(self, mean: float) -> None:
        """It did not pay: what is compared next."""
        if not self._up:
            self._ups_left = UPS_A_DOWN
            self._face(up=not self._wide)
        elif self._wide and mean < 0.0:
            self._face(up=False, stride=2.0 * self._settings.step_down)
        else:
            self._ups_left -= 1
            self._face(up=self._ups_left > 0)

    def _face(self, *, up: bool, stride: float = 0.0) -> None:
        """Begin another comparison; with the usual step, unless a wider one is wanted."""
        self._up = up
        if up:
            self._stride = min(max(stride, self._settings.step_up), STRIDE_UP_MAX)
        else:
            self._stride = min(max(stride, self._settings.step_down), STRIDE_DOWN_MAX)
        self._pairs.clear()
        self._ends = 0

    def _fall(self, now: float) -> None:
        """There is an alarm: go to the limit that is right if fewer are served at a time now."""
        alarm, before = self._alarm, self._base
        left = min(1.0, alarm.rate / alarm.usual)
        self._base = max(self._settings.floor, round(left * before))
        self._face(up=True, stride=before / self._base - 1.0)
        self._other = False
        self._ups_left = 1
        self._fell = True
        alarm.expect(0.0, 0.0)  # nobody knows until a window is over
        alarm.restart(now)
        self._restart(now)

    def __repr__(self) -> str:
        return f"<KneeProber, limit {self.limit}, {self._in_flight} in flight>"
