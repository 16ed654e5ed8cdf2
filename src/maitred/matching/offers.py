"""The free slots that wait at a partition, the longest-waiting first.

Tasks that come together are spread over the offers, one each in turn, so that a worker with many
free slots does not get all of them while others have none. All that an offer got in one turn goes
out in one answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from maitred.matching.slots import WaitingOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.matching.records import PartitionKey
    from maitred.matching.shared_supplies import SharedSupplies
    from maitred.matching.slots import AllocatedSlot, SharedOffer, SharedSupply
    from maitred.matching.task import QueueTask


class Offers:
    """The offers that wait at a partition, and the shared slots that it can draw."""

    def __init__(self, key: PartitionKey, supplies: SharedSupplies) -> None:
        self._key = key
        self._supplies = supplies
        self.sets = supplies.at(key)
        """The sets of queues that workers named and that the partition is in."""
        self._line: OrderedDict[WaitingOffer, None] = OrderedDict()
        self._drew_last = False
        """Whether the last slot was a shared one: shared slots and others take turns."""
        self.slots = 0
        """Free slots of all open offers, without shared slots."""
        self._answerable: list[WaitingOffer] = []
        self.aside: dict[bytes, dict[WaitingOffer, None]] = {}
        """Open offers, by session, of workers that refused slots lately: not used for now."""

    def add(self, offer: WaitingOffer) -> None:
        self._line[offer] = None
        self.slots += offer.slots

    @property
    def any_free(self) -> bool:
        """Whether there is a free slot, shared or not."""
        if self.slots:
            return True
        return bool(self.sets) and self._supplies.first(self.sets) is not None

    @property
    def free(self) -> int:
        """The number of free slots, including shared ones."""
        return self.slots + (self._supplies.slots(self.sets) if self.sets else 0)

    def has(self, slots: int) -> bool:
        """Return whether there are so many free slots."""
        missing = slots - self.slots
        if missing <= 0:
            return True
        return bool(self.sets) and self._supplies.slots(self.sets, missing) >= missing

    def silent(self, holders: set[bytes], since: float) -> list[SharedOffer]:
        """Return shared offers of these workers that wait at least since then and were given
        nothing."""
        return [
            offer
            for supply in self.sets
            if supply.holder in holders
            for offer in supply.offers
            if offer.since <= since and not offer.parts and not offer.gifts
        ]

    def take(self, task: QueueTask) -> WaitingOffer:
        """Give the task to the next free slot, which there must be; return its offer."""
        line = self._line
        offer = (self._draw() if self.sets else None) or next(iter(line))
        if not offer.given and not offer.reserved:
            self._answerable.append(offer)
        offer.given.append(task)
        if offer.shared is None:  # `_one_less`, without a call for each task
            self.slots -= 1
            offer.slots -= 1
            if not offer.slots:
                del line[offer]
            elif len(line) > 1:
                line.move_to_end(offer)
        return offer

    def first(self, doubted: Callable[[SharedSupply], bool] | None = None) -> WaitingOffer | None:
        """Return the next offer, for `reserve`; None if there is no free slot. A shared slot is
        drawn by this call; shared slots of doubted workers are passed over."""
        offer = self._draw(doubted) if self.sets else None
        return offer or next(iter(self._line), None)

    def longest_waiting(self) -> WaitingOffer | None:
        """Return the first offer that is not shared."""
        return next(iter(self._line), None)

    def reserve(self, reservation: AllocatedSlot) -> None:
        """Give a query a slot of the offer that `first` returned."""
        offer = reservation.offer
        if not offer.given and not offer.reserved:
            self._answerable.append(offer)
        offer.reserved.append(reservation)
        if offer.shared is None:
            self._one_less(offer)

    def _draw(self, doubted: Callable[[SharedSupply], bool] | None = None) -> WaitingOffer | None:
        """Draw a shared slot, if it is the turn of one."""
        if self._drew_last and self._line:
            self._drew_last = False
            return None
        supply = self._supplies.first(self.sets, doubted)
        if supply is None:
            return None
        self._drew_last = True
        shared = self._supplies.draw(supply, self.sets)
        offer = shared.parts.get(self._key)
        if offer is None:
            offer = shared.parts[self._key] = WaitingOffer(
                shared.token,
                supply.session,
                supply.worker,
                0,
                shared.since,
                address=supply.address,
                user=supply.user,
                holder=supply.holder,
                shared=shared,
            )
        return offer

    def _one_less(self, offer: WaitingOffer) -> None:
        self.slots -= 1
        offer.slots -= 1
        if offer.slots:
            self._line.move_to_end(offer)
        else:
            del self._line[offer]

    def give_back(self, reservation: AllocatedSlot) -> None:
        """Free a slot that was reserved in this turn; it is the next one to be used."""
        offer = reservation.offer
        if offer.shared is not None:
            self._give_back_shared(offer, offer.shared, reservation)
            return
        if self._no_more_aside(offer):
            self.add(offer)
        offer.reserved.remove(reservation)
        offer.slots += 1
        self.slots += 1
        self._line[offer] = None
        self._line.move_to_end(offer, last=False)
        if offer.untouched:
            self._answerable.remove(offer)

    def _give_back_shared(
        self, offer: WaitingOffer, shared: SharedOffer, reservation: AllocatedSlot
    ) -> None:
        if not offer.is_open:
            return
        offer.reserved.remove(reservation)
        self._supplies.give_back(shared)
        if offer.untouched:
            self._answerable.remove(offer)
            self.close(offer)

    def set_aside(self, offer: WaitingOffer) -> None:
        """Keep an offer open without using its slots for now."""
        del self._line[offer]
        self.slots -= offer.slots
        self.aside.setdefault(offer.session, {})[offer] = None

    def take_up(self, session: bytes, slots: float) -> None:
        """Use offers of the worker again that were set aside, enough for so many slots."""
        for offer in list(self.aside.get(session, ())):
            if slots < 1:
                return
            slots -= offer.slots
            self._no_more_aside(offer)
            self.add(offer)

    def _no_more_aside(self, offer: WaitingOffer) -> bool:
        """Take an offer out of those set aside; return False if it was not among them."""
        theirs = self.aside.get(offer.session)
        if theirs is None or offer not in theirs:
            return False
        del theirs[offer]
        if not theirs:
            del self.aside[offer.session]
        return True

    def close(self, offer: WaitingOffer) -> bool:
        """Close an offer that is answered or withdrawn; return False if it was closed before."""
        if not offer.is_open:
            return False
        offer.is_open = False
        if offer.shared is not None:
            del offer.shared.parts[self._key]
        elif not self._no_more_aside(offer):
            self.slots -= offer.slots
            self._line.pop(offer, None)
        return True

    def answerable(self) -> list[WaitingOffer]:
        """Return the offers that were given something since the last call."""
        found, self._answerable = self._answerable, []
        return found

    def waiting(self) -> Iterator[WaitingOffer]:
        """Yield the offers with free slots, the longest-waiting first, without those set aside."""
        yield from self._line

    def unanswered(self) -> list[WaitingOffer]:
        """Return all open offers, including those without free slots and those set aside."""
        full = [offer for offer in self._answerable if offer.is_open and not offer.slots]
        aside = [offer for theirs in self.aside.values() for offer in theirs]
        return [*self._line, *aside, *full]
