"""TLS between gateways and workers: a certificate that is recognised by its fingerprint.

The worker announces the fingerprint of its certificate to the node over its own connection, which
is encrypted and authenticated, and the node tells it to gateways with the worker's address. So
workers need no certificate authority: a gateway that trusts the node to pick the worker trusts it
to name the certificate.
"""

from __future__ import annotations

import ssl
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from maitred.security.expiry import first_certificate
from maitred.security.tls import TlsFromFiles, load_certificate


class ListenerIdentity(NamedTuple):
    """The TLS context of a worker's listener, and the fingerprint that gateways recognise it by."""

    context: ssl.SSLContext
    fingerprint: bytes
    """SHA-256 of the listener's certificate in DER form."""


def worker_identity(certificate: str | None, key: str | None) -> ListenerIdentity:
    """Make the identity of a worker's listener from these files, or with a certificate made for
    this run.

    Gateways compare the fingerprint, which they receive through the node, so a certificate needs no
    authority and no name. Both ends are maitred's, so they speak TLS 1.3.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # gateways do not resume sessions
    if certificate is not None:
        load_certificate(context, certificate, key)
        own = first_certificate(certificate)
    else:
        # Imported late: only workers with TLS and without files make certificates.
        from maitred.security.self_signed import self_signed

        made = self_signed()
        own = ssl.PEM_cert_to_DER_cert(made.certificate)
        # OpenSSL reads files only. Only its owner can read this one, and it is deleted at once.
        with TemporaryDirectory(prefix="maitred-") as directory:
            path = Path(directory) / "worker.pem"
            path.touch(mode=0o600)
            path.write_text(made.key + made.certificate)
            context.load_cert_chain(path)
    return ListenerIdentity(context, fingerprint_of(own))


class WorkerTls(TlsFromFiles):
    """The identity of a worker's listener, from files that may change while it listens."""

    identity: ListenerIdentity

    def __init__(self, certificate: str | None, key: str | None) -> None:
        self._certificate = certificate
        self._key = key
        super().__init__(self._read, (certificate, key))

    def _read(self) -> ssl.SSLContext:
        self.identity = worker_identity(self._certificate, self._key)
        return self.identity.context


def fingerprint_of(certificate: bytes) -> bytes:
    """Return the fingerprint by which gateways recognise a certificate, given in DER form."""
    return sha256(certificate).digest()


def pinning_context() -> ssl.SSLContext:
    """Return the context for a gateway that dials a worker; it consults no authority.

    The caller compares the certificate's fingerprint with the announced one before it sends
    anything; without that this context would verify nothing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
