"""Rows of a stream: a chunk is a sequence of msgpack values without a count.

msgspec's decoders take one value. So the values are counted first, by their headers alone, and then
decoded together as one array: that is one call for a chunk, and Python code looks at no more of a
row than its headers.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as TruncatedLength  # noqa: N812 - what it means here
from typing import Final

from maitred.errors import ProtocolViolation

_TWO: Final = Layout(">H").unpack_from
_FOUR: Final = Layout(">I").unpack_from
_ARRAY: Final = Layout(">BI").pack

_SCALAR, _ITEMS, _PAIRS, _LENGTH, _NEVER = range(5)


def _kinds() -> list[tuple[int, int, int]]:
    """Return, by first byte of a value: its kind, its fixed number of bytes, and the count or width
    it gives."""
    found: list[tuple[int, int, int]] = [(_SCALAR, 1, 0)] * 256
    for low in range(16):
        found[0x80 + low] = (_PAIRS, 1, low)
        found[0x90 + low] = (_ITEMS, 1, low)
    for low in range(32):
        found[0xA0 + low] = (_SCALAR, 1 + low, 0)
    found[0xC1] = (_NEVER, 1, 0)
    sizes = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
    sizes |= {0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    sizes |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
    for first, size in sizes.items():
        found[first] = (_SCALAR, size, 0)
    # Width of the length in bytes, and of the header; ext has one more byte, for its type.
    for first, width, fixed in (
        *((0xC4, 1, 2), (0xC5, 2, 3), (0xC6, 4, 5)),
        *((0xC7, 1, 3), (0xC8, 2, 4), (0xC9, 4, 6)),
        *((0xD9, 1, 2), (0xDA, 2, 3), (0xDB, 4, 5)),
    ):
        found[first] = (_LENGTH, fixed, width)
    found[0xDC], found[0xDD] = (_ITEMS, 3, -2), (_ITEMS, 5, -4)
    found[0xDE], found[0xDF] = (_PAIRS, 3, -2), (_PAIRS, 5, -4)
    return found


_KINDS: Final = _kinds()


def ends(chunk: bytes) -> list[int]:
    """Return where each value of the chunk ends; raise `ProtocolViolation` unless all values are
    whole."""
    end = len(chunk)
    try:
        found = _walk(chunk, end)
    except (IndexError, TruncatedLength):
        found = [end + 1]
    if found and found[-1] != end:
        raise ProtocolViolation("A stream's rows are not msgpack: the last one is cut off.")
    return found


def _walk(chunk: bytes, end: int) -> list[int]:
    at = 0
    found = []
    kinds = _KINDS
    while at < end:
        left = 1
        while left:
            kind, size, number = kinds[chunk[at]]
            left -= 1
            if kind == _SCALAR:
                at += size
            elif kind == _LENGTH:
                at += size + _number(chunk, at + 1, number)
            elif kind == _NEVER:
                raise ProtocolViolation("A stream's rows are not msgpack: an invalid byte.")
            else:
                count = number if number >= 0 else _number(chunk, at + 1, -number)
                left += count if kind == _ITEMS else 2 * count
                at += size
        found.append(at)
    return found


def as_array(chunk: bytes) -> bytes:
    """Return the same rows as one msgpack array."""
    return _ARRAY(0xDD, len(ends(chunk))) + chunk


def _number(chunk: bytes, at: int, width: int) -> int:
    if width == 1:
        return chunk[at]
    number: int = (_TWO if width == 2 else _FOUR)(chunk, at)[0]
    return number
