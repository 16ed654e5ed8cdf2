"""Asyncio tasks that run beside their owner, and end with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class BackgroundTasks:
    """Keeps a reference to each running task, as asyncio requires, and cancels all at the end."""

    __slots__ = ("_loop", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, running: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine in a task."""
        task = self._loop.create_task(running)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def cancel(self) -> None:
        """Cancel the tasks that run, without waiting for their ends."""
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cancel the tasks that run, and wait for their ends."""
        self.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
