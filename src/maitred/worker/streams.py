"""The rows of a stream on their way out: gathered into frames, and bounded by the window.

The rows of one turn of the loop are sent together, at most `chunk_bytes` at a time. The window
bounds the bytes that the gateway has not taken yet: a row that does not fit waits, and its
generator with it. A row that is larger than the window is sent alone.

`RowStream` belongs to the loop. `ThreadRows` is filled by the thread that a plain generator runs
in, and emptied by the loop. `Gathered` is for tasks and for callers who take no rows: they get a
list in the end. It is encoded row by row, so that a list that is too large is noticed before it has
filled the memory.
"""

from __future__ import annotations

import asyncio
from struct import Struct as Layout
from threading import Condition
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Raw

from maitred.app.attempt import current
from maitred.protocol.tasks import DONE
from maitred.worker import outcomes
from maitred.worker.outcomes import NIL, QUERY_TOO_LARGE, TOO_LARGE, Unfit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Protocol

    from maitred.app.attempt import Attempt
    from maitred.worker.outcomes import Ending

    class Outlet(Protocol):
        """The party that frames with rows are sent to."""

        @property
        def body_bytes(self) -> int:
            """Largest body of a frame that it takes."""

        def rows(self, stream: int, parts: list[bytes], size: int) -> None: ...


TURN_ROWS: Final = 1_024
"""Rows after which a generator that never awaits anything yields to the loop."""

LARGE_BYTES: Final = 16 * 1024
"""Rows of `bytes` from this size on are sent without a copy."""

_binary32: Final = Layout(">BI").pack
_array16: Final = Layout(">BH").pack
_array32: Final = Layout(">BI").pack


class StreamLimits(NamedTuple):
    """How many bytes of rows go where."""

    window_bytes: int
    """Bytes that the gateway may not have taken yet."""
    chunk_bytes: int
    """Bytes from which on gathered rows are sent."""
    most_bytes: int
    """Bytes of the whole stream; 0: no limit."""


