"""CQL's notation: what is written is read back, and what does not fit is refused in words."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import ProtocolViolation
from maitred.protocol import notation
from maitred.protocol.notation import SHORT_MAX, Reader

texts = st.text(st.characters(codec="utf-8"), max_size=40)
blobs = st.none() | st.binary(max_size=40)
addresses = st.ip_addresses().map(str)

Write = Callable[..., bytes]
Read = Callable[[Reader], Any]

NOTATIONS: dict[str, tuple[st.SearchStrategy[Any], Write, Read]] = {
    "short": (st.integers(0, SHORT_MAX), notation.short, Reader.short),
    "integer": (st.integers(-(2**31), 2**31 - 1), notation.integer, Reader.integer),
    "string": (texts, notation.string, Reader.string),
    "long_string": (texts, notation.long_string, Reader.long_string),
    "blob": (blobs, notation.blob, Reader.blob),
    "string_list": (st.lists(texts), notation.string_list, Reader.string_list),
    "string_map": (st.dictionaries(texts, texts), notation.string_map, Reader.string_map),
    "string_multimap": (
        st.dictionaries(texts, st.lists(texts)),
        notation.string_multimap,
        Reader.string_multimap,
    ),
    "bytes_map": (st.dictionaries(texts, blobs), notation.bytes_map, Reader.bytes_map),
    "inet": (
        st.tuples(addresses, st.integers(0, 65535)),
        lambda value: notation.inet(*value),
        Reader.inet,
    ),
}
EACH = pytest.mark.parametrize("name", NOTATIONS)


@EACH
@given(data=st.data())
def test_what_is_written_is_read(name: str, data: st.DataObject) -> None:
    values, write, read = NOTATIONS[name]
    value = data.draw(values)
    rest = data.draw(st.binary(max_size=10))
    reader = Reader(write(value) + rest)
    assert read(reader) == value
    assert reader.at_end == (not rest)
    assert reader.rest() == rest
    assert reader.at_end


@EACH
@given(data=st.data())
def test_a_body_that_ends_early_is_refused_wherever_it_ends(name: str, data: st.DataObject) -> None:
    values, write, read = NOTATIONS[name]
    whole = write(data.draw(values))
    for size in range(len(whole)):
        with pytest.raises(ProtocolViolation) as refused:
            read(Reader(whole[:size]))
        # `match` would compile an expression for each size.
        assert f"ends after {size} bytes" in str(refused.value)


@EACH
@given(body=st.binary(max_size=60))
def test_anything_is_read_or_refused(name: str, body: bytes) -> None:
    read = NOTATIONS[name][2]
    with suppress(ProtocolViolation):
        read(Reader(body))


@pytest.mark.parametrize("rubbish", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
@pytest.mark.parametrize("read", [Reader.string, Reader.long_string])
def test_text_has_to_be_utf_8(rubbish: bytes, read: Read) -> None:
    size = notation.short if read is Reader.string else notation.integer
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        read(Reader(size(len(rubbish)) + rubbish))


def test_a_long_string_is_never_null() -> None:
    with pytest.raises(ProtocolViolation, match="-1 bytes"):
        Reader(notation.integer(-1)).long_string()


@pytest.mark.parametrize("size", [0, 1, 5, 15, 17, 255])
def test_an_address_has_4_or_16_bytes(size: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"not {size}"):
        Reader(bytes((size,)) + bytes(300)).inet()


def test_addresses_are_spelled_as_usual() -> None:
    packed = ip_address("2001:db8::1").packed
    assert notation.inet("2001:db8::1", 9042) == b"\x10" + packed + b"\0\0\x23\x52"
    assert notation.inet("192.0.2.1", 1) == b"\x04\xc0\0\x02\x01\0\0\0\x01"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"\x7f\xff\xff\xff", Reader.long_string),
        (b"\x7f\xff\xff\xff", Reader.blob),
        (b"\xff\xff", Reader.string),
        (b"\xff\xff", Reader.string_list),
        (b"\xff\xff", Reader.string_map),
        (b"\xff\xff" + b"\0\x01k\xff\xff", Reader.string_multimap),
        (b"\xff\xff" + b"\0\x01k\x7f\xff\xff\xff", Reader.bytes_map),
    ],
)
def test_a_count_that_lies_allocates_nothing(body: bytes, read: Read) -> None:
    reader = Reader(body)
    with pytest.raises(ProtocolViolation):
        read(reader)  # what is made once, such as a compiled sentence, is made here
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation):
            read(Reader(body))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 32_768


@pytest.mark.parametrize("letter", ["a", "ä", "€", "𝄞"])
@pytest.mark.parametrize("more", [0, 1, 2, 3, 1000])
def test_a_string_that_is_too_long_is_cut_at_a_whole_letter(letter: str, more: int) -> None:
    width = len(letter.encode())
    fitting = SHORT_MAX // width
    text = letter * (fitting + more)
    read = Reader(notation.string(text)).string()
    assert read == letter * fitting
