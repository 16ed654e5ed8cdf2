"""Virtual time: a heap of what is to happen, and a network on top of it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

SPINS_MAX = 100_000
"""Events at one moment: more than that, and time does not go on."""


class Clock:
    """What is to happen, in the order of time; what is due together, in the order it was set."""

    __slots__ = ("_count", "_events", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._stopped = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, moment: float, happen: Callable[..., None], *what: Any) -> None:  # noqa: ANN401
        self._count += 1
        heappush(self._events, (max(moment, self.now), self._count, happen, what))

    def soon(self, happen: Callable[..., None], *what: Any) -> None:  # noqa: ANN401
        """At this moment, after all that is due already."""
        self.at(self.now, happen, *what)

    def stop(self) -> None:
        """Whatever is to come can wait for the next `run`."""
        self._stopped = True

    def run(self, until: float) -> bool:
        """Let time pass until somebody says stop; False if `until` came first."""
        events = self._events
        spins = 0
        self._stopped = False
        while events and events[0][0] <= until:
            moment, _, happen, what = heappop(events)
            spins = spins + 1 if moment == self.now else 0
            if spins > SPINS_MAX:
                raise Violation(f"Time stands still at {moment:.6f} s.")
            self.now = moment
            happen(*what)
            if self._stopped:
                return True
        self.now = max(self.now, until)
        return False


class Network:
    """Messages take their time; those between the same two arrive in the order they were sent."""

    __slots__ = ("_clock", "_jitter", "_last", "_random", "_seconds", "messages")

    def __init__(self, clock: Clock, seconds: float, jitter: float, random: Random) -> None:
        self._clock = clock
        self._seconds = seconds
        self._jitter = jitter
        """The longest delay, as a multiple of the shortest, less one."""
        self._random = random
        self._last: dict[tuple[object, object], float] = {}
        self.messages = 0

    def send(
        self,
        source: object,
        target: object,
        arrive: Callable[..., None],
        *what: Any,  # noqa: ANN401
    ) -> None:
        self.messages += 1
        moment = self._clock.now + self._seconds
        if self._jitter:
            moment += self._seconds * self._jitter * self._random.random()
            link = (source, target)
            moment = self._last[link] = max(moment, self._last.get(link, 0.0))
        self._clock.at(moment, arrive, *what)
