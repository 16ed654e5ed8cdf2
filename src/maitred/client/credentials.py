"""The credentials of a client: a user with a secret, or a token."""

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
        """Return the credentials for a handshake."""
        return self


class TokenFile(NamedTuple):
    """A file that holds an API token or a JWT.

    The client reads it at each handshake, so a program that replaces an expiring token needs only
    to write the file.
    """

    path: str

    @property
    def user(self) -> str:
        """The user name that stands for a token."""
        return TOKEN_USER

    def shown(self) -> Credentials:
        """Return the credentials for a handshake; raise `Unauthenticated` without a token."""
        try:
            text = Path(self.path).read_text().strip()
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or "it is no text"
            raise Unauthenticated(
                f"The token file {self.path} cannot be read: {reason}.",
                remedy="Check the path and the permissions of the file.",
            ) from None
        if not text:
            raise Unauthenticated(
                f"The token file {self.path} is empty.",
                remedy="Write an API token or a JWT into it.",
            )
        return Credentials(TOKEN_USER, text)


def token(text: str) -> Credentials:
    """Return the credentials of an API token or a JWT."""
    return Credentials(TOKEN_USER, text.strip())
