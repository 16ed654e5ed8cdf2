"""A transport without a network: it keeps what is written, and its peer may be slow to read."""

from __future__ import annotations

import asyncio
from typing import Any, Final

WRITE_BUFFER: Final = 2_048
"""Small, so that few answers fill it."""


class FakeTransport(asyncio.Transport):
    """What a protocol sees of a connection."""

    def __init__(self, protocol: asyncio.Protocol, *, peer_reads: bool) -> None:
        super().__init__({"peername": ("192.0.2.1", 40_000), "sockname": ("192.0.2.2", 4747)})
        self.written = bytearray()
        self.reading = True
        self.ended = False
        self.closed = False
        self.problems: list[str] = []
        self._protocol = protocol
        self._peer_reads = peer_reads
        self._unread = 0
        self._paused = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.ended or self.closed:
            self.problems.append("written after the end")
        self.written += data
        if self._peer_reads:
            return
        self._unread += len(data)
        if self._unread > WRITE_BUFFER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def peer_catches_up(self) -> None:
        """The peer reads everything."""
        self._unread = 0
        if self._paused:
            self._paused = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        if not self.reading:
            self.problems.append("paused twice")
        self.reading = False

    def resume_reading(self) -> None:
        if self.reading:
            self.problems.append("resumed twice")
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
