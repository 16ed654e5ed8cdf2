"""Which reservations a worker knows of, and what became of them. Pure.

The word of a reservation comes from the node, in the answer to an offer; the query comes from a
gateway, and shows the same token. Either may be first. A query that is early is kept for a moment;
a reservation that no query comes for is over after a while, and its slot is free again. What is
over is remembered, as far as there is room, so that whoever comes with it is told what is wrong.

Who has a slot is not known here: whoever calls takes one for every reservation that is `known`, and
has it back for every one that leaves without a query.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.errors import InvalidReservation, SlotTaken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.errors import MaitredError
    from maitred.protocol.tasks import Reserved

Where = TypeVar("Where")
"""What the caller keeps with a reservation: whose it is."""
Who = TypeVar("Who")
"""What the caller keeps with a query that is early."""

REMEMBERED: Final = 4_096
"""Reservations that are over and still known by their token; some hundred bytes each. At a thousand
queries a second, four seconds: twice as long as a reservation lasts."""

BLOCKED_SECONDS: Final = 0.05
"""A timer that fires so much too late shows that the loop was blocked, or the process starved."""


class Reservation(Generic[Where]):
    """A slot that waits for its query."""

    __slots__ = ("again_until", "expires_at", "fetch_at", "terms", "where")

    def __init__(
        self,
        terms: Reserved,
        where: Where,
        expires_at: float,
        fetch_at: float | None,
        again_until: float = 0.0,
    ) -> None:
        self.again_until = again_until
        """Until then the slot may go to the same gateway again."""
        self.terms = terms
        self.where = where
        self.expires_at = expires_at
        self.fetch_at = fetch_at
        """When to ask the node whether the query is being relayed; None: that was done. Never for a
        slot that was only kept for the gateway that had it."""

    @property
    def is_kept(self) -> bool:
        """Whether the worker made it itself, and keeps the slot for the gateway that had it."""
        return self.fetch_at == inf

    @property
    def problem(self) -> MaitredError:
        """Return the error for a query that comes for this reservation too late."""
        return cooled() if self.is_kept else expired()


class Early(Generic[Who]):
    """A query that waits for the word of its reservation."""

    __slots__ = ("_extended", "size", "token", "until", "who")

    def __init__(self, token: bytes, who: Who, size: int, until: float) -> None:
        self.token = token
        self.who = who
        self.size = size
        self.until = until
        self._extended = False

    def is_late(self, now: float) -> bool:
        """Return whether the word of the reservation should have come by now.

        A look that comes long after `until` finds a loop that was blocked, and the word may lie
        unread in a socket. In that case the query waits as long again as the look was late, once.
        """
        overdue = now - self.until
        if overdue > BLOCKED_SECONDS and not self._extended:
            self._extended = True
            self.until = now + overdue
        return self.until <= now


class Due(Generic[Where, Who]):
    """What the time has come for."""

    __slots__ = ("expired", "late", "to_fetch")

    def __init__(self) -> None:
        self.expired: list[Reservation[Where]] = []
        """Nobody came; their slots are free."""
        self.late: list[Early[Who]] = []
        """The word of their reservation never came."""
        self.to_fetch: list[Reservation[Where]] = []
        """Perhaps the query is being relayed."""


class Reservations(Generic[Where, Who]):
    """The reservations of this worker, from the node's word until their query came or their time
    was over, and the queries that arrived before them."""

    def __init__(self, most_early: int, most_early_bytes: int) -> None:
        self.known: dict[bytes, Reservation[Where]] = {}
        """By token; each has a slot."""
        self.early: dict[bytes, Early[Who]] = {}
        self.early_bytes = 0
        self._over: dict[bytes, Callable[[], MaitredError]] = {}
        """Token, and what is said to whoever comes with it."""
        self._over_in_order: deque[bytes] = deque()
        """The same tokens, the oldest first. (An ordered dict takes twice as long for each.)"""
        self._most_early = most_early
        self._most_early_bytes = most_early_bytes

    # The node's word

    def is_over(self, token: bytes) -> bool:
        """Whether it was used or released before; a gateway may give it back before we hear of
        it."""
        return token in self._over

    def add(self, reservation: Reservation[Where]) -> Early[Who] | None:
        """A reservation that has a slot; the query for it, if it is there already."""
        token = reservation.terms.token
        early = self.unpark(token)
        if early is not None:
            self._remember(token, used)
            return early
        self.known[token] = reservation
        return None

    def refuse(self, token: bytes) -> Early[Who] | None:
        """There is no slot for it; the query that has to hear so, if it is there already."""
        self._remember(token, taken)
        return self.unpark(token)

    # The gateway's

    def use(self, token: bytes) -> Reservation[Where] | None:
        """The reservation, for the query that shows it; None if it is not known, or no longer."""
        found = self.known.pop(token, None)
        if found is not None:
            self._remember(token, used)
        return found

    def why_not(self, token: bytes) -> MaitredError | None:
        """Why it can never be used; None if the word of it may still come."""
        over = self._over.get(token)
        if over is not None:
            return over()
        return twice() if token in self.early else None

    def park(self, token: bytes, who: Who, size: int, until: float) -> bool:
        """Keep a query whose reservation is not known yet; False if there is no room for it."""
        if (
            len(self.early) >= self._most_early
            or self.early_bytes + size > self._most_early_bytes
            or token in self.early
        ):
            return False
        self.early[token] = Early(token, who, size, until)
        self.early_bytes += size
        return True

    def release(self, token: bytes) -> Reservation[Where] | None:
        """Give up a reservation that will not be used, and forget the query that waits for it;
        return the reservation, if it was known."""
        self.unpark(token)
        found = self.known.pop(token, None)
        if found is not None or token not in self._over:
            self._remember(token, released)
        return found

    # Time

    def next_at(self) -> float | None:
        """Return the moment at which to ask for what is `due`."""
        moments = [early.until for early in self.early.values()]
        for one in self.known.values():
            moments.append(one.expires_at)
            if one.fetch_at is not None:
                moments.append(one.fetch_at)
        return min(moments, default=None)

    def due(self, now: float) -> Due[Where, Who]:
        """Return the reservations and queries whose time has come; each is returned once."""
        found: Due[Where, Who] = Due()
        for token, early in list(self.early.items()):
            if early.is_late(now):
                self.unpark(token)
                found.late.append(early)
        for token, one in list(self.known.items()):
            if one.expires_at <= now:
                del self.known[token]
                self._remember(token, cooled if one.is_kept else expired)
                found.expired.append(one)
            elif one.fetch_at is not None and one.fetch_at <= now:
                one.fetch_at = None
                found.to_fetch.append(one)
        return found

    def unpark(self, token: bytes) -> Early[Who] | None:
        """Return the query that waits with this token, and forget it."""
        early = self.early.pop(token, None)
        if early is not None:
            self.early_bytes -= early.size
        return early

    # Inside

    def _remember(self, token: bytes, what: Callable[[], MaitredError]) -> None:
        over = self._over
        if token not in over:
            order = self._over_in_order
            order.append(token)
            if len(order) > REMEMBERED:
                del over[order.popleft()]
        over[token] = what


def unknown() -> MaitredError:
    """Return the error for a token that this worker does not know."""
    return InvalidReservation("This worker knows of no such reservation.")


def used() -> MaitredError:
    """Once is all that it is good for."""
    return InvalidReservation("The reservation was used already.")


def twice() -> MaitredError:
    """Two queries with one reservation; the first counts."""
    return InvalidReservation("Another query came with the same reservation.")


def released() -> MaitredError:
    """Return the error for a reservation that was given back."""
    return InvalidReservation("The reservation was given back.")


def still_runs() -> MaitredError:
    """An earlier attempt of the same query has not ended."""
    return Unavailable("An earlier run of the same query has not ended at this worker.")


def replaced() -> MaitredError:
    """A later attempt of the same query arrived before this one."""
    return Unavailable("The query was sent again, and this attempt of it does not begin.")


def expired() -> MaitredError:
    """Return the error for a reservation that no query used in time."""
    return InvalidReservation("The reservation is over; the query came too late.")


def cooled() -> MaitredError:
    """The slot was kept for a few milliseconds only: answer and query took longer than that."""
    return SlotTaken("The slot that was kept for this gateway is on offer again.")


def taken() -> MaitredError:
    """The slot was on offer in two places, and went to the other one."""
    return SlotTaken("The slot was taken by something else in the same moment.")
