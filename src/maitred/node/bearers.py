"""Verifies API tokens and JWTs in one shard.

The tokens are a document of the store. A shard reads it again about once a second if there is a
newer version, and at once when a caller shows a token that is not in it: a token works everywhere
as soon as it was made. While the store does not answer, the tokens that were read last stay valid.

JWTs are verified with the keys of their issuer (`security/jwt_keys.py`). A JWT with an unknown key
makes the shard fetch the keys, unless it fetched them a moment ago.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import InvalidToken, MaitredError, Overloaded
from maitred.protocol.access import BEARER_BYTES_MAX
from maitred.security.jwt_verifier import JwtVerifier, UnknownKey
from maitred.security.permissions import Permissions
from maitred.security.tokens import ApiToken, TokenBook, id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.logs import Logger
    from maitred.security.directory import Directory, Identity
    from maitred.security.jwt_keys import KeySource
    from maitred.security.reload import ProcessReload
    from maitred.security.source import Source
    from maitred.store.interface import Store

DOCUMENT: Final = "tokens"
"""The name of the document in the store."""

READ_AGAIN_SECONDS: Final = 0.02
"""Least time between two reads because of tokens that are not in the book: callers with made-up
tokens must not keep the store busy."""

CHANGES_TRIED: Final = 8
"""How often a change is tried while other shards change the book as well."""


class Jwts(NamedTuple):
    """Verifies JWTs, and fetches the keys for that."""

    verifier: JwtVerifier
    source: KeySource
    reloading: ProcessReload


class Bearers:
    """Identifies callers by the API tokens of the store, or by JWTs."""

    def __init__(
        self,
        users: Directory,
        store: Store,
        *,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Callable[[], float],
        log: Logger,
        changed: Callable[[], None],
        jwts: Jwts | None = None,
    ) -> None:
        self._users = users
        self._store = store
        self._loop = loop
        self._wall_clock = wall_clock
        self._log = log
        self._changed = changed
        self._jwts = jwts
        self._fetching: asyncio.Task[None] | None = None
        self._book = TokenBook()
        self._looking: asyncio.Task[None] | None = None
        self._coming: asyncio.Task[None] | None = None
        """A read for tokens that are not in the book, which waits for `READ_AGAIN_SECONDS`."""
        self._read_at = -inf
        """When the last such read began."""
        self._failing = False

    # Identities

    def remembered(self, _text: str) -> Identity | None:
        """Return None: `identify` is as quick as a memory of identities."""
        return None

    async def identify(self, text: str, _source: Source | None = None) -> Identity:
        """Return the identity behind the API token or JWT; raise `InvalidToken` if it has none."""
        number = id_of(text)
        if number is None and self._jwts is not None:
            return await self._identify_jwt(text, self._jwts)
        if number is not None and number not in self._book:
            await self._read_soon()
        return self._identity(self._book.verified(text, self._wall_clock()))

    async def _identify_jwt(self, text: str, jwts: Jwts) -> Identity:
        if len(text) > BEARER_BYTES_MAX:
            raise InvalidToken(f"A token has at most {BEARER_BYTES_MAX:,} bytes.")
        try:
            return jwts.verifier.identify(text, self._wall_clock())
        except UnknownKey:
            if not (jwts.source.is_read or jwts.source.may_have_more()):
                raise
        if self._fetching is None:
            self._fetching = self._loop.create_task(self._fetch(jwts))
        await asyncio.shield(self._fetching)
        return jwts.verifier.identify(text, self._wall_clock())

    async def _fetch(self, jwts: Jwts) -> None:
        try:
            await jwts.reloading.again(jwts.source, jwts.source.may_have_more)
        finally:
            self._fetching = None

    def _identity(self, token: ApiToken) -> Identity:
        user = self._users.identity(token.user)
        if user is None:
            raise InvalidToken(
                f"The user {token.user!r} of the API token {token.id} does not exist.",
                remedy="Revoke the token, or make the user again.",
            )
        permissions = user.permissions
        if token.permissions is not None:
            permissions = permissions.narrowed(Permissions(token.permissions))
        return replace(
            user, permissions=permissions, secret=token.id, via="token", until=token.expires_at
        )

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity anew after a change of users or tokens; None if its token was
        removed."""
        if identity.via == "jwt":
            return self._jwts.verifier.refreshed(identity) if self._jwts is not None else None
        token = self._book.find(identity.secret)
        if token is None:
            return None
        try:
            return self._identity(token)
        except InvalidToken:
            return None

    # The book

    def look(self) -> None:
        """Read the document again if it has changed; called once a second."""
        if self._looking is None:
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            await self._read()
        finally:
            self._looking = None

    async def _read_soon(self) -> None:
        """Wait for a read that begins after this call; all callers that wait share one read."""
        if self._coming is None:
            self._coming = self._loop.create_task(self._read_when_allowed())
        # A caller that is cancelled does not cancel the read for the others.
        await asyncio.shield(self._coming)

    async def _read_when_allowed(self) -> None:
        now = self._loop.time()
        await asyncio.sleep(max(0.0, self._read_at + READ_AGAIN_SECONDS - now))
        self._coming, self._read_at = None, self._loop.time()
        await self._read()

    async def _read(self) -> None:
        try:
            await self.read()
        except MaitredError as problem:
            if not self._failing:
                self._log.warning("API tokens not read; the last ones stay", error=problem)
            self._failing = True
        else:
            self._failing = False

    async def read(self) -> TokenBook:
        """Read the document if it is newer, and return the current book."""
        found = await self._store.document(DOCUMENT, self._book.version)
        if found is not None:
            self._take(TokenBook.decode(found.body, found.version))
        return self._book

    def _take(self, book: TokenBook) -> None:
        if book.version > self._book.version:
            self._book = book
            self._changed()

    async def change(self, make: Callable[[TokenBook], TokenBook]) -> None:
        """Replace the book by what `make` returns for the current one, here and in the store."""
        for _ in range(CHANGES_TRIED):
            book = await self.read()
            made = make(book)
            if await self._store.replace_document(DOCUMENT, book.version, made.encode()):
                self._take(TokenBook(made.listed(), book.version + 1))
                return
        raise Overloaded(
            "Others change the API tokens at the same time.", remedy="Try again.", retry_after=1.0
        )

    def close(self) -> None:
        """Cancel the reads of tokens and keys that are under way."""
        for task in (self._looking, self._coming, self._fetching):
            if task is not None:
                task.cancel()
