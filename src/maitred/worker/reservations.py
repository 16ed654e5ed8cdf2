"""The reservations of a worker that wait for their query, and those that are over. Pure.

The node tells of a reservation in the answer to an offer; the query comes from a gateway, and shows
the same token. A reservation that no query comes for expires after a while. Reservations that are
over are remembered, as far as there is room, so that a query that shows one is told what is wrong.

The caller takes a slot for every reservation that is `known`, and frees it for every one that
leaves without a query.

A reservation is worth as much as the connection over which the node told of it: if that is lost,
the node may be gone, and another owner of the partition may want the slot. So a lost connection
voids the reservations that came over it and whose queries have not come. Such a query is refused,
and its gateway asks for another slot.

Two owners of a partition may reserve the same slots for a moment: one that was replaced and has not
noticed, and its successor. The worker decides: the higher range id wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.errors import InvalidReservation, SlotTaken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.protocol.tasks import Reserved

Where = TypeVar("Where", bound=Hashable)
"""The type of the queue that a reservation is for."""

OUTRANKED_SECONDS: Final = 30.0
"""How long after a reservation with a higher range id those with lower ones are refused. An owner
that was replaced hears of it sooner; a database that was restored from a backup begins with lower
range ids again."""

REMEMBERED: Final = 4_096
"""Tokens of ended reservations that are remembered, some hundred bytes each: at a thousand queries
a second for four seconds, twice as long as a reservation lasts."""


@dataclass(slots=True, eq=False)
class Reservation(Generic[Where]):
    """A slot that waits for its query."""

    terms: Reserved
    where: Where
    expires_at: float
    fetch_at: float | None
    """When to ask the node whether it relays the query; None: that was done; `inf`, never, for a
    slot that is kept warm."""
    link: object = None
    """The connection over which it came; None if the worker granted it itself."""
    again_until: float = 0.0
    """Until then the slot may go to the same gateway again, without the node."""

    @property
    def is_kept(self) -> bool:
        """Whether the worker granted it itself, and keeps the slot warm for its last gateway."""
        return self.fetch_at == inf

    @property
    def problem(self) -> MaitredError:
        """Return the error for a query that comes for this reservation too late."""
        return cooled() if self.is_kept else expired()


class Reservations(Generic[Where]):
    """The reservations of this worker, from the node's word until their query came or their time
    was over."""

    def __init__(self) -> None:
        self.known: dict[bytes, Reservation[Where]] = {}
        """By token; each has a slot."""
        self._over: dict[bytes, Callable[[], MaitredError]] = {}
        """By token: makes the error for a query that shows it."""
        self._over_in_order: deque[bytes] = deque()
        """The same tokens, the oldest first. (An ordered dict takes twice as long.)"""
        self._range_ids: dict[tuple[Where, int], tuple[int, float]] = {}
        """The highest range id of any reservation, and when it was last heard, by queue and
        partition."""

    def is_over(self, token: bytes) -> bool:
        """Whether this reservation was used, refused or released; a gateway may release it before
        the node has told of it."""
        return token in self._over

    def is_outranked(self, where: Where, terms: Reserved, now: float) -> bool:
        """Return whether a later owner of the partition has made a reservation before this one: the
        owner that made this one was replaced, and does not know it yet."""
        range_id, place = terms.range_id, (where, terms.partition)
        if not range_id:
            return False  # of an older node
        known, heard_at = self._range_ids.get(place, (0, 0.0))
        if range_id < known and now - heard_at < OUTRANKED_SECONDS:
            return True
        self._range_ids[place] = (range_id, now)
        return False

    def yielding(self, where: Where, terms: Reserved) -> Reservation[Where] | None:
        """End a reservation of an earlier owner of the same partition whose query has not come, and
        return it: its slot goes to this one. None if there is none."""
        for token, one in self.known.items():
            if (
                one.where is where
                and one.terms.partition == terms.partition
                and 0 < one.terms.range_id < terms.range_id
            ):
                del self.known[token]
                self._remember(token, taken)
                return one
        return None

    def add(self, reservation: Reservation[Where]) -> None:
        """Keep a reservation that has a slot until its query comes."""
        self.known[reservation.terms.token] = reservation

    def refuse(self, token: bytes) -> None:
        """Remember that there was no slot for this reservation."""
        self._remember(token, taken)

    def used_at_once(self, token: bytes) -> None:
        """Remember a reservation whose query waited for it already."""
        self._remember(token, used)

    def use(self, token: bytes) -> Reservation[Where] | None:
        """Return the reservation for the query that shows it, and end it; None if it is not known,
        or no longer."""
        found = self.known.pop(token, None)
        if found is not None:
            self._remember(token, used)
        return found

    def why_not(self, token: bytes) -> MaitredError | None:
        """Return why it can never be used; None if the node may still tell of it."""
        over = self._over.get(token)
        return None if over is None else over()

    def release(self, token: bytes) -> Reservation[Where] | None:
        """Give up a reservation that will not be used; return it, if it was known."""
        found = self.known.pop(token, None)
        if found is not None or token not in self._over:
            self._remember(token, released)
        return found

    def void(self, link: object) -> list[Reservation[Where]]:
        """End the reservations that came over a connection that was lost, and return them."""
        gone = [one for one in self.known.values() if one.link is link]
        for one in gone:
            del self.known[one.terms.token]
            self._remember(one.terms.token, voided)
        return gone

    # Time

    def next_at(self) -> float | None:
        """Return the moment at which to ask for what is `due`."""
        moments: list[float] = []
        for one in self.known.values():
            moments.append(one.expires_at)
            if one.fetch_at is not None:
                moments.append(one.fetch_at)
        return min(moments, default=None)

    def due(self, now: float) -> tuple[list[Reservation[Where]], list[Reservation[Where]]]:
        """Return the reservations that have expired, and those whose query may be at the node for
        the worker to fetch; each is returned once."""
        gone: list[Reservation[Where]] = []
        to_fetch: list[Reservation[Where]] = []
        for token, one in list(self.known.items()):
            if one.expires_at <= now:
                del self.known[token]
                self._remember(token, cooled if one.is_kept else expired)
                gone.append(one)
            elif one.fetch_at is not None and one.fetch_at <= now:
                one.fetch_at = None
                to_fetch.append(one)
        return gone, to_fetch

    def _remember(self, token: bytes, what: Callable[[], MaitredError]) -> None:
        over = self._over
        if token not in over:
            order = self._over_in_order
            order.append(token)
            if len(order) > REMEMBERED:
                del over[order.popleft()]
        over[token] = what


# Makers of the errors that queries are refused with

unknown: Final = partial(InvalidReservation, "This worker knows of no such reservation.")
used: Final = partial(InvalidReservation, "The reservation was used already.")
twice: Final = partial(InvalidReservation, "Another query came with the same reservation.")
released: Final = partial(InvalidReservation, "The reservation was given back.")
expired: Final = partial(InvalidReservation, "The reservation expired before its query came.")
still_runs: Final = partial(
    Unavailable, "An earlier run of the same query has not ended at this worker."
)
replaced: Final = partial(
    Unavailable, "The query was sent again, and this attempt of it does not begin."
)
cooled: Final = partial(SlotTaken, "The slot that was kept for this gateway is on offer again.")
"""The slot was kept warm for a few milliseconds, and answer and query took longer than that."""
taken: Final = partial(SlotTaken, "The slot was taken by something else in the same moment.")
"""The slot was on offer in two places, and went to the other one."""
voided: Final = partial(
    SlotTaken,
    "The connection over which the node reserved the slot was lost before the query came.",
)
