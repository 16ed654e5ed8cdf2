"""Who may come in by a door: the node's users, with the same file, the same secrets and the same
care."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.security.authenticator import Authenticator
from maitred.security.directory import Directory
from maitred.security.permissions import denied
from maitred.security.reloading import Reloading

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from maitred.logs import Logger
    from maitred.security.audit_log import AuditLog
    from maitred.security.directory import Identity
    from maitred.security.reloading import Reloadable
    from maitred.settings import Node, Permission, QueryLimits
    from maitred.surroundings import Surroundings


class Guard:
    """Knows the users, of one process."""

    def __init__(
        self,
        settings: Node,
        surroundings: Surroundings,
        log: Logger,
        reloadable: Iterable[Reloadable] = (),
        audit: AuditLog | None = None,
    ) -> None:
        self.users = Directory(settings)
        self.required = self.users.required
        self.audit = audit
        client_users = settings.tls.client_users if settings.tls is not None else {}
        self.authenticator = Authenticator(
            self.users, settings.limits, log, audit, client_users=client_users
        )
        self.reloading = Reloading(self.users, reloadable, log)
        self._wall_clock = surroundings.wall_clock

    def limits_of(self, user: str) -> QueryLimits | None:
        """What the user's queries may take."""
        known = self.users.user(user) if self.required else None
        return known.queries if known is not None else None

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Read again what has changed, and tell what expires; once a second."""
        self.reloading.look(spawn)
        self.reloading.look_at_expiries(self._wall_clock())


def check(identity: Identity | None, namespace: str, permission: Permission) -> None:
    """Raise `PermissionDenied` unless the user has the permission; without users everybody has."""
    if identity is not None and not identity.permissions.allows(namespace, permission):
        raise denied(identity.name, permission, namespace)
