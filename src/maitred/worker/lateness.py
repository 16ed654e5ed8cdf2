"""Why an event loop was late: because of its own worker, or because the machine had no CPU time for
it. Pure.

Only the first means that the worker serves too many attempts at a time. On a starved machine every
loop is late, and a worker that took fewer attempts for that reason would gain nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from maitred.surroundings import CpuTimes

LateCause = Literal["busy-loop", "busy-threads", "blocked-loop"]
"""`busy-loop`: handlers compute on the loop. `busy-threads`: threads of the worker compute and hold
the GIL, or the CPUs. `blocked-loop`: a handler on the loop waits without `await`."""


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
