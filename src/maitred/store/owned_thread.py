"""A thread that belongs to one store, and does one call after another for an event loop.

SQLite's calls block, and a loop must not. A pool of threads would do too, but a connection wants to
stay in its thread, and calls that follow one another should be done in that order.

What was begun is finished, also if whoever asked stopped waiting: a commit cannot be taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from maitred.errors import StoreUnavailable

_Result = TypeVar("_Result")
_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class OwnedThread:
    """Runs from the beginning until `close`. It is a daemon: a program that ends does not wait."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._closed = False

    async def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401
        """What the function returns or raises, in the thread, after all calls before this one."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        return await self._put(function, *arguments)

    async def close(self, function: Callable[[], object]) -> None:
        """Finish what was asked, call this as the last, and end. Only the first time counts."""
        if not self._closed:
            self._closed = True
            last = self._put(function)
            self._calls.put(None)
            await last

    def _put(self, function: Callable[..., _Result], *arguments: Any) -> asyncio.Future[_Result]:  # noqa: ANN401
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._calls.put((future, function, arguments))
        return future

    def _run(self) -> None:
        while call := self._calls.get():
            future, function, arguments = call
            answer: tuple[object, BaseException | None]
            try:
                answer = function(*arguments), None
            except BaseException as problem:  # noqa: BLE001 - whatever it is, it is the caller's
                answer = None, problem
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, *answer)
            # What was asked and answered must not live on until the next call comes.
            del call, future, function, arguments, answer


def _settle(future: asyncio.Future[Any], result: object, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)
