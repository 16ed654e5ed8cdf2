"""The part of an event loop that the driver of partitions runs its turns with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class TurnTimer(Protocol):
    """A callback that a `TurnLoop` will run at a set time."""

    def cancel(self) -> None:
        """Drop the callback."""


class TurnLoop(Protocol):
    """The part of an event loop that the driver uses; any asyncio loop has it."""

    def time(self) -> float:
        """Return the time in seconds; it never goes backwards."""

    def call_soon(self, callback: Callable[..., object], /, *arguments: Any) -> object:  # noqa: ANN401
        """Run the callback after all that is due already."""

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        /,
        *arguments: Any,  # noqa: ANN401
    ) -> TurnTimer:
        """Run the callback at that time."""
