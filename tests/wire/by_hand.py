"""A loop that is turned by hand and a transport without a network: every order can be tried."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from maitred.protocol.frames import Frame, FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

EVERYTHING = 1_000_000


class Timer:
    """One callback to come."""

    def __init__(self, moment: float, callback: Callable[[], object]) -> None:
        self.moment = moment
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """The little of a loop that links use."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ready: list[Callable[[], object]] = []
        self.timers: list[Timer] = []

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.ready.append(callback)

    def call_at(self, moment: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(moment, callback)
        self.timers.append(timer)
        return timer

    @property
    def set_timers(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def turn(self) -> None:
        """What is ready now, and nothing that gets ready by it."""
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()

    def settle(self) -> None:
        """Turn until nothing is ready."""
        for _ in range(10_000):
            if not self.ready:
                return
            self.turn()
        raise AssertionError("it never settles")

    def advance(self, moment: float) -> None:
        """Let time pass, and timers ring in their order."""
        while due := [timer for timer in self.set_timers if timer.moment <= moment]:
            first = min(due, key=lambda timer: timer.moment)
            self.timers.remove(first)
            self.now = max(self.now, first.moment)
            first.callback()
            self.settle()
        self.now = max(self.now, moment)


class HandTransport(asyncio.Transport):
    """Keeps each write; tells the protocol nothing by itself."""

    def __init__(self, *, can_write_eof: bool = True) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.calls: list[str] = []
        self._reading = True
        self._can_write_eof = can_write_eof

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not {"write_eof", "close", "abort"} & set(self.calls), "written after the end"
        self.writes.append(bytes(data))

    def take(self, version: int) -> list[Frame]:
        """The frames that were written since the last look."""
        decoder = FrameDecoder(version, EVERYTHING)
        decoder.feed(b"".join(self.writes))
        self.writes.clear()
        frames = decoder.take(EVERYTHING)
        assert not decoder.waiting_bytes
        assert decoder.broken is None
        return frames

    def get_write_buffer_size(self) -> int:
        return 17

    def pause_reading(self) -> None:
        assert self._reading, "paused twice"
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading, "resumed twice"
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def can_write_eof(self) -> bool:
        return self._can_write_eof

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def is_closing(self) -> bool:
        return bool({"close", "abort"} & set(self.calls))

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")
