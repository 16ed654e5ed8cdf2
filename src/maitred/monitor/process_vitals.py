"""The memory, the CPU time and the loop of a process, as it tells them to monitoring."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.metrics import families

if TYPE_CHECKING:
    from maitred.metrics.exposition import Samples
    from maitred.monitor.loop_lag import LoopLag
    from maitred.telemetry.tracing import Tracing

_PAGES = Path("/proc/self/statm")


def memory_bytes() -> int:
    """Return the memory of this process that is in RAM."""
    try:
        return int(_PAGES.read_text().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux, where only the peak is known
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def add_vitals(
    samples: Samples, process: str, lag: LoopLag, tracing: Tracing | None = None
) -> None:
    """Add the samples of this process."""
    samples.add(families.PROCESS_MEMORY, memory_bytes(), process=process)
    samples.add(families.PROCESS_CPU, round(time.process_time(), 3), process=process)
    samples.histogram(families.LOOP_LAG, lag.seconds, process=process)
    counts = {} if tracing is None else tracing.statistics()
    if counts:  # a program that exports its spans itself has none
        samples.add(families.SPANS_EXPORTED, counts["spans_exported"], process=process)
        samples.add(families.SPANS_LOST, counts["spans_lost"], process=process)
