"""Authenticate the callers of a gateway: the node's users, with the same settings and secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.security.authenticator import Authenticator
from maitred.security.directory import Directory
from maitred.security.permissions import denied
from maitred.security.reload import ProcessReload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from maitred.logs import Logger
    from maitred.security.audit_log import AuditLog
    from maitred.security.directory import Identity
    from maitred.security.reload import Reloadable
    from maitred.settings import Node, Permission, QueryLimits
    from maitred.surroundings import Surroundings


class Guard:
    """Authenticates users and holds their limits, for one gateway process."""

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
        self.reloading = ProcessReload(self.users, reloadable, log)
        self._wall_clock = surroundings.wall_clock

    def limits_of(self, user: str) -> QueryLimits | None:
        """Return the limits of the user's queries; None if there are none."""
        known = self.users.user(user) if self.required else None
        return known.queries if known is not None else None

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Reload files that changed, and warn of expiring certificates; called once a second."""
        self.reloading.look(spawn)
        self.reloading.look_at_expiries(self._wall_clock())


def check(identity: Identity | None, namespace: str, permission: Permission) -> None:
    """Raise `PermissionDenied` unless the user has it; None means that no users are configured."""
    if identity is not None and not identity.permissions.allows(namespace, permission):
        raise denied(identity.name, permission, namespace)
