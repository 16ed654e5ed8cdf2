"""Counting what is under way: never more than the limit, and nothing is counted for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from maitred.matching.permits import LEASE_SECONDS, Permits

if TYPE_CHECKING:
    import pytest


def permits(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def test_as_many_as_there_is_room_for_the_first_ones() -> None:
    counter = Permits()
    assert counter.take("ann", 3, permits(1, 2), 0.0) == 2
    assert counter.take("ann", 3, permits(3, 4), 0.0) == 1
    assert counter.take("ann", 3, permits(4), 0.0) == 0
    assert counter.take("bob", 1, permits(5), 0.0) == 1
    counter.free("ann", permits(4))  # which was never let in
    assert counter.under_way("ann", 0.0) == 3
    counter.free("ann", permits(3, 1))
    assert counter.take("ann", 3, permits(4, 6, 7), 0.0) == 2
    assert counter.under_way("ann", 0.0) == 3
    assert counter.under_way("bob", 0.0) == 1


def test_what_nobody_speaks_of_is_over() -> None:
    counter = Permits()
    assert counter.take("ann", 2, permits(1, 2), 0.0) == 2
    counter.hold("ann", permits(1), 1.0)
    assert counter.take("ann", 2, permits(3), LEASE_SECONDS - 0.01) == 0
    assert counter.take("ann", 2, permits(3), LEASE_SECONDS) == 1
    assert counter.under_way("ann", LEASE_SECONDS) == 2
    counter.sweep(2 * LEASE_SECONDS + 1)
    assert counter.total == 0
    assert not counter._names


def test_what_is_held_counts_whoever_let_it_in() -> None:
    """A counter that was started again knows of nothing; those who have something tell."""
    counter = Permits()
    counter.hold("ann", permits(1, 2, 3), 0.0)
    counter.hold("ann", permits(1, 2, 3), 0.1)
    assert counter.under_way("ann", 0.1) == 3
    assert counter.take("ann", 2, permits(4), 0.1) == 0
    counter.free("ann", permits(1, 2))
    assert counter.take("ann", 2, permits(4), 0.1) == 1


def test_a_limit_that_is_lower_now() -> None:
    counter = Permits()
    assert counter.take("ann", 5, permits(1, 2, 3), 0.0) == 3
    assert counter.take("ann", 1, permits(4), 0.0) == 0


def test_no_more_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maitred.matching.permits.PERMITS_KEPT", 3)
    counter = Permits()
    assert counter.take("ann", 9, permits(1, 2), 0.0) == 2
    assert counter.take("bob", 9, permits(3, 4), 0.0) == 1
    counter.hold("eve", permits(5), 0.0)
    assert counter.under_way("eve", 0.0) == 0
    counter.hold("ann", permits(1, 2, 6), 0.5)
    assert counter.total == 3
    assert counter.under_way("ann", 0.5) == 2
    assert list(counter._names) == ["ann", "bob"]


@given(st.lists(st.lists(st.integers(0, 9), unique=True), max_size=8), st.integers(1, 5))
def test_taking_never_goes_beyond_the_limit(asked: list[list[int]], limit: int) -> None:
    counter = Permits()
    for wanted in asked:
        counter.take("ann", limit, permits(*wanted), 0.0)
        assert counter.under_way("ann", 0.0) <= limit


NAMES = ("ann", "bob", "/n/q")
LIMIT = 3


class Counting(RuleBasedStateMachine):
    """Holders that take, rename, speak of what they have, free it, or die."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.counter = Permits()
        self.drawn = 0
        self.had: dict[str, dict[bytes, float]] = {name: {} for name in NAMES}
        """What a holder that lives has of each name, and when it spoke of it last."""
        self.dead: dict[str, dict[bytes, float]] = {name: {} for name in NAMES}

    def _alive(self, name: str) -> list[bytes]:
        """Those that count still: who was silent for too long has lost them."""
        both = {**self.dead[name], **self.had[name]}
        return [permit for permit, at in both.items() if at + LEASE_SECONDS > self.now]

    @rule(name=st.sampled_from(NAMES), most=st.integers(1, 4))
    def take(self, name: str, most: int) -> None:
        wanted = permits(*range(self.drawn, self.drawn + most))
        self.drawn += most
        room = LIMIT - len(self._alive(name))
        granted = self.counter.take(name, LIMIT, wanted, self.now)
        assert granted == max(0, min(room, most))
        self.had[name].update(dict.fromkeys(wanted[:granted], self.now))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def free(self, name: str, data: st.DataObject) -> None:
        over = data.draw(st.lists(st.sampled_from(sorted(self.had[name]) or [b""])))
        self.counter.free(name, over)
        for permit in over:
            self.had[name].pop(permit, None)

    @rule(name=st.sampled_from(NAMES))
    def rename(self, name: str) -> None:
        """As when a slot is reserved."""
        for permit in self._alive(name)[:1]:
            if permit not in self.had[name]:
                continue
            (token,) = permits(self.drawn)
            self.drawn += 1
            self.counter.hold(name, [token], self.now)
            self.counter.free(name, [permit])
            del self.had[name][permit]
            self.had[name][token] = self.now

    @rule(name=st.sampled_from(NAMES))
    def speak(self, name: str) -> None:
        alive = [one for one in self._alive(name) if one in self.had[name]]
        self.counter.hold(name, alive, self.now)
        self.had[name] = dict.fromkeys(alive, self.now)

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        """Nobody speaks of what it had any more."""
        self.dead[name].update(self.had[name])
        self.had[name] = {}

    @rule(seconds=st.floats(0.1, LEASE_SECONDS))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.drawn > 0)
    @rule()
    def silence(self) -> None:
        self.now += LEASE_SECONDS
        self.counter.sweep(self.now)
        assert self.counter.total == 0
        assert not self.counter._names

    @invariant()
    def as_many_as_live_and_never_too_many(self) -> None:
        if not hasattr(self, "counter"):
            return
        for name in NAMES:
            under_way = self.counter.under_way(name, self.now)
            assert under_way == len(self._alive(name)) <= LIMIT


TestCounting = Counting.TestCase
