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
    from collections.abc import Iterator

    from maitred.matching.queries import Reservation
    from maitred.matching.task import Task, Token


class Offer(Struct, eq=False):
    """One answer's worth of free slots of one worker.

    Known to the garbage collector: who waits for the answer knows how to withdraw the offer.
    """

    token: Token
    session: bytes
    worker: str
    slots: int
    since: float
    hops: int = 0
    given: list[Task] = field(default_factory=list)
    away: bool = False
    """Whether it waits at the parent as well."""
    is_open: bool = True
    address: str = ""
    """Where gateways reach the worker; empty: nowhere."""
    reserved: list[Reservation] = field(default_factory=list)
    user: str = ""
    """As whom the worker connects; empty where there are no users."""
    holder: bytes = b""
    """The session and the user, as proofs name them."""

    def __post_init__(self) -> None:
        self.holder = holder_of(self.session, self.user)

    @property
    def untouched(self) -> bool:
        """Whether it got nothing yet."""
        return not self.given and not self.reserved


class Offers:
    """All that wait."""

    def __init__(self) -> None:
        self._line: OrderedDict[Offer, None] = OrderedDict()
        self.slots = 0
        """Free slots of all that are open."""
        self._answerable: list[Offer] = []
        self.aside: dict[bytes, dict[Offer, None]] = {}
        """Those of workers that are not believed for now, by session: open, and given to nobody."""

    def add(self, offer: Offer) -> None:
        self._line[offer] = None
        self.slots += offer.slots

    def take(self, task: Task) -> Offer:
        """Seat the task at the first offer, which there must be."""
        offer = next(iter(self._line))
        if not offer.given and not offer.reserved:
            self._answerable.append(offer)
        offer.given.append(task)
        self._one_less(offer)
        return offer

    def first(self) -> Offer:
        """The one whose turn it is; there must be one."""
        return next(iter(self._line))

    def reserve(self, reservation: Reservation) -> None:
        """Seat a query at the first offer, as `take` does with a task."""
        offer = reservation.offer
        if not offer.given and not offer.reserved:
            self._answerable.append(offer)
        offer.reserved.append(reservation)
        self._one_less(offer)

    def _one_less(self, offer: Offer) -> None:
        self.slots -= 1
        offer.slots -= 1
        if offer.slots:
            self._line.move_to_end(offer)
        else:
            del self._line[offer]

    def give_back(self, reservation: Reservation) -> None:
        """Nobody wants the slot after all, and nobody has heard of it yet: it goes first."""
        offer = reservation.offer
        if self._no_more_aside(offer):
            self.add(offer)
        offer.reserved.remove(reservation)
        offer.slots += 1
        self.slots += 1
        self._line[offer] = None
        self._line.move_to_end(offer, last=False)
        if offer.untouched:
            self._answerable.remove(offer)

    def set_aside(self, offer: Offer) -> None:
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

    def _no_more_aside(self, offer: Offer) -> bool:
        """False if it was not."""
        theirs = self.aside.get(offer.session)
        if theirs is None or offer not in theirs:
            return False
        del theirs[offer]
        if not theirs:
            del self.aside[offer.session]
        return True

    def close(self, offer: Offer) -> bool:
        """It is answered, or nobody waits for the answer; False if that was so already."""
        if not offer.is_open:
            return False
        offer.is_open = False
        if not self._no_more_aside(offer):
            self.slots -= offer.slots
            self._line.pop(offer, None)
        return True

    def answerable(self) -> list[Offer]:
        """Those that got tasks since the last time."""
        found, self._answerable = self._answerable, []
        return found

    def waiting(self) -> Iterator[Offer]:
        """All that have free slots, the longest-waiting first, but those that were set aside."""
        yield from self._line

    def unanswered(self) -> list[Offer]:
        """All that are open, those without free slots and those that were set aside too."""
        full = [offer for offer in self._answerable if offer.is_open and not offer.slots]
        aside = [offer for theirs in self.aside.values() for offer in theirs]
        return [*self._line, *aside, *full]
