"""Why an event loop was late: by its own worker's doing, or because the machine had no CPU time for
it. Pure.

Only the first says that the worker has too much at a time. On a machine that is starved every loop
is late, and a worker that takes less for it gets nothing done and helps nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from maitred.surroundings import CpuTimes

LateCause = Literal["busy-loop", "busy-threads", "blocked-loop"]
"""`busy-loop`: handlers compute on the loop. `busy-threads`: threads of the worker compute and hold
the GIL, or the CPUs. `blocked-loop`: a handler on the loop waits without `await`."""


class Lateness(NamedTuple):
    """One interval of the loop."""

    own_seconds: float
    """By so much the loop would have been late on a machine of its own."""
    stolen_seconds: float
    """For so long the loop could have run while other processes had the CPUs."""
    cause: LateCause
    """Of its own part."""


def explain(
    late: float, elapsed: float, before: CpuTimes, after: CpuTimes, *, on_loop: bool
) -> Lateness:
    """A timer of the loop was late by so much, in an interval of so many seconds; whether any
    handler was on the loop.

    What the worker's other threads computed meanwhile may be what kept the loop waiting, so that
    much of it is not counted as stolen. Where the system does not tell how long a thread was kept
    waiting, everything in which no thread of the worker computed counts as stolen: a handler that
    blocks is not recognised there, but no worker is held back without a reason.
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
        # A thread that has the GIL and no CPU computes nothing, and the loop waits for it as well.
        cause = "busy-threads"
    return Lateness(own, stolen, cause)
