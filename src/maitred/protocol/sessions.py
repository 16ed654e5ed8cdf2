"""A worker's session, and the secret that it is made of.

A worker draws 16 random bytes at its start; its session is a hash of them. Gateways, partitions and
people name the worker by its session, so many know it. The secret goes to the node alone, when the
worker attends: so nobody else attends in its name, hears who may come to it, or says where it is.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SESSION_BYTES: Final = 16

_PURPOSE: Final = b"worker session"


def session_of_secret(secret: bytes) -> bytes:
    """Return the session of the worker that drew this secret."""
    return blake2b(secret, digest_size=SESSION_BYTES, person=_PURPOSE).digest()
