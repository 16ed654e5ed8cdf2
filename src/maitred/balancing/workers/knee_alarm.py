"""Whether a back end that tells nothing suddenly does much less: a test on what comes out. Pure.

Each round of as many answers as the limit has is held against the throughput that the limit gave
before. The test adds, round by round, the logarithm of how much likelier the round's length is if
the back end does only `FALLEN` of what it did (a cumulative sum, for answers that come by chance).
It never goes below 0, so that a long good time does not delay the alarm.
"""

from __future__ import annotations

from math import log

FALLEN = 0.6
"""The share of its throughput that a back end is suspected to have left. The sum grows from a fall
to 78 % on; smaller falls are followed step by step."""

ALARM = 12.0
"""An alarm needs the fall to be e^12 times likelier than none: by chance that is so once in some
hundred thousand answers, and costs one short trial."""

ALARM_MAX = 96.0
"""An alarm for nothing doubles what the next one needs, up to this: where service times vary more
than the test supposes, chance is stronger. Even so a hundred answers or two are enough."""

SLOW_ROUNDS = 3
SLOW_ENDS = 30
"""So many rounds in a row have to be slow by themselves, and those after the first have so many
answers. A pause is no fall: it makes two rounds slow, that in which everything comes to its end and
that in which nothing does. And what comes out in a fall has to be known to a fifth or so."""

FULL_SHARE = 0.9
"""A round with less in flight than this share of what is usual says nothing: nobody wants more."""

ROUND_ENDS = 10
"""A round has as many answers as the limit, but not fewer. In rounds a back end that answers in
batches looks even; one by one, each batch would end with what looks like a pause."""


class FallAlarm:
    """Told of every end; says when much less comes out than is usual, with as much in flight."""

    __slots__ = (
        "_area",
        "_began",
        "_ends",
        "_in_flight",
        "_last",
        "_needed",
        "_score",
        "_slow_ends",
        "_slow_rounds",
        "_slow_seconds",
        "usual",
    )

    def __init__(self, now: float) -> None:
        self.usual = 0.0
        """Answers a second; 0 means that nobody knows, and nothing is an alarm."""
        self._in_flight = 0.0
        self._needed = ALARM
        self.restart(now)

    @property
    def rate(self) -> float:
        """What came out in the slow rounds; the first may have begun before the fall."""
        return self._slow_ends / self._slow_seconds if self._slow_seconds > 0.0 else 0.0

    def expect(self, rate: float, in_flight: float) -> None:
        """That is what is usual from now on."""
        self.usual = rate
        self._in_flight = in_flight

    def judged(self, *, right: bool) -> None:
        """Whether the last alarm was one."""
        self._needed = ALARM if right else min(2.0 * self._needed, ALARM_MAX)

    def restart(self, now: float) -> None:
        """Forget the rounds."""
        self._score = 0.0
        self._start(now)
        self._not_slow()

    def _start(self, now: float) -> None:
        self._began = self._last = now
        self._area = 0.0
        self._ends = 0

    def _not_slow(self) -> None:
        self._slow_rounds = 0
        self._slow_ends = 0
        self._slow_seconds = 0.0

    def ended(self, now: float, in_flight: int, limit: int, share: float, *, good: bool) -> bool:
        """A query ended, with so many in flight just before; whether there is an alarm now.

        `share`: how much of the usual the limit of this moment allows.
        """
        self._area += in_flight * (now - self._last)
        self._last = now
        self._ends += good
        if self._ends < max(ROUND_ENDS, limit):
            return False
        seconds, ends = now - self._began, self._ends
        full = self._area >= FULL_SHARE * share * self._in_flight * seconds
        self._start(now)
        likelier = ends * log(FALLEN) + (1.0 - FALLEN) * self.usual * share * seconds
        self._score = max(0.0, self._score + likelier) if full else 0.0
        if likelier <= 0.0 or not full:
            self._not_slow()
            return False
        self._slow_rounds += 1
        if self._slow_rounds > 1:
            self._slow_ends += ends
            self._slow_seconds += seconds
        return (
            self._slow_rounds >= SLOW_ROUNDS
            and self._slow_ends >= SLOW_ENDS
            and self._score >= self._needed
        )
