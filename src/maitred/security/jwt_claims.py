"""The claims of a verified JWT: until when it is valid, its user, and the permissions it grants.

Nothing here has a clock, and no claim is trusted to have the type that it should have.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import InvalidToken, TokenExpired
from maitred.security.permissions import Permissions
from maitred.security.users import RESERVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.settings import Jwt, Permission

NAME_BYTES_MAX: Final = 255
"""Longest name of a user that a claim may give."""

VALUES_MAX: Final = 1_000
"""Most values of a claim; a token with more is refused, so that it cannot slow the node down."""


def expires_at(claims: Mapping[str, Any], settings: Jwt, now: float) -> float:
    """Return the moment until which the token is valid, with the leeway for clocks that differ;
    raise `InvalidToken` or `TokenExpired` if it is not valid now."""
    leeway = settings.leeway_seconds
    end = _moment(claims, "exp")
    if end is None:
        raise InvalidToken("The JWT has no exp claim: it would never expire.")
    if end + leeway <= now:
        raise TokenExpired("The JWT has expired.", remedy="Get a new one from its issuer.")
    begin = _moment(claims, "nbf")
    issued = _moment(claims, "iat")
    for moment in (begin, issued):
        if moment is not None and moment - leeway > now:
            raise InvalidToken(
                "The JWT is not valid yet.", remedy="Check the clocks of the issuer and the node."
            )
    if end - (now if issued is None else issued) > settings.lifetime_seconds + leeway:
        raise InvalidToken(
            f"The JWT is valid for more than {settings.lifetime_seconds:g} s.",
            remedy="Have its issuer make shorter ones, or raise jwt.lifetime_seconds.",
        )
    return end + leeway


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**53:
        raise InvalidToken(f"The {name} claim of the JWT is not a time.")
    if not isfinite(value):
        raise InvalidToken(f"The {name} claim of the JWT is not a time.")
    return float(value)


def user_of(claims: Mapping[str, Any], settings: Jwt) -> str:
    """Return the name of the user; raise `InvalidToken` for a name that no user can have."""
    name = _claim(claims, settings.user_claim)
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidToken(
            f"The claim {settings.user_claim!r} of the JWT names no user.",
            remedy="Name another claim with jwt.user_claim.",
        )
    return name


def _is_name(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return (
        0 < size <= NAME_BYTES_MAX
        and name.isprintable()
        and name == name.strip()
        and name not in RESERVED
        # Permits count a queue under its name after a stroke, beside the names of users.
        and not name.startswith("/")
    )


def granted_by(claims: Mapping[str, Any], settings: Jwt) -> Permissions:
    """Return all permissions that the values of the claim are mapped to, together."""
    granted: dict[str, list[Permission]] = {}
    for value in _values(_claim(claims, settings.permissions_claim)):
        for namespace, permissions in settings.permissions.get(value, {}).items():
            granted.setdefault(namespace, []).extend(permissions)
    return Permissions(granted)


def _values(claim: object) -> list[str]:
    """Return the values of a claim: a list of texts, or one text, which may be several with spaces
    between them, as in `scope`."""
    if isinstance(claim, str):
        found = [claim, *claim.split(" ")]
    elif isinstance(claim, list):
        found = [one for one in claim if isinstance(one, str)]
    else:
        return []
    if len(found) > VALUES_MAX:
        raise InvalidToken(f"A claim of the JWT has more than {VALUES_MAX:,} values.")
    return list(dict.fromkeys(found))


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Return the claim of that name; if there is none and the name has dots, a nested one."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
