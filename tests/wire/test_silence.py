"""When a peer or a store counts as silent, on a loop that is in time and on one that is late."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.simulation.loop import SimulatedLoop
from maitred.wire.silence import LATE_SHARE, SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Callable


def test_it_rings_once_after_the_seconds() -> None:
    with closing(SimulatedLoop()) as loop:
        begun, rings = loop.time(), []
        SilenceTimer(loop, 2.0, lambda: rings.append(loop.time() - begun))
        loop.run_until_complete(asyncio.sleep(10.0))
        assert rings == [pytest.approx(2.0)]


@given(st.floats(0.0, 1.99))
def test_it_does_not_ring_after_it_was_cancelled(seconds: float) -> None:
    with closing(SimulatedLoop()) as loop:
        rings: list[None] = []
        timer = SilenceTimer(loop, 2.0, lambda: rings.append(None))
        loop.call_later(seconds, timer.cancel)
        loop.run_until_complete(asyncio.sleep(10.0))
        assert not rings


class LateLoop:
    """A loop whose turns the test makes, as late as it likes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Mock]] = []

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: object) -> Mock:
        handle = Mock(run=partial(callback, *arguments), cancel=self.timers.clear)
        self.timers.append((self.now + seconds, handle))
        return handle

    def turn(self) -> None:
        """Run the timers that are due when it begins."""
        due = [timer for timer in self.timers if timer[0] <= self.now]
        for timer in due:
            self.timers.remove(timer)
            timer[1].run()


@given(st.floats(1.0, 1e6))
def test_a_late_loop_has_time_to_read_what_arrived_while_it_slept(asleep: float) -> None:
    """A suspended laptop wakes, its timers are due, and the answer lies in a socket."""
    loop, rings = LateLoop(), list[None]()
    ring = partial(rings.append, None)
    timer = SilenceTimer(cast("asyncio.AbstractEventLoop", loop), 1.0, ring)
    loop.now += asleep
    loop.turn()
    assert not rings, "the answer, which is read after the timers, comes first"
    loop.now += LATE_SHARE / 2
    timer.cancel()
    loop.now += 1.0
    loop.turn()
    assert not rings
