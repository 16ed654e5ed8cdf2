"""The asyncio tasks of a shard, which end with it; their failures are logged."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError
from maitred.node.deferred_reply import node_fault

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from msgspec import Struct

    from maitred.logs import Logger
    from maitred.node.deferred_reply import DeferredReply


class ShardTasks:
    """Runs coroutines until they end or the shard closes."""

    def __init__(self, log: Logger) -> None:
        self.loop = asyncio.get_running_loop()
        self.log = log
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def cancel_tasks(self) -> None:
        """Cancel all tasks: the shard closes."""
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the shard closes."""
        task = self.loop.create_task(running)
        self._tasks[task] = None
        task.add_done_callback(self._spawned_done)
        return task

    def answer_with(self, reply: DeferredReply, answer: Coroutine[Any, Any, Struct]) -> None:
        """Answer a request with what a coroutine returns; cancel the coroutine if the caller does
        not wait any more."""
        task = self.loop.create_task(answer)
        self._tasks[task] = None
        reply.on_stop = task.cancel
        task.add_done_callback(partial(self._answered, reply))

    def _answered(self, reply: DeferredReply, task: asyncio.Task[Struct]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            if reply.wanted:  # else it was cancelled because the caller left
                self.log.error("request failed", reason="its task was cancelled")
                reply.refuse(node_fault())
            return
        with reply.refused_on_error(self.log):
            reply.answer(task.result())

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.log.error("background task failed", exc_info=task.exception())

    @contextmanager
    def failures_logged(self, event: str) -> Iterator[None]:
        """Log what the block raises: periodic work must survive one failure. An error such as an
        unavailable store is logged elsewhere, so this logs it for debugging only."""
        try:
            yield
        except MaitredError as problem:
            self.log.debug(event, error=problem)
        except Exception:
            self.log.exception(event)
