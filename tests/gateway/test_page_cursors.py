"""A cursor goes on in its own list, and in no other one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidArgument
from maitred.gateway.admin.page_cursors import read_page, write_page

PAGE_OF = ("tasks", "shop", "mails", None)


def test_it_leads_back() -> None:
    cursor = write_page("a place", *PAGE_OF)
    assert cursor is not None
    assert cursor.isascii()
    assert not set(cursor) & set("+/=&?#% ")
    assert read_page(cursor, *PAGE_OF) == "a place"
    assert write_page(None, *PAGE_OF) is None
    assert read_page(None, *PAGE_OF) is None


@pytest.mark.parametrize(
    "page_of",
    [
        ("tasks", "shop", "males", None),
        ("tasks", "shop2", "mails", None),
        ("tasks", "shop", "mails", "dead"),
        ("dead groups", "shop", "mails", None),
        ("tasks", "shop", "mails"),
        ("tasks", "shop", "mail", "s", None),
    ],
)
def test_not_in_another_list(page_of: tuple[object, ...]) -> None:
    cursor = write_page("a place", *PAGE_OF)
    with pytest.raises(InvalidArgument, match="another list"):
        read_page(cursor, *page_of)


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_not_in_part(cut: int) -> None:
    cursor = write_page("a place that is longer than the others", *PAGE_OF)
    assert cursor is not None
    for text in (cursor[:-cut], cursor[cut:], cursor + "A" * cut):
        with pytest.raises(InvalidArgument):
            read_page(text, *PAGE_OF)


@given(st.text(max_size=300))
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        read_page(text, *PAGE_OF)
