"""What a user may do in a namespace, checked for every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from maitred.errors import PermissionDenied
from maitred.settings import Permission

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maitred.settings import User

EVERY_NAMESPACE = "*"

_ALL: frozenset[Permission] = frozenset(get_args(Permission))


class Permissions:
    """Permissions by namespace, precomputed so that a check is two look-ups."""

    __slots__ = ("_by_namespace", "_elsewhere")

    def __init__(self, granted: Mapping[str, Iterable[Permission]]) -> None:
        self._elsewhere = _implied(granted.get(EVERY_NAMESPACE, ()))
        self._by_namespace = {
            namespace: _implied(permissions) | self._elsewhere
            for namespace, permissions in granted.items()
            if namespace != EVERY_NAMESPACE
        }

    @classmethod
    def of(cls, user: User) -> Permissions:
        """Return the permissions of a user, as configured."""
        return cls(user.permissions)

    def allows(self, namespace: str, permission: Permission) -> bool:
        """Whether the permission is granted in the namespace; `admin` includes all others there,
        and `operate` includes `read`."""
        return permission in self._by_namespace.get(namespace, self._elsewhere)

    def namespaces(self, permission: Permission) -> list[str] | None:
        """Return the namespaces in which the permission is granted; None: in all."""
        if permission in self._elsewhere:
            return None
        return [name for name, given in self._by_namespace.items() if permission in given]

    def narrowed(self, by: Permissions) -> Permissions:
        """Return the permissions that both grant."""
        both = Permissions({})
        both._elsewhere = self._elsewhere & by._elsewhere
        both._by_namespace = {
            namespace: self._by_namespace.get(namespace, self._elsewhere)
            & by._by_namespace.get(namespace, by._elsewhere)
            for namespace in {*self._by_namespace, *by._by_namespace}
        }
        return both

    def granted(self) -> dict[str, list[Permission]]:
        """Return the permissions by namespace, in the form of the settings: `Permissions` of it is
        equal."""
        found = {**self._by_namespace, EVERY_NAMESPACE: self._elsewhere}
        return {name: sorted(given) for name, given in found.items() if given}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Permissions):
            return NotImplemented
        mine, theirs = self._by_namespace, other._by_namespace
        return self._elsewhere == other._elsewhere and all(
            mine.get(namespace, self._elsewhere) == theirs.get(namespace, self._elsewhere)
            for namespace in {*mine, *theirs}
        )

    def __hash__(self) -> int:
        return hash(self._elsewhere)


def _implied(permissions: Iterable[Permission]) -> frozenset[Permission]:
    given = frozenset(permissions)
    if "admin" in given:
        return _ALL
    return given | {"read"} if "operate" in given else given


EVERYTHING = Permissions({EVERY_NAMESPACE: ["admin"]})
"""Permissions of trusted peers, and of every connection if the node has no users."""


def denied(user: str | None, permission: Permission, namespace: str) -> PermissionDenied:
    """Return the error for a user who lacks a permission; None stands for a connection that has no
    user, and the namespace `*` for the node as a whole."""
    place = "on this node" if namespace == EVERY_NAMESPACE else f"in the namespace {namespace!r}"
    name = "This connection" if user is None else f"The user {user!r}"
    return PermissionDenied(
        f"{name} lacks the permission {permission!r} {place}.",
        remedy=f"An operator of the node can grant {permission!r} for {namespace!r}.",
    )


NOTHING = Permissions({})
"""Permissions of a connection that has not authenticated."""
