"""Who sends an HTTP request: `Authorization: Basic ...`, `Bearer user:secret`, or `Bearer` with an
API token or a JWT."""

from __future__ import annotations

import binascii
from base64 import b64decode
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from maitred.errors import PermissionDenied, Unauthenticated
from maitred.security.tokens import TOKEN_USER

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMEDY: Final = "Send Authorization: Basic with user:secret in base64; curl -u does it."


def credentials(authorization: bytes | None) -> tuple[str, str]:
    """User and secret, or `Unauthenticated`; for a token, `TOKEN_USER` and the token."""
    if authorization is None:
        raise Unauthenticated("This gateway wants to know who you are.", remedy=_REMEDY)
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


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Where everybody may do everything, a page of somebody else's in a browser here may not."""
    origin = headers[b"origin"].strip().lower()
    if origin.partition(b"://")[2] != headers.get(b"host", b"").strip().lower():
        raise PermissionDenied(
            "A page from elsewhere asks, and this gateway has no users that it could log in as.",
            remedy="Configure users, or ask through a server of your own.",
        )


def check_host(host: bytes, own: str) -> None:
    """A name that is not ours is somebody's who had it point here: a page of theirs, in a browser
    on this machine, would be from the same origin as this gateway."""
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
