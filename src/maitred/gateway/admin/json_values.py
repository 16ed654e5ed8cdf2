"""Values from elsewhere in answers: msgpack has some that JSON cannot express."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from msgspec import MsgspecError, json

_encode: Final = json.Encoder().encode


def is_json(value: object) -> bool:
    """Return whether JSON can express the value: msgpack has maps with keys of any type, for
    example, and extensions."""
    with suppress(TypeError, ValueError, OverflowError, RecursionError, MsgspecError):
        _encode(value)
        return True
    return False
