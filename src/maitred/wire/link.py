"""One connection that carries frames, for either end.

It does what both ends need: decoding frames, gathering the writes of one turn of the event loop,
back-pressure (it stops reading while the peer does not read), and serving frames in portions, so
that a connection with a thousand requests at once does not delay the others.

A link has no timer of its own, since a timer for each of ten thousand connections would cost more
than the connections. It records the moments that an owner with one timer checks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from maitred.protocol.frames import HEADER, Frame, FrameDecoder

if TYPE_CHECKING:
    from maitred.errors import ProtocolViolation

GATHERED_BYTES = 64 * 1024
"""Gathered writes are flushed as soon as they reach this many bytes, even in the middle of a
turn."""


class Link(asyncio.Protocol):
    """The transport of frames; subclasses interpret them."""

    __slots__ = (
        "_flush_soon",
        "_gathered",
        "_gathered_bytes",
        "_outgoing_version",
        "_reading_paused",
        "_turn_frames",
        "_working",
        "arrived_at",
        "closing",
        "closing_since",
        "decoder",
        "loop",
        "partial_bytes",
        "partial_since",
        "transport",
        "write_paused_since",
    )

    transport: asyncio.Transport

    holds_back = True
    """Whether this end stops reading while the peer does not read. Ends that send requests read on:
    a node stops reading while its answers are not read; if the caller did the same, both would wait
    for ever. The limit of requests in flight bounds what such an end has not sent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        decoder: FrameDecoder,
        outgoing_version: int,
        turn_frames: int,
    ) -> None:
        self.loop = loop
        self.decoder = decoder
        self.closing = False
        """Whether the connection is closing: whatever arrives from now on is ignored."""
        self.closing_since: float | None = None
        self.arrived_at = loop.time()
        """When bytes last arrived, in the loop's time."""
        self.partial_bytes = 0
        self.partial_since: float | None = None
        """When the first byte of an incomplete frame arrived; None if no frame is incomplete."""
        self.write_paused_since: float | None = None
        """Since when the peer has not read what this end wrote; None while it reads."""
        self._outgoing_version = outgoing_version
        self._turn_frames = turn_frames
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._flush_soon = False
        self._reading_paused = False
        self._working = False

    # For subclasses

    def frames_received(self, frames: list[Frame], now: float) -> None:
        """Handle complete frames, in order; at most a turn's worth. `now` is the loop's time."""
        raise NotImplementedError

    def frame_refused(self, problem: ProtocolViolation, stream: int) -> None:
        """Handle bytes that are not a valid frame; nothing after them can be decoded."""
        raise NotImplementedError

    def partial_bytes_changed(self, partial_bytes: int) -> None:
        """Note how many bytes wait for the rest of their frame, or for their turn."""
        self.partial_bytes = partial_bytes

    def unsent_piles_up(self) -> None:
        """Handle a write to a peer that does not read."""

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by isinstance: uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self.arrived_at = now = self.loop.time()
        decoder = self.decoder
        frame = decoder.alone(data) if self.write_paused_since is None else None
        if frame is None:
            decoder.feed(data)
            if not self._working:
                self.work()
            return
        self._flush_soon = True
        self.frames_received([frame], now)
        self._flush_soon = False
        if self._gathered:
            self.flush()

    def work(self) -> None:
        """Serve a turn's worth of frames; the rest follows after other work of the event loop."""
        if self.write_paused_since is not None:
            self.partial_since = None  # it is not known now whether a frame is incomplete
            self._pause_reading()  # until the peer has read
            return
        decoder = self.decoder
        most = self._turn_frames
        frames = decoder.take(most)
        waiting = decoder.waiting_bytes
        if frames:
            self.partial_since = None
            self._flush_soon = True  # this function flushes below
            self.frames_received(frames, self.loop.time())
            self._flush_soon = False
            if self.closing:
                return
        if waiting != self.partial_bytes:
            self.partial_bytes_changed(waiting)
        if waiting and len(frames) == most:
            self._working = True
            self._pause_reading()
            self.loop.call_soon(self._work_again)
        elif decoder.broken is not None:
            self.frame_refused(decoder.broken, decoder.broken_stream)
        else:
            if waiting and self.partial_since is None:
                self.partial_since = self.arrived_at
            if self._reading_paused and self.write_paused_since is None:
                self._resume_reading()
        if self._gathered:
            self.flush()

    def _work_again(self) -> None:
        self._working = False
        if not self.closing:
            self.work()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # Writing

    def send(self, flags: int, stream: int, opcode: int, body: bytes) -> None:
        """Write a frame."""
        self.write(HEADER.pack(self._outgoing_version, flags, stream, opcode, len(body)) + body)

    def write(self, frame: bytes) -> None:
        """Write a frame's bytes, together with all else that is written in this turn."""
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes >= GATHERED_BYTES:
            self.flush()
        elif not self._flush_soon:
            self._flush_soon = True
            self.loop.call_soon(self._flush_in_turn)

    def flush(self) -> None:
        """Pass the gathered bytes to the transport; drop them if the connection is closing."""
        gathered = self._gathered
        if gathered:
            self._gathered = []
            self._gathered_bytes = 0
            if self.closing:
                return
            self.transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
            if self.write_paused_since is not None:
                self.unsent_piles_up()

    def _flush_in_turn(self) -> None:
        self._flush_soon = False
        self.flush()

    def pause_writing(self) -> None:
        if self.holds_back:
            self.write_paused_since = self.loop.time()

    def resume_writing(self) -> None:
        if self.holds_back:
            self.write_paused_since = None
            if not self._working and not self.closing:
                self.work()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the peer has not yet taken."""
        return self._gathered_bytes + self.transport.get_write_buffer_size()

    # The end

    def finish(self) -> None:
        """Flush, send an end of file, and close when the peer has closed its side, too.

        Closing at once, with unread bytes, would make the kernel reset the connection, and the peer
        might never see the last frames. The owner that watches `closing_since` bounds the wait.
        """
        if self.closing:
            return
        self.flush()
        self.closing = True
        self.closing_since = self.loop.time()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            try:
                self.transport.write_eof()
            except OSError:  # the peer has reset the connection, and the loop does not know yet
                self.transport.abort()
                return
            if self._reading_paused:
                self._resume_reading()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self.closing = True
        self._gathered.clear()
        self._gathered_bytes = 0
        self.transport.abort()
