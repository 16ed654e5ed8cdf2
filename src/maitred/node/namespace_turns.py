"""A lock for which namespaces take turns.

Whoever waits for a plain lock waits behind everybody who came before. A namespace that sends a
thousand requests would make all others wait for a thousand turns; here they wait for one turn of
each namespace that has something to do.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from maitred.matching.fair_lines import FairLines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class NamespaceTurns:
    """One at a time: first namespaces in rotation, then, within one, in the order of arrival."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: FairLines[asyncio.Future[None]] = FairLines()

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn of the namespace, and have it for as long as the block takes."""
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
        """Hand the turn over; it stays taken meanwhile, so that no other request gets it first."""
        while self._waiting:
            (called,) = self._waiting.take(1)
            if not called.done():
                called.set_result(None)
                return
        self._busy = False
