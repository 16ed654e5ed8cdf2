"""What people ask about API tokens, and what gateways ask about those who show one.

Any shard answers each of these: the tokens are in the store, which all shards share.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maitred.protocol.frames import Opcode
from maitred.protocol.requests import Answer, ShardRequest
from maitred.settings import Permission  # noqa: TC001 - msgspec reads the annotations

BEARER_BYTES_MAX = 16 * 1024
"""Longest API token or JWT. JWTs with hundreds of groups have a few thousand bytes."""


class CreateToken(ShardRequest, array_like=True, gc=False):
    """Make an API token for a user."""

    opcode = Opcode.CREATE_TOKEN
    permission = "admin"

    user: str
    seconds: float
    """Until it expires."""
    label: str = ""
    permissions: dict[str, list[Permission]] | None = None
    """By namespace; the token may do what these and the user's allow. None: all that the user
    may."""
    created_by: str = ""
    """Filled in by the shard that the request came to."""


class TokenCreated(Answer, array_like=True, gc=False):
    """The new token. Its text is in this answer and nowhere else."""

    id: str
    text: str
    expires_at: float

    def __repr__(self) -> str:
        return f"<TokenCreated {self.id}>"


class ListTokens(ShardRequest, array_like=True, gc=False):
    """Which API tokens are there?"""

    opcode = Opcode.LIST_TOKENS
    permission = "admin"
    repeatable = True


class TokenRow(Struct, array_like=True, gc=False):
    """What is known of one token."""

    id: str
    user: str
    label: str
    created_at: float
    created_by: str
    expires_at: float
    permissions: dict[str, list[Permission]] | None
    user_exists: bool
    """False: the token opens nothing, unless a user of that name is made again."""


class TokensFound(Answer, array_like=True, gc=False):
    """The oldest first."""

    tokens: list[TokenRow]


class RevokeToken(ShardRequest, array_like=True, gc=False):
    """End an API token, and the connections that were opened with it."""

    opcode = Opcode.REVOKE_TOKEN
    permission = "admin"

    id: str
    revoked_by: str = ""
    """Filled in by the shard that the request came to."""


class TokenRevoked(Answer, array_like=True, gc=False):
    """It is no more."""


class Introspect(ShardRequest, array_like=True, gc=False):
    """Who shows this API token or JWT? For gateways, which hold no tokens themselves.

    Nothing is told to a caller that could not log in as the same user: it has the token.
    """

    opcode = Opcode.INTROSPECT
    permission = None
    repeatable = True

    text: Annotated[str, Meta(max_length=BEARER_BYTES_MAX)]

    def __repr__(self) -> str:
        return f"<Introspect at shard {self.shard}>"


class Introspected(Answer, array_like=True, gc=False):
    """The user and the permissions of a token, or the reason why it is not accepted."""

    user: str
    """Empty: it is not accepted."""
    via: str
    """`token` or `jwt`."""
    permissions: dict[str, list[Permission]]
    expires_at: float
    code: str = ""
    """Why it is not accepted: the code of an error, its sentence and its remedy. An error as the
    answer would say that the caller itself is not let in."""
    sentence: str = ""
    remedy: str | None = None


class Reload(ShardRequest, array_like=True, gc=False):
    """Read users and certificates again, in every shard of the node and in its gateway."""

    opcode = Opcode.RELOAD
    permission = "admin"
    repeatable = True


class PartState(Struct, array_like=True, frozen=True):
    """What came of one part."""

    part: str
    """`settings`, `users` or `certificate`."""
    state: str
    """`changed`, `unchanged` or `failed`: then the old state stays."""
    remark: str = ""
    """Why it failed, or what a person should know."""


class ProcessState(Struct, array_like=True, frozen=True):
    """What came of the parts of one process."""

    process: str
    """`node` (its supervisor), `shard 0`, `gateway`."""
    parts: list[PartState]


class NodeReloaded(Answer, array_like=True, gc=False):
    """What came of reading everything again, by process."""

    processes: list[ProcessState]


AnyAccessRequest = CreateToken | ListTokens | RevokeToken | Introspect | Reload
AnyAccessAnswer = TokenCreated | TokensFound | TokenRevoked | Introspected | NodeReloaded

ACCESS_EXCHANGES: tuple[tuple[type[AnyAccessRequest], type[AnyAccessAnswer]], ...] = (
    (CreateToken, TokenCreated),
    (ListTokens, TokensFound),
    (RevokeToken, TokenRevoked),
    (Introspect, Introspected),
    (Reload, NodeReloaded),
)
"""Each request and its answer."""
