"""One query, as a listener hands it to a gateway."""

from __future__ import annotations

from msgspec import Struct


class Ask(Struct, kw_only=True, gc=False):
    """A query before it begins, with its caller's wishes."""

    namespace: str
    queue: str
    payload: bytes
    """The arguments: a msgpack array, in order, or a map, by name."""
    deadline: float
    """The loop's time at which the caller stops waiting."""
    priority: int = 2
    """0 to 4; 0 is served first."""
    idempotent: bool = False
    """Whether the query may run again elsewhere if its worker is lost."""
    do_not_queue: bool = False
    """Whether to refuse the query if no worker is free now."""
    rows: bool = True
    """Whether the caller takes rows; otherwise the worker gathers a stream into a list."""
    user: str = ""
    connection: str = ""
    """The caller's connection as operators see it: `http 127.0.0.1:50312`."""
    text: str = ""
    """The query as the query table shows it; if empty, the table shows the payload."""
    trace: bytes = b""
    """The trace context of the caller (`maitred.trace_context`); a hook does not change it."""
