"""What a gateway believes of what workers say.

A worker may report nonsense: zero, negative, huge, out of order, jumping. What it says of itself is
bounded by what it has shown. Nothing it says can make the gateway send more than twice what it
served before (or `FIRST_TRUST`), and nothing it says can keep it from being tried again.
"""

from __future__ import annotations

from maitred.balancing.checks import is_number
from maitred.balancing.workers.counting import SLOTS_MAX

FIRST_TRUST = 1_000
"""The limit that is believed before anything was shown: a large thread pool. More has to be earned,
by at most doubling what was in flight when an answer came."""

RISE_SECONDS = 0.1
"""A limit that rises is followed as if it doubled no faster than this, so one that jumps up and
down is seen at its lower end. A worker's own estimate grows slower."""

RISE_MIN = 8
"""So much it may always rise with one report: small limits double in one step."""

SENDERS_MAX = 1_000
SERVICE_SECONDS_MAX = 3_600.0


def count(value: object) -> int:
    """A whole number from 0 to `SLOTS_MAX`; nonsense is 0."""
    if type(value) is not int or value < 0:  # True is no number here
        return 0
    return min(value, SLOTS_MAX)


def senders(value: object) -> int:
    return min(max(1, count(value)), SENDERS_MAX)


def seconds(value: object) -> float:
    """A duration, or 0 for nonsense, which means that it is not known."""
    if not isinstance(value, int | float) or not is_number(value) or value < 0:
        return 0.0
    return min(float(value), SERVICE_SECONDS_MAX)


def limit(said: int, before: float, shown: int, since_seconds: float) -> float:
    """The limit to believe, given the one before and the most that was in flight at an answer."""
    if said <= before:
        return float(said)
    rise = before * max(0.0, since_seconds) / RISE_SECONDS + RISE_MIN
    return min(float(said), before + rise, float(max(FIRST_TRUST, 2 * shown)))


def service(said: float, latency: float) -> float:
    """A mean service time: what the worker says, but no less than half of what the gateway sees."""
    if not latency:
        return said
    if not said:
        return latency
    return min(max(said, latency / 2), latency)
