"""The requests of clients that the audit log records, and the fields of their records.

Every request that needs `operate` or `admin`, or has an action that does, is recorded, unless the
table names it as one that only looks: a request that is added to the protocol is recorded, too. So
is a look at the bodies of damaged rows, the only answer that has what handlers hide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from maitred.node.operator_admission import LOOKS
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Queries
from maitred.protocol.requests import PartitionRequest
from maitred.protocol.tasks import DamagedRows

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.node.request_origin import RequestOrigin
    from maitred.protocol.messages import AnyRequest
    from maitred.security.audit_log import AuditLog

OF_OPERATORS: Final = frozenset(("read", "operate", "admin"))
"""The permissions of operators. A request that needs `read` changes something only if it has an
action that does; that action needs `operate` (`operator_admission.py`)."""

LOOKS_ONLY: Final = frozenset({Opcode.LIST_TOKENS})
"""Requests that change nothing although they need another permission than `read`."""

LATER: Final = frozenset({Opcode.PURGE, Opcode.CHANGE_TASKS})
"""Requests that are recorded when they are done, because the record says how much was done."""

_NOT_TOLD: Final = frozenset(
    {
        *("namespace", "queue", "queue_type", "partition", "timeout_milliseconds", "shard"),
        *("action", "source", "reveal", "revealed"),
    }
)
"""Fields that the record has under another name, or that mean nothing to people."""


def tell_of_request(audit: AuditLog, message: AnyRequest, connection: RequestOrigin) -> None:
    """Record a request that needs a permission which its user has. The node's own gateway says for
    which user it asks, and from where."""
    action = getattr(message, "action", "")
    is_look = message.opcode in LOOKS_ONLY or (action in LOOKS and not _shows_bodies(message))
    if is_look or message.opcode in LATER or (message.permission == "read" and not action):
        return
    name = message.opcode.name.lower().replace("_", " ")
    user, source = connection.user, str(connection.source)
    if connection.is_gateway:
        user = getattr(message, "user", "") or user
        source = getattr(message, "source", "") or source
    audit.record(
        f"{name} {action}".rstrip(),
        user=user,
        source=source,
        target=_target_of(message),
        details=_details_of(message),
    )


def tell_of_refusal(
    audit: AuditLog, opcode: int, problem: MaitredError, connection: RequestOrigin
) -> None:
    """Record a request that its user is not permitted to make, or to see all of its answer."""
    try:
        name = Opcode(opcode).name.lower().replace("_", " ")
    except ValueError:
        name = f"0x{opcode:02x}"
    audit.record(
        name,
        user=connection.user,
        source=connection.source,
        allowed=False,
        details={"reason": problem.sentence},
    )


def _shows_bodies(message: AnyRequest) -> bool:
    """Return whether the answer has the bodies of damaged rows, for a user who may see them."""
    return isinstance(message, DamagedRows) and message.action == "show" and message.reveal


def _target_of(message: AnyRequest) -> str:
    if isinstance(message, PartitionRequest):
        return f"{message.namespace}/{message.queue}"
    return ""


def _details_of(message: AnyRequest) -> dict[str, Any]:
    """Return the other fields of the request: names and numbers, never a payload. No request of
    operators contains a secret."""
    found: dict[str, Any] = {}
    if isinstance(message, PartitionRequest):
        found["partition"] = message.partition
    for field in structs.fields(message):
        if field.name in _NOT_TOLD:
            continue
        value = getattr(message, field.name)
        if isinstance(value, bytes):  # the repaired body of a damaged row
            found[f"{field.name}_bytes"] = len(value)
            continue
        if isinstance(message, Queries) and field.name == "filter":
            named = structs.asdict(value).items()
            value = {name: one for name, one in named if one not in ("", -1, 0.0)}
        if field.name in {"user", "from", "target"}:
            found[f"of_{field.name}"] = value
        else:
            found[field.name] = value
    return found
