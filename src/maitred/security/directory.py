"""Who there is: the users of the settings, and those of a file that may change at any time.

A verification takes some 40 ms of CPU on purpose, so it belongs into a thread: `authenticate` may
run in any, while the loop reloads. What has to be consistent (users, permissions, generation) is
one immutable value that is swapped as a whole.

Whoever reconnects with the secret that was right a moment ago should not cost 40 ms again. So the
last successful verifications are remembered, as HMACs under a key that only this process has: the
memory of the process holds nothing with which a secret could be tried offline any faster. The HMAC
covers the hash as well, so a changed secret is a different entry.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from maitred.errors import InvalidSetting, Unauthenticated
from maitred.security.permissions import EVERYTHING, Permissions
from maitred.security.secrets import (
    BLOCK,
    COST,
    LANES,
    SECRET_BYTES_MAX,
    Hashed,
    parse_hashed,
    verify,
)
from maitred.security.users import GATEWAY, check_user, read_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.settings import Node, User

VERIFIED_MAX = 4_096
"""Successful verifications that are remembered, some 200 bytes each; the oldest goes first."""

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who has shown who they are."""

    name: str
    permissions: Permissions
    secret: str = field(repr=False)
    """The hash it was verified against: after a change of users, the same secret or another one?"""


GATEWAY_IDENTITY = Identity(GATEWAY, EVERYTHING, "")


@dataclass(frozen=True, slots=True)
class _Users:
    """All users at one moment."""

    users: Mapping[str, User]
    identities: Mapping[str, Identity]
    nobody: str
    """A hash that no secret has, as costly as the costliest there is."""

    @classmethod
    def of(cls, users: Mapping[str, User]) -> _Users:
        identities = {
            name: Identity(name, Permissions.of(user), user.secret) for name, user in users.items()
        }
        default = Hashed(COST, BLOCK, LANES, b"", b"")
        costliest = max(
            (parse_hashed(user.secret) for user in users.values()),
            key=lambda hashed: hashed.work,
            default=default,
        )
        nobody = costliest._replace(salt=os.urandom(16), hash=os.urandom(32))
        return cls(dict(users), identities, str(nobody))


class Directory:
    """The users of a node. Raises `InvalidSetting` if the first ones cannot be used."""

    def __init__(self, node: Node, gateway_secret: str = "") -> None:
        self._gateway_secret = gateway_secret.encode()
        self._configured = dict(node.users)
        self._file = node.users_file
        self.required: bool = bool(node.users) or node.users_file is not None
        """Has a connection to say who it is?"""
        self.generation: int = 1
        """Rises with each change of the users."""
        self._key = os.urandom(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()
        for name, user in self._configured.items():
            check_user(name, user, "the settings")
        self._seen = self._stamp()
        self._now = _Users.of(self._read())

    def user(self, name: str) -> User | None:
        """The user of that name, if there is one now."""
        return self._now.users.get(name)

    def refreshed(self, identity: Identity) -> Identity | None:
        """The same one after a change; None if they are gone or have another secret."""
        if identity is GATEWAY_IDENTITY:
            return identity
        now = self._now.identities.get(identity.name)
        return now if now is not None and now.secret == identity.secret else None

    def remembered(self, name: str, secret: str) -> Identity | None:
        """Whom `authenticate` would return without verifying, in microseconds; else None."""
        if name == GATEWAY:
            return self._our_gateway(secret)
        identity = self._now.identities.get(name)
        if identity is None or len(secret) > SECRET_BYTES_MAX:
            return None
        proof = self._proof(name, secret, identity.secret)
        with self._lock:
            if proof not in self._verified:
                return None
            self._verified.move_to_end(proof)
        return identity

    def _our_gateway(self, secret: str) -> Identity | None:
        """Its secret is random and made at each start, so nothing has to slow guesses down."""
        ours = self._gateway_secret
        right = hmac.compare_digest(secret.encode(errors="surrogatepass"), ours)
        return GATEWAY_IDENTITY if ours and right else None

    def authenticate(self, name: str, secret: str) -> Identity:
        """Who this is, or `Unauthenticated`. Takes some 40 ms of CPU: run it in a thread.

        An unknown name and a wrong secret get the same answer after about the same time.
        """
        known = self.remembered(name, secret)
        if known is not None:
            return known
        now = self._now
        identity = now.identities.get(name)
        right = verify(secret, identity.secret if identity is not None else now.nobody)
        if identity is None or not right:
            raise Unauthenticated(
                "The user is not known, or the secret is wrong.",
                remedy="Check both; they are in the node's settings or in its users_file.",
            )
        proof = self._proof(name, secret, identity.secret)
        with self._lock:
            self._verified[proof] = None
            while len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        return identity

    def has_changed(self) -> bool:
        """Is `users_file` another one than when it was last read? A look that costs nothing."""
        return self._stamp() != self._seen

    def reload_if_changed(self) -> bool:
        """Read `users_file` again if it changed; True if there are other users now.

        May run in a thread (a file of many users takes a while), but in one at a time. A file that
        cannot be used leaves everything as it is and raises once; it is tried again when it has
        changed again.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        users = self._read()
        if users == self._now.users:
            return False
        self._now = _Users.of(users)
        self.generation += 1
        return True

    def _stamp(self) -> _Stamp | None:
        """What tells one state of the file from another; None while there is none."""
        if self._file is None:
            return None
        try:
            found = Path(self._file).stat()
        except (OSError, ValueError):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> dict[str, User]:
        users = dict(self._configured)
        if self._file is not None:
            for name, user in read_users(self._file).items():
                if name in users:
                    raise InvalidSetting(
                        f"The user {name!r} is in the settings and in the file {self._file}.",
                        remedy="Keep one of the two.",
                    )
                users[name] = user
        return users

    def _proof(self, name: str, secret: str, hashed: str) -> bytes:
        proof = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (name, secret, hashed):
            encoded = part.encode(errors="surrogatepass")
            # With its length, or "ab" + "c" would be the same as "a" + "bc".
            proof.update(len(encoded).to_bytes(8, "big") + encoded)
        return proof.digest()
