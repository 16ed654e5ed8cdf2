"""Free slots of workers that are on offer to many queues at once, on one shard. Pure.

A worker names a set of partitions once. From then on each of its offers is a number of slots, for
all partitions of the set together: a *budget*. A partition that has a task or a query draws one
slot of it; so each slot is taken once, and an idle queue costs nothing.

Partitions without a slot for what waits there are *hungry*. A new offer serves the hungry ones of
its set: the most urgent first (queries before tasks, then by priority), and those that are equally
urgent in turn. A partition that gets a task while slots are free draws them by itself. So slots are
free only while no partition of the set is hungry, but for one that has to wait for another reason.

Neither naming a set nor a new offer looks at all partitions of the set: an offer costs as much with
a thousand idle queues as with one.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred.matching.records import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maitred.matching.records import PartitionKey
    from maitred.matching.slots import SetKey, SharedOffer, SharedSupply

URGENCIES: Final = 2 * PRIORITIES
"""Queries of each priority, then tasks of each priority."""

PLACES_MAX: Final = 500_000
"""Partitions in all sets of a shard, some 200 bytes each. Beyond it the sets that were not used for
longest are forgotten; their workers name them again."""

COUNTED_MAX: Final = 64
"""Most hungry partitions that are counted exactly for the answer to a worker."""


class Hungry(Protocol):
    """A partition that draws slots."""

    key: PartitionKey

    def urgency(self) -> int | None:
        """Return the urgency of the first task or query that waits, below `URGENCIES`; None if
        nothing waits."""

    def match_some(self, most: int, now: float) -> int:
        """Match at most `most` tasks and queries that wait; return how many were matched."""


def _ignore(_: SharedOffer) -> None:
    """Do nothing: no worker waits for these offers."""


class SharedSupplies:
    """The sets of one shard, and the partitions that are hungry."""

    def __init__(
        self, forgotten: Callable[[SharedOffer], None] = _ignore, places_max: int = PLACES_MAX
    ) -> None:
        """`forgotten` is called with each open offer of a set that is forgotten, so that its worker
        can be told."""
        self._forgotten = forgotten
        self.sets: OrderedDict[SetKey, SharedSupply] = OrderedDict()
        """The sets; the one that was used last is the last."""
        self._places_max = places_max
        self._places = 0
        self._at: dict[PartitionKey, OrderedDict[SharedSupply, None]] = {}
        self._loaded: set[PartitionKey] = set()
        """Partitions that are loaded, and so may draw."""
        self._free: OrderedDict[SharedSupply, None] = OrderedDict()
        """The sets that have free slots; the one that was drawn from last is the last."""
        self._lines: tuple[OrderedDict[PartitionKey, Hungry], ...] = tuple(
            OrderedDict() for _ in range(URGENCIES)
        )
        """Hungry partitions by urgency; the one that was served last is the last."""
        self._urgency: dict[PartitionKey, int] = {}
        self.returned: dict[SharedSupply, None] = {}
        """Sets whose drawn slots were given back; the driver lets other hungry partitions draw."""

    # Sets

    def name(self, supply: SharedSupply) -> None:
        """Add a set that a worker names, in place of the one with the same number."""
        known = self.sets.get(supply.key)
        if known is not None:
            self.forget(known)
        self.sets[supply.key] = supply
        self._places += len(supply.members)
        for member in supply.members:
            self._at.setdefault(member, OrderedDict())[supply] = None
        while self._places > self._places_max and len(self.sets) > 1:
            self.forget(next(iter(self.sets.values())))

    def find(self, holder: bytes, namespace: str, number: int) -> SharedSupply | None:
        """Return the set of that number; None if the worker has not named it or it is forgotten."""
        return self.sets.get((holder, namespace, number))

    def forget(self, supply: SharedSupply) -> None:
        """Remove the set, and close its offers."""
        if self.sets.get(supply.key) is not supply:
            return
        del self.sets[supply.key]
        self._places -= len(supply.members)
        for member in supply.members:
            there = self._at[member]
            del there[supply]
            if not there and member not in self._loaded:
                del self._at[member]
        for offer in list(supply.offers):
            self.close(offer)
            self._forgotten(offer)

    def forget_at(self, key: PartitionKey) -> None:
        """Forget all sets with this partition, because the partition is let go: their workers name
        the sets again, and the partition is loaded where it belongs now."""
        for supply in list(self._at.get(key, ())):
            self.forget(supply)
        self.sated(key)
        self._loaded.discard(key)
        self._at.pop(key, None)

    def forget_unused(self, before: float) -> None:
        """Forget the sets without an open offer that were last used before that time."""
        for supply in list(self.sets.values()):
            if supply.used_at >= before:
                return
            if not supply.offers:
                self.forget(supply)

    def at(self, key: PartitionKey) -> OrderedDict[SharedSupply, None]:
        """Return the sets that have the partition; they are kept up to date until `forget_at`."""
        self._loaded.add(key)
        return self._at.setdefault(key, OrderedDict())

    # Offers

    def offer(self, offer: SharedOffer, now: float) -> None:
        """Add an offer of free slots."""
        supply = offer.supply
        supply.offers[offer] = None
        supply.used_at = now
        if self.sets.get(supply.key) is supply:
            self.sets.move_to_end(supply.key)
        self._add_free(supply, offer.left)

    def close(self, offer: SharedOffer) -> bool:
        """Close an offer that is answered or whose worker left; return False if it was closed."""
        if not offer.is_open:
            return False
        offer.is_open = False
        supply = offer.supply
        supply.offers.pop(offer, None)
        self._add_free(supply, -offer.left)
        return True

    def due(self, now: float) -> list[SharedOffer]:
        """Return the offers whose time is up and that got nothing."""
        return [
            offer
            for supply in list(self._free)
            for offer in supply.offers
            if offer.until <= now and not offer.parts and not offer.gifts
        ]

    def next_due(self) -> float:
        """Return when the time of the first open offer is up."""
        return min((offer.until for supply in self._free for offer in supply.offers), default=inf)

    def of_session(self, session: bytes) -> list[SharedSupply]:
        """Return the sets of that worker that have free slots."""
        return [supply for supply in self._free if supply.session == session]

    @property
    def free(self) -> int:
        """The free slots of all sets."""
        return sum(supply.free for supply in self._free)

    def free_by_namespace(self) -> dict[str, int]:
        """Return the free slots of all sets, by the namespace of their queues."""
        found: dict[str, int] = {}
        for supply in self._free:
            namespace = supply.key[1]
            found[namespace] = found.get(namespace, 0) + supply.free
        return found

    def _add_free(self, supply: SharedSupply, slots: int) -> None:
        supply.free += slots
        if supply.free:
            if supply not in self._free:
                self._free[supply] = None
        else:
            self._free.pop(supply, None)

    # Slots

    def first(
        self,
        there: OrderedDict[SharedSupply, None],
        doubted: Callable[[SharedSupply], bool] | None = None,
    ) -> SharedSupply | None:
        """Return the set of the partition whose free slots have waited longest."""
        free = self._free
        if not free or not there:
            return None
        if doubted is None:
            supply = next(iter(there))  # as nearly always
            if supply.free:
                return supply
        candidates: Iterable[SharedSupply]
        if len(there) <= len(free):
            candidates = (one for one in there if one.free)
        else:
            candidates = (one for one in free if one in there)
        for supply in candidates:
            if doubted is None or not doubted(supply):
                return supply
        return None

    def slots(self, there: OrderedDict[SharedSupply, None], enough: float = inf) -> int:
        """Return the free slots that a partition could draw; count no further than `enough`."""
        if not self._free:
            return 0
        found = 0
        candidates: Iterable[SharedSupply] = there
        if len(there) > len(self._free):
            candidates = (supply for supply in self._free if supply in there)
        for supply in candidates:
            found += supply.free
            if found >= enough:
                break
        return found

    def draw(self, supply: SharedSupply, there: OrderedDict[SharedSupply, None]) -> SharedOffer:
        """Take one free slot of the set."""
        for offer in supply.offers:
            if offer.left:
                break
        else:
            raise LookupError("no slot is free")
        offer.left -= 1
        supply.free -= 1
        if supply.free:
            self._free.move_to_end(supply)
        else:
            del self._free[supply]
        there.move_to_end(supply)
        return offer

    def give_back(self, offer: SharedOffer) -> None:
        """Return a slot that was drawn in this turn and is not needed after all."""
        if offer.is_open:
            offer.left += 1
            self._add_free(offer.supply, 1)
            self.returned[offer.supply] = None

    # Hunger

    def note(self, partition: Hungry) -> None:
        """Note how hungry the partition is, after a change of what waits there."""
        key = partition.key
        urgency = partition.urgency()
        before = self._urgency.get(key)
        if urgency == before and (before is None or self._lines[before][key] is partition):
            return
        if before is not None:
            self._lines[before].pop(key, None)
        if urgency is None:
            self._urgency.pop(key, None)
        else:
            self._urgency[key] = urgency
            self._lines[urgency][key] = partition

    def sated(self, key: PartitionKey) -> None:
        """Note that nothing waits at the partition any more."""
        before = self._urgency.pop(key, None)
        if before is not None:
            self._lines[before].pop(key, None)

    def serve(self, supply: SharedSupply, now: float) -> dict[PartitionKey, Hungry]:
        """Let the hungry partitions of the set draw; return those that had the chance."""
        asked: dict[PartitionKey, Hungry] = {}
        members = supply.members
        for line in self._lines:
            unable: set[PartitionKey] = set()
            while supply.free and len(unable) < len(line):
                takers = self._takers(line, members, unable, supply.free)
                if not takers:
                    break
                share = max(1, supply.free // len(takers))
                for partition in takers:
                    if not supply.free:
                        break
                    key = partition.key
                    asked[key] = partition
                    line.move_to_end(key)
                    members.move_to_end(key)
                    if partition.match_some(share, now):
                        self.note(partition)
                    else:
                        unable.add(key)
            if not supply.free:
                break
        return asked

    def waiting(self, supply: SharedSupply) -> tuple[int, int]:
        """Return the greatest urgency among the hungry partitions of the set, and how many of them
        have it; `URGENCIES` and 0 if none is hungry."""
        members = supply.members
        for urgency, line in enumerate(self._lines):
            if not line:
                continue
            if len(line) > COUNTED_MAX:
                return urgency, min(len(line), len(members))
            found = sum(key in members for key in line)
            if found:
                return urgency, found
        return URGENCIES, 0

    @staticmethod
    def _takers(
        line: OrderedDict[PartitionKey, Hungry],
        members: OrderedDict[PartitionKey, int],
        unable: set[PartitionKey],
        most: int,
    ) -> list[Hungry]:
        """Return the next partitions in turn; the search goes through the shorter of the two."""
        if len(members) < len(line):
            found = (line[key] for key in members if key in line and key not in unable)
        else:
            found = (one for key, one in line.items() if key in members and key not in unable)
        return list(islice(found, most))
