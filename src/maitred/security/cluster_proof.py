"""Mutual proof that two processes belong to one cluster: both know its secret, neither sends it.

Each end draws a nonce. The listening end proves itself first, so that a process which dials an
address out of the membership table learns whether a node of its cluster is there before it says
more. A proof is an HMAC over both nonces, the role of the dialling process and the identity of the
listening one, with a different label for each direction, so that no proof can be sent back.

    dials    nonce A
    listens  nonce B, proof("listener", A, B, ...)
    dials    proof("dialler", A, B, ...)
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final, Literal

NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32

Direction = Literal["listener", "dialler"]


def cluster_proof(
    secret: bytes,
    direction: Direction,
    *,
    dialler_nonce: bytes,
    listener_nonce: bytes,
    role: str,
    listener: str,
) -> bytes:
    """Return the proof of one end. `role` is what the dialling process is (`node`, `gateway`,
    `member`); `listener` is the id of the member that listens."""
    parts = (direction.encode(), dialler_nonce, listener_nonce, role.encode(), listener.encode())
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, b"maitred cluster proof 1" + message, sha256)


def is_proof(shown: bytes, expected: bytes) -> bool:
    """Return whether the proof is the expected one, in constant time."""
    return hmac.compare_digest(shown, expected)
