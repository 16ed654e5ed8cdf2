"""What a type checker sees of handlers. Checked by mypy: an error that is not there, or no longer
there, fails `make check`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator  # noqa: TC003 - handlers' annotations are read
from typing import TYPE_CHECKING, assert_type

from maitred import App

app = App("typed")


@app.handler("thumbnails", retries=3, timeout=30)
async def thumbnail(url: str, size: int) -> str:
    """Makes one."""
    return f"{url}:{size}"


@app.handler("rows", idempotent=True)
async def rows(most: int) -> AsyncIterator[int]:
    for number in range(most):
        yield number


@app.handler("letters")
def letters(most: int) -> Iterator[str]:
    yield from "abc"[:most]


@app.handler("plain")
def plain(size: int, *, deep: bool = False) -> list[int]:
    return [size, deep]


if TYPE_CHECKING:
    from maitred.app.task import SyncTask, Task
    from maitred.client.query_calls import Stream, SyncStream

    async def right() -> None:
        task = await thumbnail.enqueue("u", size=1)
        assert_type(task, Task[str])
        assert_type(await task.result(timeout=1), str)
        assert_type(await thumbnail("u", 1), str)
        assert_type(plain(1), list[int])
        assert_type(plain.sync.enqueue(1, deep=True), SyncTask[list[int]])
        assert_type(plain.sync.enqueue(1).result(), list[int])
        assert_type(await plain.options(delay=5, priority=0).enqueue(1), Task[list[int]])
        assert_type(
            await thumbnail.enqueue_many([thumbnail.call("u", 1), thumbnail.call("v", size=2)]),
            list[Task[str]],
        )
        assert_type(await thumbnail.task("typed/thumbnails/0/1").result(), str)
        assert_type(await thumbnail.query("u", size=1), str)
        assert_type(thumbnail.sync.query("u", 1), str)
        assert_type(await plain.options(timeout=5, idempotent=True).query(1), list[int])
        assert_type(await rows.query(3), list[int])
        assert_type(await (await letters.enqueue(3)).result(), list[str])
        assert_type(rows.stream(3), Stream[int])
        assert_type(letters.sync.stream(3), SyncStream[str])
        assert_type([row async for row in rows.stream(3)], list[int])
        assert_type(list(letters.sync.stream(3)), list[str])
        assert_type([row async for row in rows(3)], list[int])

    async def wrong() -> None:
        await thumbnail.enqueue("u", "1")  # type: ignore[arg-type]
        await thumbnail.enqueue("u")  # type: ignore[call-arg]
        await thumbnail.enqueue("u", 1, depth=2)  # type: ignore[call-arg]
        plain.sync.enqueue("1")  # type: ignore[arg-type]
        thumbnail.call(1, 1)  # type: ignore[arg-type]
        await thumbnail.enqueue_many([plain.call(1)])  # type: ignore[list-item]
        thumbnail.options(priority="high")  # type: ignore[arg-type]
        thumbnail.options(retry=1)  # type: ignore[call-arg]
        plain("x")  # type: ignore[arg-type]
        await thumbnail.query("u", "1")  # type: ignore[arg-type]
        rows.stream("3")  # type: ignore[arg-type]
        thumbnail.stream("u", 1)  # type: ignore[misc]
        letters.sync.query("x")  # type: ignore[arg-type]


def test_a_handler_that_is_called_is_the_function_that_it_was() -> None:
    assert asyncio.run(thumbnail("u", 2)) == "u:2"
    assert plain(3, deep=True) == [3, True]
    assert thumbnail.__doc__ == "Makes one."
    assert list(letters(2)) == ["a", "b"]
