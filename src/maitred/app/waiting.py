"""How a handler reports that it waits: `maitred.waiting()` and `maitred.offload()`.

A worker measures its capacity by distinguishing what it **serves** from what **waits** inside of it
(docs/capacity.md). It knows this for its own threads; that a handler waits for something else in
the worker's process, a semaphore or a connection of a pool, only the handler can tell:

    async with maitred.waiting():
        await connections.acquire()

    result = await maitred.offload(processes, render, page)

Waiting for another process, such as a database that computes, does not count: that is being served,
and more of it at a time may bring more. Outside of a worker nothing is counted, and both work all
the same.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from maitred.app.attempt import running
from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from maitred.app.attempt import Attempt, Meter

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class waiting:  # noqa: N801 - it is called as a function
    """While this is entered, the attempt waits for something inside of the worker. It works with
    `with` and `async with`, on the event loop and in a thread."""

    __slots__ = ("_attempt", "_meter")

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._meter: Meter | None = None

    def __enter__(self) -> None:
        if self._attempt is not None:
            raise InvalidArgument(
                "This waiting() was already entered.", remedy="Make one for each block."
            )
        self._attempt = attempt = running.get()
        self._meter = meter = attempt.meter
        if meter is not None:
            meter.wait(attempt)

    def __exit__(self, *_: object) -> None:
        attempt, self._attempt = self._attempt, None
        meter, self._meter = self._meter, None
        if attempt is not None and meter is not None:
            meter.go_on(attempt)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


async def offload(
    executor: Executor,
    function: Callable[Parameters, Result],
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    """Call the function in a pool of threads or processes. The call counts as waiting until the
    pool begins it. Cancelling the caller cancels a call that has not begun."""
    if not isinstance(executor, Executor):
        raise InvalidArgument(
            f"offload() needs an executor, not {executor!r:.80}.",
            remedy="Make a ThreadPoolExecutor or a ProcessPoolExecutor once, and keep it.",
        )
    future: Future[Result]
    if isinstance(executor, ThreadPoolExecutor):  # `maitred.current()` works there
        future = executor.submit(copy_context().run, function, *args, **kwargs)  # type: ignore[arg-type]
    else:
        future = executor.submit(function, *args, **kwargs)
    attempt = running.get()
    meter = attempt.meter
    if meter is not None and meter.loop is asyncio.get_running_loop():
        call = meter.submitted(attempt, executor)

        def over(_: Future[Any]) -> None:
            meter.finished(executor, call)

        future.add_done_callback(over)
    return await asyncio.wrap_future(future)
