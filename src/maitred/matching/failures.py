"""The failure of an attempt, as its worker reported it: cut to what is stored whatever the quotas
say, or to what a log line names."""

from __future__ import annotations

from typing import Final

from msgspec import DecodeError, msgpack

FAILURE_BYTES: Final = 128
"""A failure of at most this length is stored with its task even where a quota has no room: less
than what a stored task counts without its payload, so that failures at most double it."""

_KIND_BYTES: Final = 40
_SHOWN_BYTES: Final = 100
_MESSAGE_BYTES: Final = 48
_CUT: Final = " ... (cut: no room in the store)"
_UNREADABLE: Final = ("not-kept", "The worker's error")

_decode: Final = msgpack.Decoder(list[str]).decode


def cut_failure(body: bytes) -> bytes:
    """Return the failure with the beginnings of its kind and message, and without traceback."""
    try:
        kind, message, *_ = _decode(body)
    except (DecodeError, UnicodeDecodeError, ValueError):
        kind, message = _UNREADABLE
    return msgpack.encode((_clip(kind, _KIND_BYTES), _clip(message, _MESSAGE_BYTES) + _CUT, ""))


def kind_of(body: bytes) -> str:
    """Return the kind of a failure as a worker reported it, cut to a length that fits a line."""
    try:
        kind, *_ = _decode(body)
    except (DecodeError, UnicodeDecodeError, ValueError):
        return "unknown"
    return _clip(kind, _SHOWN_BYTES)


def message_of(body: bytes, letters: int) -> str:
    """Return the message of a failure as a worker reported it, cut to so many characters."""
    try:
        _, message, *_ = _decode(body)
    except (DecodeError, UnicodeDecodeError, ValueError):
        return ""
    return message if len(message) <= letters else message[: letters - 1] + "…"


def _clip(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")
