"""The passes that a worker accepts. Pure.

A gateway that picks workers itself has a pass for each of them: a token that it shows with every
query. The node tells the worker of it in the answer to its attendance, and tells it again while the
pass is to stay good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from maitred.protocol.queries import Pass

Where = TypeVar("Where")
"""The type of the queue that a pass is for."""

PASSES_MAX: Final = 16_384
"""Most passes: gateways times queues, some hundred bytes each. Beyond it those that end first make
room."""

SECONDS_MAX: Final = 3_600.0
"""Longest time for which a pass is accepted without being told again, whatever the node says."""


@dataclass(slots=True, eq=False)
class GoodPass(Generic[Where]):
    """A pass that a gateway may show with its queries until its time is over."""

    terms: Pass
    where: Where
    until: float


class Passes(Generic[Where]):
    """The passes that are good at this worker."""

    def __init__(self, most: int = PASSES_MAX) -> None:
        self.known: dict[bytes, GoodPass[Where]] = {}
        """By token. An expired one is removed when a query shows it, or to make room."""
        self._most = most

    def add(self, terms: Pass, where: Where, now: float) -> bool:
        """Accept a pass from now on, or for longer; return False if its time is over."""
        seconds = min(terms.seconds, SECONDS_MAX)
        token = terms.token
        if not seconds > 0.0:
            self.known.pop(token, None)
            return False
        known = self.known.get(token)
        if known is None:
            if len(self.known) >= self._most:
                self._make_room(now)
            self.known[token] = GoodPass(terms, where, now + seconds)
        else:
            known.terms = terms
            known.until = now + seconds
        return True

    def find(self, token: bytes, now: float) -> GoodPass[Where] | None:
        """Return the pass with this token, if it is known and its time is not over."""
        known = self.known.get(token)
        if known is not None and known.until <= now:
            del self.known[token]
            return None
        return known

    def _make_room(self, now: float) -> None:
        for token in [token for token, one in self.known.items() if one.until <= now]:
            del self.known[token]
        while len(self.known) >= self._most:
            del self.known[min(self.known, key=lambda token: self.known[token].until)]
