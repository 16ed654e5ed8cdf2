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

from maitred.errors import ProtocolViolation, Unauthenticated

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


class DiallerProof:
    """The dialling end of one mutual proof."""

    def __init__(self, secret: bytes, nonce: bytes, role: str, listener: str) -> None:
        """`nonce` has `NONCE_BYTES` fresh random bytes; `listener` is the id of the member that the
        process wants to reach."""
        self._secret = secret
        self.nonce = nonce
        self._role = role
        self._listener = listener

    def answer(self, challenge: bytes) -> bytes:
        """Return this end's proof for the challenge of the listening end; raise `Unauthenticated`
        unless the listening end is that member of this cluster."""
        if len(challenge) == NONCE_BYTES + PROOF_BYTES:
            nonce, shown = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
            if is_proof(shown, self._proof("listener", nonce)):
                return self._proof("dialler", nonce)
        raise Unauthenticated(
            f"The process at this address did not prove to be member {self._listener} of the "
            "cluster.",
            remedy="Another node, or a later start of the node, has the address now; or it "
            "belongs to another cluster.",
        )

    def _proof(self, direction: Direction, listener_nonce: bytes) -> bytes:
        return cluster_proof(
            self._secret,
            direction,
            dialler_nonce=self.nonce,
            listener_nonce=listener_nonce,
            role=self._role,
            listener=self._listener,
        )


class ListenerProof:
    """The listening end of one mutual proof."""

    def __init__(self, secret: bytes, nonce: bytes, role: str, listener: str) -> None:
        """`nonce` has `NONCE_BYTES` fresh random bytes; `role` is what the dialling process says it
        is; `listener` is this member's id."""
        self._secret = secret
        self._nonce = nonce
        self.role = role
        self._listener = listener
        self._dialler_nonce = b""

    def challenge(self, dialler_nonce: bytes) -> bytes:
        """Return the challenge for this nonce of the dialling end: a nonce and this end's proof.
        Raise `ProtocolViolation` unless it is a nonce."""
        if len(dialler_nonce) != NONCE_BYTES:
            raise ProtocolViolation(f"A nonce has {NONCE_BYTES} bytes.")
        self._dialler_nonce = dialler_nonce
        return self._nonce + self._proof("listener")

    def accepts(self, shown: bytes) -> bool:
        """Return whether the dialling end has shown that it knows the cluster's secret."""
        return is_proof(shown, self._proof("dialler"))

    def _proof(self, direction: Direction) -> bytes:
        return cluster_proof(
            self._secret,
            direction,
            dialler_nonce=self._dialler_nonce,
            listener_nonce=self._nonce,
            role=self.role,
            listener=self._listener,
        )
