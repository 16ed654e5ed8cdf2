"""Rows of a chunk are found by their headers; nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.msgpack import Ext

from maitred.errors import ProtocolViolation
from maitred.protocol.rows import as_array, ends

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=70)
    | st.binary(max_size=300)
    # -1 is msgpack's own timestamp, which is read as a moment, or not at all.
    | st.builds(
        Ext, st.integers(-127, 127).filter(lambda code: code != -1), st.binary(max_size=40)
    ),
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=18)
    ),
    max_leaves=40,
)


@given(st.lists(values, max_size=8))
def test_as_many_as_were_written_and_the_same(rows: list[Any]) -> None:
    parts = [msgpack.encode(row) for row in rows]
    chunk = b"".join(parts)
    found = ends(chunk)
    assert len(found) == len(rows)
    assert [chunk[a:b] for a, b in zip([0, *found], found, strict=False)] == parts
    assert msgpack.decode(as_array(chunk)) == rows


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 300, "x" * 70_000, b"x" * 300, b"x" * 70_000, list(range(70_000)), [[1]] * 20),
        *({str(n): n for n in range(70_000)}, Ext(1, b"x" * 300), Ext(1, b"x" * 70_000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_long_ones(value: object) -> None:
    chunk = msgpack.encode(value) * 2
    assert ends(chunk) == [len(chunk) // 2, len(chunk)]


@given(st.lists(values, min_size=1, max_size=3), st.data())
def test_what_is_cut_off_is_refused(rows: list[Any], data: st.DataObject) -> None:
    last = msgpack.encode(rows[-1])
    chunk = b"".join(msgpack.encode(row) for row in rows)
    cut = data.draw(st.integers(1, len(last)))
    if cut == len(last):
        return  # then it is one row less, and whole
    with pytest.raises(ProtocolViolation):
        ends(chunk[:-cut])


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_made_of_values(chunk: bytes) -> None:
    try:
        found = ends(chunk)
    except ProtocolViolation:
        return
    assert not chunk or found[-1] == len(chunk)


def test_a_byte_that_is_none() -> None:
    with pytest.raises(ProtocolViolation, match="an invalid byte"):
        ends(b"\x01\xc1")
