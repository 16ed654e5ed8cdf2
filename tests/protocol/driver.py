"""scylla-driver's own encoders and decoders, to compare ours with."""

from __future__ import annotations

from typing import Any

from cassandra.protocol import ProtocolHandler
from cassandra.protocol_features import ProtocolFeatures

from maitred.protocol.frames import REQUEST, VERSION, Frame, FrameDecoder

FEATURES = ProtocolFeatures()


def sent_by_driver(message: Any, stream: int = 1) -> Frame:  # noqa: ANN401 - the driver has no types
    """The frame that the driver makes of the message, as our decoder sees it."""
    data = ProtocolHandler.encode_message(message, stream, VERSION, None, False, FEATURES)  # noqa: FBT003
    decoder = FrameDecoder(REQUEST, 2**20)
    decoder.feed(data)
    (frame,) = decoder.take(2)
    return frame


def read_by_driver(opcode: int, body: bytes, flags: int = 0) -> Any:  # noqa: ANN401
    """The message that the driver makes of our body."""
    return ProtocolHandler.decode_message(VERSION, FEATURES, {}, 1, flags, opcode, body, None, None)
