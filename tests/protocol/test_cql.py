"""CQL's messages against scylla-driver: what it sends we read, and what we send it reads."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cassandra.auth import PlainTextAuthenticator
from cassandra.protocol import (
    AuthResponseMessage,
    OptionsMessage,
    QueryMessage,
    RegisterMessage,
    StartupMessage,
)
from cassandra.util import SortedSet
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import PermissionDenied, ProtocolViolation
from maitred.protocol import cql
from maitred.protocol.frames import CUSTOM_PAYLOAD, Opcode
from maitred.protocol.messages import HomeHint, with_home
from maitred.protocol.notation import Reader, blob, string, string_list, string_map
from tests.protocol.driver import read_by_driver, sent_by_driver

if TYPE_CHECKING:
    from collections.abc import Callable

texts = st.text(st.characters(codec="utf-8"), max_size=30)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
ONE = 1


# What the driver sends


def test_options_of_the_driver() -> None:
    frame = sent_by_driver(OptionsMessage(), stream=12)
    assert frame == (0, 12, Opcode.OPTIONS, b"")


@given(st.dictionaries(texts, texts))
def test_startup_of_the_driver(options: dict[str, str]) -> None:
    frame = sent_by_driver(StartupMessage(cqlversion="3.0.0", options=options))
    assert frame.opcode == Opcode.STARTUP
    assert cql.decode_startup(frame.body) == options | {"CQL_VERSION": "3.0.0"}


@given(st.lists(st.sampled_from(sorted(cql.EVENTS))))
def test_register_of_the_driver(events: list[str]) -> None:
    frame = sent_by_driver(RegisterMessage(event_list=events))
    assert frame.opcode == Opcode.REGISTER
    assert cql.decode_register(frame.body) == events


@given(texts)
def test_query_of_the_driver(statement: str) -> None:
    frame = sent_by_driver(QueryMessage(query=statement, consistency_level=ONE))
    assert frame.opcode == Opcode.QUERY
    assert cql.decode_query(frame.body) == statement


@given(words, words)
def test_credentials_of_the_driver(user: str, secret: str) -> None:
    authenticator = PlainTextAuthenticator(user, secret)
    response = authenticator.evaluate_challenge(b"PLAIN-START")
    frame = sent_by_driver(AuthResponseMessage(response))
    assert frame.opcode == Opcode.AUTH_RESPONSE
    assert cql.decode_credentials(frame.body) == (user, secret)


def test_a_custom_payload_of_the_driver_is_found_and_skipped() -> None:
    message = QueryMessage(query="SELECT", consistency_level=ONE)
    message.custom_payload = {"key": b"value"}
    frame = sent_by_driver(message)
    assert frame.flags == CUSTOM_PAYLOAD
    reader = Reader(frame.body)
    assert reader.bytes_map() == {"key": b"value"}
    assert cql.decode_query(reader.rest()) == "SELECT"


# What we send


@given(st.dictionaries(texts, st.lists(texts)), st.lists(texts))
def test_the_driver_reads_supported(options: dict[str, list[str]], versions: list[str]) -> None:
    body = cql.encode_supported({**options, "CQL_VERSION": versions})
    message = read_by_driver(Opcode.SUPPORTED, body)
    assert message.cql_versions == versions
    options.pop("CQL_VERSION", None)
    assert message.options == options
    assert cql.decode_supported(body) == {**options, "CQL_VERSION": versions}


def test_the_driver_reads_authenticate() -> None:
    message = read_by_driver(Opcode.AUTHENTICATE, cql.encode_authenticate())
    assert message.authenticator == "org.apache.cassandra.auth.PasswordAuthenticator"


def test_the_driver_reads_auth_success() -> None:
    assert cql.AUTH_SUCCESS_BODY == b"\xff\xff\xff\xff"
    # The driver reads no further than the length, which stands for null.
    read_by_driver(Opcode.AUTH_SUCCESS, cql.AUTH_SUCCESS_BODY)


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
@pytest.mark.parametrize("change", ["UP", "DOWN"])
def test_the_driver_reads_a_status_change(address: str, change: str) -> None:
    body = cql.encode_status_change(change, address, 4747)
    message = read_by_driver(Opcode.EVENT, body)
    assert message.event_type == cql.STATUS_CHANGE
    assert message.event_args == {"change_type": change, "address": (address, 4747)}
    assert cql.decode_event(body) == cql.STATUS_CHANGE


def test_draining_is_an_event_of_ours() -> None:
    assert cql.decode_event(cql.encode_draining()) == cql.DRAINING
    assert cql.DRAINING in cql.EVENTS


VALUES: dict[cql.Type, st.SearchStrategy[Any]] = {
    cql.TEXT: texts,
    cql.UUID: st.uuids().map(lambda uuid: uuid.bytes),
    cql.INET: st.ip_addresses().map(str),
    cql.INT: st.integers(-(2**31), 2**31 - 1),
    cql.BOOLEAN: st.booleans(),
    cql.TEXT_SET: st.frozensets(texts, max_size=5),
    cql.TEXT_MAP: st.dictionaries(texts, texts, max_size=5),
}


def _plain(type_: cql.Type, value: Any) -> Any:  # noqa: ANN401 - what the driver makes of it
    """The driver's value as we would write it."""
    if type_ is cql.INET and value is not None:
        return str(ip_address(value))  # it spells some as ::ffff:0.0.0.0, and we as ::ffff:0:0
    if isinstance(value, UUID):
        return value.bytes
    return frozenset(value) if isinstance(value, SortedSet) else value


