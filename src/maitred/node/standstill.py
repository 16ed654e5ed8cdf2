"""Notices that the process of a shard stood still.

A paused virtual machine, a stopped process or a machine without memory halts a shard for seconds.
When it goes on, all its timers are due at once, before it has read what arrived meanwhile, and
connections that peers gave up for silence are not open again yet. A time limit that asks whether a
peer was heard from must not count the time in which the shard could not have heard it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.wire.alarm import Alarm

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

LOOK_SECONDS: Final = 1.0
"""Interval at which the watch looks at the clock. A standstill is measured this much too short at
most."""

STANDSTILL_SECONDS: Final = 2.0
"""Delay of a timer from which it counts as a standstill. A busy shard is late by less, and
heartbeats of workers leave more than this time before a lease ends."""


class StandstillWatch:
    """Tells how long the loop stood still, before anything that became due meanwhile is done.

    All timers that are due run in one turn of the loop, and partitions are driven at the end of
    that turn (`PartitionDriver`), so the watch always comes before them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[float], None]) -> None:
        """`told` is called with the length of a standstill in seconds."""
        self._told = told
        self._due = loop.time() + LOOK_SECONDS
        self._alarm = Alarm(loop, self._look)
        self._alarm.by(self._due)

    def stop(self) -> None:
        """Stop looking."""
        self._alarm.stop()

    def _look(self, now: float) -> float:
        late = now - self._due
        self._due = now + LOOK_SECONDS
        if late >= STANDSTILL_SECONDS:
            self._told(late)
        return self._due
