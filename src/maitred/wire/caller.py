"""The end of a link that sends requests: stream ids, receivers of answers, and deadlines.

Clients use it, and shards that forward a request to another shard. An answer goes to a `Receiver`:
exactly one of its methods is called, exactly once.

An abandoned request keeps its stream id until the node has answered: the id must not be used again
while an answer to the old request may still come. CANCEL tells the node to stop the work; it is
sent on the stream of the request that it cancels, and one answer serves both.

A link has one timer for all deadlines, set to the earliest: most requests are answered long before
theirs, and setting and cancelling a timer for each would cost more than sending it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from maitred.errors import MaitredError, ProtocolViolation, TooManyInFlight, Unavailable
from maitred.protocol.frames import (
    EVENT_STREAM,
    HEADER,
    REQUEST,
    RESPONSE,
    STREAMS_MAX,
    Frame,
    FrameDecoder,
    Opcode,
)
from maitred.protocol.refusals import decode_error
from maitred.wire.alarm import Alarm
from maitred.wire.link import GATHERED_BYTES, Link

if TYPE_CHECKING:
    import asyncio

_pack = HEADER.pack

TURN_FRAMES = 256
"""Answers that are delivered before the rest of the program gets its turn."""


class Receiver(Protocol):
    """Receives the answer to one request, or the reason why there is none."""

    def answered(self, frame: Frame) -> None:
        """The answer has arrived; it may be an ERROR."""

    def expired(self) -> None:
        """The deadline has passed. The node is told to stop; its answer will be dropped."""

    def lost(self, problem: Exception | None) -> None:
        """The connection was lost before the answer came."""


class _Abandoned:
    """Drops the answers to abandoned requests."""

    def answered(self, frame: Frame) -> None:
        pass

    def expired(self) -> None:
        pass

    def lost(self, problem: Exception | None) -> None:
        pass


_ABANDONED = _Abandoned()


class Caller(Link):
    """A link on which requests are sent."""

    __slots__ = (
        "_alarm",
        "_deadlines",
        "_ended",
        "_free",
        "_next",
        "_streams",
        "abandoned",
        "most_in_flight",
        "pending",
    )

    holds_back = False

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_body_bytes: int, most_in_flight: int
    ) -> None:
        super().__init__(loop, FrameDecoder(RESPONSE, max_body_bytes), REQUEST, TURN_FRAMES)
        self.most_in_flight = min(most_in_flight, STREAMS_MAX)
        self.pending: dict[int, Receiver] = {}
        """Receivers of the requests in flight, by stream."""
        self.abandoned = 0
        """Number of abandoned requests that the node has not yet answered."""
        self._ended = False
        self._deadlines: dict[int, float] = {}
        self._free: list[int] = []
        self._next = 0
        self._alarm = Alarm(loop, self._look_at_deadlines)

    # For subclasses

    def pushed(self, frame: Frame) -> None:
        """Handle an event, or an error that the node sends before it closes the connection."""

    def ended(self, problem: Exception | None) -> None:
        """Handle the end of the connection."""

    # Asking

    @property
    def in_flight(self) -> int:
        """Requests that the node has not yet answered, including abandoned ones."""
        return len(self.pending)

    def ask(
        self, opcode: int, body: bytes, receiver: Receiver, deadline: float, flags: int = 0
    ) -> int:
        """Send a request and return its stream; raise `TooManyInFlight` if all streams are in
        use."""
        if self.closing:
            raise Unavailable("The connection is closed.")
        if self._free:
            stream = self._free.pop()
        elif self._next < self.most_in_flight:
            stream = self._next
            self._next = stream + 1
        else:
            raise TooManyInFlight(
                f"The connection has {self.most_in_flight:,} requests under way already."
            )
        pending = self.pending
        pending[stream] = receiver
        if deadline != inf:
            self._deadlines[stream] = deadline
            if deadline < self._alarm.at:
                self._alarm.by(deadline)
        # Like `send`, but a request that is alone in flight is written at once.
        frame = _pack(REQUEST, flags, stream, opcode, len(body)) + body
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        if len(pending) == 1 or self._gathered_bytes >= GATHERED_BYTES:
            self.flush()
        elif not self._flush_soon:
            self._flush_soon = True
            self.loop.call_soon(self._flush_in_turn)
        return stream

    def give_up(self, stream: int, receiver: Receiver) -> bool:
        """Abandon a request and tell the node to stop. Returns False if it was already answered."""
        if self.pending.get(stream) is not receiver:
            return False
        self._abandon(stream)
        return True

    def _abandon(self, stream: int) -> None:
        self.pending[stream] = _ABANDONED
        self._deadlines.pop(stream, None)
        self.abandoned += 1
        if not self.closing:
            self.send(0, stream, Opcode.CANCEL, b"")

    # Answers

    def frames_received(self, frames: list[Frame], now: float) -> None:  # noqa: ARG002
        pending, deadlines, free = self.pending, self._deadlines, self._free
        for frame in frames:
            stream = frame.stream
            receiver = pending.pop(stream, None)
            if receiver is None:
                if stream == EVENT_STREAM:
                    self.pushed(frame)
                    continue
                self.frame_refused(
                    ProtocolViolation(f"An answer came on stream {stream}, which has no request."),
                    stream,
                )
                return
            deadlines.pop(stream, None)
            free.append(stream)
            if receiver is _ABANDONED:
                self.abandoned -= 1
            else:
                receiver.answered(frame)

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:  # noqa: ARG002
        self.fail(problem)

    def fail(self, problem: Exception) -> None:
        """Close the connection for this reason, which all receivers are told."""
        self.abort()
        self._end(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._end(exc)

    def _end(self, problem: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._alarm.stop()
        waiting = list(self.pending.values())
        self.pending.clear()
        self._deadlines.clear()
        for receiver in waiting:
            receiver.lost(problem)
        self.ended(problem)

    # Deadlines

    def _look_at_deadlines(self, now: float) -> float:
        over = [stream for stream, deadline in self._deadlines.items() if deadline <= now]
        for stream in over:
            if stream not in self._deadlines:
                continue  # an expired receiver abandoned this request, too, or failed the link
            receiver = self.pending[stream]
            self._abandon(stream)
            receiver.expired()
        return min(self._deadlines.values(), default=inf)


def error_of(frame: Frame) -> MaitredError:
    """Return the error that an ERROR frame carries, or a `ProtocolViolation` if it is malformed."""
    try:
        return decode_error(frame.body)
    except ProtocolViolation as problem:
        return problem
