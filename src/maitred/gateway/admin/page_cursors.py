"""Cursors of pages, tied to the list that they belong to.

A cursor says where a list goes on, and comes back from the caller. With another queue or another
filter it would skip what it should not, so it names its list by a hash, and is refused for others.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Final

from msgspec import Meta, Struct, msgpack

from maitred.client.cursors import read_cursor, write_cursor
from maitred.errors import InvalidArgument

DIGEST_BYTES: Final = 8
"""Enough to notice a mix-up. A forged cursor does no harm: its caller may read the list."""


class PageCursor(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a page begins in the list that the digest names."""

    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    place: str


def write_page(place: str | None, *page_of: object) -> str | None:
    """Return the cursor of a place in this list; None at its end."""
    return None if place is None else write_cursor(PageCursor(_digest(page_of), place))


def read_page(text: str | None, *page_of: object) -> str | None:
    """Return the place that the cursor says; None: at the beginning. Raise `InvalidArgument` for
    any text that `write_page` has not returned for this very list."""
    if text is None:
        return None
    cursor = read_cursor(text, PageCursor)
    if cursor.digest != _digest(page_of):
        raise InvalidArgument(
            "The cursor belongs to another list.",
            remedy="Ask for the next page with the same path and the same filters.",
        )
    return cursor.place


def _digest(page_of: object) -> bytes:
    return blake2b(msgpack.encode(page_of), digest_size=DIGEST_BYTES).digest()
