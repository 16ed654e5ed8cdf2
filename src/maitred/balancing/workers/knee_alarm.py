"""Detect that the throughput of a back end that reports nothing falls suddenly. Pure.

Each round of as many answers as the limit is compared with the usual throughput at the limit. The
test adds, round by round, the logarithm of how much likelier the round's length is if the back end
does only `FALLEN` of what it did (a cumulative sum, for answers that come at random). The sum never
goes below 0, so that a long good time does not delay the alarm.

The usual throughput is learnt from many windows, but not during a suspicion: a small back end
answers so slowly that a fall would become usual before it is detected.
"""

from __future__ import annotations

from math import exp, log

FALLEN = 0.6
"""The share of its throughput that a fallen back end is assumed to keep. The sum grows once the
throughput falls below 78 %; the prober follows smaller falls step by step."""

ALARM = 10.0
"""For an alarm, a fall has to be e^10 times likelier than none: a false alarm comes about once in
ten thousand answers, and costs one short trial."""

ALARM_MAX = 40.0
FALSE_ALARM = 1.5
CALM = 0.97
"""A false alarm multiplies what the next alarm needs by `FALSE_ALARM`, up to `ALARM_MAX`: where
service times vary more than the test assumes, so does the sum. Each window that is learnt from
multiplies it by `CALM`, down to `ALARM`."""

SUSPICION = 0.25
"""Nothing is learnt while the sum is above this share of what an alarm needs."""

SLOW_ROUNDS = 3
SLOW_ENDS = 12
"""An alarm takes this many rounds since the sum was 0, and those after the first have this many
answers. Each of them was slow by itself; of short rounds one may have looked good by chance, but
not one of the last two. No round counts for more than its part of the alarm. A pause is not a fall:
it makes two rounds slow, the one in which the answers stop and the one in which they resume."""

SLOW_MEMORY = 40.0
"""The throughput in a fall is measured over about this many answers, or one round: the latest ones,
since earlier ones may be older than the fall."""

FULL_SHARE = 0.9
"""A round with less in flight than this share of the usual says nothing: there was less demand."""

ROUND_ENDS = 12
"""A round has as many answers as the limit, but at least this many. Over a round, a back end that
answers in batches looks even; one by one, each batch would end with an apparent pause. With fewer
answers, too many rounds of a fallen back end would look good by chance."""

LATE = 2.0
LATE_ENDS = 6
LATE_SHARE = 0.25
"""A round that takes `LATE` times as long as usual ends as soon as it has `LATE_ENDS` answers, and
the share `LATE_SHARE` of a whole round: with little capacity left, three whole rounds would take
very long. A batch is not that late, and a pause still makes only two rounds slow."""

GAP_ENDS = 8
GAP_SHARE = 0.25
"""A gap without answers makes a round slower by at most `GAP_ENDS` usual answers, or the share
`GAP_SHARE` of a whole round: a pause is not a fall, however long it is. A fallen back end keeps
answering slowly."""

USUAL_ENDS = 300
USUAL_ROUNDS = 20
USUAL_ENDS_MOVED = 50
"""The usual throughput is the mean of about `USUAL_ENDS` answers or `USUAL_ROUNDS` rounds; when the
limit moves, the earlier mean counts as `USUAL_ENDS_MOVED` answers."""


