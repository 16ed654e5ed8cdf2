"""Tokens and shards, as ScyllaDB and its drivers compute them.

The token of a key is Murmur3 (x64, 128 bits, the first half) with Cassandra's quirk: the bytes of
the last, incomplete block are sign-extended before they are mixed in. `_tokens.c` computes it;
it is built when maitred is installed, where there is a compiler. Where there was none, the
functions whose names end in `_in_python` give the same numbers, seven times slower for ASCII keys
and a hundred times or more for some others: routes are right everywhere, and fast nearly
everywhere. The tests compare the two.

In Python, mmh3 computes the standard function; it gives the same number unless a byte >= 0x80
stands in that last block. ASCII keys, and so nearly all keys, never have one. For the others:

- The sign-extended block can mostly be expressed as plain bytes of the same length: always if
  it has 8 bytes (a key of 40, say), else if each half has an even number of such bytes. Then
  mmh3 hashes those bytes instead.
- Otherwise there is no such block, and plain Python computes the token.

A token's shard, `biased-token-round-robin`, is the token without its first `ignore_msb` bits,
scaled to the number of shards.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from mmh3 import mmh3_x64_128_stupledigest

from maitred.errors import InvalidShards

if TYPE_CHECKING:
    from collections.abc import Callable

SHARDS_MAX = 1024
"""The most shards of a node, more cores than any machine we know; it keeps a wrong number from
becoming a wrong route."""

IGNORE_MSB_MAX = 63
"""The most bits that may be ignored: a token has 64 bits, and one must be left."""

IGNORE_MSB = 12
"""How many of a token's first bits are ignored: ScyllaDB's default; some drivers refuse 0."""

_LIMIT = 2**64 - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def _flips(signs: tuple[int, ...]) -> int:
    """Return the bits that sign extension flips in half a block: all above each negative byte."""
    flips = 0
    for position, negative in enumerate(signs):
        if negative:
            flips ^= (1 << 64) - (1 << 8 * position + 8)
    return flips


_SIGNS = bytes(byte >> 7 for byte in range(256))
_FLIPS = {
    bytes(signs): _flips(signs) for size in range(9) for signs in product((0, 1), repeat=size)
}

_from_bytes = int.from_bytes

# Called as a function, not as a method of the key, it also refuses any type but `bytes`: text has a
# method of that name, and mmh3 would accept text.
_is_ascii = bytes.isascii


def token_in_python(data: bytes) -> int:
    """Compute the token without `_tokens.c`."""
    if _is_ascii(data):
        return mmh3_x64_128_stupledigest(data)[0]
    return _token_of_any(data)


def shard_of(token: int, shards: int, ignore_msb: int = IGNORE_MSB) -> int:
    """Return the shard, from 0 to `shards` - 1, that owns the token."""
    if 0 < ignore_msb <= IGNORE_MSB_MAX and 0 < shards <= SHARDS_MAX:
        # The definition biases the token by 2**63, drops its first bits with a shift and a mask,
        # multiplies, and keeps the upper 64 bits. The bias disappears with the first bit, and
        # multiplying first turns the mask into a remainder of small numbers.
        return (token * shards >> 64 - ignore_msb) % shards
    check_sharding(shards, ignore_msb)
    return (token + 2**63 & _LIMIT) * shards >> 64


def sharding(shards: int, ignore_msb: int = IGNORE_MSB) -> Callable[[bytes], int]:
    """Return a function from keys to shards for one node; check the two numbers once, here."""
    check_sharding(shards, ignore_msb)
    return _sharding(shards, ignore_msb)


def sharding_in_python(shards: int, ignore_msb: int) -> Callable[[bytes], int]:
    """Do what `sharding` does without `_tokens.c`; the numbers are checked already."""
    if ignore_msb == 0:
        return lambda key: shard_of(token_in_python(key), shards, 0)
    bits_left = 64 - ignore_msb

    def shard_of_key(key: bytes) -> int:
        # `shard_of(token_in_python(key), ...)`, without the calls and the checks.
        found = mmh3_x64_128_stupledigest(key)[0] if _is_ascii(key) else _token_of_any(key)
        return (found * shards >> bits_left) % shards

    return shard_of_key


def check_sharding(shards: int, ignore_msb: int) -> None:
    """Raise `InvalidShards` unless both numbers are in their ranges."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidShards(f"A node has from 1 to {SHARDS_MAX} shards, not {shards}.")
    if not 0 <= ignore_msb <= IGNORE_MSB_MAX:
        raise InvalidShards(f"ignore_msb is a number from 0 to {IGNORE_MSB_MAX}, not {ignore_msb}.")


def _token_of_any(data: bytes) -> int:
    body_size = len(data) & -16
    tail = data[body_size:]
    signs = tail.translate(_SIGNS)
    if len(tail) <= 8:
        extended = _from_bytes(tail, "little") ^ _FLIPS[signs]
    else:
        flips = _FLIPS[signs[8:]] << 64 | _FLIPS[signs[:8]]
        extended = _from_bytes(tail, "little") ^ flips
    try:
        plain = extended.to_bytes(len(tail), "little")
    except OverflowError:
        return _murmur3(data, body_size, extended)
    return mmh3_x64_128_stupledigest(data[:body_size] + plain)[0]


def _murmur3(data: bytes, body_size: int, tail: int) -> int:
    h1 = h2 = 0
    for at in range(0, body_size, 16):
        h1 ^= _scramble_1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _LIMIT
        h2 ^= _scramble_2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _LIMIT
    h1 ^= _scramble_1(tail & _LIMIT) ^ len(data)
    h2 ^= _scramble_2(tail >> 64) ^ len(data)
    h1 = h1 + h2 & _LIMIT
    h2 = h2 + h1 & _LIMIT
    unsigned = _finish(h1) + _finish(h2) & _LIMIT
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _LIMIT


def _scramble_1(word: int) -> int:
    return _rotate(word * _C1 & _LIMIT, 31) * _C2 & _LIMIT


def _scramble_2(word: int) -> int:
    return _rotate(word * _C2 & _LIMIT, 33) * _C1 & _LIMIT


def _finish(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & _LIMIT
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & _LIMIT
    return word ^ word >> 33


def _fastest() -> tuple[Callable[[bytes], int], Callable[[int, int], Callable[[bytes], int]]]:
    try:
        from maitred.routing import _tokens
    except ImportError:
        return token_in_python, sharding_in_python
    return _tokens.token, _tokens.sharding


token, _sharding = _fastest()
"""`token` returns the Murmur3 token of bytes, a signed 64-bit number; 0 for empty bytes."""
