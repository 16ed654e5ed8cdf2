"""What a query comes to, for whoever asked: one whole result, or the rows of a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from msgspec import Struct

if TYPE_CHECKING:
    from maitred.client.asked_query import AskedQuery
    from maitred.errors import MaitredError


class Whole(Struct, gc=False):
    """A result in one piece."""

    body: bytes
    """msgpack."""


class Rows:
    """A stream that has begun: chunks of rows, each msgpack values one after the other.

    Taking a chunk lets the worker send more. Whoever leaves early closes it, or cancels the query.
    """

    __slots__ = ("_chunks", "_credit_bytes", "_problem", "_query", "_taken", "_waiter", "waiting")

    def __init__(self, query: AskedQuery, window_bytes: int) -> None:
        self._query = query
        self._chunks: deque[bytes] = deque()
        self.waiting = 0
        """Bytes that have come and were not taken."""
        self._taken = 0
        self._credit_bytes = window_bytes // 4
        self._waiter: asyncio.Future[None] | None = None
        self._problem: MaitredError | None = None

    @property
    def sequence(self) -> int:
        """The query's number in the table."""
        return self._query.sequence

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._query.over:
                if self._problem is not None:
                    raise self._problem
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._query.cancel()
                raise
            finally:
                self._waiter = None
        chunk = self._chunks.popleft()
        self.waiting -= len(chunk)
        self._taken += len(chunk)
        # Often enough that the worker need not pause, and always before we pause ourselves.
        if self._taken >= self._credit_bytes or not self._chunks:
            self._query.taken(self._taken)
            self._taken = 0
        return chunk

    async def aclose(self) -> None:
        """Nobody wants the rest."""
        self._query.cancel()
        self._chunks.clear()
        self.waiting = 0

    # From the query

    def came(self, chunk: bytes) -> None:
        """Rows are here."""
        self._chunks.append(chunk)
        self.waiting += len(chunk)
        self._wake()

    def ended(self, problem: MaitredError | None, *, at_once: bool) -> None:
        """There are no more; `at_once`: what is here already is not wanted either."""
        self._problem = problem
        if at_once:
            self._chunks.clear()
            self.waiting = 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
