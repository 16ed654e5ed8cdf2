"""Proofs: the same at every owner, another one for whatever differs."""

from __future__ import annotations

import pytest

from maitred.matching.proofs import PROOF_BYTES, Signer
from maitred.matching.records import PartitionKey

KEY = PartitionKey("shop", "mails", 1, 3)
SECRET = bytes(range(32))


def test_the_next_owner_computes_the_same_proof() -> None:
    proof = Signer(SECRET, b"attempt", KEY).proof(b"message")
    assert len(proof) == PROOF_BYTES
    signer = Signer(SECRET, b"attempt", KEY)
    assert signer.proof(b"another") != proof
    assert signer.proof(b"message") == proof


@pytest.mark.parametrize(
    ("secret", "purpose", "key", "message"),
    [
        (bytes(32), b"attempt", KEY, b"message"),
        (SECRET, b"reservation", KEY, b"message"),
        (SECRET, b"attempt", KEY._replace(namespace="evil"), b"message"),
        (SECRET, b"attempt", KEY._replace(namespace="sho", queue="pmails"), b"message"),
        (SECRET, b"attempt", KEY._replace(queue_type=2), b"message"),
        (SECRET, b"attempt", KEY._replace(partition=4), b"message"),
        (SECRET, b"attempt", KEY, b"messag"),
    ],
)
def test_whatever_differs_has_another_proof(
    secret: bytes, purpose: bytes, key: PartitionKey, message: bytes
) -> None:
    usual = Signer(SECRET, b"attempt", KEY).proof(b"message")
    assert Signer(secret, purpose, key).proof(message) != usual
