"""What a task carries, made readable: msgpack as JSON, anything else as hexadecimal digits.

Payloads are the user's. They may hold what JSON has no word for (bytes, times, keys that are no
text, numbers that are none), and what would move the cursor of a terminal; none of that may keep a
person from seeing the rest.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple

from maitred.cli.output import json_text

if TYPE_CHECKING:
    from maitred.protocol.tasks import Failure


class Encoded(NamedTuple):
    """A payload as JSON could have it."""

    value: object
    encoding: Literal["msgpack", "hex"]

    def text(self) -> str:
        """For people; control characters are escaped, as JSON does."""
        if self.encoding == "hex":
            return str(self.value)
        return json_text(self.value)


def payload_of(payload: bytes) -> Encoded:
    """What the bytes stand for."""
    from msgspec import DecodeError, msgpack

    try:
        return Encoded(_plain(msgpack.decode(payload)), "msgpack")
    except (DecodeError, ValueError, TypeError, OverflowError, RecursionError):
        return Encoded(payload.hex(" "), "hex")


def failure_of(body: bytes) -> Failure | None:
    """Why it failed; None, if nobody wrote that down in a way that we know."""
    from msgspec import DecodeError, msgpack

    from maitred.protocol.tasks import Failure

    try:
        failure = msgpack.decode(body, type=Failure)
    except (DecodeError, ValueError, RecursionError):
        return None
    return Failure(*map(_printable, (failure.kind, failure.message, failure.traceback)))


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(_plain(key)): _plain(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return f"bytes {bytes(value).hex()}" if value else "bytes"
    return str(value)


def _printable(text: str) -> str:
    """A failure comes from a worker: what would move the cursor is left out, lines stay."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
