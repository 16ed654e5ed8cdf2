"""Authentication for every listener: from a user and a secret to an identity.

A secret that was recently verified is accepted at once, and one that was recently wrong is refused
at once. Any other is verified in a thread (`hashlib.scrypt` releases the GIL), a few at a time.
Logins that wait for it take turns (`login_queue.py`), and peers that failed too often are refused
before (`login_limits.py`). Those two modules decide, with the time as an argument; this one carries
it out.

Each process of a node has its own: a secret that one shard has verified, another verifies again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from maitred.errors import InvalidToken, MaitredError, Unauthenticated
from maitred.logs import OccasionalWarning
from maitred.security.certificates import Certified, certified
from maitred.security.directory import wrong_secret
from maitred.security.login_limits import LoginLimits
from maitred.security.login_queue import LoginQueue, no_room
from maitred.security.secrets import SECRET_BYTES_MAX
from maitred.security.tokens import TOKEN_USER, id_of
from maitred.security.users import USER_LETTERS_MAX

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from maitred.logs import Logger
    from maitred.security.audit_log import AuditLog
    from maitred.security.directory import Directory, Identity
    from maitred.security.source import Source
    from maitred.settings import Limits

VERIFIED_AT_ONCE: Final = 2
"""Secrets verified at a time; each takes some 40 ms of CPU and 16 MiB, beside the event loop's own
work."""

NAME_LETTERS: Final = 60
"""Longest part of a user's name in the log: a stranger may send as many bytes as a frame holds."""


class Login:
    """One login attempt that waits to be verified."""

    __slots__ = ("found", "network", "secret", "source", "user")

    def __init__(
        self, source: Source, user: str, secret: str, found: asyncio.Future[Identity]
    ) -> None:
        self.source = source
        self.network = source.network
        self.user = user
        self.secret = secret
        self.found = found

    def __repr__(self) -> str:
        return f"<Login of {self.user[:NAME_LETTERS]!r} from {self.source}>"


