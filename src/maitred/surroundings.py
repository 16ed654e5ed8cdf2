"""The wall clock, randomness and CPU times, which an event loop does not have.

Monotonic time, timers and the network come from the running loop. The rest is passed in: code that
takes a `Surroundings` runs unchanged under real asyncio and in the simulation, where clock and
randomness come from the seed.

Secrets come from the operating system, in the simulation from the seed. In the simulation there are
no CPU times. `StopSignals` counts the signals that ask a process to stop.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.telemetry.tracing import Tracing


class _Scheduling:
    """Reads from Linux how long the calling thread was ready to run and had to wait.

    The file is the calling thread's and stays open: to open it each time took ten times as long.
    """

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def kept_waiting(self) -> float:
        return int(os.pread(self._file, 128, 0).split()[1]) / 1e9

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


_of_thread: Final = threading.local()
if hasattr(os, "register_at_fork"):  # a child's threads are others
    # The lambda finds the dict of the thread that forks, which is another one for each thread.
    os.register_at_fork(after_in_child=lambda: _of_thread.__dict__.clear())  # noqa: PLW0108


class CpuTimes(NamedTuple):
    """CPU times of the calling thread, in seconds since an arbitrary moment."""

    thread: float
    """Time for which this thread computed."""
    process: float
    """Time for which all threads of this process computed, together."""
    kept_waiting: float | None
    """Time for which this thread was ready to run while something else had the CPU; None where the
    system does not tell."""


def cpu_times() -> CpuTimes:
    """Return the CPU times of the calling thread. The call takes some microseconds."""
    try:
        scheduling = _of_thread.__dict__.get("scheduling")
        if scheduling is None:
            scheduling = _of_thread.scheduling = _Scheduling()
        kept_waiting: float | None = scheduling.kept_waiting()
    except (OSError, IndexError, ValueError):
        kept_waiting = None
    return CpuTimes(time.thread_time(), time.process_time(), kept_waiting)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The wall clock, randomness and CPU times of one process or simulated host."""

    wall_clock: Callable[[], float]
    """Seconds since 1970; may jump, in either direction."""

    random: random.Random
    """For jitter, sampling and tie-breaking; never for secrets."""

    secret: Callable[[int], bytes] = os.urandom
    """Returns this many unpredictable bytes."""

    boot_clock: Callable[[], float] | None = None
    """Seconds since an arbitrary moment, the same for all processes of the machine, that also count
    while the machine is suspended. None: use the time of the loop."""

    cpu_times: Callable[[], CpuTimes] | None = None
    """How much the calling thread has computed; None where time is simulated."""

    tracing: Tracing | None = None
    """Records the spans of this process; None: it does not trace."""

    @classmethod
    def real(cls, tracing: Tracing | None = None) -> Surroundings:
        """Return the machine's clock, and randomness seeded by the operating system."""
        return cls(
            tracing=tracing,
            wall_clock=time.time,
            random=random.Random(),
            boot_clock=boot_clock,
            cpu_times=cpu_times,
        )


def boot_clock() -> float:
    """Return the seconds since the machine was started, including those in which it was suspended.
    Without such a clock (as on macOS), the seconds in which it was not suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


ECHO_SECONDS: Final = 0.3
"""A signal that comes again within this time is the same request to stop: `timeout` sends one to
its command and another one to the command's group. A person who insists needs longer."""


STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """The signals that asked one process to stop: the first drains, a second one forces."""

    def __init__(self) -> None:
        self.counted: list[int] = []
        """The numbers of the signals that count, in order."""
        self._first_at = 0.0

    def count(self, number: int, now: float) -> int:
        """Count the signal unless it is an echo of the first; return how many have counted by now,
        or 0 for an echo."""
        if not self.counted:
            self._first_at = now
        elif number == self.counted[0] and now - self._first_at < ECHO_SECONDS:
            return 0
        self.counted.append(number)
        return len(self.counted)

    def watch(
        self,
        loop: asyncio.AbstractEventLoop,
        stop: Callable[[], None],
        force: Callable[[int], None],
    ) -> None:
        """Call `stop` at the first signal, and `force` with its number at each one that follows."""

        def came(number: int) -> None:
            counted = self.count(number, loop.time())
            if counted > 1:
                force(number)
            if counted:
                stop()

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, came, number)

    @staticmethod
    def ignore(loop: asyncio.AbstractEventLoop) -> None:
        """Stop watching the signals."""
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
