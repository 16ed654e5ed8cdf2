"""The client for code without asyncio: an `AsyncClient` on a loop in a thread of its own.

Any number of threads may use one client. A call that is interrupted (Ctrl-C) takes its request
back. After `close()`, every call raises `Closed`; a call that was waiting gets its answer or that.

The lock makes handing a call to the loop and closing follow one another, so that no call can be
handed to a loop that will not run it any more and wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import uvloop

from maitred.client.client import AsyncClient
from maitred.client.query_calls import Stream, SyncStream
from maitred.client.router import closed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Row = TypeVar("_Row")


def _waits(
    method: Callable[Concatenate[AsyncClient, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Client, _Given], _Result]:
    """Make a method that runs a coroutine of the `AsyncClient`, and waits for its result."""

    @wraps(method)
    def waiting(client: Client, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        return client.wait_for(method(client.on_loop, *args, **kwargs))

    return waiting


def _calls(
    method: Callable[Concatenate[AsyncClient, _Given], _Result],
) -> Callable[Concatenate[Client, _Given], _Result]:
    """Make a method that calls one of the `AsyncClient` on the client's loop."""

    @wraps(method)
    async def calling(
        client: AsyncClient, /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> _Result:
        return method(client, *args, **kwargs)

    return _waits(calling)


def _streams(
    method: Callable[Concatenate[AsyncClient, _Given], Stream[_Row]],
) -> Callable[Concatenate[Client, _Given], SyncStream[_Row]]:
    """Make a method that returns the stream of the `AsyncClient` as a `SyncStream`."""

    @wraps(method)
    def streaming(
        client: Client, /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> SyncStream[_Row]:
        stream = method(client.on_loop, *args, **kwargs)
        return SyncStream(stream, lambda work: client.wait_for(work()))

    return streaming


class Client:
    """A client for threads, made by `maitred.connect`. Its methods are those of `AsyncClient`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, AsyncClient]]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._stopped = False
        self._closing: Future[None] | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="maitred-client", daemon=True)
        self._thread.start()
        try:
            self.on_loop = self.wait_for(open_client())
            """The client that runs on the loop; use it there only."""
        except BaseException:
            self._stop()
            raise

    def __repr__(self) -> str:
        return repr(self.on_loop).replace("AsyncClient", "Client", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    request = _waits(AsyncClient.request)
    echo = _waits(AsyncClient.echo)
    status = _waits(AsyncClient.status)
    statuses = _waits(AsyncClient.statuses)
    covered = _waits(AsyncClient.covered)
    query = _waits(AsyncClient.query)
    nodes = _calls(AsyncClient.nodes)
    statistics = _calls(AsyncClient.statistics)
    stream = _streams(AsyncClient.stream)

    def call(self, work: Callable[[AsyncClient], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `work` on the client's loop, and return its result."""
        return self.wait_for(work(self.on_loop))

    def close(self) -> None:
        """See `AsyncClient.close`; may be called again, and from any thread."""
        with self._lock:
            if not self._closed:
                self._closing = self._submit(self.on_loop.close())
                self._closed = True
        try:
            if self._closing is not None:
                self._closing.result()
        finally:
            self._stop()

    # The thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            _finish(self._loop)
        finally:
            self._loop.close()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            if not self._stopped:
                # Once: a second one would interrupt the loop while it ends what is left.
                self._stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _submit(self, running: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return asyncio.run_coroutine_threadsafe(running, self._loop)

    def wait_for(self, running: Coroutine[Any, Any, _Result]) -> _Result:
        """Run the coroutine on the client's loop, and return its result."""
        with self._lock:
            if self._closed:
                running.close()
                raise closed()
            future = self._submit(running)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # of no effect unless it was interrupted
            raise


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the remaining tasks, so that no thread waits for one that will not run again."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    # One more turn: what the tasks came to has to reach the threads that wait for it.
    loop.run_until_complete(asyncio.sleep(0))
