"""The process id, memory and CPU time of a process, and its load."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from maitred.monitor.process_vitals import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


class Vitals:
    """Where a shard reads its own numbers; a simulated shard reports the same on every machine."""

    def __init__(
        self, pid: int, memory_bytes: Callable[[], int], cpu_seconds: Callable[[], float]
    ) -> None:
        self.pid = pid
        self.memory_bytes = memory_bytes
        self.cpu_seconds = cpu_seconds

    @classmethod
    def real(cls) -> Vitals:
        """Return the vitals of this process."""
        return cls(os.getpid(), memory_bytes, time.process_time)

    @classmethod
    def none(cls) -> Vitals:
        """Return vitals that are always 0."""
        return cls(0, lambda: 0, lambda: 0.0)


class LoadGauge:
    """The share of the time since the last look that the process spent on the CPU, smoothed."""

    def __init__(self, vitals: Vitals, now: float) -> None:
        self._vitals = vitals
        self._seen_at = now
        self._seen_cpu = vitals.cpu_seconds()
        self._seen_count = 0
        self.load = 0.0
        self.per_second = 0.0

    def look(self, now: float, count: int) -> None:
        """Update the load, and the rate at which `count` grows; called about once a second."""
        seconds = now - self._seen_at
        if seconds <= 0:
            return
        cpu = self._vitals.cpu_seconds()
        # The mean with the old value smooths over the last few seconds.
        self.load = (self.load + (cpu - self._seen_cpu) / seconds) / 2
        self.per_second = (self.per_second + (count - self._seen_count) / seconds) / 2
        self._seen_at, self._seen_cpu, self._seen_count = now, cpu, count


FADES: Final = 0.8
"""What is left of a delay of the loop after another look: a tenth after ten seconds."""


class LagGauge:
    """How late the event loop was at its worst, in the last seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._worst = 0.0

    def look(self, late_seconds: float) -> None:
        """Take by how much a timer was late; called about once a second."""
        self.seconds = max(late_seconds, self.seconds * FADES, 0.0)
        self._worst = max(late_seconds, self._worst)

    def take_worst(self) -> float:
        """Return by how much a timer was late at worst since the last call."""
        worst, self._worst = self._worst, 0.0
        return worst
