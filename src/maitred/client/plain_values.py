"""Values of users, made fit for JSON.

Arguments and results are the user's. They may hold values that JSON cannot express: bytes, times,
keys that are not text, NaN. None of these may keep a person from seeing the rest.
"""

from __future__ import annotations

from math import isfinite


def plain(value: object) -> object:
    """Return the value with everything that JSON cannot express as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(plain(key)): plain(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return f"bytes {bytes(value).hex()}" if value else "bytes"
    return str(value)


def plain_body(body: bytes) -> object:
    """Return what the msgpack says, fit for JSON; raise `ValueError` if it says nothing."""
    from msgspec import DecodeError, msgpack

    try:
        return plain(msgpack.decode(body))
    except (DecodeError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise ValueError(str(problem)) from None
