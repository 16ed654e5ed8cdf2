"""Decides by the headers of an HTTP request whether it is admitted: its credentials
(`Authorization: Basic ...`, `Bearer user:secret`, or `Bearer` with an API token or a JWT), the page
for which a browser sends it, and its Host."""

from __future__ import annotations

import binascii
from base64 import b64decode
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from maitred.errors import PermissionDenied, Unauthenticated
from maitred.security.tokens import TOKEN_USER

if TYPE_CHECKING:
    from collections.abc import Mapping

BROWSER: Final = frozenset((b"origin", b"sec-fetch-site"))
"""Headers that browsers add and that pages cannot change."""

SAFE: Final = frozenset((b"GET", b"HEAD"))
"""Methods of routes that change nothing."""

_REMEDY: Final = "Send Authorization: Basic with user:secret in base64; curl -u does it."


def credentials(authorization: bytes | None) -> tuple[str, str]:
    """Return user and secret, or `TOKEN_USER` and a token; raise `Unauthenticated` if missing."""
    if authorization is None:
        raise Unauthenticated("This gateway requires authentication.", remedy=_REMEDY)
    scheme, _, rest = authorization.strip().partition(b" ")
    rest = rest.strip()
    kind = scheme.lower()
    pair: bytes | None = None
    if kind == b"basic":
        pair = _decoded(rest)
    elif kind == b"bearer":
        pair = rest if b":" in rest else _decoded(rest)
        if pair is None and rest:  # neither an API token nor a JWT is base64
            return TOKEN_USER, rest.decode("latin-1")
    try:
        user, colon, secret = (pair or b"").decode().partition(":")
    except UnicodeDecodeError:
        user = colon = secret = ""
    if not colon or not user or not secret:
        raise Unauthenticated("The Authorization header cannot be read.", remedy=_REMEDY)
    return user, secret


def check_browser(
    method: bytes, headers: Mapping[bytes, bytes], allowed: frozenset[bytes], *, tls: bool
) -> None:
    """Raise `PermissionDenied` if a page of another origin makes a browser send this.

    A browser adds Basic credentials and client certificates to requests by itself, whichever page
    causes them. It also says where the page is from, in headers that no page can change:
    `Sec-Fetch-Site` where the gateway is reached by TLS or as localhost, and `Origin` with every
    POST and DELETE. A program that is no browser sends neither. A link that a person follows
    (`navigate`) changes nothing and shows nothing to the page that has it.
    """
    origin = headers.get(b"origin", b"").strip().lower()
    if origin and origin in allowed:
        return
    site = headers.get(b"sec-fetch-site", b"").strip().lower()
    if site:
        link = method in SAFE and headers.get(b"sec-fetch-mode") == b"navigate"
        if site in {b"same-origin", b"none"} or (link and not origin):
            return
    elif not origin or _is_own(origin, headers.get(b"host", b"").strip().lower(), tls=tls):
        return
    raise PermissionDenied(
        "A page of another origin asks through a browser.",
        remedy="Ask through a server of your own, or name the origin in gateway.origins.",
    )


def _is_own(origin: bytes, host: bytes, *, tls: bool) -> bool:
    """Return whether an origin is the gateway's own; behind a TLS proxy, `https` is as well."""
    scheme, _, name = origin.partition(b"://")
    return name == host and (scheme == b"https" or (scheme == b"http" and not tls))


def check_host(host: bytes, own: str) -> None:
    """Raise `PermissionDenied` unless the Host is a name of this machine. An attacker may have made
    another name point here: a page of that name, in a browser on this machine, would have the same
    origin as this gateway."""
    name = host.strip().lower().decode("latin-1")
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name in {"localhost", own.lower()} or name.endswith(".localhost"):
        return
    try:
        ip_address(name)
    except ValueError:
        raise PermissionDenied(
            f"This gateway has no users and listens on this machine only; {name[:60]!r} is not a "
            "name of it.",
            remedy="Ask for it by its address or as localhost, or configure users.",
        ) from None


def _decoded(text: bytes) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
