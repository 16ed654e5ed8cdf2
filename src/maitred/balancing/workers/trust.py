"""Bound the values that workers report, before a gateway uses them.

A worker may report nonsense: zero, negative, huge, out of order, jumping. The gateway bounds each
report by what the worker has shown. No report can make the gateway send more than twice what the
worker served before (or `FIRST_TRUST`), and no report can keep a worker from being tried again.
"""

from __future__ import annotations

from maitred.balancing.checks import is_number
from maitred.balancing.workers.counting import SLOTS_MAX

FIRST_TRUST = 1_000
"""The highest limit that a gateway believes before the worker has answered queries: a large thread
pool. A higher limit is at most twice what was in flight when an answer came."""

RISE_SECONDS = 0.1
"""A rising limit is followed no faster than doubling in this time, so the gateway uses the low end
of a limit that jumps up and down. A worker's own estimate grows more slowly."""

RISE_MIN = 8
"""A limit may always rise by this much with one report: small limits double in one step."""

SENDERS_MAX = 1_000
SERVICE_SECONDS_MAX = 3_600.0


def count(value: object) -> int:
    """Return the value clamped to `SLOTS_MAX`; 0 unless it is a whole number of 0 or more."""
    if type(value) is not int or value < 0:  # a boolean is not accepted as a number
        return 0
    return min(value, SLOTS_MAX)


def senders(value: object) -> int:
    return min(max(1, count(value)), SENDERS_MAX)


def seconds(value: object) -> float:
    """Return a duration in seconds; 0, which means unknown, unless the value is a valid one."""
    if not isinstance(value, int | float) or not is_number(value) or value < 0:
        return 0.0
    return min(float(value), SERVICE_SECONDS_MAX)


def limit(said: int, before: float, shown: int, since_seconds: float) -> float:
    """Return the limit to use, from the one before and the most in flight at a good answer."""
    if said <= before:
        return float(said)
    rise = before * max(0.0, since_seconds) / RISE_SECONDS + RISE_MIN
    return min(float(said), before + rise, float(max(FIRST_TRUST, 2 * shown)))


def service(said: float, latency: float) -> float:
    """Return the reported mean service time, bounded to between half and all of the latency that
    the gateway measured; 0 means unknown."""
    if not latency:
        return said
    if not said:
        return latency
    return min(max(said, latency / 2), latency)
