"""Virtual time: a heap of what is to happen, and a network on top of it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from maitred.simulation.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from random import Random

SPINS_MAX = 100_000
"""Events at one moment: more than that, and time does not go on."""


class Event:
    """A callback that the clock runs at its time, unless it is cancelled."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()


class Pause:
    """Lets virtual time pass for a coroutine that the clock runs."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __await__(self) -> Generator[float, None, None]:
        yield self._seconds


class Clock:
    """Runs callbacks in the order of time; those that are due together, in the order of setting.

    The methods are named as those of an event loop, whose part it plays for the node's driver.
    """

    __slots__ = ("_count", "_events", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._stopped = False
        self._events: list[tuple[float, int, Event]] = []

    def time(self) -> float:
        return self.now

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        /,
        *arguments: Any,  # noqa: ANN401
    ) -> Event:
        self._count += 1
        event = Event(callback, arguments)
        heappush(self._events, (max(when, self.now), self._count, event))
        return event

    def call_soon(self, callback: Callable[..., object], /, *arguments: Any) -> Event:  # noqa: ANN401
        """Run the callback at this moment, after all that is due already."""
        return self.call_at(self.now, callback, *arguments)

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine, which may await nothing but a `Pause`."""
        try:
            seconds = running.send(None)
        except StopIteration:
            return
        self.call_at(self.now + seconds, self.spawn, running)

    def stop(self) -> None:
        """Leave whatever is to come to the next `run`."""
        self._stopped = True

    def run(self, until: float) -> bool:
        """Let time pass until `stop` is called; return False if `until` came first."""
        events = self._events
        spins = 0
        self._stopped = False
        while events and events[0][0] <= until:
            moment, _, event = heappop(events)
            if event.callback is None:
                continue
            spins = spins + 1 if moment == self.now else 0
            if spins > SPINS_MAX:
                raise Violation(f"Time stands still at {moment:.6f} s.")
            self.now = moment
            event.callback(*event.arguments)
            if self._stopped:
                return True
        self.now = max(self.now, until)
        return False


class Network:
    """Delays messages; those between the same two ends arrive in the order they were sent."""

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
        self._clock.call_at(moment, arrive, *what)
