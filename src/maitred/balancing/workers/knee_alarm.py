"""Whether a back end that tells nothing suddenly does much less: a test on what comes out. Pure.

Each round of as many answers as the limit has is held against the throughput that is usual at the
limit. The test adds, round by round, the logarithm of how much likelier the round's length is if
the back end does only `FALLEN` of what it did (a cumulative sum, for answers that come by chance).
It never goes below 0, so that a long good time does not delay the alarm.

What is usual is learnt from many windows, but not while there is a suspicion: a small back end
answers so slowly that a fall would become usual before it is clear.
"""

from __future__ import annotations

from math import exp, log

FALLEN = 0.6
"""The share of its throughput that a back end is suspected to have left. The sum grows from a fall
to 78 % on; smaller falls are followed step by step."""

ALARM = 10.0
"""An alarm needs the fall to be e^10 times likelier than none: by chance that is so once in some
ten thousand answers, and costs one short trial."""

ALARM_MAX = 40.0
FALSE_ALARM = 1.5
CALM = 0.97
"""An alarm for nothing makes the next one need so many times as much, up to a bound: where service
times vary more than the test supposes, chance is stronger. It is forgotten slowly, by this share
with each window that is learnt from."""

SUSPICION = 0.25
"""Nothing is learnt while the sum is above this share of what an alarm needs."""

SLOW_ROUNDS = 3
SLOW_ENDS = 12
"""An alarm takes so many rounds since the sum was 0, and those after the first have so many
answers. All of them were slow by themselves; of short ones one may have looked good by chance, but
not one of the last two. And no round counts for more than its part of the alarm. A pause is no
fall: it makes two rounds slow, that in which everything comes to its end and that in which nothing
does."""

SLOW_MEMORY = 40.0
"""What comes out in a fall is measured by about so many answers, or one round: the latest, since
those before may be older than the fall, or still have been served as before it."""

FULL_SHARE = 0.9
"""A round with less in flight than this share of what is usual says nothing: nobody wants more."""

ROUND_ENDS = 12
"""A round has as many answers as the limit, but not fewer. In rounds a back end that answers in
batches looks even; one by one, each batch would end with what looks like a pause. And of fewer
answers, too many rounds of a fallen back end would look good by chance."""

LATE = 2.0
LATE_ENDS = 6
LATE_SHARE = 0.25
"""A round that takes so many times as long as usual is over as soon as it has so many answers, and
this share of a whole one: with little of the capacity left, three whole rounds would take very
long. A batch is not that late, and a pause still makes two rounds slow only."""

GAP_ENDS = 8
GAP_SHARE = 0.25
"""While nothing ends, a round gets no slower than by so many usual answers, or by this share of a
whole round: a pause is no fall, however long it is. Who does much less goes on doing that."""

USUAL_ENDS = 300
USUAL_ROUNDS = 20
USUAL_ENDS_MOVED = 50
"""What is usual is the mean of about so many answers, or rounds; and at a limit that is new, what
was usual before counts as this many."""


class FallAlarm:
    """Told of every end; says when much less comes out than is usual, with as much in flight."""

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
        """Answers a second; 0 means that nobody knows, and nothing is an alarm."""
        return self._usual_ends / self._usual_seconds if self._usual_seconds > 0.0 else 0.0

    @property
    def suspects(self) -> bool:
        """Whether there may be an alarm soon."""
        return self._score > SUSPICION * self._needed

    def forget(self) -> None:
        """Nobody knows what is usual."""
        self._usual_ends = self._usual_seconds = self._usual_area = 0.0

    def learn(self, ends: float, seconds: float, area: float, limit: int) -> None:
        """A window at the limit brought so much; `area` is how much was in flight for how long."""
        self._needed = max(ALARM, CALM * self._needed)
        most = max(USUAL_ENDS, USUAL_ROUNDS * limit)
        self._keep(most - ends)
        self._usual_ends += ends
        self._usual_seconds += seconds
        self._usual_area += area

    def moved(self, rate: float, in_flight: float) -> None:
        """The limit is another one, which should bring so many times as much, with so many times as
        much in flight."""
        self._keep(USUAL_ENDS_MOVED)
        self._usual_seconds /= rate
        self._usual_area *= in_flight / rate

    def _keep(self, most: float) -> None:
        """What is usual counts as so many answers at most."""
        if self._usual_ends > most:
            kept = max(0.0, most / self._usual_ends)
            self._usual_ends *= kept
            self._usual_seconds *= kept
            self._usual_area *= kept

    def judged(self, *, right: bool) -> None:
        """Whether the last alarm was one."""
        self._needed = ALARM if right else min(FALSE_ALARM * self._needed, ALARM_MAX)

    def restart(self, now: float) -> None:
        """Forget the rounds."""
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
        """What came out lately, since the sum was 0; the first round may be older than the fall."""

    def ended(self, now: float, in_flight: int, limit: int, share: float, *, good: bool) -> bool:
        """A query ended, with so many in flight just before; whether there is an alarm now.

        `share`: how much of the usual the limit of this moment allows.
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
