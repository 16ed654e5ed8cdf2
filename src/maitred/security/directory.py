"""The users of a node: those of the settings, and those of a file that may change at any time.

A verification takes some 40 ms of CPU on purpose, so it belongs into a thread: `authenticate` may
run in any, while the event loop reloads. What has to be consistent (users, permissions, generation)
is one immutable value that is replaced as a whole.

A client that reconnects with a secret that was just verified should not cost 40 ms again, nor a
fleet that repeats the same wrong secret. So the last verifications are remembered, as HMACs under a
key that only this process has: the memory of the process holds nothing with which a secret could be
tried offline any faster. The HMAC covers the user's hashes as well, so a changed secret is a
different entry.

A user may have two secrets while one is being replaced. A wrong secret takes as long as verifying
the costliest user does, regardless of how many secrets its user has, of which cost, and whether the
user exists.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar

from maitred.errors import InvalidSetting, Unauthenticated
from maitred.security.permissions import EVERYTHING, Permissions
from maitred.security.secrets import (
    BLOCK,
    COST,
    LANES,
    SECRET_BYTES_MAX,
    Hashed,
    parse_hashed,
    spend,
    verify,
)
from maitred.security.stamps import stamp_of
from maitred.security.users import GATEWAY, check_user, read_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.security.stamps import Stamp
    from maitred.settings import Node, QueryLimits, User

VERIFIED_MAX = 4_096
"""Most successful verifications that are remembered, some 200 bytes each; the oldest is dropped
first."""

WRONG_MAX = 4_096
"""Most wrong secrets that are remembered, likewise. A flood of others only displaces them."""

_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated user."""

    name: str
    permissions: Permissions
    secret: str = field(repr=False)
    """What was verified: the hash of the secret, the id of an API token, or the thumbprint of a
    JWT's key. After a change of users or tokens it shows whether the identity is still valid."""
    via: Via = "secret"
    """How the user authenticated. A browser attaches secrets (Basic) and certificates to requests
    by itself, whichever page causes them; API tokens and JWTs it does not."""
    until: float = inf
    """When the identity expires, in seconds since 1970; infinity: never."""


Via = Literal["secret", "token", "jwt", "certificate", "gateway"]

GATEWAY_IDENTITY = Identity(GATEWAY, EVERYTHING, "", "gateway")


@dataclass(frozen=True, slots=True)
class _Users:
    """All users at one moment."""

    users: Mapping[str, User]
    identities: Mapping[str, Identity]
    decoy: str
    """A hash that no secret has, as costly as the costliest of any user."""
    work: int
    """Work of refusing any wrong secret: as much as the user whose secrets cost most together."""

    @classmethod
    def of(cls, users: Mapping[str, User]) -> _Users:
        identities = {
            name: Identity(name, Permissions.of(user), user.secret) for name, user in users.items()
        }
        hashes = [[parse_hashed(one) for one in _secrets(user)] for user in users.values()]
        default = Hashed(COST, BLOCK, LANES, b"", b"")
        costliest = max(
            (one for secrets in hashes for one in secrets),
            key=lambda hashed: hashed.work,
            default=default,
        )
        decoy = costliest._replace(salt=os.urandom(16), hash=os.urandom(32))
        work = max((sum(one.work for one in secrets) for secrets in hashes), default=default.work)
        return cls(dict(users), identities, str(decoy), work)

    def secrets(self, name: str) -> tuple[str, ...]:
        """Return the hashes to verify against; for an unknown name, a hash that no secret has."""
        user = self.users.get(name)
        return _secrets(user) if user is not None else (self.decoy,)


def _secrets(user: User) -> tuple[str, ...]:
    return (user.secret,) if user.previous_secret is None else (user.secret, user.previous_secret)


