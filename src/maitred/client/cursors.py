"""Cursors: opaque text that says where a list, or a change of many tasks, goes on.

A cursor comes back from users, by the command line or over HTTP. It is checked like everything else
that they send, but not kept secret or signed: all that a forged one can do is to begin elsewhere in
a list that its user may read anyway.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import MsgspecError, msgpack

from maitred.errors import InvalidArgument

if TYPE_CHECKING:
    from msgspec import Struct

    Cursor = TypeVar("Cursor", bound=Struct)

CURSOR_LETTERS_MAX: Final = 2_000
"""Longest cursor: those of tasks have some 60 letters; those of queues and workers have their
names, which may have some hundred bytes each, encoded twice."""


def write_cursor(cursor: Struct) -> str:
    """Return the cursor as text that can stand in a URL."""
    return urlsafe_b64encode(msgpack.encode(cursor)).rstrip(b"=").decode()


def read_cursor(text: str, kind: type[Cursor]) -> Cursor:
    """Return the cursor that `write_cursor` wrote; raise `InvalidArgument` for any other text."""
    if len(text) <= CURSOR_LETTERS_MAX:
        with suppress(ValueError, MsgspecError):
            body = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            cursor = msgpack.decode(body, type=kind)
            if write_cursor(cursor) == text:  # decoding skips letters that are not base64
                return cursor
    raise InvalidArgument(
        f"{text[:60]!r} is no cursor.",
        remedy="Give the cursor that came with the page before, or none to begin anew.",
    )