@given(st.data())
def test_the_driver_reads_rows(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    columns = [cql.Column(f"column_{at}", type_) for at, type_ in enumerate(types)]
    rows: list[list[cql.Value]] = data.draw(
        st.lists(st.tuples(*(st.none() | VALUES[type_] for type_ in types)).map(list), max_size=5)
    )
    message = read_by_driver(Opcode.RESULT, cql.encode_rows("keyspace", "table", columns, rows))
    assert message.column_names == [column.name for column in columns]
    read = [
        [_plain(type_, value) for type_, value in zip(types, row, strict=True)]
        for row in message.parsed_rows
    ]
    assert read == rows


def test_the_driver_reads_no_rows() -> None:
    body = cql.encode_rows("system", "peers", [cql.Column("peer", cql.INET)], [])
    message = read_by_driver(Opcode.RESULT, body)
    assert message.column_names == ["peer"]
    assert message.parsed_rows == []


def test_a_row_has_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="shorter"):
        cql.encode_rows("k", "t", [cql.Column("a", cql.INT), cql.Column("b", cql.INT)], [[1]])


def test_the_driver_reads_a_result_behind_a_home() -> None:
    """An answer that says where a key lives is an answer for drivers that do not care."""
    rows = cql.encode_rows("k", "t", [cql.Column("a", cql.UUID)], [[UUID(int=5).bytes]])
    body = with_home(HomeHint("node", 3), rows)
    message = read_by_driver(Opcode.RESULT, body, flags=CUSTOM_PAYLOAD)
    assert message.parsed_rows == [(UUID(int=5),)]
    assert list(message.custom_payload) == ["maitred-home"]


# Our own both ways, and what is refused

ROUND_TRIPS: list[tuple[Callable[[bytes], object], bytes, object]] = [
    (
        cql.decode_startup,
        cql.encode_startup({"CQL_VERSION": "3", "ä": "ö"}),
        {"CQL_VERSION": "3", "ä": "ö"},
    ),
    (
        cql.decode_supported,
        cql.encode_supported({"a": ["b", "ü"], "c": []}),
        {"a": ["b", "ü"], "c": []},
    ),
    (cql.decode_credentials, cql.encode_credentials("üser", "s3cret"), ("üser", "s3cret")),
    (cql.decode_register, cql.encode_register(["STATUS_CHANGE"]), ["STATUS_CHANGE"]),
    (cql.decode_event, cql.encode_draining(), "MAITRED_DRAINING"),
]


@pytest.mark.parametrize(("decode", "body", "meant"), ROUND_TRIPS)
def test_round_trip_and_every_shorter_body_refused(
    decode: Callable[[bytes], object], body: bytes, meant: object
) -> None:
    assert decode(body) == meant
    for size in range(len(body)):
        with pytest.raises(ProtocolViolation):
            decode(body[:size])


def test_a_query_is_read_without_its_parameters() -> None:
    body = cql.encode_query("SELECT ü")
    assert cql.decode_query(body) == "SELECT ü"
    for size in range(len(body) - 3):
        with pytest.raises(ProtocolViolation):
            cql.decode_query(body[:size])


@given(st.binary(max_size=60))
def test_anything_is_read_or_refused(body: bytes) -> None:
    for decode in (
        cql.decode_startup,
        cql.decode_supported,
        cql.decode_credentials,
        cql.decode_register,
        cql.decode_event,
        cql.decode_query,
    ):
        with suppress(ProtocolViolation, PermissionDenied):  # the latter: acting as somebody else
            decode(body)


def test_startup_names_a_version() -> None:
    with pytest.raises(ProtocolViolation, match="CQL_VERSION"):
        cql.decode_startup(string_map({"COMPRESSION": "lz4"}))


def test_unknown_events_are_refused_by_name() -> None:
    with pytest.raises(ProtocolViolation, match="'WEATHER'"):
        cql.decode_register(string_list(["STATUS_CHANGE", "WEATHER"]))


@pytest.mark.parametrize("token", [None, b"", b"user", b"\0user", b"\0u\0s\0", b"a\0b\0c\0d"])
def test_credentials_are_plain(token: bytes | None) -> None:
    with pytest.raises(ProtocolViolation, match="PLAIN"):
        cql.decode_credentials(blob(token))


@pytest.mark.parametrize("token", [b"\0\xff\0s", b"\0u\0\xff"])
def test_credentials_are_utf_8(token: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        cql.decode_credentials(blob(token))


def test_an_authorization_identity_is_the_user_or_refused() -> None:
    assert cql.decode_credentials(blob(b"u\0u\0s")) == ("u", "s")
    with pytest.raises(PermissionDenied):
        cql.decode_credentials(blob(b"other\0u\0s"))


def test_what_follows_in_an_event_depends_on_it() -> None:
    assert cql.decode_event(string("SOMETHING_NEW") + b"\xff\xff") == "SOMETHING_NEW"
