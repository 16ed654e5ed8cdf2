"""Frames read the slow and obvious way, to compare with."""

from __future__ import annotations

from struct import unpack_from

from maitred.protocol.frames import HEADER_BYTES, Frame


def frames_of(data: bytes, version: int, limit: int) -> list[Frame]:
    """All complete frames before the end or the first header that has to be refused."""
    frames = []
    while len(data) >= HEADER_BYTES:
        seen, flags, stream, opcode, length = unpack_from(">BBhBi", data)
        if seen != version or not 0 <= length <= limit or len(data) < HEADER_BYTES + length:
            break
        frames.append(Frame(flags, stream, opcode, data[HEADER_BYTES : HEADER_BYTES + length]))
        data = data[HEADER_BYTES + length :]
    return frames


def cut(data: bytes, pattern: int) -> list[bytes]:
    """The data in pieces; the pattern, a byte, says how large they are."""
    if not pattern:
        return [data]
    pieces = []
    size = 1
    while data:
        size = size * (pattern | 1) % 251 + 1 if pattern > 64 else pattern
        pieces.append(data[:size])
        data = data[size:]
    return pieces
