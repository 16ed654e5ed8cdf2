"""Admits the requests of operators at the shard that receives them.

The class of a request names the least permission that it needs. Here is what depends on the rest of
it: an action that changes something needs `operate`, private data are answered only to users with
`reveal`, and the bodies of damaged rows, which have hidden values as well, only to users with
`admin`. The node's own gateway has every permission, and checks its callers by itself: it
names them in what it asks, and asks for private data only for those who may see them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.node.request_table import RequestTable, name_origin
from maitred.protocol.frames import Opcode
from maitred.security.permissions import denied

if TYPE_CHECKING:
    from maitred.node.request_origin import RequestOrigin
    from maitred.protocol.inspection import ListTasks
    from maitred.protocol.queries import Workers
    from maitred.protocol.tasks import ControlQueue, DamagedRows, DeadLetters, Queues
    from maitred.settings import Permission

LOOKS: Final = frozenset({"list", "show"})
"""Actions of requests that change nothing."""


def operator_admissions() -> RequestTable:
    """Return the admissions of the requests with which operators look at queues, tasks and workers
    and change them."""
    return RequestTable(
        admissions={
            Opcode.QUEUES: _restrict,
            Opcode.CONTROL: _control,
            Opcode.RESIZE: name_origin,
            Opcode.DELETE: name_origin,
            Opcode.PURGE: name_origin,
            Opcode.CHANGE_TASKS: name_origin,
            Opcode.WORKERS: _workers,
            Opcode.DEAD: _dead,
            Opcode.DAMAGED: _damaged,
            Opcode.LIST_TASKS: _list_tasks,
            Opcode.SHOW_TASK: _limit_reveal,
        }
    )


def _require(message: Any, connection: RequestOrigin, permission: Permission) -> None:  # noqa: ANN401 - a request
    """Raise `PermissionDenied` unless the user has the permission in the request's namespace."""
    if not connection.permissions.allows(message.namespace, permission):
        raise denied(connection.user or None, permission, message.namespace)


def _limit_reveal(
    message: Any,  # noqa: ANN401 - a request
    connection: RequestOrigin,
    permission: Permission = "reveal",
) -> None:
    """Take the wish for private data back unless the user has the permission to see them."""
    allows = connection.permissions.allows
    message.reveal = message.reveal and allows(message.namespace, permission)


def _restrict(message: Queues, connection: RequestOrigin) -> None:
    """Restrict a list of queues to the namespaces that the user may see."""
    if not connection.is_gateway:
        message.within = connection.permissions.namespaces("read")


def _control(message: ControlQueue, connection: RequestOrigin) -> None:
    if message.action not in LOOKS:
        _require(message, connection, "operate")
    name_origin(message, connection)


def _workers(message: Workers, connection: RequestOrigin) -> None:
    if message.action not in LOOKS:
        _require(message, connection, "operate")
    name_origin(message, connection)


def _dead(message: DeadLetters, connection: RequestOrigin) -> None:
    if message.action not in LOOKS:
        _require(message, connection, "operate")
    _limit_reveal(message, connection)


def _damaged(message: DamagedRows, connection: RequestOrigin) -> None:
    if message.action not in LOOKS:
        _require(message, connection, "admin" if message.body else "operate")
    wished = message.reveal
    _limit_reveal(message, connection, "admin")
    # Clients of the release before wish for bodies in every request; only `show` answers with them.
    if wished and not message.reveal and message.action == "show":
        problem = denied(connection.user or None, "admin", message.namespace)
        connection.record_refusal(message.opcode, problem)


def _list_tasks(message: ListTasks, connection: RequestOrigin) -> None:
    if message.filter.argument is not None:
        # Whether a task is listed tells whether it has this argument.
        _require(message, connection, "reveal")
    _limit_reveal(message, connection)
