"""A timer for a peer or a store that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

LATE_SHARE: Final = 0.1
"""The last part of the wait, in which a loop that was late reads what has arrived meanwhile."""


class SilenceTimer:
    """Calls `ring` once, after `seconds` in which an answer could have been read.

    A loop that comes late finds its timers due before it reads what arrived meanwhile: the machine
    was suspended, or had no CPU to give. So the last tenth of the wait begins only when the loop
    has passed the first nine; an answer that is there is read in it, and cancels the timer.
    """

    __slots__ = ("_handle",)

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[], None]
    ) -> None:
        last = seconds * LATE_SHARE
        self._handle = loop.call_later(seconds - last, self._nearly, loop, last, ring)

    def _nearly(
        self, loop: asyncio.AbstractEventLoop, last: float, ring: Callable[[], None]
    ) -> None:
        self._handle = loop.call_later(last, ring)

    def cancel(self) -> None:
        """Call when the answer is there."""
        self._handle.cancel()
