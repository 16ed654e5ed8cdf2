"""The user that a client's certificate stands for, by its names.

The certificate was verified in the TLS handshake, by an authority of `tls.client_authorities`. Of
its names those count that `tls.client_users` maps to a user; a certificate with names of two users
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
"""Of names, as they stand before the colon in `tls.client_users`."""


class Certified(NamedTuple):
    """What a verified certificate says."""

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
    """The names, as Python's `getpeercert` tells them, each with its kind before a colon."""
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
