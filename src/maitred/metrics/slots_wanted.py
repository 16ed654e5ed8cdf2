"""How many slots a queue wants: the signal for an autoscaler.

A task that takes *S* seconds keeps a slot for as long. With *a* new tasks a second, *a* x *S* slots
are busy all the time (Little's law), and a few more are needed, because tasks do not arrive evenly:
slots that are busy for more than `utilisation` of the time would let the backlog grow at every
burst. A backlog of *b* tasks needs *b* x *S* seconds of slots; to be rid of it within
`drain_seconds` takes *b* x *S* / `drain_seconds` slots more:

    wanted = max(running, S x a / utilisation) + S x b / drain_seconds

A queue never wants fewer slots than run tasks now: an autoscaler would otherwise take workers away
in the middle of long tasks. A queue with a limit of its rate gives out no more tasks a second than
that, whatever waits, so more slots would stay idle: both terms together are limited by it. A paused
queue gives out none, and wants only the slots of the tasks that run.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

UTILISATION: Final = 0.8
"""Share of the time for which slots should be busy: at 0.8 a task waits for some four service times
with one slot, and hardly at all with ten."""

DRAIN_SECONDS: Final = 60.0
"""Within this time the backlog should be gone. Workers take seconds to start, so a shorter time
would start workers that find nothing to do."""

ASSUMED_SECONDS: Final = 1.0
"""Service time that is assumed until the first task has ended."""

LEAST_RATE: Final = 0.001
"""A lower rate of new tasks counts as none: a moving average never reaches 0, and a queue that is
not used wants no slot."""


def slots_wanted(
    *,
    added_per_second: float,
    service_seconds: float,
    backlog: float,
    running: float,
    most_per_second: float | None = None,
    is_paused: bool = False,
) -> float:
    """Return how many slots the queue wants; more than 0 while it has any task and is not paused.

    `service_seconds` is the mean time from giving a task out to its end; 0: unknown.
    `most_per_second` is the limit of the queue's rate.
    """
    if is_paused:
        return running
    seconds = service_seconds if service_seconds > 0 else ASSUMED_SECONDS
    arriving = added_per_second / UTILISATION if added_per_second >= LEAST_RATE else 0.0
    waiting = backlog / DRAIN_SECONDS
    if most_per_second is not None:
        arriving = min(arriving, most_per_second / UTILISATION)
        waiting = min(waiting, max(0.0, most_per_second / UTILISATION - arriving))
    return max(running, seconds * arriving) + seconds * waiting


def mean_service_seconds(parts: Iterable[tuple[float, float]]) -> float:
    """Return the mean service time of a queue, from the tasks per second that each partition ends
    and its mean service time; partitions that end none have a say only if none ends any."""
    known = [(rate, seconds) for rate, seconds in parts if seconds > 0]
    total = sum(rate for rate, _ in known)
    if total >= LEAST_RATE:
        return sum(rate * seconds for rate, seconds in known) / total
    return max((seconds for _, seconds in known), default=0.0)


def whole_slots(wanted: float) -> int:
    """Return the number of slots to have: at least one for a queue with any task."""
    return max(1, ceil(round(wanted, 6))) if wanted > 0 else 0