class TokenVerifier(Protocol):
    """Verifies API tokens and JWTs."""

    def remembered(self, text: str) -> Identity | None:
        """Return the identity behind the token if it can be verified without waiting."""

    async def identify(self, text: str, source: Source) -> Identity:
        """Return the identity behind the token; raise `InvalidToken`, or `Overloaded` if too many
        wait."""

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity anew after users or tokens have changed; None if the token is no
        longer valid."""


class Authenticator:
    """Authenticates for all listeners of one process."""

    def __init__(
        self,
        users: Directory,
        limits: Limits,
        log: Logger,
        audit: AuditLog | None = None,
        *,
        client_users: Mapping[str, str] | None = None,
    ) -> None:
        self.users = users
        self._audit = audit
        self._client_users = client_users or {}
        self.outcomes: Counter[str] = Counter()
        """Logins by outcome: `remembered`, `verified`, `certified`, `wrong`, `too-many-failures`,
        `overloaded`."""
        self._loop = asyncio.get_running_loop()
        self._limits = LoginLimits(limits)
        self._wait_seconds = limits.handshake_seconds
        self._queue: LoginQueue[Login] = LoginQueue(
            limits.verifications, limits.verifications_per_address, self._limits.standing
        )
        self._tokens: TokenVerifier | None = None
        self._verifying = 0
        self._closed = False
        self._failed_warning = OccasionalWarning(log, "authentication failed")

    def close(self) -> None:
        """Verify nothing more, and drop the results of running verifications: the process ends."""
        self._closed = True

    @property
    def waiting(self) -> int:
        """Number of logins that wait to be verified."""
        return len(self._queue)

    def accept_tokens(self, verifier: TokenVerifier) -> None:
        """Use this verifier for logins with the user name `TOKEN_USER`."""
        self._tokens = verifier

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity anew after users or tokens have changed; None if it is no longer
        valid."""
        if identity.via == "certificate":
            return Certified(identity.name, identity.until).identity(self.users, -inf)
        if identity.via in {"token", "jwt"}:
            return self._tokens.refreshed(identity) if self._tokens is not None else None
        return self.users.refreshed(identity)

    def certified(self, tls: ssl.SSLObject | None, now: float) -> Identity | None:
        """Return the user to whom the client's certificate of this TLS connection is mapped."""
        if tls is None or not self._client_users:
            return None
        found = certified(tls.getpeercert(), self._client_users)
        known = None if found is None else found.identity(self.users, now)
        if known is not None:
            self.outcomes["certified"] += 1
        return known

    def remembered(self, user: str, secret: str) -> Identity | None:
        """Return the identity if this secret was verified before; None otherwise."""
        if user == TOKEN_USER and self._tokens is not None:
            known = self._tokens.remembered(secret)
        else:
            known = self.users.remembered(user, secret)
        if known is not None:
            self.outcomes["remembered"] += 1
        return known

    async def authenticate(self, user: str, secret: str, source: Source) -> Identity:
        """Return the identity of the user with this secret. Raises `Unauthenticated` for an unknown
        user or a wrong secret, `TooManyFailures` or `Overloaded` if the secret was not verified.
        Cancel it when the caller has disconnected: then the secret is not verified."""
        shown = user if user != TOKEN_USER else f"token {id_of(secret) or '(JWT)'}"
        login = Login(source, shown, secret, self._loop.create_future())
        try:
            known = self.remembered(user, secret)
            if known is not None:
                return known
            if user == TOKEN_USER and self._tokens is not None:
                # Verifying a token takes microseconds, and none can be guessed: no queue.
                known = await self._tokens.identify(secret, source)
                self.outcomes["verified"] += 1
                return known
            if len(user) > USER_LETTERS_MAX or len(secret) > SECRET_BYTES_MAX:
                raise wrong_secret()  # the limits are documented, so this reveals nothing
            self._refuse_early(login)
            displaced = self._queue.add(login, self._loop.time())
            if displaced is not None:
                self._resolve(displaced, no_room("here"))
            self._serve()
            return await self._found(login)
        except MaitredError as problem:
            self._refused(login, problem)
            raise
        finally:
            self._queue.remove(login)

    async def _found(self, login: Login) -> Identity:
        """Wait for the result of a login, no longer than a handshake may take."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await login.found
        except TimeoutError:
            raise no_room("here") from None

    def _refuse_early(self, login: Login) -> None:
        """Raise the errors that need no verification of the secret."""
        if self.users.is_known_wrong(login.user, login.secret):
            raise wrong_secret()
        self._limits.check(login.network, login.user, self._loop.time())

    def _serve(self) -> None:
        """Start to verify the logins whose turn it is."""
        while self._verifying < VERIFIED_AT_ONCE and not self._closed:
            login = self._queue.take(self._loop.time())
            if login is None:
                return
            # While it waited, the same secret may have been verified for another connection, and
            # the limit may have been reached.
            known = self.remembered(login.user, login.secret)
            if known is not None:
                self._resolve(login, known)
                continue
            try:
                self._refuse_early(login)
            except MaitredError as problem:
                self._resolve(login, problem)
                continue
            self._verifying += 1
            self._loop.run_in_executor(
                None, self.users.authenticate, login.user, login.secret
            ).add_done_callback(partial(self._verified, login))

    def _verified(self, login: Login, verification: asyncio.Future[Identity]) -> None:
        self._verifying -= 1
        found: Identity | BaseException | None
        if verification.cancelled():
            found = Unauthenticated("The node stopped before the secret was verified.")
        else:
            found = verification.exception() or verification.result()
        if self._closed:
            return
        if isinstance(found, Unauthenticated):
            self._limits.failed(login.network, login.user, self._loop.time())
            if login.found.cancelled():  # a caller that did not wait is logged as well
                self._refused(login, found)
        elif not isinstance(found, BaseException):
            self._limits.succeeded(login.network, login.user)
            self.outcomes["verified"] += 1
            # The users may have changed meanwhile.
            found = self.users.refreshed(found) or no_longer(found)
        self._resolve(login, found)
        self._serve()

    @staticmethod
    def _resolve(login: Login, found: Identity | BaseException) -> None:
        if login.found.done():
            return
        if isinstance(found, BaseException):
            login.found.set_exception(found)
        else:
            login.found.set_result(found)

    def _refused(self, login: Login, problem: MaitredError) -> None:
        self.refuse(login.user, login.source, problem)

    def refuse(self, user: str, source: Source, problem: MaitredError) -> None:
        """Count a refused login, and log it at most once a second: strangers must not flood the
        log."""
        self.outcomes["wrong" if isinstance(problem, Unauthenticated) else problem.code] += 1
        if self._audit is not None:
            self._audit.record(
                "login",
                user=user[:NAME_LETTERS],
                source=source,
                allowed=False,
                details={"reason": problem.code},
            )
        self._failed_warning.say(
            self._loop.time(),
            peer=str(source),
            user=user[:NAME_LETTERS],
            code=problem.code,
        )


def no_longer(identity: Identity) -> Unauthenticated:
    """Return the error for an identity that is no longer valid."""
    if identity.via == "token":
        return InvalidToken("The API token was revoked, or its user does not exist any more.")
    if identity.via == "jwt":
        return InvalidToken("The key that signed the JWT is not trusted any more.")
    if identity.via == "certificate":
        return Unauthenticated("The user of the certificate does not exist any more.")
    return Unauthenticated("The user does not exist any more, or has a new secret.")
