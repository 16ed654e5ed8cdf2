"""The users of one process of a node: their authentication, their limits, and their reload."""

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
    from maitred.settings import Node, Permission


class Guard:
    """Authenticates users and holds their limits, for a shard or a gateway process."""

    def __init__(
        self,
        settings: Node,
        wall_clock: Callable[[], float],
        log: Logger,
        *,
        reloadable: Iterable[Reloadable] = (),
        audit: AuditLog | None = None,
        gateway_secret: str = "",
        changed: Callable[[str], None] = lambda _part: None,
    ) -> None:
        """`gateway_secret` authenticates the node's own gateway; `changed` is called with the name
        of each part that was reloaded and has changed."""
        self.users = Directory(settings, gateway_secret)
        self.required = self.users.required
        self.audit = audit
        client_users = settings.tls.client_users if settings.tls is not None else {}
        self.authenticator = Authenticator(
            self.users, settings.limits, log, audit, client_users=client_users
        )
        self.reloading = ProcessReload(self.users, reloadable, log, changed)
        self._wall_clock = wall_clock

    def look(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Reload files that changed, and warn of expiring certificates; called once a second."""
        self.reloading.look(spawn)
        self.reloading.look_at_expiries(self._wall_clock())


def check(identity: Identity | None, namespace: str, permission: Permission) -> None:
    """Raise `PermissionDenied` unless the user has it; None means that no users are configured."""
    if identity is not None and not identity.permissions.allows(namespace, permission):
        raise denied(identity.name, permission, namespace)
