"""API tokens as values: how one is made, verified, narrowed, kept and forgotten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import (
    InvalidArgument,
    InvalidToken,
    StoreUnavailable,
    TokenExpired,
    TooManyTokens,
    UnknownToken,
)
from maitred.security.permissions import Permissions
from maitred.security.tokens import KEPT_SECONDS, ApiToken, TokenBook, id_of, make_token

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = 1_800_000_000.0

PERMISSIONS = st.lists(
    st.sampled_from(["produce", "work", "query", "admin"]), unique=True, max_size=4
)
GRANTS: Any = st.dictionaries(st.sampled_from(["*", "a", "b", "c"]), PERMISSIONS, max_size=4)


def made(user: str = "bob", seconds: float = 60.0, **more: Any) -> tuple[ApiToken, str]:  # noqa: ANN401
    return make_token(secret=os.urandom, user=user, now=NOW, seconds=seconds, **more)


def test_what_is_stored_does_not_hold_the_token() -> None:
    token, text = made(label="ci", permissions={"n": ["query"]})
    secret = text.rpartition("_")[2]
    assert len(bytes.fromhex(secret)) == 32
    assert id_of(text) == token.id
    body = TokenBook([token]).encode()
    assert secret.encode() not in body
    assert token.digest not in repr(token)
    read = TokenBook.decode(body, 7)
    assert (read.version, read.listed()) == (7, [token])
    assert read.verified(text, NOW) == token


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text + "0",
        lambda text: text[:-1],
        lambda text: text.upper(),
        lambda text: " " + text,
        lambda text: text + "\n",
        lambda text: text.replace("mtd_", "mtd-"),
        lambda text: text[:4] + "0" * 16 + text[20:],
        lambda _: "",
        lambda _: "\ud800",
        lambda _: "mtd_" + "0" * 16 + "_" + "0" * 64,
    ],
)
def test_another_text_is_not_the_token(change: Any) -> None:  # noqa: ANN401
    token, text = made()
    with pytest.raises(InvalidToken, match="not known"):
        TokenBook([token]).verified(change(text), NOW)


def test_a_token_expires_at_its_moment() -> None:
    token, text = made(seconds=60.0)
    book = TokenBook([token])
    assert book.verified(text, NOW + 59.9) == token
    with pytest.raises(TokenExpired):
        book.verified(text, NOW + 60.0)
    other = made()[1].rpartition("_")[2]
    with pytest.raises(InvalidToken) as refused:  # nobody learns that it was one
        book.verified(f"mtd_{token.id}_{other}", NOW + 60.0)
    assert refused.value.code == "invalid-token"


def test_a_book_takes_so_many_and_forgets_those_that_expired_long_ago() -> None:
    tokens = [made()[0] for _ in range(3)]
    book = TokenBook(tokens[:2])
    with pytest.raises(TooManyTokens):
        book.with_token(tokens[2], 2, NOW)
    assert len(book.with_token(tokens[2], 3, NOW)) == 3
    assert len(book.with_token(tokens[2], 3, NOW + 60.0)) == 3, "people still see them"
    assert book.with_token(tokens[2], 1, NOW + 60.0 + KEPT_SECONDS).listed() == [tokens[2]]
    assert len(book) == 2, "the old book stays as it is"


def test_revoking() -> None:
    token, text = made()
    book = TokenBook([token])
    with pytest.raises(UnknownToken):
        book.without("f" * 16)
    with pytest.raises(InvalidToken):
        book.without(token.id).verified(text, NOW)


@pytest.mark.parametrize("label", ["x" * 101, "a\nb", "\x1b[31m"])
def test_a_label_is_for_people(label: str) -> None:
    with pytest.raises(InvalidArgument):
        made(label=label)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"tokens": [{"id": 1}]}', b"\xff"])
def test_a_body_that_cannot_be_read_says_so(body: bytes) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        TokenBook.decode(body, 1)


@given(GRANTS, GRANTS, st.sampled_from(["a", "b", "c", "d", "*"]))
def test_narrowed_permissions_are_those_that_both_allow(
    one: Mapping[str, Any], other: Mapping[str, Any], namespace: str
) -> None:
    mine, theirs = Permissions(one), Permissions(other)
    both = mine.narrowed(theirs)
    for permission in ("produce", "work", "query", "admin"):
        expected = mine.allows(namespace, permission) and theirs.allows(namespace, permission)
        assert both.allows(namespace, permission) == expected
    assert both == theirs.narrowed(mine)
    assert both.narrowed(mine) == both


@given(GRANTS, GRANTS)
def test_granted_permissions_make_equal_ones(one: Mapping[str, Any], other: Any) -> None:  # noqa: ANN401
    both = Permissions(one).narrowed(Permissions(other))
    assert Permissions(both.granted()) == both
    assert Permissions(Permissions(one).granted()) == Permissions(one)
