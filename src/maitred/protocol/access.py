"""Messages about API tokens, from people and from gateways that check one.

Any shard answers each of these: the tokens are in the store, which all shards share.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, Exchanges, ShardRequest
from maitred.settings import Permission  # noqa: TC001 - msgspec reads the annotations

BEARER_BYTES_MAX = 16 * 1024
"""Longest API token or JWT. JWTs with hundreds of groups have a few thousand bytes."""


class CreateToken(ShardRequest, array_like=True, gc=False):
    """Create an API token for a user."""

    opcode = Opcode.CREATE_TOKEN
    permission = "admin"
    any_node = True

    user: str
    seconds: float
    """Seconds until the token expires."""
    label: str = ""
    permissions: dict[str, list[Permission]] | None = None
    """Permissions by namespace. The token grants those that the user has, too; None: all of the
    user's."""
    created_by: str = ""
    """User who asks; the shard that received the request fills it in."""


class TokenCreated(Answer, array_like=True, gc=False):
    """A new token. Its text is in this answer and nowhere else."""

    id: str
    text: str
    expires_at: float

    def __repr__(self) -> str:
        return f"<TokenCreated {self.id}>"


class ListTokens(ShardRequest, array_like=True, gc=False):
    """List all API tokens."""

    opcode = Opcode.LIST_TOKENS
    permission = "admin"
    any_node = True
    repeatable = True


class TokenRow(Struct, array_like=True, gc=False):
    """One API token, without its secret. Times are seconds since 1970."""

    id: str
    user: str
    label: str
    created_at: float
    created_by: str
    expires_at: float
    permissions: dict[str, list[Permission]] | None
    user_exists: bool
    """Whether the user exists. If not, the token grants nothing until a user of that name is
    created."""


class TokensFound(Answer, array_like=True, gc=False):
    """The tokens, the oldest first."""

    tokens: list[TokenRow]


class RevokeToken(ShardRequest, array_like=True, gc=False):
    """Revoke an API token, and close the connections that were opened with it."""

    opcode = Opcode.REVOKE_TOKEN
    permission = "admin"
    any_node = True

    id: str
    revoked_by: str = ""
    """User who asks; the shard that received the request fills it in."""


class TokenRevoked(Answer, array_like=True, gc=False):
    """The token has been revoked."""


class Introspect(ShardRequest, array_like=True, gc=False):
    """Ask which user an API token or a JWT belongs to. Gateways ask this: they hold no tokens.

    Any login may ask: a caller that has the token could log in as that user.
    """

    opcode = Opcode.INTROSPECT
    permission = None
    any_node = True
    repeatable = True

    text: Annotated[str, Meta(max_length=BEARER_BYTES_MAX)]

    def __repr__(self) -> str:
        return f"<Introspect at shard {self.shard}>"


class Introspected(Answer, array_like=True, gc=False):
    """The user and the permissions of a token, or the reason why it is not accepted."""

    user: str
    """User whom the token belongs to; empty if the token is not accepted."""
    via: str
    """Kind of the token: `token` or `jwt`."""
    permissions: dict[str, list[Permission]]
    expires_at: float
    code: str = ""
    """Error code, sentence and remedy if the token is not accepted. An ERROR as the answer would
    mean that the caller itself is not authenticated."""
    sentence: str = ""
    remedy: str | None = None


class Reload(ShardRequest, array_like=True, gc=False):
    """Reload users and certificates in every shard of the node and in its gateway."""

    opcode = Opcode.RELOAD
    permission = "admin"
    repeatable = True


class PartState(Struct, array_like=True, frozen=True):
    """The result of reloading one part of a process."""

    part: str
    """Name of the part: `settings`, `users` or `certificate`."""
    state: str
    """`changed`, `unchanged`, or `failed`: then the old state stays in use."""
    remark: str = ""
    """Why the reload failed, or what a person should know about it."""


class ProcessState(Struct, array_like=True, frozen=True):
    """The results of reloading the parts of one process."""

    process: str
    """Name of the process: `node` (its supervisor), `shard 0`, `gateway`."""
    parts: list[PartState]


class NodeReloaded(Answer, array_like=True, gc=False):
    """The results of reloading, for each process of the node."""

    processes: list[ProcessState]


ACCESS_EXCHANGES: Exchanges = (
    (CreateToken, TokenCreated),
    (ListTokens, TokensFound),
    (RevokeToken, TokenRevoked),
    (Introspect, Introspected),
    (Reload, NodeReloaded),
)
"""Class of each request and of its answer."""
