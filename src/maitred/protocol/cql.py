"""The messages of CQL that a handshake and a driver's housekeeping need, both ways.

A stock driver asks for OPTIONS, sends STARTUP, authenticates, registers for events and reads the
tables that describe the cluster. That much is spoken here; statements over data are not.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import PermissionDenied, ProtocolViolation
from maitred.protocol.notation import (
    Reader,
    blob,
    inet,
    integer,
    long_string,
    short,
    string,
    string_list,
    string_map,
    string_multimap,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PASSWORD_AUTHENTICATOR: Final = "org.apache.cassandra.auth.PasswordAuthenticator"  # noqa: S105
"""The authenticator's name that makes drivers send a user and a secret by SASL PLAIN."""

STATUS_CHANGE: Final = "STATUS_CHANGE"
TOPOLOGY_CHANGE: Final = "TOPOLOGY_CHANGE"
SCHEMA_CHANGE: Final = "SCHEMA_CHANGE"
DRAINING: Final = "MAITRED_DRAINING"
"""maitred's own event: the node is stopping. The client finishes its requests and sends no new
ones."""

VIEW: Final = "MAITRED_VIEW"
"""maitred's own event: the node has a newer view of the cluster, which follows as msgpack. A client
that registers for it gets the current view at once, if the node belongs to a cluster."""

ROLE: Final = "MAITRED_ROLE"
"""The option of STARTUP with which a process of another node says what it is: `node` or `gateway`.
It then proves that it knows the cluster's secret (`security/cluster_proof.py`)."""

MEMBER: Final = "MAITRED_MEMBER"
"""The option of STARTUP with which a process of another node says to which member of the cluster it
belongs, so that its connections end when the cluster declares that member dead."""

CLUSTER_AUTHENTICATOR: Final = "maitred.cluster"
"""The authenticator's name in the AUTHENTICATE that answers a STARTUP with `ROLE`."""

LOGIN: Final = "MAITRED_LOGIN"
"""The option of STARTUP with which a client says that it will send credentials, even if its
certificate stands for a user."""

EVENTS: Final = frozenset((STATUS_CHANGE, TOPOLOGY_CHANGE, SCHEMA_CHANGE, DRAINING, VIEW))

_ROWS: Final = 2
_GLOBAL_TABLE: Final = 0x0001

Value = str | int | bool | bytes | frozenset[str] | dict[str, str] | None
"""The value of a column. A UUID is given as its 16 bytes, an address as text."""


class Type(NamedTuple):
    """A column's type: its name in CQL, its number, and the numbers of a collection's elements."""

    name: str
    number: int
    elements: tuple[int, ...] = ()


TEXT: Final = Type("text", 0x0D)
UUID: Final = Type("uuid", 0x0C)
INET: Final = Type("inet", 0x10)
INT: Final = Type("int", 0x09)
BOOLEAN: Final = Type("boolean", 0x04)
TEXT_SET: Final = Type("set<text>", 0x22, (TEXT.number,))
TEXT_MAP: Final = Type("map<text, text>", 0x21, (TEXT.number, TEXT.number))


class Column(NamedTuple):
    """One column of a table."""

    name: str
    type: Type


def encode_startup(options: Mapping[str, str]) -> bytes:
    """Return the body of STARTUP with the options that the client has chosen."""
    return string_map(options)


def decode_startup(body: bytes) -> dict[str, str]:
    """Return the options of STARTUP; raise `ProtocolViolation` if CQL_VERSION is not among them."""
    options = Reader(body).string_map()
    if "CQL_VERSION" not in options:
        raise ProtocolViolation("STARTUP has to name a CQL_VERSION.")
    return options


def encode_supported(options: Mapping[str, Sequence[str]]) -> bytes:
    """Return the body of SUPPORTED: the options to choose from, and facts about the node."""
    return string_multimap(options)


def decode_supported(body: bytes) -> dict[str, list[str]]:
    """Return the options of SUPPORTED."""
    return Reader(body).string_multimap()


def encode_authenticate(authenticator: str = PASSWORD_AUTHENTICATOR) -> bytes:
    """Return the body of AUTHENTICATE, which asks the client for credentials."""
    return string(authenticator)


