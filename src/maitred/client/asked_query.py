"""A query that was asked, as its caller has it: something to await, or to be told by."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from maitred.client.answers import Rows, Whole
from maitred.dispatch.pending_query import PendingQuery
from maitred.errors import Cancelled, MaitredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.ask import Ask
    from maitred.dispatch.dispatcher import Dispatcher
    from maitred.dispatch.query_table import QueryEntry


class AskedQuery(PendingQuery):
    """Made by `QueryGateway.begin`."""

    __slots__ = ("_outcome", "_rows", "_then", "_waiter", "loop")

    def __init__(
        self,
        dispatcher: Dispatcher,
        ask: Ask,
        entry: QueryEntry,
        now: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(dispatcher, ask, entry, now)
        self.loop = loop
        """The loop on which it runs."""
        self._rows: Rows | None = None
        self._outcome: Whole | Rows | MaitredError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._then: Callable[[Whole | Rows | MaitredError], None] | None = None

    async def answer(self) -> Whole | Rows:
        """Wait for the result, or for a stream to begin; raises the error that it came to."""
        if self._outcome is None:
            self._waiter = waiter = self.loop.create_future()
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        outcome = self._outcome
        if outcome is None or isinstance(outcome, MaitredError):
            raise outcome or Cancelled("The query was cancelled.")
        return outcome

    def then(self, told: Callable[[Whole | Rows | MaitredError], None]) -> None:
        """In place of `answer`, for a caller without a task to wait in: call this, once, with what
        the query came to."""
        if self._outcome is None:
            self._then = told
        else:
            told(self._outcome)

    def cancel(self) -> None:
        """Stop the query; of no effect if it is over."""
        self.leave(self.loop.time())

    def taken(self, size: int) -> None:
        """The caller took this many bytes of rows."""
        self.took(size, self.loop.time())

    # From the dispatcher

    def hand_rows(self, chunk: bytes) -> None:
        if self._rows is not None:
            self._rows.came(chunk)
            return
        self._begin_rows().came(chunk)
        self._wake()

    def _begin_rows(self) -> Rows:
        self._rows = self._outcome = Rows(self, self._dispatcher.window_bytes)
        return self._rows

    def hand_answer(
        self, body: bytes, problem: MaitredError | None, *, drop_rows: bool = False
    ) -> None:
        if self.streams:
            (self._rows or self._begin_rows()).ended(problem, at_once=drop_rows)
        else:
            self._outcome = Whole(body) if problem is None else problem
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        then = self._then
        if then is not None and self._outcome is not None:
            self._then = None
            then(self._outcome)
