"""Users as configured, in the settings or in a file of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from maitred.errors import InvalidName, InvalidSetting
from maitred.routing.names import check_name
from maitred.schema import check_complete, fit, kind_of, read_toml
from maitred.security.permissions import EVERY_NAMESPACE
from maitred.security.secrets import check_hashed
from maitred.security.tokens import TOKEN_USER
from maitred.settings import Schema, User

if TYPE_CHECKING:
    from collections.abc import Iterable

GATEWAY = "maitred-gateway"
"""Name of the node's own gateway, which tells whose queries it sends. No user can have this
name."""

CREDENTIALS_IGNORED: Final = (
    "credentials ignored: the node has no users, so every caller may do anything"
)
"""Logged once if a caller sends credentials to a node that does not check any."""

USER_LETTERS_MAX = 256
"""Longest name of a user, in characters. Names of failed logins are kept for a while, and take
memory by their length."""


RESERVED: Final = {
    GATEWAY: "the node's own gateway is called so",
    TOKEN_USER: "an API token or a JWT is shown with this name instead of a user's",
}
"""Names that no user can have, and why."""


class UsersFile(Schema, frozen=True, kw_only=True):
    """The content of `users_file`: `[users.alice]`, as in the settings, and nothing else."""

    users: dict[str, User] = msgspec.field(default_factory=dict)


_FILE = kind_of(UsersFile)
_USERS = kind_of(dict[str, User])


def read_users(path: str) -> dict[str, User]:
    """Return the users in a file, each checked."""
    source = f"the file {path}"
    fitted = fit(_FILE, read_toml(path), "", source)
    assert isinstance(fitted, dict)  # noqa: S101 - a group is fitted to a dictionary
    check_complete(_USERS, fitted.get("users", {}), "users", source)
    users = msgspec.convert(fitted, UsersFile).users
    for name, user in users.items():
        check_user(name, user, source)
    return users


def check_user(name: str, user: User, source: str) -> None:
    """Raise `InvalidSetting` for a reserved or malformed name, an unusable secret, or an invalid
    namespace."""
    if name in RESERVED:
        raise InvalidSetting(
            f"users.{name} (from {source}) cannot be used: {RESERVED[name]}.",
            remedy="Give the user another name.",
        )
    if len(name) > USER_LETTERS_MAX:
        raise InvalidSetting(
            f"users.{name[:60]}... (from {source}) has a name of {len(name):,} letters.",
            remedy=f"A user's name has {USER_LETTERS_MAX} letters at most.",
        )
    if not name or not name.isprintable():
        raise InvalidSetting(
            f"users.{name!r} (from {source}) cannot be used: a name has letters, and no control "
            "characters.",
            remedy="Give the user another name.",
        )
    check_hashed(user.secret, f"users.{name}.secret (from {source})")
    if user.previous_secret is not None:
        check_hashed(user.previous_secret, f"users.{name}.previous_secret (from {source})")
    check_namespaces(f"users.{name}.permissions (from {source})", user.permissions)


def check_namespaces(where: str, permissions: Iterable[str]) -> None:
    """Raise `InvalidSetting` for permissions in namespaces that cannot exist."""
    for namespace in permissions:
        if namespace != EVERY_NAMESPACE:
            try:
                check_name("namespace", namespace)
            except InvalidName as problem:
                raise InvalidSetting(
                    f"{where} cannot be used. {problem.sentence}",
                    remedy=f"Name a namespace, or {EVERY_NAMESPACE!r} for all of them.",
                ) from None
