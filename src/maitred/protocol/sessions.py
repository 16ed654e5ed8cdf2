"""A worker's session, and the secret that it is derived from.

A worker draws 16 random bytes at its start; its session is a hash of them. Gateways, partitions and
people name the worker by its session, so many know it. The worker sends the secret to the node
alone, in ATTEND: so no other process can attend in its name, learn which gateways may use it, or
announce another address for it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SESSION_BYTES: Final = 16

_PURPOSE: Final = b"worker session"


def session_of_secret(secret: bytes) -> bytes:
    """Return the session of the worker that drew this secret."""
    return blake2b(secret, digest_size=SESSION_BYTES, person=_PURPOSE).digest()
