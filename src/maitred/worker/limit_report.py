"""Why a worker's limit is not higher, and when the worker logs that. Pure.

The worker logs its limit when the usual reason for it changes. A reason may be that the event loop
is late: because of the worker itself, or because the machine has no CPU time for it. Only the first
means that the worker serves too many attempts at a time. On a starved machine every loop is late,
and a worker that took fewer attempts for that reason would gain nothing.
"""

from __future__ import annotations

from math import exp, inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from maitred.balancing.workers.estimator import LimitCause
    from maitred.surroundings import CpuTimes

LateCause = Literal["busy-loop", "busy-threads", "blocked-loop"]
"""`busy-loop`: handlers compute on the loop. `busy-threads`: threads of the worker compute and hold
the GIL, or the CPUs. `blocked-loop`: a handler on the loop waits without `await`."""

LimitReason = Literal[
    "slots", "waiting", "unused", "knee", "busy-loop", "busy-threads", "blocked-loop", "starved"
]

SETTLED_SECONDS: Final = 5.0
"""Seconds over which the usual reason is found: limits and reasons change many times a second."""

USUAL_SHARE: Final = 0.6
"""A reason is logged if it was the reason for this share of `SETTLED_SECONDS`."""

QUIET_SECONDS: Final = 10.0
"""Least time between two lines about the limit."""

PAUSE_SECONDS: Final = 0.5
"""The most that one look counts: longer pauses were without work, or the loop was late."""

STARVED_SHARE: Final = 0.2
"""A loop that was ready to run and had no CPU for this share of the time is starved."""

STARVED_SECONDS: Final = 2.0
"""Seconds over which that share is averaged."""

_FEWER: Final = "this worker serves fewer at a time than it has slots: "
_ALL: Final = "this worker serves as many at a time as arrive"
SENTENCES: Final[dict[LimitReason, str]] = {
    "slots": _ALL,
    "unused": _ALL,
    "waiting": f"{_FEWER}more would wait inside of it",
    "knee": f"{_FEWER}with more at a time, no more were done",
    "busy-loop": f"{_FEWER}handlers compute on the event loop, which is late",
    "busy-threads": f"{_FEWER}threads that compute keep the event loop waiting for the GIL",
    "blocked-loop": f"{_FEWER}handlers block the event loop",
    "starved": "the event loop of this worker is late because other processes have the CPUs; its "
    "limit stays",
}

REMEDIES: Final[dict[LimitReason, str]] = {
    "busy-loop": "Start more workers, or await maitred.offload() with a ProcessPoolExecutor.",
    "busy-threads": "Start more workers with fewer slots, or await maitred.offload() with a "
    "ProcessPoolExecutor; --limit slots takes as many as there are slots all the same.",
    "blocked-loop": "Make the handler a plain function, or await maitred.offload().",
    "starved": "Start workers on another machine.",
}


class LimitReport:
    """Decides when this worker logs its limit, and the reason for it."""

    __slots__ = ("_looked_at", "_said", "_said_at", "_seconds", "_starved", "late_cause", "reason")

    def __init__(self) -> None:
        self.reason: LimitReason = "slots"
        """The usual reason lately why the limit was not higher, or that the machine is starved."""
        self.late_cause: LateCause = "busy-loop"
        """Why the loop was late when it last was."""
        self._starved = 0.0
        """The share of the time, lately, for which other processes had the CPUs."""
        self._seconds: dict[LimitReason, float] = {}
        """Seconds for which each was the reason; older seconds count for less."""
        self._looked_at = -inf
        self._said: LimitReason = "slots"
        self._said_at = -inf

    def stolen(self, seconds: float, elapsed: float) -> None:
        """Note that other processes had the CPUs for part of some time in which the loop could have
        run."""
        weight = min(1.0, elapsed / STARVED_SECONDS)
        self._starved += weight * (min(1.0, seconds / elapsed) - self._starved)

    def look(self, cause: LimitCause, now: float) -> LimitReason | None:
        """Note the cause of the limit; return a reason to log, or None if there is nothing new."""
        reason: LimitReason = self.late_cause if cause == "late" else cause
        if cause in ("slots", "unused") and self._starved >= STARVED_SHARE:
            reason = "starved"
        elapsed = min(max(0.0, now - self._looked_at), PAUSE_SECONDS)
        self._looked_at = now
        seconds = self._seconds
        kept = exp(-elapsed / SETTLED_SECONDS)
        for one in seconds:
            seconds[one] *= kept
        seconds[reason] = seconds.get(reason, 0.0) + elapsed
        self.reason = usual = max(seconds, key=seconds.__getitem__)
        if (
            SENTENCES[usual] == SENTENCES[self._said]
            or seconds[usual] < USUAL_SHARE * SETTLED_SECONDS
            or now - self._said_at < QUIET_SECONDS
        ):
            return None
        self._said, self._said_at = usual, now
        return usual


class Lateness(NamedTuple):
    """How late a loop was in one interval, and why."""

    own_seconds: float
    """Seconds by which the loop would have been late on a machine without other processes."""
    stolen_seconds: float
    """Seconds for which the loop was ready to run while other processes had the CPUs."""
    cause: LateCause
    """The cause of `own_seconds`."""


def explain(
    late: float, elapsed: float, before: CpuTimes, after: CpuTimes, *, on_loop: bool
) -> Lateness:
    """Divide the `late` seconds of a timer, set for an interval that took `elapsed` seconds.

    The CPU time of the worker's other threads may have kept the loop waiting, so that much does not
    count as stolen. Where the system does not tell how long a thread was kept waiting, all time in
    which no thread of the worker computed counts as stolen: a handler that blocks is not recognised
    there, but no worker is limited without a reason. `on_loop` is whether any handler was on the
    loop.
    """
    computed = after.thread - before.thread
    by_others = max(0.0, after.process - before.process - computed)
    if after.kept_waiting is None or before.kept_waiting is None:
        kept_waiting = elapsed - computed
    else:
        kept_waiting = after.kept_waiting - before.kept_waiting
    stolen = min(max(0.0, kept_waiting - by_others), elapsed)
    own = max(0.0, late - stolen)
    cause: LateCause = "blocked-loop"
    if computed >= own / 2:
        cause = "busy-loop"
    elif by_others >= own / 2 or not on_loop:
        # The loop also waits for a thread that has the GIL and no CPU, which computes nothing.
        cause = "busy-threads"
    return Lateness(own, stolen, cause)
