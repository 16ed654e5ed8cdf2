"""When a worker logs its limit: when the usual reason for the limit changes. Pure."""

from __future__ import annotations

from math import exp, inf
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from maitred.balancing.workers.estimator import LimitCause
    from maitred.worker.lateness import LateCause

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