class Directory:
    """The users of a node. Raises `InvalidSetting` if the first ones cannot be used."""

    part = "users"

    def __init__(self, node: Node, gateway_secret: str = "") -> None:
        self._gateway_secret = gateway_secret.encode()
        self._configured = dict(node.users)
        self._file = node.users_file
        self.required: bool = node.authenticates
        """Whether a connection has to authenticate."""
        self.generation: int = 1
        """Increases with each change of the users."""
        self._key = os.urandom(32)
        self._verified: OrderedDict[bytes, Identity] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()
        for name, user in self._configured.items():
            check_user(name, user, "the settings")
        self._seen = self._stamp()
        self._now = _Users.of(self._read(self._configured))

    def user(self, name: str) -> User | None:
        """Return the user of that name; None if there is none now."""
        return self._now.users.get(name)

    def query_limits(self, name: str) -> QueryLimits | None:
        """Return the limits of the user's queries; None if the user does not exist now."""
        user = self._now.users.get(name)
        return None if user is None else user.queries

    def all(self) -> Mapping[str, User]:
        """Return all users by name, as configured."""
        return self._now.users

    def names(self) -> list[str]:
        """Return the names of all users."""
        return list(self._now.users)

    def identity(self, name: str) -> Identity | None:
        """Return the identity of a user who was authenticated by other means than a secret."""
        return self._now.identities.get(name)

    def refreshed(self, identity: Identity) -> Identity | None:
        """Return the identity anew after a change; None if the user was removed or has another
        secret."""
        if identity is GATEWAY_IDENTITY:
            return identity
        user = self._now.users.get(identity.name)
        if user is None or identity.secret not in _secrets(user):
            return None
        return replace(self._now.identities[identity.name], secret=identity.secret)

    def remembered(self, name: str, secret: str) -> Identity | None:
        """Return the identity that `authenticate` would return without verifying, in microseconds;
        else None."""
        if name == GATEWAY:
            return self._our_gateway(secret)
        now = self._now
        if name not in now.users or len(secret) > SECRET_BYTES_MAX:
            return None
        proof = self._proof(name, secret, now)
        with self._lock:
            identity = self._verified.get(proof)
            if identity is None:
                return None
            self._verified.move_to_end(proof)
        # The user's permissions may have changed since.
        return self.refreshed(identity)

    def is_known_wrong(self, name: str, secret: str) -> bool:
        """Whether that secret was recently found to be wrong, also for a name that does not exist;
        in microseconds."""
        if len(secret) > SECRET_BYTES_MAX:
            return False
        proof = self._proof(name, secret, self._now)
        with self._lock:
            if proof not in self._wrong:
                return False
            self._wrong.move_to_end(proof)
        return True

    def _our_gateway(self, secret: str) -> Identity | None:
        """Return the gateway's identity if the secret is right; it is random and made at each
        start, so guesses need not be slowed down."""
        ours = self._gateway_secret
        right = hmac.compare_digest(secret.encode(errors="surrogatepass"), ours)
        return GATEWAY_IDENTITY if ours and right else None

    def authenticate(self, name: str, secret: str) -> Identity:
        """Return the user's identity or raise `Unauthenticated`. Takes some 40 ms of CPU: run it in
        a thread.

        An unknown name and a wrong secret get the same answer after about the same time.
        """
        known = self.remembered(name, secret)
        if known is not None:
            return known
        now = self._now
        spent = 0
        for hashed in now.secrets(name):
            if verify(secret, hashed) and name in now.users:
                identity = replace(now.identities[name], secret=hashed)
                self._remember(self._verified, self._proof(name, secret, now), identity)
                return identity
            spent += parse_hashed(hashed).work
        spend(now.work - spent)
        if len(secret) <= SECRET_BYTES_MAX:
            self._remember(self._wrong, self._proof(name, secret, now), None)
        raise wrong_secret()

    def _remember(self, table: OrderedDict[bytes, _Kept], proof: bytes, kept: _Kept) -> None:
        most = VERIFIED_MAX if table is self._verified else WRONG_MAX
        with self._lock:
            table[proof] = kept
            while len(table) > most:
                table.popitem(last=False)

    def has_changed(self) -> bool:
        """Whether `users_file` has changed since it was last read; costs one `stat`."""
        return self._stamp() != self._seen

    def reload(self, configured: Mapping[str, User] | None = None) -> bool:
        """Read `users_file` again, and replace the users of the settings with `configured` unless
        that is None; return whether the users changed.

        May run in a thread (a file of many users takes a while), but in one at a time. If the users
        cannot be used, it raises and changes nothing; `has_changed` is false until the file has
        changed again.
        """
        self._seen = self._stamp()
        wanted = self._configured if configured is None else dict(configured)
        if wanted and not self.required:
            raise InvalidSetting(
                "This node was started without users, so every connected caller may do anything.",
                remedy="Restart it to have users.",
            )
        for name, user in wanted.items():
            check_user(name, user, "the settings")
        users = self._read(wanted)
        self._configured = wanted
        if users == self._now.users:
            return False
        self._now = _Users.of(users)
        self.generation += 1
        return True

    def _stamp(self) -> Stamp | None:
        return None if self._file is None else stamp_of(self._file)

    def _read(self, configured: Mapping[str, User]) -> dict[str, User]:
        users = dict(configured)
        if self._file is not None:
            for name, user in read_users(self._file).items():
                if name in users:
                    raise InvalidSetting(
                        f"The user {name!r} is in the settings and in the file {self._file}.",
                        remedy="Keep one of the two.",
                    )
                users[name] = user
        return users

    def _proof(self, name: str, secret: str, now: _Users) -> bytes:
        proof = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (name, secret, *now.secrets(name)):
            encoded = part.encode(errors="surrogatepass")
            # With its length, or "ab" + "c" would be the same as "a" + "bc".
            proof.update(len(encoded).to_bytes(8, "big") + encoded)
        return proof.digest()


def wrong_secret() -> Unauthenticated:
    """Return the error for an unknown user and for a wrong secret: the same for both."""
    return Unauthenticated(
        "The user is not known, or the secret is wrong.",
        remedy="Check both; they are in the node's settings or in its users_file.",
    )
