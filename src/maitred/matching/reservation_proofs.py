"""Proofs that a partition made a counted reservation for a worker and a user.

A worker reports which counted reservations hold a slot (RUNNING), and each of them takes one of the
user's permits. So a report has to show that the partition made the reservation: the worker shows
the token together with the proof that came with it, which no other process is told. The next
owner of the partition verifies it with the store's key and needs to remember nothing.

A proof expires a little after the longest time for which the reservation can be used. A worker
that keeps reporting a query which ended long ago thus holds the user's permit no longer than a
query that runs for all the time it may.
"""

from __future__ import annotations

from hmac import compare_digest
from math import ceil
from typing import TYPE_CHECKING, Final

from maitred.matching.proofs import PROOF_BYTES, Signer

if TYPE_CHECKING:
    from maitred.matching.records import PartitionKey

EXPIRY_BYTES: Final = 6
"""The second of the wall clock after which a proof is worth nothing."""

RESERVATION_PROOF_BYTES: Final = EXPIRY_BYTES + PROOF_BYTES

GRACE_SECONDS: Final = 60.0
"""Validity beyond the time for which a reservation lasts and its query runs: handlers take a moment
to stop, and the clocks of two nodes differ."""

_PURPOSE: Final = b"reservation"


def expires_at(proof: bytes) -> int:
    """Return when the proof says it expires, in seconds since 1970; verify the proof as well."""
    return int.from_bytes(proof[:EXPIRY_BYTES], "big")


class ReservationProofs:
    """Issues and verifies the proofs of one partition's counted reservations."""

    __slots__ = ("_signer",)

    def __init__(self, signing_key: bytes, key: PartitionKey) -> None:
        self._signer = Signer(signing_key, _PURPOSE, key)

    def issue(self, session: bytes, user: str, token: bytes, expires_at: float) -> bytes:
        """Prove that the worker with this session may report this user's reservation until
        `expires_at`, in seconds since 1970."""
        expiry = ceil(expires_at).to_bytes(EXPIRY_BYTES, "big")
        return expiry + self._mac(session, user, token, expiry)

    def verify(self, session: bytes, user: str, token: bytes, proof: bytes) -> bool:
        """Return whether this partition, under whichever owner, issued the proof for these three.
        Whether it has expired is another question."""
        mac = self._mac(session, user, token, proof[:EXPIRY_BYTES])
        return compare_digest(proof[EXPIRY_BYTES:], mac)

    def _mac(self, session: bytes, user: str, token: bytes, expiry: bytes) -> bytes:
        # All but the last part have a fixed length, so no two reservations give the same bytes.
        return self._signer.proof(session + token + expiry + user.encode(errors="surrogatepass"))
