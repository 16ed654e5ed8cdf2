"""Reads of the store for callers who ask about one task: none of them waits longer than a commit.

A read cannot be taken back, so one that is not answered goes on, and its caller hears that the
store is away. Until a read is answered, callers hear so at once, and the store is not asked again.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.node.writer import store_silent
from maitred.wire.silence import LATE_SHARE

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from maitred.errors import StoreUnavailable

Found = TypeVar("Found")


class StoreReads:
    """The reads of one shard that callers wait for."""

    def __init__(self) -> None:
        self.silent: StoreUnavailable | None = None
        """What callers hear, until the store answers a read."""
        self._answered_at = -inf

    async def answer(self, read: Coroutine[Any, Any, Found]) -> Found:
        """Return what the store answers. Raise `StoreUnavailable` when it has answered no read for
        `UNSAFE_SECONDS`: a read may wait longer than that for others that are before it."""
        if self.silent is not None:
            read.close()
            raise self.silent.with_traceback(None)
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(read)
        reading.add_done_callback(self._answered)
        began_at = loop.time()
        while not reading.done():
            heard_at = max(began_at, self._answered_at)
            last = UNSAFE_SECONDS * LATE_SHARE  # as in `SilenceTimer`: for a loop that was late
            for seconds in (heard_at + UNSAFE_SECONDS - last - loop.time(), last):
                await asyncio.wait([reading], timeout=max(0.0, seconds))
                if reading.done() or self._answered_at > heard_at:
                    break
            else:
                self.silent = store_silent(UNSAFE_SECONDS)
                raise self.silent
        return reading.result()

    def _answered(self, reading: asyncio.Future[Any]) -> None:
        self._answered_at = reading.get_loop().time()
        self.silent = None
        if not reading.cancelled():
            reading.exception()  # its caller may have left, and then nobody else asks for it
