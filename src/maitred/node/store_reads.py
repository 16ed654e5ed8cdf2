"""Reads of the store for callers who ask about one task: none of them waits longer than a commit.

A read cannot be taken back, so one that is not answered goes on, and its caller hears that the
store is away. Until a read is answered, callers hear so at once, and the store is not asked again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from maitred.matching.core import UNSAFE_SECONDS
from maitred.node.writer import store_silent

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from maitred.errors import StoreUnavailable

Found = TypeVar("Found")


class StoreReads:
    """The reads of one shard that callers wait for."""

    def __init__(self) -> None:
        self.silent: StoreUnavailable | None = None
        """What callers hear, until the store answers a read."""

    async def answer(self, read: Coroutine[Any, Any, Found]) -> Found:
        """Return what the store answers; raise `StoreUnavailable` after `UNSAFE_SECONDS`."""
        if self.silent is not None:
            read.close()
            raise self.silent.with_traceback(None)
        reading = asyncio.ensure_future(read)
        try:
            await asyncio.wait([reading], timeout=UNSAFE_SECONDS)
        finally:
            if not reading.done():
                reading.add_done_callback(self._answered)
        if reading.done():
            return reading.result()
        self.silent = store_silent(UNSAFE_SECONDS)
        raise self.silent

    def _answered(self, reading: asyncio.Future[Any]) -> None:
        self.silent = None
        if not reading.cancelled():
            reading.exception()  # its caller has left, and nobody else asks for it
