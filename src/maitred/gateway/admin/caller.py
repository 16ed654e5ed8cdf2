"""The user for whom a gateway answers, and what that user may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from maitred.security.guard import check
from maitred.security.permissions import EVERY_NAMESPACE, denied

if TYPE_CHECKING:
    from maitred.security.directory import Identity
    from maitred.settings import Permission


class AdminCaller(NamedTuple):
    """The user who sent a request to a gateway, and the address that it came from."""

    identity: Identity | None
    """None: the gateway has no users, and every caller may do anything."""
    source: str = ""
    """The address that the request comes from, for the audit log."""
    csrf: str = ""
    """The mark of the caller's session of the console; empty without one."""

    @property
    def user(self) -> str:
        """The name of the user; empty if the gateway has no users."""
        return "" if self.identity is None else self.identity.name

    def allows(self, namespace: str, permission: Permission) -> bool:
        """Whether the caller has the permission in the namespace."""
        return self.identity is None or self.identity.permissions.allows(namespace, permission)

    def require(self, namespace: str, permission: Permission) -> None:
        """Raise `PermissionDenied` unless the caller has the permission in the namespace."""
        check(self.identity, namespace, permission)

    def namespaces(self, permission: Permission, wanted: str = "") -> list[str] | None:
        """Return the namespaces in which the caller has the permission, or the wanted one; None:
        all. Raise `PermissionDenied` if there is none."""
        if wanted:
            self.require(wanted, permission)
            return [wanted]
        if self.identity is None:
            return None
        found = self.identity.permissions.namespaces(permission)
        if found == []:
            raise denied(self.identity.name, permission, EVERY_NAMESPACE)
        return found
