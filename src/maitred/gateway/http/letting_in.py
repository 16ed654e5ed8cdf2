"""Who sends an HTTP request: `Authorization: Basic ...`, or `Bearer user:secret`."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Final

from maitred.errors import Unauthenticated

_REMEDY: Final = "Send Authorization: Basic with user:secret in base64; curl -u does it."


def credentials(authorization: bytes | None) -> tuple[str, str]:
    """User and secret, or `Unauthenticated`."""
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
    try:
        user, colon, secret = (pair or b"").decode().partition(":")
    except UnicodeDecodeError:
        user = colon = secret = ""
    if not colon or not user or not secret:
        raise Unauthenticated("The Authorization header cannot be read.", remedy=_REMEDY)
    return user, secret


def _decoded(text: bytes) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
