"""A timer for a peer or a store that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

LATE_SHARE: Final = 0.1
"""Share of the wait that is kept for last, in which a late event loop reads what has arrived."""


class SilenceTimer:
    """Calls `ring` once, after `seconds` in which an answer could have been read.

    An event loop that runs late finds its timers due before it reads what arrived meanwhile: the
    machine was suspended, or had no CPU to give. So the last tenth of the wait begins only when the
    loop has passed the first nine; an answer that has arrived is read in it, and cancels the timer.
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
        """Cancel the timer: the answer has arrived."""
        self._handle.cancel()
