"""Which passes a worker knows of. Pure.

A gateway that picks workers itself has a pass for each of them: a token that it shows with every
query. The worker hears of it from the node, in the answer to its attendance, and hears of it again
while it is to stay good. As with reservations, a query may be there before the word of its pass. It
cannot be told then whether it shows a pass or a reservation, so the first one waits among the
reservations; further ones with the same token, which only a pass allows, wait here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maitred.worker.reservations import Early

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.queries import Pass

Where = TypeVar("Where")
"""What the caller keeps with a pass: whose it is."""
Who = TypeVar("Who")
"""What the caller keeps with a query that is early."""

PASSES_MAX: Final = 16_384
"""Gateways times queues; some hundred bytes each. Beyond it those that end first make room."""

SECONDS_MAX: Final = 3_600.0
"""Longest that a pass is good without being told again, whatever the node says."""


class GoodPass(Generic[Where]):
    """A pass that a gateway may show with its queries until its time is over."""

    __slots__ = ("terms", "until", "where")

    def __init__(self, terms: Pass, where: Where, until: float) -> None:
        self.terms = terms
        self.where = where
        self.until = until


class Passes(Generic[Where, Who]):
    """The passes that are good at this worker, and the queries that arrived before the node told of
    their pass."""

    def __init__(self, most_early: int, most_early_bytes: int, most: int = PASSES_MAX) -> None:
        self.known: dict[bytes, GoodPass[Where]] = {}
        """By token. One that is over goes when somebody shows it, or when another one comes."""
        self.early: dict[bytes, list[Early[Who]]] = {}
        self.early_count = 0
        self.early_bytes = 0
        self._most_early = most_early
        self._most_early_bytes = most_early_bytes
        self._most = most

    # The node's word

    def add(self, terms: Pass, where: Where, now: float) -> list[Early[Who]]:
        """A pass is good from now on, or for longer; the queries that wait for it."""
        seconds = min(terms.seconds, SECONDS_MAX)
        token = terms.token
        if not seconds > 0.0:
            self.known.pop(token, None)
            return []
        known = self.known.get(token)
        if known is None:
            if len(self.known) >= self._most:
                self._make_room(now)
            self.known[token] = GoodPass(terms, where, now + seconds)
        else:
            known.terms = terms
            known.until = now + seconds
        return self.take(token)

    def find(self, token: bytes, now: float) -> GoodPass[Where] | None:
        """The pass, if it is known and good."""
        known = self.known.get(token)
        if known is not None and known.until <= now:
            del self.known[token]
            return None
        return known

    # Queries that are early

    def park(self, token: bytes, who: Who, size: int, until: float) -> bool:
        """Keep a query whose pass is not known yet; False if there is no room for it."""
        if self.early_count >= self._most_early or self.early_bytes + size > self._most_early_bytes:
            return False
        self.early.setdefault(token, []).append(Early(token, who, size, until))
        self.early_count += 1
        self.early_bytes += size
        return True

    def take(self, token: bytes) -> list[Early[Who]]:
        """Return the queries that wait with this token, in the order in which they came, and forget
        them."""
        waiting = self.early.pop(token, [])
        self._forget(waiting)
        return waiting

    def drop(self, token: bytes, meant: Callable[[Who], bool]) -> list[Early[Who]]:
        """Take out the queries that wait with this token and that are meant."""
        waiting = self.early.get(token, [])
        gone = [early for early in waiting if meant(early.who)]
        if not gone:
            return gone
        left = [early for early in waiting if not meant(early.who)]
        if left:
            self.early[token] = left
        else:
            del self.early[token]
        self._forget(gone)
        return gone

    # Time

    def next_at(self) -> float | None:
        """Return the moment at which the first query has waited for too long."""
        return min((one.until for each in self.early.values() for one in each), default=None)

    def late(self, now: float) -> list[Early[Who]]:
        """Queries whose pass never came; each is told once."""
        found: list[Early[Who]] = []
        for token, waiting in list(self.early.items()):
            late = [early for early in waiting if early.is_late(now)]
            if late:
                found += late
                self._forget(late)
                left = [early for early in waiting if early.until > now]
                if left:
                    self.early[token] = left
                else:
                    del self.early[token]
        return found

    # Inside

    def _forget(self, gone: list[Early[Who]]) -> None:
        self.early_count -= len(gone)
        self.early_bytes -= sum(early.size for early in gone)

    def _make_room(self, now: float) -> None:
        for token in [token for token, one in self.known.items() if one.until <= now]:
            del self.known[token]
        while len(self.known) >= self._most:
            del self.known[min(self.known, key=lambda token: self.known[token].until)]
