"""Proofs that a partition handed something out, which its next owner can verify.

A proof is a MAC with the store's signing key over a purpose, a queue's partition and a message. A
partition keeps nothing to verify one: after a crash or a takeover the next owner computes it again.
The purpose separates proofs of different kinds, so that one never passes for another.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from maitred.matching.records import PartitionKey

PROOF_BYTES: Final = 16
"""128 bits: to guess one, a caller would have to ask 2**127 times on average."""


class Signer:
    """Signs messages of one purpose for one partition."""

    __slots__ = ("_keyed",)

    def __init__(
        self, signing_key: bytes, purpose: bytes, key: PartitionKey, size: int = PROOF_BYTES
    ) -> None:
        """Sign with `size` bytes, at most 64. The purpose has at most 16 bytes."""
        self._keyed = blake2b(key=signing_key, digest_size=size, person=purpose)
        for name in (key.namespace.encode(), key.queue.encode()):
            # With their lengths, so that no two pairs of names give the same bytes.
            self._keyed.update(len(name).to_bytes(4, "little") + name)
        self._keyed.update(key.queue_type.to_bytes(8, "little", signed=True))
        self._keyed.update(key.partition.to_bytes(8, "little", signed=True))

    def proof(self, message: bytes) -> bytes:
        """Compute the proof of the message: the same bytes at every owner of the partition."""
        keyed = self._keyed.copy()
        keyed.update(message)
        return keyed.digest()
