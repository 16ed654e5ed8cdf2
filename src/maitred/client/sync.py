"""The same client for ordinary code: a loop in a thread of its own, behind a small facade.

Any number of threads may use one client. A call that is interrupted (Ctrl-C) takes its request
back. After `close()`, every call raises `Closed`; a call that was waiting gets its answer or that.

The lock makes handing a call to the loop and closing follow one another, so that no call can be
handed to a loop that will not run it any more and wait for ever.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from maitred.client.query_calls import SyncStream
from maitred.client.router import closed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from maitred.client.client import AnyAnswer, AsyncClient
    from maitred.client.statistics import Statistics
    from maitred.client.views import NodeView, Unreachable
    from maitred.protocol.messages import AnyRequest, Echoed, ShardStatus

_Result = TypeVar("_Result")


class Client:
    """Made by `maitred.connect`. Safe for many threads."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, AsyncClient]]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._stopped = False
        self._closing: Future[None] | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="maitred-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(open_client())
        except BaseException:
            self._stop()
            raise

    def __repr__(self) -> str:
        return repr(self._client).replace("AsyncClient", "Client", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def request(
        self, message: AnyRequest, timeout: float | None = None, *, node: str | None = None
    ) -> AnyAnswer:
        """See `AsyncClient.request`."""
        return self._wait(self._client.request(message, timeout, node=node))

    def echo(
        self,
        namespace: str,
        queue: str,
        payload: bytes,
        *,
        partition: int = 0,
        queue_type: int = 1,
        hold: float = 0,
        timeout: float | None = None,
    ) -> Echoed:
        """See `AsyncClient.echo`."""
        return self._wait(
            self._client.echo(
                namespace,
                queue,
                payload,
                partition=partition,
                queue_type=queue_type,
                hold=hold,
                timeout=timeout,
            )
        )

    def status(
        self, shard: int, node: str | None = None, timeout: float | None = None
    ) -> ShardStatus:
        """See `AsyncClient.status`."""
        return self._wait(self._client.status(shard, node, timeout))

    def statuses(self, timeout: float | None = None) -> list[ShardStatus | Unreachable]:
        """See `AsyncClient.statuses`."""
        return self._wait(self._client.statuses(timeout))

    def covered(self) -> None:
        """See `AsyncClient.covered`."""
        self._wait(self._client.covered())

    def nodes(self) -> tuple[NodeView, ...]:
        """See `AsyncClient.nodes`."""
        return self._wait(_called(self._client.nodes))

    def statistics(self) -> Statistics:
        """See `AsyncClient.statistics`."""
        return self._wait(_called(self._client.statistics))

    def query(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> Any:  # noqa: ANN401 - what the handler returns
        """See `AsyncClient.query`."""
        return self._wait(
            self._client.query(
                queue,
                *args,
                named=named,
                timeout=timeout,
                namespace=namespace,
                priority=priority,
                idempotent=idempotent,
                do_not_queue=do_not_queue,
            )
        )

    def stream(
        self,
        queue: str,
        *args: Any,  # noqa: ANN401 - the handler says which
        named: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
        priority: int = 2,
        idempotent: bool = False,
        do_not_queue: bool = False,
    ) -> SyncStream[Any]:
        """See `AsyncClient.stream`; close it if you leave early."""
        stream = self._client.stream(
            queue,
            *args,
            named=named,
            timeout=timeout,
            namespace=namespace,
            priority=priority,
            idempotent=idempotent,
            do_not_queue=do_not_queue,
        )
        return SyncStream(stream, lambda work: self._wait(work()))

    def call(self, work: Callable[[AsyncClient], Coroutine[Any, Any, _Result]]) -> _Result:
        """Have the client's own loop do this, and wait for what comes of it."""
        return self._wait(work(self._client))

    def close(self) -> None:
        """See `AsyncClient.close`; may be called again, and from any thread."""
        with self._lock:
            if not self._closed:
                self._closing = self._submit(self._client.close())
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

    def _wait(self, running: Coroutine[Any, Any, _Result]) -> _Result:
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


async def _called(function: Callable[[], _Result]) -> _Result:
    return function()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left, so that nobody waits for a task that will not run again."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    # One more turn: what the tasks came to has to reach the threads that wait for it.
    loop.run_until_complete(asyncio.sleep(0))
