"""What a program says to ask a query: a queue, arguments, how long it may take.

Arguments are written as msgpack here and results read; `query_gateway.py` does everything between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import msgspec
from msgspec import msgpack

from maitred.client.answers import Rows
from maitred.dispatch.ask import Ask
from maitred.errors import InvalidArgument, InvalidArguments, InvalidResult, MaitredError
from maitred.protocol.rows import as_array, ends

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from maitred.client.answers import Whole
    from maitred.client.asked_query import AskedQuery

Row = TypeVar("Row")

NAMESPACE: Final = "default"

LARGE_BYTES: Final = 64 * 1024
"""Chunks from here on are read row by row: their rows are large, or there is time enough."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)

_encode: Final = msgpack.Encoder().encode
read_anything: Final = msgpack.Decoder().decode
read_any_rows: Final = msgpack.Decoder(list[Any]).decode


def written(args: tuple[Any, ...], named: Mapping[str, Any] | None) -> bytes:
    """Arguments as bytes: in order, or by name."""
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


def asked(
    queue: str,
    payload: bytes,
    deadline: float,
    *,
    namespace: str | None = None,
    priority: int = 2,
    idempotent: bool = False,
    do_not_queue: bool = False,
    rows: bool = False,
    user: str = "",
) -> Ask:
    """The query. Without a namespace, the queue may say it: `namespace/queue`."""
    if namespace is None:
        if not isinstance(queue, str):
            raise InvalidArgument(f"A queue is named by text, not {queue!r:.80}.")
        namespace = NAMESPACE
        if "/" in queue:
            namespace, _, queue = queue.partition("/")
    return Ask(
        namespace=namespace,
        queue=queue,
        payload=payload,
        deadline=deadline,
        priority=priority,
        idempotent=bool(idempotent),
        do_not_queue=bool(do_not_queue),
        rows=rows,
        user=user,
    )


def read_whole(whole: Whole | Rows, read: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - the result
    """The result of a query that wanted one in one piece."""
    if isinstance(whole, Rows):
        raise InvalidResult("The worker streamed a result that was wanted in one piece.")
    try:
        return read(whole.body)
    except UNREADABLE as problem:
        raise InvalidResult(f"The result is no msgpack, or not what was said: {problem}.") from None


def _read_each(chunk: bytes, read: Callable[[memoryview], Row]) -> list[Row]:
    view, at, rows = memoryview(chunk), 0, []
    for end in ends(chunk):
        rows.append(read(view[at:end]))
        at = end
    return rows


class Stream(Generic[Row]):
    """Rows of a query, one by one: `async for row in client.stream(...)`.

    Begins when the first row is asked for. Leaving early stops the handler: with `aclose()`, by the
    end of `async with`, or when nobody has the stream any more. A handler that is no generator has
    one result: the items of a list are its rows, anything else is one row.
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
        """For large chunks: to read them at once they have to be copied first."""
        self._running: AskedQuery | None = None
        self._rows: Rows | None = None
        self._batch: list[Row] = []
        """What was read and not taken, the next one last."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        while not self._batch:
            self._batch = await self.batch()
            self._batch.reverse()
        return self._batch.pop()

    async def batch(self) -> list[Row]:
        """Rows that came together; `StopAsyncIteration` at the end."""
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
        """Nobody wants the rest."""
        self._batch = []
        self.cancel()
        if self._rows is not None:
            await self._rows.aclose()

    def cancel(self) -> None:
        """The same, without waiting; on the loop of the stream."""
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
    """The same for ordinary code: `for row in client.stream(...)`.

    Rows are fetched as they are taken, so a slow program slows its handler down. `close()`, the end
    of `with`, or forgetting the stream stops the handler.
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
        """Nobody wants the rest."""
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
