"""One direction of one connection: it delivers bytes in order, late, or never.

A write enters the window if there is room (what a kernel's buffers hold), travels as a segment for
a drawn delay, and lies unread at the receiver until its protocol takes it; only then is its room in
the window free again. Writes of one instant travel together, and segments that arrive at the same
time are delivered as one piece, so that no protocol can rely on message boundaries.

Silence (a partition, a dead host, a path that has gone half-open) holds segments instead of
losing them, as TCP's retransmission does; after the retransmission timeout the sender fails.

What always holds: bytes arrive in the order they were sent, and after them the end or the reset.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Protocol

from maitred.simulation.paths import PathTransport

if TYPE_CHECKING:
    from random import Random

    from maitred.simulation.loop import Event
    from maitred.simulation.paths import PathEnd, Paths

END = "end"
RESET = "reset"


class FlowSegment:
    """A piece that arrives as a whole: bytes, and perhaps the end of the stream or a reset."""

    __slots__ = ("arrival", "chunks", "finish")

    def __init__(self, chunks: list[bytes], finish: str | None) -> None:
        self.arrival = 0.0
        self.chunks = chunks
        self.finish = finish


class FlowEnd(PathTransport, Protocol):
    """The transport at one end of a flow."""

    @property
    def buffer(self) -> bytearray:
        """The bytes that the window had no room for."""

    @property
    def gone(self) -> bool:
        """Whether the socket is closed: what arrives now is answered with a reset."""

    @property
    def end_sent(self) -> bool:
        """Whether the end of the stream was really sent, not only asked for."""

    def is_closing(self) -> bool:
        """Whether close or abort was called, or the connection failed."""

    def receive(self, data: bytes, finish: str | None) -> None:
        """Take a segment that has arrived."""

    def window_opened(self) -> None:
        """Send more of the buffer: the window has room."""

    def fail(self, error: BaseException) -> None:
        """Lose the connection for that reason."""


class Flow:
    """The direction from one host to another; the opposite direction is `reverse`."""

    def __init__(
        self, network: Paths, number: int, random: Random, source: PathEnd, target: PathEnd
    ) -> None:
        self.network = network
        self._loop = network.loop
        self.number = number
        self.source = source
        self.target = target
        self.loopback = source is target
        self.random = random
        self.reverse: Flow
        self.sender: FlowEnd | None = None
        self.receiver: FlowEnd | None = None
        self.silent = False
        """Whether this direction drops everything, silently and for good."""
        self.outstanding_bytes = 0
        self.last_arrival = 0.0
        self._sent_at = -1.0
        self._segments: deque[FlowSegment] = deque()
        self._held: deque[FlowSegment] = deque()
        self._held_since = 0.0
        self._freed_bytes = 0
        self._update_scheduled = False
        self._retransmission_scheduled = False
        self._timeout: Event | None = None

    @property
    def blocked(self) -> bool:
        """Whether nothing gets through now."""
        return self.silent or (
            self.network.troubled and self.network.blocked(self.source, self.target)
        )

    @property
    def idle(self) -> bool:
        """Whether no segment is under way or held."""
        return not self._segments and not self._held

    @property
    def carries_bytes(self) -> bool:
        """Whether bytes are under way that the receiver has not got."""
        return any(any(segment.chunks) for segment in self._segments)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Take as many bytes as the window has room for, and say how many."""
        size = len(data)
        room = self.network.window_bytes - self.outstanding_bytes
        if size > room:
            if room <= 0:
                return 0
            data = data[:room]
            size = room
        self.outstanding_bytes += size
        self._enqueue(data if type(data) is bytes else bytes(data), None)
        return size

    def send_end(self) -> None:
        """Send the end of the stream, after all that was sent."""
        self._enqueue(b"", END)

    def send_reset(self) -> None:
        """Tell the receiver at once that the connection is gone. Resets are not repeated."""
        self._held.clear()
        self._stop_timeout()
        if not self.blocked:
            self._launch(FlowSegment([], RESET), self.delay())

    def delay(self) -> float:
        """Draw the delay of the next segment, in seconds."""
        network = self.network
        if self.loopback:
            return network.faults.loopback_delay_seconds
        return network.delay_min_seconds + network.delay_range_seconds * self.random.random()

    def consumed(self, size: int) -> None:
        """Free the room of bytes that the receiver took; wake a sender that waits for it."""
        sender = self.sender
        if sender is None or not sender.buffer:
            self.outstanding_bytes -= size
            return
        self._freed_bytes += size
        if not self._update_scheduled:
            self._update_scheduled = True
            self._later(self.delay(), self._window_update)

    def resume(self) -> None:
        """Send what was held, at the next retransmission, if the path is open again."""
        if self.blocked or self.reverse.blocked:
            self.stalled()
            return
        unanswered = self._stuck or self._timeout is not None
        self._stop_timeout()
        if self._held:
            if not self._retransmission_scheduled:
                self._retransmission_scheduled = True
                outage = self._loop.now - self._held_since
                gap = min(outage, self.network.faults.retransmission_gap_max_seconds)
                self._later(gap * self.random.random(), self._retransmit)
        elif self._freed_bytes and not self._update_scheduled:
            self._update_scheduled = True
            self._later(self.delay(), self._window_update)
        elif unanswered and self.receiver is not None and self.receiver.gone:
            self.reverse.send_reset()  # what the probe of the full window is answered with

    def _retransmit(self) -> None:
        self._retransmission_scheduled = False
        if self.blocked or self.reverse.blocked:
            if self._held:
                self._start_timeout()
            return
        self._stop_timeout()  # of what was written since the path is open
        while self._held:
            self._launch(self._held.popleft(), self.delay())

    @property
    def _ended_back(self) -> bool:
        """Whether the closed receiver had ended its side in order, so that it expects an end."""
        return self.receiver is not None and self.receiver.end_sent

    @property
    def _stuck(self) -> bool:
        """Whether the sender has bytes that the window has no room for."""
        return self.sender is not None and bool(self.sender.buffer) and not self.sender.gone

    def stalled(self) -> None:
        """Start the timeout of a sender that waits for room while nothing gets through."""
        if self._stuck and (self.blocked or self.reverse.blocked):
            self._start_timeout()

    def lose_in_flight(self) -> None:
        """Hold what was under way to a target that lost power: it is unacknowledged."""
        for segment in self._segments:
            self._hold(segment)
        self._segments.clear()

    def drop(self) -> None:
        """Forget what is under way or held."""
        self._segments.clear()
        self.stop_sending()

    def stop_sending(self) -> None:
        """Send nothing again that is held; what is under way arrives."""
        self._held.clear()
        self._stop_timeout()

    def _enqueue(self, data: bytes, finish: str | None) -> None:
        network = self.network
        if self._held or self.silent or (network.troubled and self.blocked):
            self._hold(FlowSegment([data] if data else [], finish))
            return
        now = self._loop.now
        if self._sent_at == now and self._segments and not self._segments[-1].finish:
            last = self._segments[-1]
            if data:
                last.chunks.append(data)
            last.finish = finish
            return
        segment = FlowSegment([data] if data else [], finish)
        # The same as delay(), which is too far a way to go for every segment.
        delay = (
            network.faults.loopback_delay_seconds
            if self.loopback
            else network.delay_min_seconds + network.delay_range_seconds * self.random.random()
        )
        if network.trouble_probability and not self.loopback:
            chance = self.random.random()
            if chance < network.trouble_probability:
                trouble = self._trouble(chance, segment)
                if trouble is None:
                    return
                delay += trouble
        self._sent_at = now
        self._launch(segment, delay)

    def _trouble(self, chance: float, segment: FlowSegment) -> float | None:
        """Meet a fault; return by how much the segment is late, None if it does not arrive."""
        faults = self.network.faults
        if chance < faults.spike_probability:
            return faults.spike_seconds * self.random.random()
        if chance - faults.spike_probability < faults.cut_probability:
            self._cut()
            if self.reverse.blocked:
                # The sender is not told, so it tries again, and hears of it then or times out.
                self._hold(segment)
            return None
        self._go_silent()
        self._hold(segment)
        return None

    def _launch(self, segment: FlowSegment, delay: float) -> None:
        loop = self._loop
        arrival = loop.now + delay
        if arrival <= self.last_arrival:
            arrival = self.last_arrival
            last = self._segments[-1] if self._segments else None
            if last is not None and last.arrival == arrival and not last.finish:
                last.chunks += segment.chunks
                last.finish = segment.finish
                return
        segment.arrival = self.last_arrival = arrival
        self._segments.append(segment)
        loop.call_at(arrival, self._arrive, context=self.network.context)

    def _arrive(self) -> None:
        now = self._loop.now
        segments = self._segments
        split_probability = self.network.split_probability
        while segments and segments[0].arrival <= now:
            segment = segments.popleft()
            chunks = segment.chunks
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if split_probability and len(data) > 1 and self.random.random() < split_probability:
                self._deliver(self._split(segment, data), None)
            else:
                self._deliver(data, segment.finish)
        if (self.reverse.silent or self.network.troubled) and self.reverse.blocked:
            # The acknowledgement is lost: the sender will give up although all arrived.
            self._start_timeout()

    def _split(self, segment: FlowSegment, data: bytes) -> bytes:
        cut = self.random.randrange(1, len(data))
        segment.chunks = [data[cut:]]
        segment.arrival = self._loop.now + self.delay()
        self.last_arrival = max(self.last_arrival, segment.arrival)
        self._segments.appendleft(segment)
        self._loop.call_at(segment.arrival, self._arrive, context=self.network.context)
        return data[:cut]

    def _deliver(self, data: bytes, finish: str | None) -> None:
        self.network.trace.note(data, self.number, len(data) if finish is None else -1)
        receiver = self.receiver
        if receiver is not None and not receiver.gone:
            receiver.receive(data, finish)
        elif not self.target.up and (data or finish is END):
            self._hold(FlowSegment([data], finish))  # no power, no answer: it is sent again
        elif self.target.up and (data or (finish is END and not self._ended_back)):
            if self.reverse.blocked:
                self._hold(FlowSegment([data], finish))
            self.reverse.send_reset()
        else:
            self.network.forget_if_over(self.number)

    def _window_update(self) -> None:
        self._update_scheduled = False
        sender = self.sender
        if self.reverse.blocked:
            self._start_timeout()
            return
        self.outstanding_bytes -= self._freed_bytes
        self._freed_bytes = 0
        if sender is not None and not sender.gone:
            sender.window_opened()

    def _cut(self) -> None:
        for flow in (self, self.reverse):
            flow.drop()
            flow.send_reset()

    def _go_silent(self) -> None:
        self.silent = True
        if self.random.random() < self.network.faults.half_open_both_probability:
            self.reverse.silent = True
        self.stalled()
        self.reverse.stalled()

    def _hold(self, segment: FlowSegment) -> None:
        if not self._held:
            self._held_since = self._loop.now
        self._held.append(segment)
        self._start_timeout()

    def _start_timeout(self) -> None:
        if self._timeout is None:
            self._timeout = self._later(
                self.network.faults.retransmission_timeout_seconds, self._give_up
            )

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _give_up(self) -> None:
        self._timeout = None
        self._held.clear()
        # Whatever comes later is not acknowledged either; the receiver may never learn of it.
        if self.sender is not None and not self.sender.gone:
            self.sender.fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        self.network.forget_if_over(self.number)

    def _later(self, delay: float, callback: object) -> Event:
        return self._loop.call_later(
            delay,
            callback,  # type: ignore[arg-type]
            context=self.network.context,
        )