def encode_token(token: bytes) -> bytes:
    """Return the body of AUTH_CHALLENGE or AUTH_RESPONSE with these bytes."""
    return blob(token)


def decode_token(body: bytes) -> bytes:
    """Return the bytes of AUTH_CHALLENGE or AUTH_RESPONSE; raise `ProtocolViolation` if the body is
    malformed."""
    return Reader(body).blob() or b""


def encode_credentials(user: str, secret: str) -> bytes:
    """Return the body of AUTH_RESPONSE for the PLAIN mechanism."""
    return blob(b"\0" + user.encode() + b"\0" + secret.encode())


def decode_credentials(body: bytes) -> tuple[str, str]:
    """Return the user and the secret of a PLAIN response (RFC 4616).

    The response starts with the identity to act as. No user may act as another one, so an identity
    that is neither empty nor the user is refused: ignoring it would let a client believe that it
    acts as a user with fewer rights than it has.
    """
    token = Reader(body).blob()
    parts = (token or b"").split(b"\0")
    if len(parts) != 3:
        raise ProtocolViolation("AUTH_RESPONSE has to be PLAIN: identity, NUL, user, NUL, secret.")
    try:
        identity, user, secret = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise ProtocolViolation("The user and the secret have to be UTF-8.") from None
    if identity and identity != user:
        raise PermissionDenied(
            "A user cannot act as another one here.",
            remedy="Leave the authorization identity of SASL PLAIN empty.",
        )
    return user, secret


AUTH_SUCCESS_BODY: Final = blob(None)


def encode_register(events: Sequence[str]) -> bytes:
    """Return the body of REGISTER, which subscribes to these events."""
    return string_list(events)


def decode_register(body: bytes) -> list[str]:
    """Return the events of REGISTER; raise `ProtocolViolation` for an unknown one."""
    events = Reader(body).string_list()
    for event in events:
        if event not in EVENTS:
            raise ProtocolViolation(f"There is no event called {event!r}.")
    return events


def encode_status_change(change: str, address: str, port: int) -> bytes:
    """Return the body of an EVENT that says a node went UP or DOWN."""
    return string(STATUS_CHANGE) + string(change) + inet(address, port)


def encode_draining() -> bytes:
    """Return the body of the EVENT that says the node is stopping."""
    return string(DRAINING)


def encode_view(view: bytes) -> bytes:
    """Return the body of the EVENT with a view of the cluster, which is encoded as msgpack."""
    return string(VIEW) + view


def decode_view(body: bytes) -> bytes:
    """Return the encoded view of such an EVENT."""
    reader = Reader(body)
    reader.string()
    return reader.rest()


def decode_event(body: bytes) -> str:
    """Return the name of an EVENT; what follows in the body depends on it."""
    return Reader(body).string()


def decode_query(body: bytes) -> str:
    """Return the statement of a QUERY. Its parameters are ignored: system tables take none."""
    return Reader(body).long_string()


def encode_query(statement: str) -> bytes:
    """Return the body of a QUERY without parameters, with consistency ONE."""
    return long_string(statement) + short(1) + b"\0"


def encode_rows(
    keyspace: str, table: str, columns: Sequence[Column], rows: Sequence[Sequence[Value]]
) -> bytes:
    """Return the body of a RESULT with rows."""
    parts = [
        integer(_ROWS),
        integer(_GLOBAL_TABLE),
        integer(len(columns)),
        string(keyspace),
        string(table),
    ]
    for column in columns:
        parts.append(string(column.name) + short(column.type.number))
        parts += map(short, column.type.elements)
    parts.append(integer(len(rows)))
    for row in rows:
        parts += [
            blob(_encode_value(column.type, value))
            for column, value in zip(columns, row, strict=True)
        ]
    return b"".join(parts)


def _encode_value(type_: Type, value: Value) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return bytes((value,))
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, frozenset):
        return integer(len(value)) + b"".join(blob(item.encode()) for item in sorted(value))
    if isinstance(value, dict):
        return integer(len(value)) + b"".join(
            blob(text.encode()) for pair in sorted(value.items()) for text in pair
        )
    return ip_address(value).packed if type_ is INET else value.encode()
