"""A certificate for a worker's listener, made anew at each start.

Gateways verify nothing in it but its bytes, so it has no authority, no host and no serial number
that matters. Its key exists only in the memory of one process.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME: Final = "maitred worker"

VALID_DAYS: Final = 3_650
"""Longer than a worker runs. Gateways compare the certificate itself and ignore its dates."""


class PemPair(NamedTuple):
    """A certificate and its private key, in PEM form."""

    certificate: str
    key: str


def self_signed() -> PemPair:
    """Make a key (ECDSA on P-256) and a certificate for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .sign(key, hashes.SHA256())
    )
    return PemPair(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )
