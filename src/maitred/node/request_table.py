"""The requests that one part of a shard serves, as a table by opcode.

Each part (`TaskRequests`, `Relays` and so on) has such a table, and the shard joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from maitred.errors import InternalError
from maitred.matching.records import BY_LETTERS
from maitred.security.permissions import denied

if TYPE_CHECKING:
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.request_origin import RequestOrigin
    from maitred.protocol.messages import AnyRequest

Handler = Callable[[Any], Struct | Coroutine[Any, Any, Struct]]
"""Returns the answer to a request, or a coroutine that returns it."""

Holder = Callable[[Any, "DeferredReply"], None]
"""Serves a request that is answered through its deferred reply, now or later."""

Admission = Callable[[Any, "RequestOrigin"], None]
"""Completes a client's request, or refuses it, at the shard that receives it, before the shard
serves or forwards the request."""


EARLY_SECONDS: Final = 0.2
"""How long before its caller's deadline a long poll is answered with nothing."""


@dataclass(slots=True)
class RequestTable:
    """What a shard does with the requests of each opcode."""

    handlers: dict[int, Handler] = field(default_factory=dict)
    holders: dict[int, Holder] = field(default_factory=dict)
    admissions: dict[int, Admission] = field(default_factory=dict)

    def include(self, part: RequestTable) -> None:
        """Add the requests of another part. Admissions of the same opcode are called in order; an
        opcode that two parts serve raises `InternalError`."""
        served = self.handlers.keys() | self.holders.keys()
        if twice := served & (part.handlers.keys() | part.holders.keys()):
            raise InternalError(f"Two parts of the shard serve the opcodes {sorted(twice)}.")
        self.handlers |= part.handlers
        self.holders |= part.holders
        for opcode, admit in part.admissions.items():
            earlier = self.admissions.get(opcode)
            self.admissions[opcode] = admit if earlier is None else _both(earlier, admit)


def _both(first: Admission, second: Admission) -> Admission:
    def admit(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401 - a request
        first(message, connection)
        second(message, connection)

    return admit


def long_poll_until(message: AnyRequest, now: float) -> float:
    """Return when a long poll is answered at the latest: shortly before its caller's deadline."""
    return now + max(message.timeout_milliseconds * 0.001 - EARLY_SECONDS, 0.0)


def name_user(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401 - a request
    """Name the user of the connection in the request. Only the node's own gateway names another."""
    if not connection.is_gateway:
        message.user = connection.user


def name_origin(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401 - a request
    """Name the user of the connection and its address in the request, for the audit log. Only the
    node's own gateway names those of its caller."""
    if not connection.is_gateway:
        message.user = connection.user
        message.source = str(connection.source)


def name_producer(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401 - a request
    """Name the user of the connection in the request, and for the history of its tasks also the
    address."""
    if connection.is_gateway:
        message.origin = f"{message.user}@gateway"[:BY_LETTERS]
    else:
        message.user = connection.user
        message.origin = connection.origin


def restrict_to_readable(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401
    """Restrict a request to the namespaces that the user may read; refuse it if it names another
    one. Only the node's own gateway says itself what its caller may read."""
    if not connection.is_gateway:
        message.within = connection.permissions.namespaces("read")
    within, wanted = message.within, message.namespace
    if within is not None and wanted and wanted not in within:
        raise denied(connection.user or None, "read", wanted)


def name_worker(message: Any, connection: RequestOrigin) -> None:  # noqa: ANN401 - a request
    """Name the user as which the worker connected: the proofs of its attempts contain the user."""
    message.user = connection.user
