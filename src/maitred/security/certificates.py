"""The user that a client's certificate stands for, by its names.

The certificate was verified in the TLS handshake, by an authority of `tls.client_authorities`. Only
the names that `tls.client_users` maps to a user are used; a certificate with names of two users
stands for none of them.
"""

from __future__ import annotations

from dataclasses import replace
from ssl import cert_time_to_seconds
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maitred.security.directory import Directory, Identity

KINDS: Final = ("CN", "DNS", "URI", "email")
"""Kinds of names, as they are written before the colon in `tls.client_users`."""


class Certified(NamedTuple):
    """The user and the expiry that a verified certificate stands for."""

    user: str
    until: float
    """When the certificate expires, in seconds since 1970."""

    def identity(self, users: Directory, now: float) -> Identity | None:
        """Return the identity; None if the user does not exist, or the certificate has expired."""
        user = users.identity(self.user)
        if user is None or self.until <= now:
            return None
        return replace(user, secret="", via="certificate", until=self.until)


def names_in(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in a certificate, as Python's `getpeercert` returns it, each with its kind
    before a colon."""
    for group in certificate.get("subject", ()):
        for kind, value in group:
            if kind == "commonName":
                yield f"CN:{value}"
    for kind, value in certificate.get("subjectAltName", ()):
        if kind in KINDS:
            yield f"{kind}:{value}"


def certified(
    certificate: Mapping[str, Any] | None, client_users: Mapping[str, str]
) -> Certified | None:
    """Return the user that the certificate is mapped to; None unless its names map to one user."""
    if not certificate or not client_users:
        return None
    found = {client_users[name] for name in names_in(certificate) if name in client_users}
    if len(found) != 1:
        return None
    return Certified(found.pop(), float(cert_time_to_seconds(certificate["notAfter"])))
