"""A lock for which namespaces take turns.

A plain lock serves requests in the order of arrival: a namespace that sends a thousand requests
would make all others wait for a thousand turns. Here each waits for one turn of every namespace
with waiting requests.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from maitred.matching.fair_lines import FairLines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class NamespaceTurns:
    """Serves one request at a time: namespaces in rotation, and by arrival within a namespace."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: FairLines[asyncio.Future[None]] = FairLines()

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn of the namespace, and hold the lock for the block."""
        if self._busy:
            await self._until_called(namespace)
        self._busy = True
        try:
            yield
        finally:
            self._call_next()

    async def _until_called(self, namespace: str) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(namespace, called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called and cancelled at once
                self._call_next()
            raise

    def _call_next(self) -> None:
        """Hand the lock over without releasing it, so that no other request gets it first."""
        while self._waiting:
            (called,) = self._waiting.take(1)
            if not called.done():
                called.set_result(None)
                return
        self._busy = False
