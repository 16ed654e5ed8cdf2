"""Verification of JWTs: the signature by PyJWT, with a trusted key; then the claims.

A signature takes 100 to 200 microseconds to verify, so verified tokens are remembered until they
expire, by their SHA-256, for as long as their key is trusted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import InvalidToken
from maitred.security.directory import Identity
from maitred.security.jwt_claims import expires_at, granted_by, user_of
from maitred.security.jwt_keys import ALGORITHMS
from maitred.security.permissions import NOTHING

if TYPE_CHECKING:
    from maitred.security.directory import Directory
    from maitred.security.jwt_keys import KeySource, SigningKey
    from maitred.settings import Jwt

REMEMBERED_MAX: Final = 4_096
"""Most JWTs that are remembered, some 500 bytes each; the least recently used is dropped first."""

KEY_ID_LETTERS_MAX: Final = 256

LOCAL: Final = "local:"
"""Prefix of the key's thumbprint in the identity of a JWT that names a user of the node."""


class UnknownKey(InvalidToken):
    """The JWT names a key that is not among those of its issuer now."""


class JwtVerifier:
    """Verifies the JWTs of one issuer."""

    def __init__(self, settings: Jwt, source: KeySource, users: Directory) -> None:
        self._settings = settings
        self._source = source
        self._users = users
        self._remembered: OrderedDict[bytes, tuple[str, dict[str, Any]]] = OrderedDict()
        """The key's thumbprint and the claims of each verified JWT, by its SHA-256."""

    def identify(self, text: str, now: float) -> Identity:
        """Return the identity of the JWT's user; raise `InvalidToken`, or `UnknownKey` if newer
        keys may help."""
        digest = sha256(text.encode(errors="surrogatepass")).digest()
        known = self._remembered.get(digest)
        if known is not None and known[0] in self._source.keys:
            self._remembered.move_to_end(digest)
            thumbprint, claims = known
        else:
            key = self._key(text)
            thumbprint, claims = key.thumbprint, self._claims(text, key)
        identity = self._identity(thumbprint, claims, now)
        self._remembered[digest] = (thumbprint, claims)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return identity

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity anew after users or keys have changed; None if its key is no longer
        trusted, or a user of its name was added or removed."""
        if identity.secret.removeprefix(LOCAL) not in self._source.keys:
            return None
        local = self._users.identity(identity.name)
        if (local is not None) != identity.secret.startswith(LOCAL):
            return None
        return identity if local is None else replace(identity, permissions=local.permissions)

    def _key(self, text: str) -> SigningKey:
        import jwt

        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise InvalidToken("The token is neither an API token nor a JWT.") from None
        algorithm, number = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise InvalidToken(
                "The JWT is signed with an algorithm that is not accepted.",
                remedy=f"Have its issuer sign with one of {', '.join(sorted(ALGORITHMS))}.",
            )
        if "crit" in header or not (
            number is None or (isinstance(number, str) and len(number) <= KEY_ID_LETTERS_MAX)
        ):
            raise InvalidToken("The header of the JWT is malformed.")
        key = self._source.keys.find(number, algorithm)
        if key is None:
            raise UnknownKey("The JWT names a key that its issuer does not have.")
        return key

    def _claims(self, text: str, key: SigningKey) -> dict[str, Any]:
        import jwt

        settings = self._settings
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[key.algorithm],
                issuer=settings.issuer,
                audience=settings.audience,
                options={
                    "require": ["exp", "iss", "aud"],
                    # `jwt_claims` checks these, by the node's clock.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "enforce_minimum_key_length": True,
                },
            )
        except jwt.InvalidIssuerError:
            raise InvalidToken("The JWT is from another issuer.") from None
        except jwt.InvalidAudienceError:
            raise InvalidToken("The JWT is for another audience.") from None
        except jwt.MissingRequiredClaimError as problem:
            raise InvalidToken(f"The JWT has no {problem.claim} claim.") from None
        except jwt.InvalidSignatureError:
            raise InvalidToken("The signature of the JWT is wrong.") from None
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise InvalidToken("The JWT cannot be read.") from None
        return claims

    def _identity(self, thumbprint: str, claims: dict[str, Any], now: float) -> Identity:
        until = expires_at(claims, self._settings, now)
        name = user_of(claims, self._settings)
        local = self._users.identity(name)
        if local is not None:
            if not self._settings.local_users:
                raise InvalidToken(
                    f"The JWT names {name!r}, and the node has a user of that name.",
                    remedy="Give one of them another name, or set jwt.local_users if both are the "
                    "same person.",
                )
            return Identity(name, local.permissions, LOCAL + thumbprint, "jwt", until)
        permissions = granted_by(claims, self._settings)
        if permissions == NOTHING:
            raise InvalidToken(
                f"No value of the claim {self._settings.permissions_claim!r} of the JWT is mapped "
                "to a permission.",
                remedy="Map one of them with jwt.permissions.",
            )
        return Identity(name, permissions, thumbprint, "jwt", until)