class FallAlarm:
    """Raises an alarm when the throughput falls far below the usual, with as much in flight."""

    __slots__ = (
        "_area",
        "_began",
        "_ends",
        "_last",
        "_needed",
        "_rounds",
        "_score",
        "_slow_in_a_row",
        "_usual_area",
        "_usual_ends",
        "_usual_seconds",
        "_usually",
        "slow_ends",
        "slow_seconds",
    )

    def __init__(self, now: float) -> None:
        self._needed = ALARM
        self.forget()
        self.restart(now)

    @property
    def usual(self) -> float:
        """The usual answers per second; 0 means unknown, and then there is no alarm."""
        return self._usual_ends / self._usual_seconds if self._usual_seconds > 0.0 else 0.0

    @property
    def suspects(self) -> bool:
        """Whether an alarm may follow soon."""
        return self._score > SUSPICION * self._needed

    def forget(self) -> None:
        """Forget the usual throughput."""
        self._usual_ends = self._usual_seconds = self._usual_area = 0.0

    def learn(self, ends: float, seconds: float, area: float, limit: int) -> None:
        """Learn from a window at the limit; `area` is its integral of the number in flight."""
        self._needed = max(ALARM, CALM * self._needed)
        most = max(USUAL_ENDS, USUAL_ROUNDS * limit)
        self._keep(most - ends)
        self._usual_ends += ends
        self._usual_seconds += seconds
        self._usual_area += area

    def moved(self, rate: float, in_flight: float) -> None:
        """Adapt to a new limit, which should multiply the throughput by `rate` and the number in
        flight by `in_flight`."""
        self._keep(USUAL_ENDS_MOVED)
        self._usual_seconds /= rate
        self._usual_area *= in_flight / rate

    def _keep(self, most: float) -> None:
        """Reduce the weight of the usual throughput to at most this many answers."""
        if self._usual_ends > most:
            kept = max(0.0, most / self._usual_ends)
            self._usual_ends *= kept
            self._usual_seconds *= kept
            self._usual_area *= kept

    def judged(self, *, right: bool) -> None:
        """Record whether the last alarm was right; a false one makes the next need more."""
        self._needed = ALARM if right else min(FALSE_ALARM * self._needed, ALARM_MAX)

    def restart(self, now: float) -> None:
        """Forget the rounds so far."""
        self._score = 0.0
        self._start(now)
        self._not_slow()

    def _start(self, now: float) -> None:
        self._began = self._last = now
        self._area = self._usually = 0.0
        self._ends = 0

    def _not_slow(self) -> None:
        self._rounds = self._slow_in_a_row = 0
        self.slow_ends = self.slow_seconds = 0.0
        """The recent answers and their time since the sum was 0, without the first round, which
        may be older than the fall."""

    def ended(self, now: float, in_flight: int, limit: int, share: float, *, good: bool) -> bool:
        """Count an answer, with this many in flight just before; return whether there is an alarm.

        `share` is the share of the usual throughput that the current limit allows.
        """
        gap, expected, whole = now - self._last, self.usual * share, max(ROUND_ENDS, limit)
        self._last = now
        self._area += in_flight * gap
        self._usually += min(expected * gap, max(GAP_ENDS, GAP_SHARE * whole))
        self._ends += good
        usually, ends, area, seconds = self._usually, self._ends, self._area, now - self._began
        late = usually >= LATE * whole and ends >= max(LATE_ENDS, LATE_SHARE * whole)
        if ends < whole and not late:
            return False
        self._start(now)
        if area * self._usual_seconds < FULL_SHARE * share * self._usual_area * seconds:
            self.restart(now)
            return False
        likelier = ends * log(FALLEN) + (1.0 - FALLEN) * usually
        self._score = max(0.0, self._score + min(likelier, self._needed / SLOW_ROUNDS))
        if self._score == 0.0:
            self._not_slow()
            return False
        self._slow_in_a_row = self._slow_in_a_row + 1 if likelier > 0.0 else 0
        self._rounds += 1
        if self._rounds > 1:
            kept = exp(-ends / SLOW_MEMORY)
            self.slow_ends = kept * self.slow_ends + ends
            self.slow_seconds = kept * self.slow_seconds + seconds
        return (
            self._slow_in_a_row >= (SLOW_ROUNDS if whole >= SLOW_MEMORY else SLOW_ROUNDS - 1)
            and self._rounds >= SLOW_ROUNDS
            and self.slow_ends >= SLOW_ENDS
            and self._score >= self._needed
        )
