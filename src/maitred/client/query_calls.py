"""The arguments of a program's queries as msgpack, and the rows of its streams as values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import msgspec
from msgspec import msgpack

from maitred.client.asked_query import Rows
from maitred.errors import InvalidArguments, InvalidResult, MaitredError
from maitred.protocol.messages import UNREADABLE
from maitred.protocol.rows import as_array, ends

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from maitred.client.asked_query import AskedQuery

Row = TypeVar("Row")

LARGE_BYTES: Final = 64 * 1024
"""Chunks of this size and more are decoded row by row, without a copy of the whole chunk."""

UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)

_encode: Final = msgpack.Encoder().encode
read_anything: Final = msgpack.Decoder().decode
read_any_rows: Final = msgpack.Decoder(list[Any]).decode


def written(args: tuple[Any, ...], named: Mapping[str, Any] | None) -> bytes:
    """Encode arguments: in order, or by name."""
    if named is None:
        value: object = args
    elif args:
        raise InvalidArguments(
            "A query has arguments in order and by name.",
            remedy="Give all of them in order, or all of them in `named`.",
        )
    else:
        value = dict(named)
    try:
        return _encode(value)
    except UNWRITABLE as problem:
        raise InvalidArguments(
            f"The arguments cannot be written down: {str(problem).rstrip('.')}.",
            remedy="Give plain values, dataclasses or msgspec Structs.",
        ) from None


def _read_each(chunk: bytes, read: Callable[[memoryview], Row]) -> list[Row]:
    view, at, rows = memoryview(chunk), 0, []
    for end in ends(chunk):
        rows.append(read(view[at:end]))
        at = end
    return rows


class Stream(Generic[Row]):
    """Rows of a query, one by one: `async for row in client.stream(...)`.

    The query begins when the first row is asked for. Leaving early stops the handler: with
    `aclose()`, by the end of `async with`, or when the stream is garbage-collected. A handler that
    is not a generator has one result: the items of a list are its rows, anything else is one row.
    """

    __slots__ = ("_batch", "_begin", "_read", "_read_row", "_rows", "_running")

    def __init__(
        self,
        begin: Callable[[], Coroutine[Any, Any, AskedQuery]],
        read: Callable[[bytes], list[Row]],
        read_row: Callable[[memoryview], Row] | None = None,
    ) -> None:
        self._begin = begin
        self._read = read
        self._read_row = read_row
        """Decodes one row of a large chunk: to decode all at once they have to be copied first."""
        self._running: AskedQuery | None = None
        self._rows: Rows | None = None
        self._batch: list[Row] = []
        """Rows that were decoded and not taken, the next one last."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        while not self._batch:
            self._batch = await self.batch()
            self._batch.reverse()
        return self._batch.pop()

    async def batch(self) -> list[Row]:
        """Return rows that came together; raise `StopAsyncIteration` at the end."""
        if self._running is None:
            self._running = await self._begin()
            answer = await self._running.answer()
            if not isinstance(answer, Rows):
                return self._read_list(answer.body)
            self._rows = answer
        if self._rows is None:
            raise StopAsyncIteration
        chunk = await anext(self._rows)
        try:
            if self._read_row is not None and len(chunk) >= LARGE_BYTES:
                return _read_each(chunk, self._read_row)
            return self._read(as_array(chunk))
        except UNREADABLE as problem:
            await self.aclose()
            raise InvalidResult(f"A row is not what was said: {problem}.") from None
        except MaitredError:
            await self.aclose()
            raise

    def _read_list(self, body: bytes) -> list[Row]:
        try:
            value = read_anything(body)
            if isinstance(value, list):
                return self._read(body)
            return self._read(b"\x91" + body)
        except UNREADABLE as problem:
            raise InvalidResult(f"A row is not what was said: {problem}.") from None

    async def aclose(self) -> None:
        """Drop the remaining rows and stop the handler."""
        self._batch = []
        self.cancel()
        if self._rows is not None:
            await self._rows.aclose()

    def cancel(self) -> None:
        """Stop the handler without waiting; call it on the loop of the stream."""
        if self._running is not None:
            self._running.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        running = self._running
        if running is None or running.over:
            return
        loop = running.loop
        if loop.is_closed():
            return
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            running.cancel()
        else:
            loop.call_soon_threadsafe(running.cancel)


class SyncStream(Generic[Row]):
    """Rows of a query for code without asyncio: `for row in client.stream(...)`.

    Rows are fetched as they are taken, so a slow program slows its handler down. `close()`, the end
    of `with`, or garbage collection stops the handler.
    """

    __slots__ = ("_batch", "_run", "_stream")

    def __init__(
        self,
        stream: Stream[Row],
        run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
    ) -> None:
        self._stream = stream
        self._run = run
        self._batch: list[Row] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while not self._batch:
            batch = self._run(self._next_batch)
            if batch is None:
                raise StopIteration
            self._batch = batch
            self._batch.reverse()
        return self._batch.pop()

    def close(self) -> None:
        """Drop the remaining rows and stop the handler."""
        self._batch = []
        self._run(self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _next_batch(self) -> list[Row] | None:
        try:
            return await self._stream.batch()
        except StopAsyncIteration:
            return None