class RowStream:
    """Sends the rows of one query whose generator runs on the loop."""

    def __init__(
        self, outlet: Outlet, stream: int, limits: StreamLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.count = 0
        self.blocked = False
        """Whether the gathered rows have to wait for the gateway."""
        self.closed = False
        self._total = 0
        self._outlet = outlet
        self._stream = stream
        self._window = limits.window_bytes
        self._most_bytes = limits.most_bytes
        self._frame_bytes = outlet.body_bytes
        self._chunk_bytes = min(limits.chunk_bytes, self._frame_bytes)
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self._untaken = 0
        self._flush_soon = False
        self._unblocked: asyncio.Future[None] | None = None

    # The generator's side

    def put(self, row: object) -> bool:
        """Add a row; return whether to `pause` before the next one. Raise `Unfit` if it cannot be
        sent."""
        return self._put(*self._written(row))

    async def pause(self) -> None:
        """Wait until there is room; if there is, for one turn of the loop."""
        if not self.blocked:
            await asyncio.sleep(0)
            return
        self._unblocked = self._loop.create_future()
        try:
            await self._unblocked
        finally:
            self._unblocked = None

    def ending(self) -> Ending:
        """Return the ending of a query whose generator has ended."""
        return DONE, NIL

    # The gateway's side

    def credit(self, taken: int) -> None:
        """Note that the gateway has taken so many bytes."""
        self._untaken = max(0, self._untaken - taken)
        if self.blocked and self._fits():
            self.blocked = False
            self._send()
            if self._unblocked is not None and not self._unblocked.done():
                self._unblocked.set_result(None)

    def flush(self) -> None:
        """Send the gathered rows, unless they have to wait."""
        self._flush_soon = False
        if self._parts and not self.blocked and not self.closed:
            self._send()

    def close(self) -> None:
        """Drop all further rows: the caller does not want them any more."""
        self.closed = True
        self._parts = []

    # Inside

    def _written(self, row: object) -> tuple[bytes, ...]:
        parts: tuple[bytes, ...]
        if type(row) is bytes and len(row) >= LARGE_BYTES:
            parts = (_binary32(0xC6, len(row)), row)  # as msgpack has it, without the copy
            size = len(row) + len(parts[0])
        else:
            parts = (outcomes.row(row),)
            size = len(parts[0])
        self._total += size
        self.count += 1
        if size > self._frame_bytes:
            raise Unfit(
                outcomes.failure(
                    QUERY_TOO_LARGE,
                    f"A row of {size:,} bytes is more than the {self._frame_bytes:,} that "
                    "fit into one frame.",
                )
            )
        if self._most_bytes and self._total > self._most_bytes:
            raise Unfit(_too_large("stream", self._most_bytes, QUERY_TOO_LARGE))
        return parts

    def _put(self, *parts: bytes) -> bool:
        size = sum(map(len, parts))
        more = self._size + size
        if self._size and (self._untaken + more > self._window or more > self._frame_bytes):
            self._send()
            more = size
        self._parts += parts
        self._size = more
        if not self._fits():
            self.blocked = True
            return True
        if more >= self._chunk_bytes:
            self._send()
            return True
        if not self._flush_soon:
            self._flush_soon = True
            self._call_flush()
        return not self.count % TURN_ROWS

    def _fits(self) -> bool:
        return not self._untaken or self._untaken + self._size <= self._window

    def _send(self) -> None:
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        self._untaken += size
        self._hand_over(parts, size)

    def _call_flush(self) -> None:
        self._loop.call_soon(self.flush)

    def _hand_over(self, parts: list[bytes], size: int) -> None:
        if not self.closed:
            self._outlet.rows(self._stream, parts, size)


class ThreadRows(RowStream):
    """Sends the rows of one query whose generator runs in a thread."""

    def __init__(
        self, outlet: Outlet, stream: int, limits: StreamLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(outlet, stream, limits, loop)
        self._changed = Condition()
        self._ready: list[tuple[list[bytes], int]] = []

    def put(self, row: object) -> bool:
        """In the thread: add a row, and wait while there is no room."""
        parts = self._written(row)
        with self._changed:
            self._put(*parts)
            while self.blocked and not self.closed:
                self._changed.wait()
        return False

    def credit(self, taken: int) -> None:
        """On the loop: see `RowStream.credit`."""
        with self._changed:
            self._flush_soon = True  # keeps `credit` from scheduling a flush: it follows below
            super().credit(taken)
            self._changed.notify()
        self.flush()

    def flush(self) -> None:
        """On the loop: see `RowStream.flush`."""
        with self._changed:
            self._flush_soon = True
            if self._parts and not self.blocked and not self.closed:
                self._send()
            self._flush_soon = False
            ready, self._ready = self._ready, []
        for parts, size in ready:
            super()._hand_over(parts, size)

    def close(self) -> None:
        """On the loop: see `RowStream.close`."""
        with self._changed:
            super().close()
            self._changed.notify()

    def _call_flush(self) -> None:
        self._loop.call_soon_threadsafe(self.flush)

    def _hand_over(self, parts: list[bytes], size: int) -> None:
        self._ready.append((parts, size))
        if not self._flush_soon:
            self._flush_soon = True
            self._call_flush()


class Gathered:
    """Gathers rows into one list in msgpack."""

    blocked = False

    def __init__(self, most_bytes: int, too_large: str = TOO_LARGE) -> None:
        self.count = 0
        self.closed = False
        self._most_bytes = most_bytes
        self._too_large = too_large
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, row: object) -> bool:
        """See `RowStream.put`."""
        body = outcomes.row(row)
        self._parts.append(body)
        self._size += len(body)
        self.count += 1
        if self._size > self._most_bytes:
            raise Unfit(_too_large("result", self._most_bytes, self._too_large))
        return not self.count % TURN_ROWS

    async def pause(self) -> None:
        """Yield to the loop for one turn."""
        await asyncio.sleep(0)

    def body(self) -> bytes:
        """Return the list in msgpack."""
        count = self.count
        if count < 16:
            head = bytes((0x90 | count,))
        elif count < 2**16:
            head = _array16(0xDC, count)
        else:
            head = _array32(0xDD, count)
        return b"".join((head, *self._parts))

    def ending(self) -> Ending:
        """Return the ending of a query whose generator has ended."""
        return DONE, self.body()

    def credit(self, taken: int) -> None:
        """Do nothing: there is no window."""

    def flush(self) -> None:
        """Do nothing: the rows are sent with the end."""

    def close(self) -> None:
        """Note that the caller does not want the rows any more."""
        self.closed = True


# Generators


async def drain(generator: AsyncGenerator[Any, None], rows: RowStream | Gathered) -> None:
    """Put out all rows of an async generator, and wait until the last ones are sent."""
    try:
        async for row in generator:
            if rows.put(row):
                await rows.pause()
        while rows.blocked:
            await rows.pause()
    finally:
        await generator.aclose()


def pump(
    generator: Generator[Any, None, None], rows: RowStream | Gathered, attempt: Attempt
) -> None:
    """In a thread: put out the rows of a plain generator, until the attempt is cancelled."""
    try:
        for row in generator:
            rows.put(row)
            if attempt.cancelled:
                break
    finally:
        generator.close()


def gathering(
    function: Callable[..., Any], most_bytes: int, *, is_async: bool
) -> Callable[..., Any]:
    """Return a function that returns all rows of a generator function as one list: what a task of
    that handler calls."""

    async def gather(*args: Any, **named: Any) -> Raw:  # noqa: ANN401 - the handler's
        rows = Gathered(most_bytes)
        await drain(function(*args, **named), rows)
        return Raw(rows.body())

    def gather_in_thread(*args: Any, **named: Any) -> Raw:  # noqa: ANN401 - the handler's
        rows = Gathered(most_bytes)
        pump(function(*args, **named), rows, current())
        return Raw(rows.body())

    return gather if is_async else gather_in_thread


def _too_large(what: str, most_bytes: int, kind: str) -> Ending:
    return outcomes.failure(kind, f"The {what} has more than the {most_bytes:,} bytes allowed.")
