"""A query as its caller has it: an object to await, or to be told by; and its answer, which is one
whole result or the rows of a stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from msgspec import Struct

from maitred.dispatch.pending_query import PendingQuery
from maitred.errors import Cancelled, InvalidResult, MaitredError
from maitred.protocol.messages import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.dispatch.ask import Ask
    from maitred.dispatch.dispatcher import Dispatcher
    from maitred.telemetry.tracing import OpenSpan

Result = TypeVar("Result")


class Whole(Struct, gc=False):
    """A result in one piece."""

    body: bytes
    """The result, as msgpack."""

    def read(self, decode: Callable[[bytes], Result]) -> Result:
        """Decode the result; raise `InvalidResult` if that is impossible."""
        try:
            return decode(self.body)
        except UNREADABLE as problem:
            raise InvalidResult(
                f"The result is no msgpack, or not what was said: {problem}."
            ) from None


class Rows:
    """A stream that has begun: chunks of rows, each of them msgpack values one after the other.

    Taking a chunk lets the worker send more. A caller that leaves early closes the stream, or
    cancels the query.
    """

    __slots__ = ("_chunks", "_credit_bytes", "_problem", "_query", "_taken", "_waiter", "waiting")

    def __init__(self, query: AskedQuery, window_bytes: int) -> None:
        self._query = query
        self._chunks: deque[bytes] = deque()
        self.waiting = 0
        """Bytes that have arrived and were not taken."""
        self._taken = 0
        self._credit_bytes = window_bytes // 4
        self._waiter: asyncio.Future[None] | None = None
        self._problem: MaitredError | None = None

    @property
    def sequence(self) -> int:
        """The query's number in the table."""
        return self._query.sequence

    def read(self, decode: Callable[[bytes], Result]) -> NoReturn:  # noqa: ARG002
        """Raise `InvalidResult`: the caller wanted the result in one piece."""
        raise InvalidResult("The worker streamed a result that was wanted in one piece.")

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
        # Often enough that the worker need not pause, and always before this end waits.
        if self._taken >= self._credit_bytes or not self._chunks:
            self._query.taken(self._taken)
            self._taken = 0
        return chunk

    async def aclose(self) -> None:
        """Drop the remaining rows and stop the handler."""
        self._query.cancel()
        self._chunks.clear()
        self.waiting = 0

    # For the query

    def came(self, chunk: bytes) -> None:
        """Add rows that have arrived."""
        self._chunks.append(chunk)
        self.waiting += len(chunk)
        self._wake()

    def ended(self, problem: MaitredError | None, *, at_once: bool) -> None:
        """End the stream; with `at_once`, drop the rows that were not taken."""
        self._problem = problem
        if at_once:
            self._chunks.clear()
            self.waiting = 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AskedQuery(PendingQuery):
    """A query of a caller on an event loop; made by `QueryGateway.begin`."""

    __slots__ = ("_outcome", "_rows", "_span", "_then", "_waiter", "loop")

    def __init__(
        self,
        dispatcher: Dispatcher,
        ask: Ask,
        *,
        now: float,
        wall: float,
        loop: asyncio.AbstractEventLoop,
        span: OpenSpan | None = None,
    ) -> None:
        super().__init__(dispatcher, ask, now, wall)
        self.loop = loop
        self._span = span
        """Its span, until it ends; None if the gateway does not trace."""
        self._rows: Rows | None = None
        self._outcome: Whole | Rows | MaitredError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._then: Callable[[Whole | Rows | MaitredError], None] | None = None

    async def answer(self) -> Whole | Rows:
        """Wait for the result, or for the first row of a stream; raises the query's error."""
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
        """Call this, once, with what `answer` would return or raise; for callers without a task."""
        if self._outcome is None:
            self._then = told
        else:
            told(self._outcome)

    def cancel(self) -> None:
        """Stop the query; without effect if it is over."""
        self.leave(self.loop.time())

    def taken(self, size: int) -> None:
        """The caller took this many bytes of rows."""
        self.took(size, self.loop.time())

    # For the dispatcher

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
        if self._span is not None:
            self.end_span()
        self._wake()

    def end_span(self) -> None:
        """End the span, if there is one that has not ended, as the row in the query table says. Of
        an error it has the class or the code: a message may quote arguments."""
        span, self._span = self._span, None
        if span is not None:
            entry = self.entry
            error = "" if entry.status == "done" else entry.error.partition(":")[0] or entry.status
            span.query_ended(entry.status, entry.worker, entry.attempts, error)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        then = self._then
        if then is not None and self._outcome is not None:
            self._then = None
            then(self._outcome)
