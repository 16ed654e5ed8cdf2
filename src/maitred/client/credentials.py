"""The credentials of a client: a user with a secret, a token, or the secret of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from maitred.errors import Unauthenticated
from maitred.security.cluster_proof import NONCE_BYTES, DiallerProof
from maitred.security.tokens import TOKEN_USER

if TYPE_CHECKING:
    from collections.abc import Callable


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


class ClusterLogin(NamedTuple):
    """The cluster's secret, with which a process of one node proves itself to another node.

    Neither end sends the secret, and the node proves itself first (`security/cluster_proof.py`).
    """

    secret: bytes
    role: str
    """What the process is: `gateway`."""
    random: Callable[[int], bytes]
    """Returns this number of random bytes."""

    def __repr__(self) -> str:
        return f"ClusterLogin(role={self.role!r}, secret='***')"

    def begin(self, member: str) -> DiallerProof:
        """Begin the exchange of proofs with this member of the cluster."""
        return DiallerProof(self.secret, self.random(NONCE_BYTES), self.role, member)


AnyCredentials = Credentials | TokenFile | ClusterLogin


def token(text: str) -> Credentials:
    """Return the credentials of an API token or a JWT."""
    return Credentials(TOKEN_USER, text.strip())
