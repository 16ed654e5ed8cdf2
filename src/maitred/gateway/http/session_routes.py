"""The login and logout of the web console, and the user behind a session's cookie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from maitred.errors import InvalidArgument, Unauthenticated
from maitred.gateway.admin.bodies import read_body
from maitred.gateway.http.admission import SAFE
from maitred.gateway.http.formats import AS_JSON, JSON, is_msgpack
from maitred.gateway.http.sessions import Sessions, cookie_in
from maitred.security.tokens import TOKEN_USER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from maitred.gateway.http.connection import HttpConnection
    from maitred.gateway.http.request import HttpRequest
    from maitred.gateway.http.sessions import ConsoleSession
    from maitred.security.directory import Identity
    from maitred.security.guard import Guard

LOGIN_BYTES_MAX: Final = 20 * 1024
"""Largest body of a login: a stranger sends it. A JWT may have 16 KiB."""


class LoginBody(Struct, frozen=True, kw_only=True):
    """A user and the secret, or a token."""

    user: str = ""
    secret: str = ""
    token: str = ""


class OpenedSession(Struct):
    """The login of the console succeeded."""

    user: str
    csrf: str
    """What requests that change something have to carry in the header Maitred-Csrf."""


class SessionRoutes:
    """The sessions of a listener."""

    def __init__(
        self,
        guard: Guard,
        loop: asyncio.AbstractEventLoop,
        random: Callable[[int], bytes],
        *,
        idle_seconds: float,
        tls: bool,
    ) -> None:
        self._guard = guard
        self._loop = loop
        self._tls = tls
        self.sessions = Sessions(idle_seconds, random)
        self.name = b""
        """The name of the cookie. It has the port, since browsers send the cookies of a host to all
        of its ports: two gateways on one machine would end each other's sessions."""

    def listens(self, port: int) -> None:
        """Name the cookie by the port. With TLS, the prefix makes browsers refuse a cookie that
        another host, or a connection without TLS, has set."""
        self.name = (f"__Host-maitred-{port}" if self._tls else f"maitred-{port}").encode()

    # Requests with a cookie

    def of(self, request: HttpRequest) -> ConsoleSession | None:
        """Return the session of a request; None if it has no cookie of ours. Raise
        `Unauthenticated` if its session is over, and `PermissionDenied` if the request changes
        something and lacks the session's mark."""
        header = request.headers.get(b"cookie")
        if header is None:
            return None
        cookie = cookie_in(header, self.name)
        if not cookie:
            return None
        session = self.sessions.find(cookie, self._loop.time())
        if session is None:
            raise Unauthenticated("The session is over.", remedy="Log in again.")
        if request.method not in SAFE:
            session.check(request.headers)
        return session

    def known(self, session: ConsoleSession) -> Identity | None:
        """Return the user of a session; None if a token has to be verified again. Raise
        `Unauthenticated` if the user no longer exists, or has a new secret."""
        authenticator = self._guard.authenticator
        if session.token:
            return authenticator.remembered(TOKEN_USER, session.token)
        identity = authenticator.refreshed(session.identity)
        if identity is None:
            self.sessions.end(session)
            raise Unauthenticated(
                "The session is over: its user was removed, or has a new secret.",
                remedy="Log in again.",
            )
        session.identity = identity
        return identity

    async def verify(self, connection: HttpConnection, session: ConsoleSession) -> Identity:
        """Return the user of a session that began with a token; raise if it is no longer valid."""
        try:
            return await self._guard.authenticator.authenticate(
                TOKEN_USER, session.token, connection.source
            )
        except Unauthenticated:
            self.sessions.end(session)
            raise

    # Login and logout

    async def open(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Verify what was typed, and answer with the cookie of a new session."""
        check_login(request)
        packed = is_msgpack(request.headers.get(b"content-type"), request.body)
        body = read_body(LoginBody, request.body, packed=packed)
        request.body = b""
        if not self._guard.required:
            raise InvalidArgument(
                "This gateway has no users, so that there is no login.",
                remedy="Send requests without one.",
            )
        user, secret = (TOKEN_USER, body.token) if body.token else (body.user, body.secret)
        if not user or not secret:
            raise InvalidArgument("A login needs a user and a secret, or a token.")
        identity = await self._guard.authenticator.authenticate(user, secret, connection.source)
        cookie, session = self.sessions.begin(identity, body.token, self._loop.time())
        self._record("http session opened", connection, identity)
        answer = AS_JSON.value(OpenedSession(identity.name, session.csrf))
        connection.answer(request, 200, JSON, answer, self._set_cookie(cookie.encode()))

    def close(self, connection: HttpConnection, request: HttpRequest) -> None:
        """End the session of the request."""
        session = self.of(request) if self._guard.required else None
        if session is not None:
            self.sessions.end(session)
            self._record("http session closed", connection, session.identity)
        connection.answer(request, 200, JSON, b"{}", self._set_cookie(b""))

    def _set_cookie(self, cookie: bytes) -> bytes:
        end = b"" if cookie else b"; Max-Age=0"
        secure = b"; Secure" if self._tls else b""
        return b"Set-Cookie: %b=%b; Path=/; HttpOnly; SameSite=Strict%b%b\r\n" % (
            self.name,
            cookie,
            secure,
            end,
        )

    def _record(self, what: str, connection: HttpConnection, identity: Identity) -> None:
        audit = self._guard.audit
        if audit is not None:
            details = {"via": identity.via}
            audit.record(what, user=identity.name, source=connection.source, details=details)


def check_login(request: HttpRequest) -> None:
    """Raise `InvalidArgument` unless the body of a login is small, and says how long it is: it is
    read before the caller is authenticated."""
    length = request.headers.get(b"content-length", b"")
    if not length.isdigit() or int(length) > LOGIN_BYTES_MAX:
        raise InvalidArgument(
            f"The body of a login needs a Content-Length of at most {LOGIN_BYTES_MAX:,} bytes."
        )
