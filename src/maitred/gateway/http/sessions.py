"""Sessions of the web console: who logged in with which cookie, for how long.

A browser must not keep a secret, so the console sends the user's once and gets a cookie that no
script can read. The cookie is random and names a session in the memory of this process; a gateway
that restarts asks for a new login. The table keeps the hash of the cookie, and of the user what
the directory of users needs to see whether the user still exists. Of an API token or a JWT it
keeps the text, because only the node can tell whether the token was revoked meanwhile.

A browser adds the cookie to requests by itself, whichever page causes them. `SameSite=Strict` and
the checks of the request's origin (`admission.py`) keep other pages out. The third defence is a
mark that the console reads from `GET /v1/me` and sends back in a header with each request that
changes something: another page can neither read it nor set the header.

This module decides, with the time as an argument; `session_routes.py` carries it out.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from maitred.errors import Overloaded, PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.security.directory import Identity

SESSIONS_MAX: Final = 10_000
"""Most sessions of a gateway; each takes about a kilobyte. Only users who log in make any."""

SESSIONS_PER_USER_MAX: Final = 100
"""Most sessions of one user, so that a program that logs in again and again does not fill the
table; the one that was not used for the longest is ended."""

COOKIE_BYTES: Final = 32
"""Random bytes of a cookie and of a mark: too many to guess."""

CSRF_HEADER: Final = b"maitred-csrf"


class ConsoleSession:
    """The login of one browser."""

    __slots__ = ("csrf", "identity", "key", "token", "used_at")

    def __init__(self, key: bytes, identity: Identity, token: str, csrf: str, now: float) -> None:
        self.key = key
        """The hash of the cookie."""
        self.identity = identity
        self.token = token
        """The API token or the JWT that the user logged in with; empty for a secret."""
        self.csrf = csrf
        """The mark that requests which change something have to carry."""
        self.used_at = now

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `PermissionDenied` unless the request carries the mark of this session."""
        given = headers.get(CSRF_HEADER, b"")
        if not hmac.compare_digest(given, self.csrf.encode()):
            raise PermissionDenied(
                "The request changes something, comes with a session's cookie, and lacks the mark "
                "of that session.",
                remedy="Send the header Maitred-Csrf with the `csrf` of GET /v1/me.",
            )


class Sessions:
    """The sessions of a gateway, the least recently used first."""

    def __init__(self, idle_seconds: float, random: Callable[[int], bytes]) -> None:
        self._idle_seconds = idle_seconds
        self._random = random
        self._sessions: OrderedDict[bytes, ConsoleSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity, token: str, now: float) -> tuple[str, ConsoleSession]:
        """Return a new cookie and its session; raise `Overloaded` if there are too many."""
        self.look(now)
        own = [one for one in self._sessions.values() if one.identity.name == identity.name]
        if len(own) >= SESSIONS_PER_USER_MAX:
            self.end(own[0])
        if len(self._sessions) >= SESSIONS_MAX:
            raise Overloaded(
                f"This gateway has {SESSIONS_MAX:,} sessions already.",
                remedy="Log out elsewhere, or try again later.",
            )
        cookie = self._random(COOKIE_BYTES).hex()
        mark = self._random(COOKIE_BYTES).hex()
        session = ConsoleSession(_key(cookie), identity, token, mark, now)
        self._sessions[session.key] = session
        return cookie, session

    def find(self, cookie: str, now: float) -> ConsoleSession | None:
        """Return the session of a cookie, which is used now; None if there is none, or if it was
        not used for too long."""
        session = self._sessions.get(_key(cookie))
        if session is None:
            return None
        if now - session.used_at > self._idle_seconds:
            self.end(session)
            return None
        session.used_at = now
        self._sessions.move_to_end(session.key)
        return session

    def end(self, session: ConsoleSession) -> None:
        """End a session: its cookie is worth nothing from now on."""
        self._sessions.pop(session.key, None)

    def look(self, now: float) -> None:
        """Forget the sessions that were not used for too long."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at <= self._idle_seconds:
                return
            self.end(oldest)


def cookie_in(header: bytes | None, name: bytes) -> str:
    """Return the cookie of this name in a Cookie header; empty if there is none."""
    for part in (header or b"").split(b";"):
        key, _, value = part.strip().partition(b"=")
        if key == name:
            return value.decode("latin-1")
    return ""


def _key(cookie: str) -> bytes:
    return sha256(cookie.encode()).digest()
