"""When a worker's offers are not believed, and how it is believed again."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from maitred.balancing.workers.doubt import (
    BELIEVED_SECONDS,
    DOUBTS_KEPT,
    GOOD_SECONDS,
    SLOTS_KEPT,
    Doubts,
)
from maitred.balancing.workers.health import PAUSE_SECONDS_MAX

WORKERS = 2


class Hatch:
    """Gives slots out, and has them refused."""

    def __init__(self, workers: int = WORKERS) -> None:
        self.doubts: Doubts[str, int] = Doubts()
        self.workers = workers
        self.now = 0.0
        self.slots = 0

    def give(self, name: str = "liar") -> int:
        self.slots += 1
        self.doubts.given(name, self.slots, self.now)
        return self.slots

    def refuse(self, slot: int) -> None:
        self.doubts.refused(slot, self.workers, self.now)

    def refuse_many(self, times: int, name: str = "liar") -> None:
        for _ in range(times):
            self.refuse(self.give(name))

    def room(self, name: str = "liar") -> float:
        return self.doubts.room(name, self.workers, self.now)

    def room_at(self, name: str = "liar") -> float:
        return self.doubts.room_at(name, self.now)


def test_eighteen_refusals_are_enough_if_others_refuse_nothing() -> None:
    hatch = Hatch()
    hatch.refuse_many(17)
    assert hatch.room() == inf
    hatch.refuse_many(1)
    assert hatch.room() == 0
    assert hatch.room("other") == inf
    assert hatch.room_at() == GOOD_SECONDS
    assert hatch.room_at("other") == inf, "it has room"


def test_whoever_is_alone_is_never_held_back() -> None:
    hatch = Hatch(workers=1)
    hatch.refuse_many(1_000)
    assert hatch.room() == inf


def test_one_slot_after_pauses_that_double() -> None:
    hatch = Hatch()
    hatch.refuse_many(18)
    pauses = []
    for _ in range(7):
        pauses.append(hatch.room_at() - hatch.now)
        hatch.now = hatch.room_at()
        assert hatch.room() == 1
        slot = hatch.give()
        assert hatch.room() == 0, "nobody knows of this one"
        hatch.refuse(slot)
    first = GOOD_SECONDS
    assert pauses == pytest.approx(
        [first, 2 * first, 4 * first, 8 * first, 16 * first, *[PAUSE_SECONDS_MAX] * 2]
    )


def test_what_is_not_refused_soon_was_good_and_makes_room_for_more() -> None:
    hatch = Hatch()
    hatch.refuse_many(300)
    hatch.now = hatch.room_at()
    rounds = []
    while (room := hatch.room()) < inf:
        rounds.append(room)
        for _ in range(int(room)):
            hatch.give()
        assert hatch.room() == 0
        hatch.now = hatch.room_at()
    assert rounds == [1, 2, 4, 8, 16, 32, 64], "which takes a third of a second"
    for _ in range(300):
        hatch.give()
    hatch.now += GOOD_SECONDS
    assert hatch.room() == inf
    assert not hatch.doubts, "nothing is remembered of it"


def test_a_slot_that_is_refused_late_counts_all_the_same() -> None:
    hatch = Hatch()
    for _ in range(60):
        slot = hatch.give()
        hatch.now += 2 * GOOD_SECONDS
        hatch.room()
        hatch.refuse(slot)
    assert hatch.room() == 0


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_an_honest_worker_refuses_now_and_then(share: float) -> None:
    """A slot in a hundred, or even one in ten: nothing is kept from it."""
    hatch, random = Hatch(), Random(f"doubt {share}")
    for _ in range(20_000):
        hatch.now += 0.0005
        slot = hatch.give()
        if random.random() < share:
            hatch.refuse(slot)
        assert hatch.room() == inf


def test_if_all_refuse_nobody_is_held_back() -> None:
    hatch, held = Hatch(workers=3), 0
    random = Random(1)
    for _ in range(3_000):
        hatch.now += 0.001
        name = random.choice(["one", "two", "three"])
        held += hatch.room(name) < 1
        hatch.refuse_many(1, name)
    assert held < 100, "but for a moment, while they begin"


def test_only_what_was_given_can_be_refused_and_only_once() -> None:
    hatch = Hatch()
    for slot in range(1_000, 2_000):
        hatch.refuse(slot)
    assert not hatch.doubts
    slot = hatch.give()
    for _ in range(100):
        hatch.refuse(slot)
    assert hatch.room() == inf
    old = hatch.give("other")
    for _ in range(SLOTS_KEPT):
        hatch.give()
    for _ in range(100):
        hatch.refuse(old)
    assert hatch.room("other") == inf


def test_who_refuses_nothing_for_long_is_believed_again() -> None:
    hatch = Hatch()
    hatch.refuse_many(300)
    hatch.now += BELIEVED_SECONDS
    assert hatch.room() == inf
    hatch.refuse_many(18)
    assert hatch.room() == 0


def test_those_who_have_left_are_no_example_for_long() -> None:
    """They were as bad, and are not there: somebody else is who refused nothing."""
    hatch = Hatch()
    for name in ("gone", "gone too"):
        hatch.refuse_many(300, name)
    hatch.now += BELIEVED_SECONDS
    hatch.refuse_many(18)
    assert hatch.room() == 0


def test_what_is_remembered_is_bounded() -> None:
    hatch = Hatch(workers=10 * DOUBTS_KEPT)
    for number in range(DOUBTS_KEPT + 100):
        hatch.refuse_many(1, str(number))
    assert len(hatch.doubts._of) == DOUBTS_KEPT
    assert len(hatch.doubts._given) <= SLOTS_KEPT
