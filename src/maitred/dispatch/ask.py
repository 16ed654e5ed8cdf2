"""What a listener hands to a gateway: one query, and what is known of who asks."""

from __future__ import annotations

from msgspec import Struct


class Ask(Struct, kw_only=True, gc=False):
    """A query, before anything has become of it."""

    namespace: str
    queue: str
    payload: bytes
    """The arguments: a msgpack array, in order, or a map, by name."""
    deadline: float
    """The loop's time at which the caller stops waiting."""
    priority: int = 2
    """From 0, served first, to 4."""
    idempotent: bool = False
    """Whether it may be run again elsewhere if its worker is lost."""
    do_not_queue: bool = False
    """A worker now, or a refusal."""
    rows: bool = True
    """Whether the caller takes rows; otherwise a stream is gathered into a list by the worker."""
    user: str = ""
    connection: str = ""
    """Where it came in, for people to read: `http 127.0.0.1:50312`."""
    text: str = ""
    """For the table; listeners that have no text leave it empty, and the payload is shown."""
