"""Detect workers that offer slots and then refuse queries, at the partition that allocates them.

Everything here is pure. A refused slot was not free. That happens to honest workers now and then:
the same slot was on offer at two partitions, and the other one allocated it. But a worker that
offers more slots than it has would get query after query while others have room, and each query
has to ask again. So the partition compares the share of a worker's slots that were good with the
best share among the *others*. A clearly worse worker is **doubted**, and is treated like one that
fails (`health`): no slots for a moment, then one as a trial; each refused slot doubles the pause,
each good slot makes room for one more.

No message says that a slot was good: a slot that is not refused soon counts as good. If it is
refused later, that counts as well. Only an allocated slot can be refused, and only once, so a user
who lies about refusals has to use up slots.

Users may lie, too, to keep a worker's slots from others. A worker that offers too many slots
refuses queries of all users. So a worker is doubted only while more users report refusals than had
several good slots of it and no refusal; otherwise the reports are not believed.
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
"""A slot that was not refused within this time was good: several times the way from the partition
to the gateway, on to the worker and back. It is also the first pause of a doubted worker."""
BELIEVED_SECONDS = 10.0
"""A worker that refused nothing for this long is trusted again as if it never had. A worker that
still offers too much is detected again by its next eighteen refusals."""
SLOTS_KEPT = 1_024
"""How many of the latest allocated slots are remembered, so that they can be refused; some hundred
bytes each. At 2,000 queries a second that is half a second; refusals come within milliseconds."""
DOUBTS_KEPT = 10_000
"""The most workers with recent refusals that are remembered."""
ASKERS_KEPT = 256
"""The most users whose experience with one worker is remembered."""
GOOD_ENOUGH = 8
"""This many good slots, without a refusal, contradict another user who reports refusals. A worker
that refuses half of its slots does so to a given user once in 256 times."""
COMPARE_SECONDS = 1e-5
"""The best shares are kept for this many seconds per remembered worker. Finding them takes a tenth
of a microsecond per worker, so at most a hundredth of the time is spent on it."""


class Doubt(Generic[Slot]):
    """Tracks the slots of one worker that refused a query recently."""

    __slots__ = ("_met", "_open", "contradicted", "health", "refused_at")

    def __init__(self) -> None:
        self.health = Health()
        self.refused_at = -inf
        self._open: OrderedDict[Slot, tuple[float, str]] = OrderedDict()
        """Maps each slot of which it is not yet known whether it was good to the time at which it
        was allocated and the user that got it."""
        self.contradicted = False
        """Whether at least as many users had only good slots as met a refusal."""
        self._met: dict[str, int] = {}
        """Maps a user to the number of its good slots, or to -1 once one was refused."""

    def given(self, slot: Slot, asker: str, now: float) -> None:
        self._open[slot] = (now, asker)

    def refused(self, slot: Slot, asker: str, now: float) -> None:
        self._open.pop(slot, None)
        self.refused_at = now
        self._meets(asker, -1)
        if not self.contradicted:
            self.health.failed(now)

    def look(self, now: float) -> None:
        """Count the slots as good that were not refused within `GOOD_SECONDS`."""
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
                self.health = Health()  # earlier reports of the same users are discarded, too

    def room(self, now: float) -> float:
        return self.health.room(len(self._open), now)

    def room_at(self, now: float) -> float:
        """Return when the worker may have room again; infinite if it has room now."""
        if self.room(now) >= 1:
            return inf
        first, _ = next(iter(self._open.values()), (-inf, ""))
        return max(self.health.paused_until, first + GOOD_SECONDS)


class Doubts(Generic[Name, Slot]):
    """Tracks refusals of all workers whose slots one partition allocates, by name or session."""

    def __init__(self) -> None:
        self._of: OrderedDict[Name, Doubt[Slot]] = OrderedDict()
        """Maps a worker to its record; the worker that refused most recently is last."""
        self._given: dict[Slot, tuple[Name, str]] = {}
        """Map each slot to its worker and to the user that the slot was given to."""
        self._given_in_order: deque[Slot] = deque()
        """The same slots, and those that were refused since, the oldest first. (An ordered dict
        takes twice as long per slot.)"""
        self._best: list[tuple[float, Name]] = []
        """The two best shares among the workers with recent refusals, with the workers' names."""
        self._best_until = -inf

    def __bool__(self) -> bool:
        return bool(self._of)

    def given(self, name: Name, slot: Slot, now: float, asker: str = "") -> None:
        """Record that a query of the user `asker` got this slot of the worker `name`."""
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
        """Record that the worker refused this slot; ignore a slot that is not remembered.

        `workers` is the number of workers of the queue.
        """
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
        """Return how many slots of the worker may be allocated now, whatever it offers."""
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
            return inf  # but the record of the users who reported refusals is kept
        doubt.health.compare(self._best_beside(name, workers, now), now)
        return doubt.room(now)

    def room_at(self, name: Name, now: float) -> float:
        """Return when the worker may have room again; infinite if it has room now."""
        doubt = self._of.get(name)
        return inf if doubt is None else doubt.room_at(now)

    def _best_beside(self, name: Name, workers: int, now: float) -> float:
        """Return the largest share of good slots among the other workers; 0 if there are none."""
        if workers > len(self._of):
            return 1.0  # some worker refused nothing
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
