"""However bytes are cut into pieces and frames into portions, the decoder finds the same frames."""

from __future__ import annotations

from typing import Final

from fuzz.reference import cut, frames_of
from fuzz.violated import require
from maitred.protocol.frames import HEADER_BYTES, REQUEST, RESPONSE, Frame, FrameDecoder

_LIMIT: Final = 300


def examine_stream(pattern: int, data: bytes) -> None:
    """Decode the data in pieces and compare."""
    version = RESPONSE if pattern & 1 else REQUEST
    most = pattern % 5 + 1
    decoder = FrameDecoder(version, _LIMIT)
    found: list[Frame] = []
    for piece in cut(data, pattern):
        decoder.feed(piece)
        while taken := decoder.take(most):
            require(len(taken) <= most, "more frames than were asked for")
            found += taken
        if decoder.broken is not None:
            break
        require(decoder.waiting_bytes < HEADER_BYTES + _LIMIT + 1, "more is held than one frame")
    require(found == frames_of(data, version, _LIMIT), "other frames than those that were sent")
    if decoder.broken is not None:
        require(decoder.broken.sentence, "refused without a sentence")
        decoder.feed(data)
        require(not decoder.take(1), "a frame after the end")
