"""The write buffer of a transport, and when its protocol is told to pause and to resume."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.simulation.loop import SimulatedLoop

_HIGH_WATER_BYTES = 64 * 1024
"""The high-water mark of the write buffer: asyncio's default."""


class FlowControl(asyncio.Transport):
    """A transport's buffer and its protocol; what fills and empties the buffer is a subclass's."""

    def __init__(
        self, loop: SimulatedLoop, protocol: asyncio.BaseProtocol, names: dict[str, Any]
    ) -> None:
        super().__init__(names)
        self._loop = loop
        self.buffer = bytearray()
        """What the window had no room for."""
        self._high_water = _HIGH_WATER_BYTES
        self._low_water = _HIGH_WATER_BYTES // 4
        self._protocol_paused = False
        self.set_protocol(protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol that gets the callbacks from the next delivery on."""
        self._protocol: asyncio.BaseProtocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that gets the callbacks."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """Bytes the window had no room for."""
        return len(self.buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high water, in this order."""
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told to pause and to resume writing."""
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        self._pause_protocol_if_full()

    def _force_close(self, error: BaseException | None) -> None:
        raise NotImplementedError

    def _pause_protocol_if_full(self) -> None:
        if len(self.buffer) > self._high_water and not self._protocol_paused:
            self._protocol_paused = True
            self._guarded("pause_writing", self._protocol.pause_writing, fatal=False)

    def _resume_protocol_if_drained(self) -> None:
        if self._protocol_paused and len(self.buffer) <= self._low_water:
            self._protocol_paused = False
            self._guarded("resume_writing", self._protocol.resume_writing, fatal=False)

    def _guarded(
        self,
        name: str,
        callback: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401
        fatal: bool = True,
    ) -> Any:  # noqa: ANN401
        """Call the protocol; if it raises, report it and, like asyncio, drop the connection."""
        try:
            return callback(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the handler decides
            self._protocol_failed(name, error, fatal=fatal)
            return None

    def _protocol_failed(self, name: str, error: BaseException, *, fatal: bool = True) -> None:
        # asyncio does not report a failing callback's OSError; it takes it for the socket's.
        if not fatal or not isinstance(error, OSError):
            self._loop.call_exception_handler(
                {
                    "message": f"protocol.{name}() failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
        if fatal:
            self._force_close(error)
