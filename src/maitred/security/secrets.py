"""Secrets are stored as scrypt hashes that include their parameters.

`scrypt$16384$8$1$<salt>$<hash>`: cost, block size, lanes, then salt and hash in base64. So the
parameters can rise later while old hashes stay valid. The price is that a hash decides what its
verification costs; the bounds below keep a file from asking for all of the memory.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from typing import NamedTuple

from maitred.errors import InvalidArgument, InvalidSetting

COST = 2**14
BLOCK = 8
LANES = 1
"""With these parameters a guess takes 16 MiB and some 40 ms: little for a login, and a lot for a
list of passwords."""

SALT_BYTES = 16
HASH_BYTES = 32

COST_MIN = 2**10
"""Below this cost, a hash protects nothing."""
COST_MAX = 2**17
BLOCK_MAX = 32
LANES_MAX = 4
MEMORY_MAX = 128 * 2**20
"""Most memory for one verification, in bytes: what OWASP recommends for scrypt at its strongest
(cost 2**17, block 8)."""

SECRET_BYTES_MAX = 1_024
"""Longest secret, as UTF-8. Longer ones would let a stranger choose how much the node has to
hash."""

_BYTES_MAX = 64


class Hashed(NamedTuple):
    """The parameters, the salt and the hash of a stored secret."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    hash: bytes

    @property
    def work(self) -> int:
        """Cost of a verification in arbitrary units, to compare it with others."""
        return self.cost * self.block * self.lanes

    def __str__(self) -> str:
        salt, hashed = (b64encode(part).decode() for part in (self.salt, self.hash))
        return f"scrypt${self.cost}${self.block}${self.lanes}${salt}${hashed}"


def hash_secret(secret: str) -> str:
    """Return a new hash, with a salt of its own; raise `InvalidArgument` for an unusable secret."""
    if not secret:
        raise InvalidArgument("The secret is empty.")
    encoded = _encoded(secret)
    if encoded is None:
        raise InvalidArgument(
            f"The secret is not Unicode text, or longer than {SECRET_BYTES_MAX:,} bytes."
        )
    made = Hashed(COST, BLOCK, LANES, os.urandom(SALT_BYTES), bytes(HASH_BYTES))
    return str(made._replace(hash=_scrypt(encoded, made)))


def verify(secret: str, hashed: str) -> bool:
    """Whether this is the secret; a wrong one takes the same time. Raises `InvalidSetting` for a
    malformed hash."""
    parts = parse_hashed(hashed)
    encoded = _encoded(secret)
    # A secret that cannot be right is hashed all the same, so that the answer takes as long.
    found = _scrypt(encoded or b"", parts)
    return hmac.compare_digest(found, parts.hash) and bool(encoded)


def spend(work: int) -> None:
    """Take as long as verifying hashes of this `work` would, so that the time of an answer reveals
    nothing."""
    unit = COST * BLOCK
    for cost, lanes in ((COST, work // unit), (COST_MIN, work % unit // (COST_MIN * BLOCK))):
        if lanes > 0:
            _scrypt(b"", Hashed(cost, BLOCK, lanes, bytes(SALT_BYTES), bytes(HASH_BYTES)))


def check_hashed(text: str, name: str = "The secret") -> None:
    """Raise `InvalidSetting` unless `verify` can use the hash. The error never shows its text."""
    parse_hashed(text, name)


def parse_hashed(text: str, name: str = "The secret") -> Hashed:
    """Parse a hash; raise `InvalidSetting` unless it is within the bounds above."""
    try:
        scheme, cost, block, lanes, salt, hashed = text.split("$")
        parts = Hashed(
            _number(cost),
            _number(block),
            _number(lanes),
            b64decode(salt, validate=True),
            b64decode(hashed, validate=True),
        )
    except (ValueError, binascii.Error):
        scheme, parts = "", None
    if parts is None or scheme != "scrypt":
        raise InvalidSetting(
            f"{name} is not a hashed secret.",
            remedy="Put there what `maitred hash-secret` prints, never the secret itself.",
        )
    if not _within_bounds(parts):
        raise InvalidSetting(
            f"{name} was hashed with parameters out of bounds: a cost that is a power of two from "
            f"{COST_MIN:,} to {COST_MAX:,}, blocks up to {BLOCK_MAX}, lanes up to {LANES_MAX}, "
            f"{MEMORY_MAX // 2**20} MiB in all, and 8 to {_BYTES_MAX} bytes of salt and 16 to "
            f"{_BYTES_MAX} of hash are allowed.",
            remedy="Make it anew with `maitred hash-secret`.",
        )
    return parts


def _within_bounds(parts: Hashed) -> bool:
    return (
        COST_MIN <= parts.cost <= COST_MAX
        and parts.cost & (parts.cost - 1) == 0
        and 1 <= parts.block <= BLOCK_MAX
        and 1 <= parts.lanes <= LANES_MAX
        and 128 * parts.cost * parts.block <= MEMORY_MAX
        and 8 <= len(parts.salt) <= _BYTES_MAX
        and 16 <= len(parts.hash) <= _BYTES_MAX
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _encoded(secret: str) -> bytes | None:
    try:
        encoded = secret.encode()
    except UnicodeEncodeError:
        return None
    return encoded if 0 < len(encoded) <= SECRET_BYTES_MAX else None


def _scrypt(secret: bytes, parts: Hashed) -> bytes:
    # OpenSSL refuses to use more than 32 MiB without a limit; it needs a little more than
    # the formula's cost x block x 128.
    memory = 128 * parts.block * (parts.cost + parts.lanes + 2) + 2**20
    return hashlib.scrypt(
        secret,
        salt=parts.salt,
        n=parts.cost,
        r=parts.block,
        p=parts.lanes,
        maxmem=memory,
        dklen=len(parts.hash),
    )
