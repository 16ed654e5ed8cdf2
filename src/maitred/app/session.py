"""An app's connection on one event loop, and what the app has learned there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from maitred.client.enqueue_batches import EnqueueBatches
from maitred.client.queues import QueueView
from maitred.client.signatures import SignatureLookup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.client.client import AsyncClient
    from maitred.routing.names import QueueId
    from maitred.surroundings import Surroundings

    Result = TypeVar("Result")


class SyncRunner(Protocol):
    """Runs coroutines of an app for synchronous code."""

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run this on the app's own event loop, and wait for its result."""


class SessionOwner(Protocol):
    """The part of an app that handlers and tasks use."""

    namespace: str
    handlers: dict[str, Any]
    """Handlers by the name of their queue."""

    @property
    def sync(self) -> SyncRunner:
        """Runs coroutines for synchronous code."""

    async def session(self) -> Session:
        """Return the connection of the running event loop; the first call opens it."""


class Session:
    """The connection of an app on one event loop."""

    def __init__(self, client: AsyncClient, surroundings: Surroundings) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.wall_clock = surroundings.wall_clock
        """Tells the time, as unix time."""
        self._random = surroundings.random
        self._addings: dict[QueueId, EnqueueBatches] = {}
        self._signatures = SignatureLookup(client)
        self._tracing = surroundings.tracing

    def adding(self, queue: QueueId, selection: str) -> EnqueueBatches:
        """Return what batches enqueues to this queue; all producers share it, so that they share
        messages."""
        adding = self._addings.get(queue)
        if adding is None:
            view = QueueView(queue, selection, self._random)
            adding = self._addings[queue] = EnqueueBatches(
                self.client, view, self._signatures, tracing=self._tracing
            )
        return adding

    async def close(self) -> None:
        """Finish the requests in flight, and disconnect. Handlers then ask the app for a new
        session."""
        for adding in self._addings.values():
            adding.close()
        await self.client.close()
