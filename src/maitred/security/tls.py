"""TLS contexts for both ends, from files; what is wrong with a file is said in words."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from maitred.errors import InvalidSetting

if TYPE_CHECKING:
    from maitred.settings import Tls


def server_context(tls: Tls) -> ssl.SSLContext:
    """For a node: TLS 1.2 or newer; clients show certificates if there are authorities for them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make us shake hands again and again on one connection of TLS 1.2.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_certificate(context, tls.certificate, tls.key)
    if tls.client_authorities is not None:
        _load_authorities(context, tls.client_authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    authorities: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """For a client: the node's certificate is verified, by the system's authorities or by these."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name by default
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, authorities)
    if certificate is not None:
        _load_certificate(context, certificate, key)
    elif key is not None:
        raise InvalidSetting(
            f"There is a TLS key {key}, and no certificate that it belongs to.",
            remedy="Name the certificate as well.",
        )
    return context


class _Encrypted(Exception):
    """OpenSSL asked for a passphrase; unanswered, it would ask at the terminal."""


def _ask_nobody() -> str:
    raise _Encrypted


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _check_readable("certificate", certificate)
    if key is not None:
        _check_readable("key", key)
    holder = key or certificate
    try:
        context.load_cert_chain(certificate, key, password=_ask_nobody)
    except _Encrypted:
        raise InvalidSetting(
            f"The TLS key {holder} is encrypted, and nobody is there to type its passphrase.",
            remedy="Store it unencrypted, readable for this user only.",
        ) from None
    except ssl.SSLError as problem:
        if problem.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise InvalidSetting(
                f"The TLS key {holder} does not belong to the certificate {certificate}.",
                remedy="The node's own certificate has to be the first one in its file.",
            ) from None
        raise InvalidSetting(
            f"The TLS certificate {certificate} and the key {holder} cannot be used"
            f"{_reason(problem)}.",
            remedy="Both have to be in PEM form.",
        ) from None


def _load_authorities(context: ssl.SSLContext, authorities: str) -> None:
    _check_readable("authorities", authorities)
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as problem:
        raise InvalidSetting(
            f"The TLS authorities {authorities} cannot be used{_reason(problem)}.",
            remedy="The file has to hold certificates in PEM form.",
        ) from None


def _check_readable(what: str, path: str) -> None:
    """OpenSSL does not say which of two files it could not read."""
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL in it
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidSetting(
            f"The TLS {what} {path} cannot be read: {reason}.",
            remedy="Check the path, and who may read the file.",
        ) from None


def _reason(problem: ssl.SSLError) -> str:
    return f": {problem.reason.replace('_', ' ').lower()}" if problem.reason else ""
