"""What the claims of a verified JWT mean: until when it is good, whose it is, what it grants.

Nothing here has a clock, and nothing here trusts a claim to be of the kind that it should be.
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
"""Values of a claim that are looked at; more make the token invalid rather than the node slow."""


def expires_at(claims: Mapping[str, Any], settings: Jwt, now: float) -> float:
    """The moment until which the token is good, with the leeway for clocks that differ; raises if
    it is not good now."""
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
            f"The JWT is good for more than {settings.lifetime_seconds:g} s.",
            remedy="Have its issuer make shorter ones, or raise jwt.lifetime_seconds.",
        )
    return end + leeway


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**53:
        raise InvalidToken(f"The {name} claim of the JWT is no moment.")
    if not isfinite(value):
        raise InvalidToken(f"The {name} claim of the JWT is no moment.")
    return float(value)


def user_of(claims: Mapping[str, Any], settings: Jwt) -> str:
    """The name of the user; raises `InvalidToken` for one that no user can have."""
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
        # Queues are counted under their name after a stroke, among the users.
        and not name.startswith("/")
    )


def granted_by(claims: Mapping[str, Any], settings: Jwt) -> Permissions:
    """All that the values of the claim are mapped to, together."""
    granted: dict[str, list[Permission]] = {}
    for value in _values(_claim(claims, settings.permissions_claim)):
        for namespace, permissions in settings.permissions.get(value, {}).items():
            granted.setdefault(namespace, []).extend(permissions)
    return Permissions(granted)


def _values(claim: object) -> list[str]:
    """A list of texts, or one text: a name, or several with spaces between them, as in `scope`."""
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
    """The claim of that name; else, where the name has dots, one inside of others."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
