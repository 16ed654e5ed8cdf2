"""Proofs that a worker was given an attempt at a task.

A worker that speaks of an attempt shows the proof that came with the task: when it ends the
attempt, when it gives the task back, and when it says that the attempt still runs. Leases are in
memory only, so a partition that was just loaded knows of none; it verifies the proof with the
store's key instead, and thus still hears from the workers that live.

A proof names its holder, so it is worth nothing to another worker or another user. It names the
task and the attempt, so it is worth nothing for another one. Sequence numbers are never used twice,
so no proof of an old task matches a later one. It does not expire: what it is good for ends with
the attempt.

One MAC of 64 bytes yields the proofs of a block of four consecutive tasks, 16 bytes each. Nothing
follows from one part of a MAC for the others, so a holder of one proof learns none of the rest of
its block. A worker that takes tasks in their order thus costs the partition one MAC for four tasks.
"""

from __future__ import annotations

from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING, Final

from maitred.matching.proofs import PROOF_BYTES, Signer

if TYPE_CHECKING:
    from maitred.matching.records import PartitionKey

SESSION_BYTES: Final = 16
"""Length of a worker's session on the wire."""

_PURPOSE: Final = b"attempt"

BLOCK_TASKS: Final = 4
"""Tasks whose proofs are parts of one MAC: BLAKE2b has 64 bytes at most."""

HOLDERS_REMEMBERED: Final = 64
"""Holders whose last MAC a partition remembers: a few kilobytes. More workers at one partition
rarely take two tasks of one block."""

_PLACES: Final = [slice(at * PROOF_BYTES, (at + 1) * PROOF_BYTES) for at in range(BLOCK_TASKS)]
"""Where the proofs of the block's tasks are in its MAC."""

_pack: Final = Struct("<QQ").pack
"""The number of a block of tasks and the number of an attempt."""


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


class BlockSigner:
    """Computes the proofs of attempts at the tasks of one partition."""

    __slots__ = ("_last", "_sign")

    def __init__(self, signing_key: bytes, key: PartitionKey) -> None:
        self._sign = Signer(signing_key, _PURPOSE, key, BLOCK_TASKS * PROOF_BYTES).proof
        self._last: dict[bytes, tuple[int, int, bytes]] = {}
        """The last block, attempt and MAC of each holder."""

    def proof(self, sequence: int, attempt: int, holder: bytes) -> bytes:
        """Compute the proof that the holder was given this attempt at this task."""
        block = sequence // BLOCK_TASKS
        last = self._last.get(holder)
        if last is None or last[0] != block or last[1] != attempt:
            if len(self._last) >= HOLDERS_REMEMBERED and last is None:
                self._last.clear()
            last = block, attempt, self._sign(_pack(block, attempt) + holder)
            self._last[holder] = last
        return last[2][_PLACES[sequence % BLOCK_TASKS]]


class AttemptProofs:
    """Issues and verifies the proofs of one partition, and issues those of its visitors."""

    __slots__ = ("_key", "_signing_key", "_visitors", "issue")

    def __init__(self, signing_key: bytes, key: PartitionKey) -> None:
        self._signing_key = signing_key
        self._key = key
        self.issue = BlockSigner(signing_key, key).proof
        """Proves that a holder was given an attempt at a task of this partition."""
        self._visitors: dict[int, BlockSigner] = {}
        """Signers of the partitions below this one whose tasks were given out here."""

    def issue_for_visitor(
        self, partition: int, sequence: int, attempt: int, holder: bytes
    ) -> bytes:
        """Prove the same of a task of another partition of the queue, as that partition would: the
        worker shows it there, and not here."""
        signer = self._visitors.get(partition)
        if signer is None:
            key = self._key._replace(partition=partition)
            signer = self._visitors[partition] = BlockSigner(self._signing_key, key)
        return signer.proof(sequence, attempt, holder)

    def verify(self, sequence: int, attempt: int, holder: bytes, proof: bytes) -> bool:
        """Return whether an owner of this partition, or of one above it, gave the attempt to the
        holder."""
        return compare_digest(proof, self.issue(sequence, attempt, holder))
