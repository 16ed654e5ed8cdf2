"""CQL v4 frames: nine bytes of header, then a body.

    version | flags | stream (2) | opcode | length (4) | body

Requests carry version 0x04, answers 0x84. A stream id pairs an answer with its request, so that
many are under way at once; the node pushes events on stream -1.

The decoder takes bytes as they come and gives frames back in portions, so that one connection that
sends a thousand requests at once can be made to wait for its turn. It never holds more than one
frame beyond what the last read brought, and it refuses a frame by its header, before its body has
arrived.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout
from typing import Any, Final, NamedTuple

from maitred.errors import FrameTooLarge, ProtocolViolation, UnsupportedVersion

VERSION: Final = 4
REQUEST: Final = 0x04
RESPONSE: Final = 0x84

COMPRESSED: Final = 0x01
CUSTOM_PAYLOAD: Final = 0x04
"""The body starts with a [bytes map]; in our answers it names the shard that owns the key."""

EVENT_STREAM: Final = -1
STREAMS_MAX: Final = 32_768
"""Number of stream ids for requests: they are 0 to 32,767."""

HEADER: Final = Layout(">BBhBi")
HEADER_BYTES: Final = 9

HANDSHAKE_FRAME_BYTES: Final = 64 * 1024
"""Largest frame before a connection to a node is READY, at both ends: an honest handshake has some
hundred bytes, and SUPPORTED a few for each shard. So an unauthenticated peer uses little memory."""

LARGE_BYTES: Final = 64 * 1024
"""A body larger than this that has arrived only in part is kept in pieces and joined once: a
growing buffer would be copied again and again."""

SMALL_BYTES: Final = 4 * 1024
"""Pieces of a large body that are smaller than this are appended to one buffer."""

_unpack: Final = HEADER.unpack_from
_TLS_HANDSHAKE: Final = 0x16


class Opcode(IntEnum):
    """Opcodes: CQL's, and maitred's from 0x40 on. The answer to our request n is n + 0x80."""

    ERROR = 0x00
    STARTUP = 0x01
    READY = 0x02
    AUTHENTICATE = 0x03
    OPTIONS = 0x05
    SUPPORTED = 0x06
    QUERY = 0x07
    RESULT = 0x08
    PREPARE = 0x09
    EXECUTE = 0x0A
    REGISTER = 0x0B
    EVENT = 0x0C
    BATCH = 0x0D
    AUTH_CHALLENGE = 0x0E
    AUTH_RESPONSE = 0x0F
    AUTH_SUCCESS = 0x10
    ECHO = 0x40
    STATUS = 0x41
    CANCEL = 0x42
    ADD = 0x43
    AWAIT = 0x44
    REVOKE = 0x45
    OFFER = 0x46
    FINISH = 0x47
    HEARTBEAT = 0x48
    FORWARD = 0x49
    SYNC = 0x4A
    DESCRIBE = 0x4B
    RESIZE = 0x4C
    DEAD = 0x4D
    QUEUES = 0x4E
    ALLOCATE = 0x4F
    ATTEND = 0x50
    SUSPECT = 0x51
    WORKERS = 0x52
    RELAY = 0x53
    FETCH = 0x54
    DELIVER = 0x55
    WATCH = 0x56
    REPORT = 0x57
    QUERIES = 0x58
    SUBSCRIBE = 0x59
    RUNNING = 0x5A
    COUNT = 0x5B
    CREATE_TOKEN = 0x5C
    LIST_TOKENS = 0x5D
    REVOKE_TOKEN = 0x5E
    INTROSPECT = 0x5F
    HELLO = 0x60
    RUN = 0x61
    ROWS = 0x62
    CREDIT = 0x63
    RELEASE = 0x64
    PING = 0x65
    LOAD = 0x66
    PROVE = 0x67
    LIST_WORKERS = 0x6A
    WORKER_TASKS = 0x6B
    WORKER_SERIES = 0x6C
    SERIES = 0x6D
    RELOAD = 0x6E
    QUEUE_STATES = 0x6F
    DELETE = 0x70
    WITHDRAW = 0x71
    DAMAGED = 0x72
    SHARD_SERIES = 0x73
    SIGNATURES = 0x74
    OFFER_MANY = 0x75
    TELL_VIEW = 0x76
    HAND_OVER = 0x77
    CLUSTER = 0x78
    DRAIN_NODE = 0x79
    CONTROL = 0x7A
    PURGE = 0x7B
    LIST_TASKS = 0x7C
    SHOW_TASK = 0x7D
    CHANGE_TASKS = 0x7E


ANSWER: Final = 0x80
"""Added to the opcode of one of our requests, this gives the opcode of its answer."""


class Frame(NamedTuple):
    """One frame, whose version has been checked."""

    flags: int
    stream: int
    opcode: int
    body: bytes


def encode_frame(version: int, flags: int, stream: int, opcode: int, body: bytes) -> bytes:
    """Return the bytes of one frame."""
    return HEADER.pack(version, flags, stream, opcode, len(body)) + body


class FrameDecoder:
    """Decodes the bytes of one direction of a connection into frames."""

    __slots__ = (
        "_at",
        "_buffer",
        "_large",
        "_missing",
        "_named",
        "_parts",
        "_version",
        "broken",
        "broken_stream",
        "max_body_bytes",
        "waiting_bytes",
    )

    def __init__(self, version: int, max_body_bytes: int, *, named: bool = True) -> None:
        """Unless `named`, frames are plain tuples with the fields of `Frame`, which is twice as
        fast for a link that unpacks them at once."""
        self._version = version
        self._named = named
        self.max_body_bytes = max_body_bytes
        self._buffer: bytes | bytearray = b""
        self._at = 0
        self._large: tuple[int, int, int] | None = None
        """Flags, stream and opcode of a large frame that has arrived in part; None if there is
        none."""
        self._parts: list[bytes | bytearray | memoryview] = []
        """Pieces of that large frame's body that have arrived."""
        self._missing = 0
        self.waiting_bytes = 0
        """Bytes that have arrived and were not yet taken as frames."""
        self.broken: ProtocolViolation | None = None
        """Why nothing more can be read; report it after all frames before it have been taken."""
        self.broken_stream = 0
        """Stream named by the refused header, for the error's frame."""

    def feed(self, data: bytes) -> None:
        """Append bytes that have arrived."""
        self.waiting_bytes += len(data)
        if self._missing:
            self._feed_large(data)
            return
        buffer, at = self._buffer, self._at
        if at == len(buffer):
            self._buffer, self._at = data, 0
        elif isinstance(buffer, bytearray):
            buffer += data  # a bytearray holds one incomplete frame, from its start
        else:
            # A read ended inside a frame: from now on the buffer grows in place until it is whole.
            self._buffer, self._at = bytearray(memoryview(buffer)[at:]) + data, 0

    def _feed_large(self, data: bytes) -> None:
        missing, parts = self._missing, self._parts
        if len(data) <= missing:
            self._missing = missing - len(data)
            if len(data) >= SMALL_BYTES:
                parts.append(data)
                return
            # Joining small pieces at once keeps their overhead in proportion to their bytes.
            last = parts[-1]
            if isinstance(last, bytearray):
                last += data
            else:
                parts.append(bytearray(data))
        else:
            parts.append(memoryview(data)[:missing])
            self._missing = 0
            self._buffer, self._at = data, missing

    def alone(self, data: bytes) -> Frame | None:
        """Return the frame if nothing is buffered and these bytes are exactly one; otherwise return
        None, and the caller has to `feed` them.

        A peer that waits for each answer sends such reads, and this path is short.
        """
        size = len(data)
        if self.waiting_bytes or size < HEADER_BYTES:
            return None
        version, flags, stream, opcode, length = _unpack(data)
        if (
            length != size - HEADER_BYTES
            or version != self._version
            or length > self.max_body_bytes
            or self.broken
        ):
            return None
        parts: Any = (flags, stream, opcode, data[HEADER_BYTES:])
        return tuple.__new__(Frame, parts) if self._named else parts

    def take(self, most: int) -> list[Frame]:
        """Return at most this many complete frames; set `broken` if no frame can follow them."""
        buffer, at = self._buffer, self._at
        size = len(buffer)
        unpack, version, limit = HEADER.unpack_from, self._version, self.max_body_bytes
        new = tuple.__new__  # Frame(...) calls this, by way of a function in Python
        named, grows = self._named, isinstance(buffer, bytearray)
        frames: list[Any] = []
        append, header = frames.append, HEADER_BYTES
        parts: tuple[Any, ...]
        if self._large is not None:
            if self._missing or not most:
                return frames
            parts = (*self._large, b"".join(self._parts))
            append(new(Frame, parts) if named else parts)
            self._large, self._parts = None, []
            most -= 1
        body = at + header
        while most and body <= size:
            seen, flags, stream, opcode, length = unpack(buffer, at)
            if seen != version or not 0 <= length <= limit:
                self._refuse(seen, stream, length)
                break
            end = body + length
            if end > size:
                if length > LARGE_BYTES:
                    self._large = (flags, stream, opcode)
                    self._parts = [memoryview(buffer)[body:]]
                    self._missing = end - size
                    self.waiting_bytes = size - at
                    self._buffer, self._at = b"", 0
                    return frames
                break
            if grows:
                self._buffer = buffer = bytes(buffer)  # so that the slices below are bytes
                grows = False
            parts = (flags, stream, opcode, buffer[body:end])
            append(new(Frame, parts) if named else parts)
            at = end
            body = end + header
            most -= 1
        else:
            if most and at < size and buffer[at] != version:
                # Less than a header, but enough to see that the version is wrong.
                self._refuse(buffer[at], 0, 0)
        self.waiting_bytes = size - at
        if at == size:
            self._buffer, self._at = b"", 0
        else:
            self._at = at
        return frames

    def _refuse(self, version: int, stream: int, length: int) -> None:
        if self.broken is not None:
            return
        self.broken_stream = stream
        if version == self._version:
            if length < 0:
                self.broken = ProtocolViolation(f"A frame cannot have a body of {length} bytes.")
            else:
                self.broken = FrameTooLarge(
                    f"A frame of {length:,} bytes is more than "
                    f"the {self.max_body_bytes:,} allowed.",
                    remedy="Send less at once, or raise limits.frame_bytes.",
                )
        elif version == _TLS_HANDSHAKE:
            self.broken = UnsupportedVersion(
                "This looks like TLS, and this port speaks plain frames "
                "(unsupported protocol version).",
                remedy="Turn TLS off at the client, or on at the node.",
            )
        elif version & 0x7F == VERSION:
            self.broken = ProtocolViolation(
                "An answer came where requests are expected."
                if self._version == REQUEST
                else "A request came where answers are expected."
            )
        else:
            self.broken = UnsupportedVersion(
                f"Invalid or unsupported protocol version ({version & 0x7F}).",
                remedy=f"This node speaks CQL frames of version {VERSION}.",
            )
