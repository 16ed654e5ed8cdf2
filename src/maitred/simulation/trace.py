"""A running checksum over what happened, to prove that two runs are the same run."""

from __future__ import annotations

import zlib
from typing import Protocol


class TraceClock(Protocol):
    """The part of a simulated loop that a trace reads."""

    @property
    def now(self) -> float:
        """The virtual time in seconds."""

    @property
    def events(self) -> int:
        """The number of events that have run."""


class Trace:
    """Takes note of deliveries, connections and processes, with their virtual times.

    A checksum and not a log, since it is always on: about a quarter of a microsecond a delivery.
    """

    __slots__ = ("_checksum", "_loop")

    def __init__(self, loop: TraceClock) -> None:
        self._loop = loop
        self._checksum = 0

    def note(self, what: bytes, number: int, extra: int = 0) -> None:
        """Add an event of this moment to the checksum."""
        # Numbers hash the same in every process, and crc32 takes the low bits of any of them.
        seen = hash((self._checksum, self._loop.now, number, extra))
        self._checksum = zlib.crc32(what, seen)

    def fingerprint(self) -> str:
        """Return a text that is equal for equal runs; the number of events is part of it."""
        return f"{self._checksum:08x}-{self._loop.events}"
