"""The free slots that wait at a partition, the longest-waiting first.

Tasks that come together are spread over the offers, one each in turn, so that a worker with many
free slots does not get all of them while others have none. All that an offer got in one turn goes
out in one answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec import Struct, field

from maitred.matching.attempt_proofs import holder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maitred.matching.records import PartitionKey
    from maitred.matching.shared_supplies import SharedOffer, SharedSupplies, SharedSupply
    from maitred.matching.slot_requests import AllocatedSlot
    from maitred.matching.task import QueueTask, Token


class WaitingOffer(Struct, eq=False):
    """One answer's worth of free slots of one worker.

    Known to the garbage collector: who waits for the answer knows how to withdraw the offer.
    """

    token: Token
    session: bytes
    worker: str
    slots: int
    since: float
    hops: int = 0
    given: list[QueueTask] = field(default_factory=list)
    away: bool = False
    """Whether it waits at the parent as well."""
    is_open: bool = True
    address: str = ""
    """Where gateways reach the worker; empty: nowhere."""
    reserved: list[AllocatedSlot] = field(default_factory=list)
    user: str = ""
    """As whom the worker connects; empty where there are no users."""
    holder: bytes = b""
    """The session and the user, as proofs name them."""
    shared: SharedOffer | None = None
    """Where its slots were drawn, if they are on offer to other queues as well. Such an offer has
    no free slots of its own and is answered at the end of the turn."""

    def __post_init__(self) -> None:
        if not self.holder:
            self.holder = holder_of(self.session, self.user)

    @property
    def untouched(self) -> bool:
        """Whether it got nothing yet."""
        return not self.given and not self.reserved


class Offers:
    """All that wait, and the slots that the partition can draw because they wait for all queues of
    a worker."""

    def __init__(self, key: PartitionKey, supplies: SharedSupplies) -> None:
        self._key = key
        self._supplies = supplies
        self.sets = supplies.at(key)
        """The workers' sets that the partition is in."""
        self._line: OrderedDict[WaitingOffer, None] = OrderedDict()
        self._drew_last = False
        """Whether the last slot was a shared one: if there are both, they take turns."""
        self.slots = 0
        """Free slots of all that are open; shared ones are not among them."""
        self._answerable: list[WaitingOffer] = []
        self.aside: dict[bytes, dict[WaitingOffer, None]] = {}
        """Those of workers that are not believed for now, by session: open, and given to nobody."""

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
        """How many free slots there are, shared ones too."""
        return self.slots + (self._supplies.slots(self.sets) if self.sets else 0)

    def has(self, slots: int) -> bool:
        """Whether there are so many free slots."""
        missing = slots - self.slots
        if missing <= 0:
            return True
        return bool(self.sets) and self._supplies.slots(self.sets, missing) >= missing

    def silent(self, holders: set[bytes], since: float) -> list[SharedOffer]:
        """Shared offers of these workers that are as old, and got nothing."""
        return [
            offer
            for supply in self.sets
            if supply.holder in holders
            for offer in supply.offers
            if offer.since <= since and not offer.parts and not offer.gifts
        ]

    def take(self, task: QueueTask) -> WaitingOffer:
        """Match the task in the slot whose turn it is; there must be one."""
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
        """The offer whose turn it is, for `reserve`; None if there is no free slot. A shared slot
        is taken with this; shared slots of workers that are doubted are passed over."""
        offer = self._draw(doubted) if self.sets else None
        return offer or next(iter(self._line), None)

    def longest_waiting(self) -> WaitingOffer | None:
        """The first offer that is not shared."""
        return next(iter(self._line), None)

    def reserve(self, reservation: AllocatedSlot) -> None:
        """Match a query at the offer that `first` has named, as `take` does with a task."""
        offer = reservation.offer
        if not offer.given and not offer.reserved:
            self._answerable.append(offer)
        offer.reserved.append(reservation)
        if offer.shared is None:
            self._one_less(offer)

    def _draw(self, doubted: Callable[[SharedSupply], bool] | None = None) -> WaitingOffer | None:
        """A shared slot, if it is the turn of one."""
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
        """Nobody wants the slot after all, and nobody has heard of it yet: it goes first."""
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
        """Nobody gets its slots for now."""
        del self._line[offer]
        self.slots -= offer.slots
        self.aside.setdefault(offer.session, {})[offer] = None

    def take_up(self, session: bytes, slots: float) -> None:
        """Of what was set aside of that worker, enough for so many slots stands in line again."""
        for offer in list(self.aside.get(session, ())):
            if slots < 1:
                return
            slots -= offer.slots
            self._no_more_aside(offer)
            self.add(offer)

    def _no_more_aside(self, offer: WaitingOffer) -> bool:
        """False if it was not."""
        theirs = self.aside.get(offer.session)
        if theirs is None or offer not in theirs:
            return False
        del theirs[offer]
        if not theirs:
            del self.aside[offer.session]
        return True

    def close(self, offer: WaitingOffer) -> bool:
        """It is answered, or nobody waits for the answer; False if that was so already."""
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
        """Those that got tasks since the last time."""
        found, self._answerable = self._answerable, []
        return found

    def waiting(self) -> Iterator[WaitingOffer]:
        """All that have free slots, the longest-waiting first, but those that were set aside."""
        yield from self._line

    def unanswered(self) -> list[WaitingOffer]:
        """All that are open, those without free slots and those that were set aside too."""
        full = [offer for offer in self._answerable if offer.is_open and not offer.slots]
        aside = [offer for theirs in self.aside.values() for offer in theirs]
        return [*self._line, *aside, *full]
