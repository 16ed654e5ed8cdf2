"""farmhash's Fingerprint32, the hash of the ring and of gradual changes.

pyfarmhash computes it in C where it has a wheel. Where it has none (a Python newer than its last
release, on a machine without a compiler) the function below gives the same numbers, some forty
times slower: routes are right everywhere, and fast nearly everywhere. The tests compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 0xFFFFFFFF
_C1 = 0xCC9E2D51
_C2 = 0x1B873593
_C3 = 0xE6546B64


def fingerprint32_in_python(data: str | bytes) -> int:
    """Compute Fingerprint32 without the C library."""
    text = data.encode() if isinstance(data, str) else data
    size = len(text)
    if size <= 4:
        return _up_to_4(text, size)
    if size <= 12:
        return _from_5_to_12(text, size)
    if size <= 24:
        return _from_13_to_24(text, size)
    return _longer(text, size)


def _word(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + 4], "little")


def _rotate(word: int, bits: int) -> int:
    word &= _LIMIT
    return (word >> bits | word << (32 - bits)) & _LIMIT


def _scramble(word: int) -> int:
    return _rotate(word * _C1, 17) * _C2 & _LIMIT


def _stir(state: int) -> int:
    return (_rotate(state, 19) * 5 + _C3) & _LIMIT


def _mix(word: int, state: int) -> int:
    return _stir(state ^ _scramble(word))


def _finish(state: int) -> int:
    state &= _LIMIT
    state ^= state >> 16
    state = state * 0x85EBCA6B & _LIMIT
    state ^= state >> 13
    state = state * 0xC2B2AE35 & _LIMIT
    return state ^ state >> 16


def _up_to_4(text: bytes, size: int) -> int:
    b, c = 0, 9
    for byte in text:
        signed = byte - 256 if byte > 127 else byte
        b = (b * _C1 + signed) & _LIMIT
        c ^= b
    return _finish(_mix(b, _mix(size, c)))


def _from_5_to_12(text: bytes, size: int) -> int:
    a = size + _word(text, 0)
    b = size * 5 + _word(text, size - 4)
    c = 9 + _word(text, size >> 1 & 4)
    return _finish(_mix(c, _mix(b, _mix(a, size * 5))))


def _from_13_to_24(text: bytes, size: int) -> int:
    middle = size >> 1
    a = _word(text, middle - 4)
    b = _word(text, 4)
    c = _word(text, size - 8)
    d = _word(text, middle)
    e = _word(text, 0)
    f = _word(text, size - 4)
    state = d * _C1 + size & _LIMIT
    a = _rotate(a, 12) + f
    state = _mix(c, state) + a & _LIMIT
    a = _rotate(a, 3) + c
    state = _mix(e, state) + a & _LIMIT
    a = _rotate(a + f, 12) + d
    return _finish(_mix(b, state) + a)


def _longer(text: bytes, size: int) -> int:
    h = size
    g = f = _C1 * size & _LIMIT
    h = _stir(h ^ _scramble(_word(text, size - 4)))
    h = _stir(h ^ _scramble(_word(text, size - 16)))
    g = _stir(g ^ _scramble(_word(text, size - 8)))
    g = _stir(g ^ _scramble(_word(text, size - 12)))
    f = _rotate(f + _scramble(_word(text, size - 20)), 19) + 113
    for at in range(0, (size - 1) // 20 * 20, 20):
        a, b, c, d, e = (_word(text, at + offset) for offset in range(0, 20, 4))
        h = _mix(d, h + a & _LIMIT) + e
        g = _mix(c, g + b & _LIMIT) + a
        f = _mix(b + e * _C1, f + c & _LIMIT) + d
        f = f + g & _LIMIT
        g = g + f & _LIMIT
    g = _rotate(_rotate(g, 11) * _C1, 17) * _C1
    f = _rotate(_rotate(f, 11) * _C1, 17) * _C1
    h = _rotate(_stir(h + g), 17) * _C1
    return _rotate(_stir(h + f), 17) * _C1 & _LIMIT


def _fastest() -> Callable[[str | bytes], int]:
    try:
        import farmhash
    except ImportError:
        return fingerprint32_in_python
    in_c: Callable[[str | bytes], int] = farmhash.fingerprint32
    return in_c


fingerprint32 = _fastest()
"""Fingerprint32 of bytes, or of text as UTF-8: a number from 0 to 2**32 - 1."""
