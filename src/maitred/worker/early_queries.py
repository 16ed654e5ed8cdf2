"""Queries that arrived before the node told of their reservation or pass. Pure.

The token of a query comes to the worker twice: from the gateway with the query, and from the node
with the reservation or the pass. Either may be first. A query that is first waits for a moment, in
bounded memory. Until the node has told, the worker does not know which of both the token is, so
several queries may wait with one token: a pass is for all of them, a reservation for the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.query_link import RunQuery
    from maitred.worker.query import Asker

BLOCKED_SECONDS: Final = 0.05
"""A timer that fires so much too late shows that the loop was blocked, or the process starved."""


@dataclass(slots=True, eq=False)
class EarlyQuery:
    """A query that waits for the node's word of its token."""

    asker: Asker
    stream: int
    message: RunQuery
    until: float
    _extended: bool = False

    def is_late(self, now: float) -> bool:
        """Return whether the node's word should have come by now.

        A look that comes long after `until` finds a loop that was blocked, and the word may lie
        unread in a socket. In that case the query waits as long again as the look was late, once.
        """
        overdue = now - self.until
        if overdue > BLOCKED_SECONDS and not self._extended:
            self._extended = True
            self.until = now + overdue
        return self.until <= now


class EarlyQueries:
    """The early queries of one worker, by token and in the order in which they came."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        """Bytes of their arguments."""
        self._most = most
        self._most_bytes = most_bytes
        self.waiting: dict[bytes, list[EarlyQuery]] = {}
        """By token; no list is empty."""

    def park(self, query: EarlyQuery) -> bool:
        """Keep a query; return False if there is no room for it."""
        size = len(query.message.payload)
        if self.count >= self._most or self.bytes + size > self._most_bytes:
            return False
        self.waiting.setdefault(query.message.token, []).append(query)
        self.count += 1
        self.bytes += size
        return True

    def take(self, token: bytes) -> list[EarlyQuery]:
        """Return the queries that wait with this token, and forget them."""
        return self.drop(token, lambda _: True)

    def drop(self, token: bytes, chosen: Callable[[EarlyQuery], bool]) -> list[EarlyQuery]:
        """Return the chosen ones of the queries that wait with this token, and forget them."""
        gone: list[EarlyQuery] = []
        left: list[EarlyQuery] = []
        for query in self.waiting.pop(token, ()):
            (gone if chosen(query) else left).append(query)
        if left:
            self.waiting[token] = left
        self.count -= len(gone)
        self.bytes -= sum(len(query.message.payload) for query in gone)
        return gone

    def next_at(self) -> float | None:
        """Return the moment at which the first query has waited for too long."""
        return min((one.until for each in self.waiting.values() for one in each), default=None)

    def late(self, now: float) -> list[EarlyQuery]:
        """Return the queries that have waited for too long, and forget them."""
        return [
            query
            for token in list(self.waiting)
            for query in self.drop(token, lambda one: one.is_late(now))
        ]
