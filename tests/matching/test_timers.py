"""One heap of timers for everything that waits at a partition."""

from __future__ import annotations

from math import inf

from maitred.matching.timers import Timers


class Guest:
    """Waits until it is served."""

    def __init__(self) -> None:
        self.waits = True
        self.rang_at: list[float] = []


def made() -> Timers:
    timers = Timers()
    timers.register(
        Guest, ring=lambda guest, now: guest.rang_at.append(now), waits=lambda guest: guest.waits
    )
    return timers


def test_timers_ring_in_order_once_they_are_due() -> None:
    timers, late, early = made(), Guest(), Guest()
    assert timers.next_at() == inf
    timers.set(3.0, late)
    timers.set(2.0, early)
    assert timers.next_at() == 2.0
    timers.ring(2.5)
    assert (early.rang_at, late.rang_at, timers.next_at()) == ([2.5], [], 3.0)
    timers.ring(3.0)
    assert (late.rang_at, timers.next_at()) == ([3.0], inf)


def test_nobody_is_woken_for_those_who_were_served_before_their_time() -> None:
    timers, served, other = made(), Guest(), Guest()
    timers.set(2.0, served)
    timers.set(3.0, other)
    served.waits = False
    assert timers.next_at() == 3.0
    assert timers.waiting(Guest) == [other]
    other.waits = False
    assert timers.next_at() == inf
    timers.ring(4.0)
    assert served.rang_at == other.rang_at == []
