"""Operators' requests about API tokens, and gateways' requests to verify one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from maitred.errors import InvalidArgument, InvalidName, Unauthenticated, UnknownUser
from maitred.node.request_table import RequestTable
from maitred.protocol.access import (
    CreateToken,
    Introspect,
    Introspected,
    ListTokens,
    RevokeToken,
    TokenCreated,
    TokenRevoked,
    TokenRow,
    TokensFound,
)
from maitred.protocol.frames import Opcode
from maitred.routing.names import check_name
from maitred.security.permissions import EVERY_NAMESPACE
from maitred.security.tokens import make_token

if TYPE_CHECKING:
    from maitred.logs import Logger
    from maitred.node.bearers import Bearers
    from maitred.node.request_origin import RequestOrigin
    from maitred.security.directory import Directory
    from maitred.settings import Tokens
    from maitred.surroundings import Surroundings


class TokenRequests:
    """Serves the requests about API tokens."""

    def __init__(
        self,
        bearers: Bearers,
        users: Directory,
        settings: Tokens,
        surroundings: Surroundings,
        log: Logger,
    ) -> None:
        self._bearers = bearers
        self._surroundings = surroundings
        self._settings = settings
        self._users = users
        self._log = log
        self.requests = RequestTable(
            handlers={
                Opcode.CREATE_TOKEN: self._create,
                Opcode.LIST_TOKENS: self._list,
                Opcode.REVOKE_TOKEN: self._revoke,
                Opcode.INTROSPECT: self._introspect,
            },
            admissions={
                Opcode.CREATE_TOKEN: self._admit_create,
                Opcode.REVOKE_TOKEN: self._admit_revoke,
            },
        )

    def _admit_create(self, message: CreateToken, connection: RequestOrigin) -> None:
        message.created_by = connection.user

    def _admit_revoke(self, message: RevokeToken, connection: RequestOrigin) -> None:
        message.revoked_by = connection.user

    async def _create(self, message: CreateToken) -> TokenCreated:
        self._check(message)
        now = self._surroundings.wall_clock()
        made, text = make_token(
            secret=self._surroundings.secret,
            user=message.user,
            now=now,
            seconds=message.seconds,
            label=message.label,
            created_by=message.created_by,
            permissions=message.permissions,
        )
        await self._bearers.change(lambda book: book.with_token(made, self._settings.most, now))
        self._log.info("API token made", token=made.id, user=made.user, by=made.created_by or None)
        return TokenCreated(made.id, text, made.expires_at)

    def _check(self, message: CreateToken) -> None:
        if not self._users.required:
            raise InvalidArgument(
                "This node has no users, so every caller may do anything without a token.",
                remedy="Configure users first: `maitred hash-secret` makes their secrets.",
            )
        if self._users.user(message.user) is None:
            near = get_close_matches(message.user, self._users.names(), n=1)
            raise UnknownUser(
                f"There is no user called {message.user[:60]!r}.",
                remedy=f"Did you mean {near[0]!r}?" if near else None,
            )
        longest = self._settings.lifetime_seconds
        if not 0 < message.seconds <= longest:  # also refuses NaN
            raise InvalidArgument(
                f"A token's lifetime is positive, and {longest / 86_400:g} days at most.",
                remedy="Ask for less, or raise tokens.lifetime_seconds.",
            )
        for namespace in message.permissions or {}:
            if namespace != EVERY_NAMESPACE:
                try:
                    check_name("namespace", namespace)
                except InvalidName as problem:
                    raise InvalidArgument(problem.sentence, remedy=problem.remedy) from None

    async def _list(self, _message: ListTokens) -> TokensFound:
        book = await self._bearers.read()
        known = self._users.user
        return TokensFound(
            [
                TokenRow(
                    token.id,
                    token.user,
                    token.label,
                    token.created_at,
                    token.created_by,
                    token.expires_at,
                    token.permissions,
                    known(token.user) is not None,
                )
                for token in book.listed()
            ]
        )

    async def _revoke(self, message: RevokeToken) -> TokenRevoked:
        await self._bearers.change(lambda book: book.without(message.id))
        self._log.info("API token revoked", token=message.id, by=message.revoked_by or None)
        return TokenRevoked()

    async def _introspect(self, message: Introspect) -> Introspected:
        try:
            identity = await self._bearers.identify(message.text)
        except Unauthenticated as problem:
            return Introspected("", "", {}, 0.0, problem.code, problem.sentence, problem.remedy)
        return Introspected(
            identity.name, identity.via, identity.permissions.granted(), identity.until
        )
