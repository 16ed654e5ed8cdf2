"""Decides when a process collects garbage: rarely, but before reference cycles keep much memory."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Final

from maitred.monitor.process_vitals import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECT_AFTER: Final = 20_000
"""How many new objects start a garbage collection. The tasks and requests in progress at a busy
process are as many; a collection of them costs more than it frees: with Python's default of 700,
collections took at least 2 % of a busy shard's CPU time."""

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the memory of the process; a look takes some 20 microseconds."""

GROWN_BYTES: Final = 100 * 2**20
"""Growth of the process's memory after which all garbage is collected, at least."""

GROWN_SHARE: Final = 0.5
"""The same as a share of the memory. A process that grows to 8 GB by its tasks and connections so
collects ten times on the way; a collection of a million objects blocks the loop for some 0.1 s."""


class GarbageLimit:
    """Collects all garbage when the memory of the process has grown.

    Python's collector counts objects, not bytes. A cycle of ten objects can keep a request of
    16 MiB, so cycles could keep gigabytes before there are enough objects for a collection.
    """

    def __init__(self, used_bytes: Callable[[], int] = memory_bytes) -> None:
        self._used_bytes = used_bytes
        self._least = used_bytes()
        """The least memory that the process had at a look since the last collection."""

    def look(self) -> None:
        """Collect if the memory has grown enough; called once a second."""
        used = self._used_bytes()
        if used < self._least:
            self._least = used
        elif used - self._least >= max(GROWN_BYTES, self._least * GROWN_SHARE):
            gc.collect()
            self._least = self._used_bytes()


def spare_the_collector() -> None:
    """Make garbage collections rare, and limit the memory that garbage takes. Objects that exist at
    the start stay. Those of a request or task are freed by reference counting, unless an exception
    refers to itself through the frames of its traceback; closed connections leave cycles, too.
    The process must run an event loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    _look_every_second(asyncio.get_running_loop(), GarbageLimit())


def _look_every_second(loop: asyncio.AbstractEventLoop, limit: GarbageLimit) -> None:
    limit.look()
    loop.call_later(LOOK_SECONDS, _look_every_second, loop, limit)
