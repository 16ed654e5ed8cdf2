"""Have the node verify the API tokens and JWTs that callers send to a gateway.

A gateway has no store, and may be on another machine; the node has the tokens, and the keys of
the issuers of JWTs. So the gateway asks the node for the user behind a token; the node reveals
nothing that the token itself would not give access to. The answer is cached for a second, so that a
busy token costs the node one request a second, and a revoked one is refused about a second later.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import InvalidToken, TokenExpired, Unauthenticated, Unavailable
from maitred.protocol.access import BEARER_BYTES_MAX
from maitred.security.directory import Identity
from maitred.security.login_queue import no_room
from maitred.security.permissions import Permissions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.protocol.access import Introspected
    from maitred.security.source import Source

REMEMBERED_SECONDS: Final = 1.0
"""How long the gateway reuses an answer of the node. A revoked token stays usable here for this
long, and a token that is in use costs the node one request per period."""

REMEMBERED_MAX: Final = 4_096
"""The most cached answers, some 500 bytes each; the least recently used is evicted."""

ASKED_MAX: Final = 64
"""The most unknown tokens that the gateway asks the node about at a time; requests with more are
refused and may be retried."""


ASKED_PER_NETWORK_MAX: Final = 16
"""The same for one network (`security/source.py`): a flood from one leaves room for others."""


class _Known(NamedTuple):
    identity: Identity
    good_until: float
    """The time, by the event loop's clock, until which the answer may be used."""


class Introspection:
    """Caches the node's answers about tokens, for one gateway."""

    def __init__(
        self, ask: Callable[[str], Awaitable[Introspected]], wall_clock: Callable[[], float]
    ) -> None:
        self._ask = ask
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        """Maps the SHA-256 of a token to its answer, so that no token itself stays in memory. An
        outdated answer stays until the node is asked again, or until it is evicted."""
        self._asked: dict[bytes, asyncio.Task[Identity]] = {}
        self._networks: Counter[str] = Counter()
        """How many of the open questions to the node each network has caused."""

    def remembered(self, text: str) -> Identity | None:
        """Return the identity behind the token if the node confirmed it a moment ago."""
        key = _key(text)
        found = self._known.get(key)
        if found is None:
            return None
        if found.good_until <= self._loop.time() or found.identity.until <= self._wall_clock():
            return None
        self._known.move_to_end(key)
        return found.identity

    async def identify(self, text: str, source: Source) -> Identity:
        """Ask the node for the identity behind the token. Raise `InvalidToken`, or why asking
        failed."""
        if len(text) > BEARER_BYTES_MAX:
            raise InvalidToken(f"A token has at most {BEARER_BYTES_MAX:,} bytes.")
        known = self.remembered(text)
        if known is not None:
            return known
        key = _key(text)
        asked = self._asked.get(key)
        if asked is None:
            # A flood of invalid tokens must not keep out tokens that were valid before.
            if key not in self._known:
                self._make_room(source.network)
            asked = self._asked[key] = self._loop.create_task(self._find_out(key, text))
            asked.add_done_callback(partial(self._answered, key, source.network))
            self._networks[source.network] += 1
        # Others wait for the same answer: a cancelled caller must not cancel the question.
        return await asyncio.shield(asked)

    def _make_room(self, network: str) -> None:
        """Raise unless the node may be asked about one more token, for this network."""
        if self._networks[network] >= ASKED_PER_NETWORK_MAX:
            raise no_room("from your address")
        if len(self._asked) >= ASKED_MAX:
            raise no_room("here")

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity unchanged: a gateway never uses one for longer than it is valid."""
        return identity

    def _answered(self, key: bytes, network: str, task: asyncio.Task[Identity]) -> None:
        self._asked.pop(key, None)
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may have left

    async def _find_out(self, key: bytes, text: str) -> Identity:
        began = self._loop.time()
        try:
            said = await self._ask(text)
        except Unauthenticated as problem:
            raise Unavailable(
                "The node does not let the gateway in.",
                remedy="Check the user and the secret of the address that the gateway was given.",
            ) from problem
        if not said.user:
            self._known.pop(key, None)
            kind = TokenExpired if said.code == TokenExpired.code else InvalidToken
            raise kind(said.sentence, remedy=said.remedy)
        identity = Identity(
            said.user,
            Permissions(said.permissions),
            "",
            "jwt" if said.via == "jwt" else "token",
            said.expires_at,
        )
        self._known[key] = _Known(identity, began + REMEMBERED_SECONDS)
        self._known.move_to_end(key)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return identity


def _key(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()
