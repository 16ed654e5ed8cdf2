"""A thread that belongs to one store, and runs one call after another for an event loop.

SQLite's calls block, and an event loop must not. A pool of threads would work too, but a connection
is best kept in one thread, and calls should run in the order in which they were made.

A call is finished even if its caller was cancelled: a commit cannot be undone.
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
    """Runs calls from its creation until `close`; a daemon, so a process that exits does not wait
    for it."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._calls.qsize()} calls wait"
        return f"<OwnedThread {self._thread.name!r}, {state}>"

    async def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401
        """Run the function in the thread after all earlier calls; return or raise what it does."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        return await self._put(function, *arguments)

    async def close(self, function: Callable[[], object]) -> None:
        """Finish all earlier calls, run this function last, and end; later calls do nothing."""
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
            except BaseException as problem:  # noqa: BLE001 - every error goes to the caller
                answer = None, problem
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, *answer)
            # Do not keep arguments and results alive until the next call.
            del call, future, function, arguments, answer


def _settle(future: asyncio.Future[Any], result: object, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)
