"""API tokens: how one is made, what is stored of it, and what it grants.

A token is `mtd_<id>_<secret>`: 16 hexadecimal digits that identify it, and 64 that prove it. The
secret has 256 random bits, so one SHA-256 is enough: they cannot be guessed by trying, and a slow
hash would only make each login expensive. The store holds that hash of the whole token; the token
itself is shown once, to the person who made it.

A book holds all tokens of a store, and is immutable: adding or revoking a token makes the next
book, and the store accepts it if no other book was written meanwhile.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, Struct, json

from maitred.errors import (
    InvalidArgument,
    InvalidToken,
    StoreUnavailable,
    TokenExpired,
    TooManyTokens,
    UnknownToken,
)
from maitred.settings import Permission  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TOKEN_USER: Final = "token"  # noqa: S105 - a name, not a secret
"""The user name that stands for an API token or a JWT where a user and a secret are asked for. No
user can have this name."""

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
LABEL_LETTERS_MAX: Final = 100
"""Longest label, in characters: people recognise a token by it."""

KEPT_SECONDS: Final = 7 * 86_400.0
"""How long an expired token stays in the list, so that its user learns why it is refused."""

_FORM: Final = re.compile(rf"mtd_([0-9a-f]{{{2 * ID_BYTES}}})_[0-9a-f]{{{2 * SECRET_BYTES}}}")
_REMEDY: Final = "Make a new one with `maitred admin token create`."


class ApiToken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store holds of one token. Times are seconds since 1970."""

    id: str
    user: str
    """User to whom the token belongs; it grants at most this user's permissions."""
    digest: str
    """SHA-256 of the whole token, in hexadecimal digits."""
    created_at: float
    expires_at: float
    created_by: str = ""
    label: str = ""
    permissions: dict[str, list[Permission]] | None = None
    """Permissions by namespace. The token grants those that the user has, too; None: all of the
    user's."""

    def __repr__(self) -> str:
        return f"<ApiToken {self.id} of {self.user!r}>"


class _Stored(Struct, frozen=True):
    tokens: list[ApiToken]


def make_token(
    *,
    secret: Callable[[int], bytes],
    user: str,
    now: float,
    seconds: float,
    label: str = "",
    created_by: str = "",
    permissions: Mapping[str, Iterable[Permission]] | None = None,
) -> tuple[ApiToken, str]:
    """Make a token with bytes from `secret`; return what to store, and the text to show."""
    if len(label) > LABEL_LETTERS_MAX or not label.isprintable():
        raise InvalidArgument(
            f"The label of a token has to be printable, and at most {LABEL_LETTERS_MAX} letters "
            "long."
        )
    number = secret(ID_BYTES).hex()
    text = f"mtd_{number}_{secret(SECRET_BYTES).hex()}"
    made = ApiToken(
        id=number,
        user=user,
        digest=_digest(text),
        created_at=now,
        expires_at=now + seconds,
        created_by=created_by,
        label=label,
        permissions=None
        if permissions is None
        else {namespace: sorted(set(given)) for namespace, given in permissions.items()},
    )
    return made, text


def id_of(text: str) -> str | None:
    """Return the id in the text of a token; None if the text does not have the form of one."""
    found = _FORM.fullmatch(text)
    return found[1] if found is not None else None


class TokenBook:
    """All tokens of a store, at one version."""

    __slots__ = ("_tokens", "version")

    def __init__(self, tokens: Iterable[ApiToken] = (), version: int = 0) -> None:
        self._tokens = {token.id: token for token in tokens}
        self.version = version
        """Version of the document that holds the tokens; 0 if the document does not exist."""

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, number: str) -> bool:
        return number in self._tokens

    def listed(self) -> list[ApiToken]:
        """Return all tokens, the oldest first."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_at, token.id))

    def verified(self, text: str, now: float) -> ApiToken:
        """Return the token with this text; raise `InvalidToken`, or `TokenExpired` if it has
        expired."""
        found = self._tokens.get(id_of(text) or "")
        # An unknown token takes as long as one with a wrong secret.
        right = hmac.compare_digest(_digest(text), found.digest if found is not None else _NONE)
        if found is None or not right:
            raise InvalidToken("The API token is not known, or was revoked.", remedy=_REMEDY)
        if found.expires_at <= now:
            raise TokenExpired(f"The API token {found.id} has expired.", remedy=_REMEDY)
        return found

    def find(self, number: str) -> ApiToken | None:
        """Return the token with that id; None if there is none."""
        return self._tokens.get(number)

    def with_token(self, made: ApiToken, most: int, now: float) -> TokenBook:
        """Return the next book, with one more token and without those that expired long ago."""
        kept = [one for one in self._tokens.values() if now < one.expires_at + KEPT_SECONDS]
        if len(kept) >= most:
            raise TooManyTokens(
                f"There are {most:,} API tokens already.",
                remedy="Revoke some with `maitred admin token revoke`, or raise tokens.most.",
            )
        return TokenBook([*kept, made], self.version)

    def without(self, number: str) -> TokenBook:
        """Return the next book, without that token; raise `UnknownToken` if it does not exist."""
        if number not in self._tokens:
            raise UnknownToken(
                f"There is no API token {number[:60]!r}.",
                remedy="`maitred admin token list` shows the ids of all.",
            )
        return TokenBook(
            (token for token in self._tokens.values() if token.id != number), self.version
        )

    def encode(self) -> bytes:
        """Return the body of the document that the store keeps."""
        return json.encode(_Stored(self.listed()))

    @classmethod
    def decode(cls, body: bytes, version: int) -> TokenBook:
        """Decode the body of the document; raise `StoreUnavailable` if it cannot be read."""
        try:
            return cls(json.decode(body, type=_Stored).tokens, version)
        except (DecodeError, UnicodeDecodeError) as problem:
            raise StoreUnavailable(
                f"The API tokens in the store cannot be read: {problem}.",
                remedy="Put the document `tokens` of the store back from a backup.",
            ) from None


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


_NONE: Final = "0" * 64
