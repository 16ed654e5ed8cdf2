"""The process id, memory and CPU time of a process, and its load."""

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
        return cls(os.getpid(), _memory_bytes, time.process_time)

    @classmethod
    def none(cls) -> Vitals:
        """Return vitals that are always 0."""
        return cls(0, lambda: 0, lambda: 0.0)


def _memory_bytes() -> int:
    try:
        return int(_PAGES.read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux, where only the peak is known
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
        """Update the load, and the rate at which `count` grows; called about once a second."""
        seconds = now - self._seen_at
        if seconds <= 0:
            return
        cpu = self._vitals.cpu_seconds()
        # The mean with the old value smooths over the last few seconds.
        self.load = (self.load + (cpu - self._seen_cpu) / seconds) / 2
        self.per_second = (self.per_second + (count - self._seen_count) / seconds) / 2
        self._seen_at, self._seen_cpu, self._seen_count = now, cpu, count
