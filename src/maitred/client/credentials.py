"""The credentials that a client shows: a user with a secret, or a token."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from maitred.errors import Unauthenticated
from maitred.security.tokens import TOKEN_USER


class Credentials(NamedTuple):
    """A user and a secret."""

    user: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, secret='***')"

    def shown(self) -> Credentials:
        """What to show the node."""
        return self


class TokenFile(NamedTuple):
    """A file that holds an API token or a JWT.

    It is read at each handshake, so that whoever writes a new token into it, because the old one
    expires, has to tell nobody.
    """

    path: str

    @property
    def user(self) -> str:
        """The name with which tokens are shown."""
        return TOKEN_USER

    def shown(self) -> Credentials:
        """What to show the node; raises `Unauthenticated` if there is no token in the file."""
        try:
            text = Path(self.path).read_text().strip()
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or "it is no text"
            raise Unauthenticated(
                f"The token file {self.path} cannot be read: {reason}.",
                remedy="Check the path, and who may read the file.",
            ) from None
        if not text:
            raise Unauthenticated(
                f"The token file {self.path} is empty.",
                remedy="Write an API token or a JWT into it.",
            )
        return Credentials(TOKEN_USER, text)


def token(text: str) -> Credentials:
    """An API token or a JWT."""
    return Credentials(TOKEN_USER, text.strip())
