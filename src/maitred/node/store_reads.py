"""Reads of the store for callers that ask about one task: none of them waits longer than a commit.

A read cannot be cancelled, so one that the store does not answer goes on, and its caller is told
that the store is away. Until the store answers a read, further callers are told so at once, and no
further read is sent.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
        """The error for callers, until the store answers a read; None while it does."""
        self._answered_at = -inf

    async def answer(self, read: Coroutine[Any, Any, Found]) -> Found:
        """Return the store's answer. Raise `StoreUnavailable` when the store has answered no read
        for `UNSAFE_SECONDS`: a read alone may wait longer than that behind others."""
        if self.silent is not None:
            read.close()
            raise self.silent.with_traceback(None)
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(_outcome(read))
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
        found, problem = reading.result()
        if problem is not None:
            raise problem
        return cast("Found", found)

    def _answered(self, reading: asyncio.Future[Any]) -> None:
        self._answered_at = reading.get_loop().time()
        self.silent = None


async def _outcome(read: Coroutine[Any, Any, Found]) -> tuple[Found | None, Exception | None]:
    """Return the answer, or the error: asyncio would log an error that no caller waits for any
    more."""
    try:
        return await read, None
    except Exception as problem:  # noqa: BLE001 - the caller raises it
        return None, problem
