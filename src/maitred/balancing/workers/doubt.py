"""Workers that offer slots and then refuse them, as whoever hands their slots out sees it. Pure.

A slot that was refused was not free. To honest workers that happens now and then: the same slot was
on offer in two places, and went to the other one. But one that offers more than it can do would be
given query after query while others have room, and each of them has to ask again. So what counts is
the share of a worker's slots that were good, beside the best share among the *others*. One that is
clearly worse is **doubted**, and what follows is what follows for failures (`health`): nothing for
a moment, then one slot to try; each that was refused doubles the pause, each that was good makes
room for one more.

Nobody says that a slot was good: one that was not refused soon is. If it is refused after all, that
counts as well. Only slots that were given can be refused, each once, so whoever lies about refusals
has to take slots for it.

Those who ask may lie as well, to keep a worker's slots from others. A worker that really boasts
refuses slots of everybody. So a worker is doubted only while those who report refusals are more
than those who had several good slots of it and no refusal; else the reports are not believed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import nlargest
from math import inf
from typing import Generic, TypeVar

from maitred.balancing.workers.health import Health

Name = TypeVar("Name", str, bytes)
Slot = TypeVar("Slot")

GOOD_SECONDS = 0.05
"""A slot that was not refused for so long was good: several times the way from the one who gives it
to the worker and back, by the one who got it. Also the first pause of a worker that is doubted."""
BELIEVED_SECONDS = 10.0
"""Who refused nothing for so long is believed as if it never had. A worker that still lies is found
out again by its next eighteen refusals."""
SLOTS_KEPT = 1_024
"""Slots that were given last, which may be refused; some hundred bytes each. At two thousand
queries a second they are known for half a second, and refusals come within milliseconds."""
DOUBTS_KEPT = 10_000
"""Workers of whom anything is remembered."""
ASKERS_KEPT = 256
"""Users of whom a worker that is doubted remembers what they met."""
GOOD_ENOUGH = 8
"""So many good slots, and no refusal, contradict another user who reports refusals. A worker that
refuses half of what it offers treats one user so once in 256 times."""
COMPARE_SECONDS = 1e-5
"""For each of those, so long the best of them are taken to be the same. Looking for them takes a
tenth of a microsecond each, so no more than a hundredth of the time is spent on it."""


class Doubt(Generic[Slot]):
    """What is known of a worker that refused something lately."""

    __slots__ = ("_met", "_open", "contradicted", "health", "refused_at")

    def __init__(self) -> None:
        self.health = Health()
        self.refused_at = -inf
        self._open: OrderedDict[Slot, tuple[float, str]] = OrderedDict()
        """Slots of which nobody knows yet whether they are good: when they were given, to whom."""
        self.contradicted = False
        """Whether as many askers met no refusal as met some."""
        self._met: dict[str, int] = {}
        """By asker: how many slots were good, until one was refused; then -1."""

    def given(self, slot: Slot, asker: str, now: float) -> None:
        self._open[slot] = (now, asker)

    def refused(self, slot: Slot, asker: str, now: float) -> None:
        self._open.pop(slot, None)
        self.refused_at = now
        self._meets(asker, -1)
        if not self.contradicted:
            self.health.failed(now)

    def look(self, now: float) -> None:
        """What was not refused by now was good."""
        known = self._open
        while known:
            slot = next(iter(known))
            at, asker = known[slot]
            if at + GOOD_SECONDS > now:
                return
            del known[slot]
            self.health.done(GOOD_SECONDS, now)
            good = self._met.get(asker, 0)
            if good >= 0:
                self._meets(asker, good + 1)

    def _meets(self, asker: str, good: int) -> None:
        met = self._met
        if asker not in met and len(met) >= ASKERS_KEPT:
            return
        met[asker] = good
        if good in (-1, GOOD_ENOUGH):
            refused = sum(one < 0 for one in met.values())
            self.contradicted = refused <= sum(one >= GOOD_ENOUGH for one in met.values())
            if self.contradicted:
                self.health = Health()  # what the same askers have said before is worth nothing

    def room(self, now: float) -> float:
        return self.health.room(len(self._open), now)

    def room_at(self, now: float) -> float:
        """When there may be room, if there is none."""
        if self.room(now) >= 1:
            return inf
        first, _ = next(iter(self._open.values()), (-inf, ""))
        return max(self.health.paused_until, first + GOOD_SECONDS)


class Doubts(Generic[Name, Slot]):
    """Of all workers whose slots are handed out in one place; by what they are called there."""

    def __init__(self) -> None:
        self._of: OrderedDict[Name, Doubt[Slot]] = OrderedDict()
        """The one that refused something last, last."""
        self._given: dict[Slot, tuple[Name, str]] = {}
        """Map each slot to its worker and to the user that the slot was given to."""
        self._given_in_order: deque[Slot] = deque()
        """The same slots, and those of them that were refused, the oldest first. (An ordered dict
        takes twice as long for each.)"""
        self._best: list[tuple[float, Name]] = []
        """The best two of those who refused something."""
        self._best_until = -inf

    def __bool__(self) -> bool:
        return bool(self._of)

    def given(self, name: Name, slot: Slot, now: float, asker: str = "") -> None:
        """A query of the asker got this slot of that worker."""
        self._given[slot] = (name, asker)
        order = self._given_in_order
        order.append(slot)
        if len(order) > SLOTS_KEPT:
            self._given.pop(order.popleft(), None)
        if self._of:
            doubt = self._of.get(name)
            if doubt is not None:
                doubt.given(slot, asker, now)

    def refused(self, slot: Slot, workers: int, now: float) -> None:
        """Its worker refused it; there are so many workers. Nothing, if nobody was given it."""
        known = self._given.pop(slot, None)
        if known is None:
            return
        name, asker = known
        doubt = self._of.get(name)
        if doubt is None:
            doubt = self._of[name] = Doubt()
        self._of.move_to_end(name)
        doubt.look(now)
        doubt.refused(slot, asker, now)
        self._forget(now)
        doubt.health.compare(self._best_beside(name, workers, now), now)

    def room(self, name: Name, workers: int, now: float) -> float:
        """How many slots of it may be given now, whatever it offers."""
        doubt = self._of.get(name)
        if doubt is None:
            return inf
        doubt.look(now)
        recovered = doubt.health.good >= 1.0
        if now >= doubt.refused_at + BELIEVED_SECONDS or (recovered and not doubt.contradicted):
            del self._of[name]
            self._best_until = -inf
            return inf
        if recovered:
            return inf  # but who said otherwise is remembered
        doubt.health.compare(self._best_beside(name, workers, now), now)
        return doubt.room(now)

    def room_at(self, name: Name, now: float) -> float:
        """When there may be room for one that has none; never, if it has some."""
        doubt = self._of.get(name)
        return inf if doubt is None else doubt.room_at(now)

    def _best_beside(self, name: Name, workers: int, now: float) -> float:
        """The largest share among the others; 0 if there are none."""
        if workers > len(self._of):
            return 1.0  # somebody is there who refused nothing
        if now >= self._best_until:
            pairs = ((doubt.health.good, other) for other, doubt in self._of.items())
            self._best = nlargest(2, pairs)
            self._best_until = now + COMPARE_SECONDS * len(self._of)
        return next((good for good, other in self._best if other != name), 0.0)

    def _forget(self, now: float) -> None:
        while len(self._of) > DOUBTS_KEPT or (
            next(iter(self._of.values())).refused_at + BELIEVED_SECONDS <= now
        ):
            self._of.popitem(last=False)
            self._best_until = -inf
