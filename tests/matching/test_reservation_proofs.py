"""Proofs of counted reservations: good for what they were issued for, and for nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.records import PartitionKey
from maitred.matching.reservation_proofs import (
    RESERVATION_PROOF_BYTES,
    ReservationProofs,
    expires_at,
)
from maitred.protocol.queries import PROOF_BYTES

KEY = PartitionKey("shop", "orders", 1, 0)
SIXTEEN = st.binary(min_size=16, max_size=16)
PARTS = st.tuples(SIXTEEN, st.text(), SIXTEEN)
"""A session, a user and a token."""


def test_the_wire_has_room_for_them() -> None:
    assert RESERVATION_PROOF_BYTES == PROOF_BYTES


@given(PARTS, PARTS, st.floats(0, 2**40))
def test_for_what_it_was_issued_and_for_nothing_else(
    one: tuple[bytes, str, bytes], other: tuple[bytes, str, bytes], at: float
) -> None:
    proof = ReservationProofs(b"k" * 32, KEY).issue(*one, at)
    assert len(proof) == RESERVATION_PROOF_BYTES
    assert at <= expires_at(proof) <= at + 1
    next_owner = ReservationProofs(b"k" * 32, KEY)
    assert next_owner.verify(*one, proof)
    assert next_owner.verify(*other, proof) == (one == other)
    assert not ReservationProofs(b"x" * 32, KEY).verify(*one, proof)
    assert not ReservationProofs(b"k" * 32, KEY._replace(partition=1)).verify(*one, proof)


@given(PARTS, st.integers(0, RESERVATION_PROOF_BYTES - 1), st.integers(1, 255))
def test_each_byte_counts(parts: tuple[bytes, str, bytes], at: int, change: int) -> None:
    proofs = ReservationProofs(b"k" * 32, KEY)
    proof = bytearray(proofs.issue(*parts, 1e9))
    proof[at] ^= change
    assert not proofs.verify(*parts, bytes(proof))
