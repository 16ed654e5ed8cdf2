"""Proofs that a worker was given an attempt at a task.

A worker that speaks of an attempt shows the proof that came with the task: when it ends the
attempt, when it gives the task back, and when it says that the attempt still runs. Leases are in
memory only, so a partition that was just loaded knows of none; it verifies the proof with the
store's key instead, and thus still hears from the workers that live.

A proof names its holder, so it is worth nothing to another worker or another user. It names the
task and the attempt, so it is worth nothing for another one. Sequence numbers are never used twice,
so no proof of an old task matches a later one. It does not expire: what it is good for ends with
the attempt.
"""

from __future__ import annotations

from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, Final

from maitred.matching.proofs import Signer

if TYPE_CHECKING:
    from maitred.matching.records import PartitionKey

SESSION_BYTES: Final = 16
"""Length of a worker's session on the wire."""

_PURPOSE: Final = b"attempt"

_pack: Final = Struct("<QQ").pack
"""The sequence number of a task and the number of an attempt at it."""


def holder_of(session: bytes, user: str) -> bytes:
    """Name the holder of an attempt: a worker's session, and the user as whom it connects.

    Gateways are told the sessions of workers, so a session alone proves nothing about its caller.
    A worker keeps both when it connects again, and draws another session when it starts again.
    """
    return session + user.encode(errors="surrogatepass")


def session_of(holder: bytes) -> bytes:
    """Return the session that `holder_of` was given."""
    return holder[:SESSION_BYTES]


def user_of(holder: bytes) -> str:
    """Return the user that `holder_of` was given."""
    return holder[SESSION_BYTES:].decode(errors="surrogatepass")


class AttemptProofs:
    """Issues and verifies the proofs of one partition, and issues those of its visitors."""

    __slots__ = ("_key", "_prove", "_signing_key", "_visitors")

    def __init__(self, signing_key: bytes, key: PartitionKey) -> None:
        self._signing_key = signing_key
        self._key = key
        self._prove = Signer(signing_key, _PURPOSE, key).proof
        self._visitors: dict[int, Signer] = {}
        """Signers of the partitions below this one whose tasks were given out here."""

    def issue(self, sequence: int, attempt: int, holder: bytes) -> bytes:
        """Prove that the holder was given this attempt at a task of this partition."""
        return self._prove(_pack(sequence, attempt) + holder)

    def issue_for_visitor(
        self, partition: int, sequence: int, attempt: int, holder: bytes
    ) -> bytes:
        """Prove the same of a task of another partition of the queue, as that partition would: the
        worker shows it there, and not here."""
        signer = self._visitors.get(partition)
        if signer is None:
            key = self._key._replace(partition=partition)
            signer = self._visitors[partition] = Signer(self._signing_key, _PURPOSE, key)
        return signer.proof(_pack(sequence, attempt) + holder)

    def verify(self, sequence: int, attempt: int, holder: bytes, proof: bytes) -> bool:
        """Return whether an owner of this partition, or of one above it, gave the attempt to the
        holder."""
        return compare_digest(proof, self.issue(sequence, attempt, holder))
