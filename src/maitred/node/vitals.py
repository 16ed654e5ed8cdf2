"""What a process knows of itself: its number, its memory, the time it spent on the CPU."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGES = Path("/proc/self/statm")


class Vitals:
    """Handed in, so that a simulated shard reports the same on every machine."""

    def __init__(
        self, pid: int, memory_bytes: Callable[[], int], cpu_seconds: Callable[[], float]
    ) -> None:
        self.pid = pid
        self.memory_bytes = memory_bytes
        self.cpu_seconds = cpu_seconds

    @classmethod
    def real(cls) -> Vitals:
        """Return the vitals of this process."""
        return cls(os.getpid(), _memory_bytes, time.process_time)

    @classmethod
    def none(cls) -> Vitals:
        """Nothing to tell."""
        return cls(0, lambda: 0, lambda: 0.0)


def _memory_bytes() -> int:
    try:
        return int(_PAGES.read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the most it ever had is what there is to know
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


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
        """Once a second or so; `count` is what `per_second` is the rate of."""
        seconds = now - self._seen_at
        if seconds <= 0:
            return
        cpu = self._vitals.cpu_seconds()
        # Half of the new and half of the old: a picture of the last few seconds.
        self.load = (self.load + (cpu - self._seen_cpu) / seconds) / 2
        self.per_second = (self.per_second + (count - self._seen_count) / seconds) / 2
        self._seen_at, self._seen_cpu, self._seen_count = now, cpu, count
