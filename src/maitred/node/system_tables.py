"""The tables that a stock driver reads to learn about the cluster.

`system.local` is this node, `system.peers` are the others (none yet: membership comes later), and
the tables of the schema are empty, since there is none. Only plain SELECTs of them are understood.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument, UnknownRequest
from maitred.protocol.cql import BOOLEAN, INET, TEXT, TEXT_SET, UUID, Column, Value, encode_rows
from maitred.protocol.description import CQL_VERSION, PARTITIONER

if TYPE_CHECKING:
    from collections.abc import Sequence

# For statements with single spaces: a pattern that has to share out runs of them among its parts
# tries every way to do so, which takes hours for some thousand spaces.
_SELECT: Final = re.compile(
    r"SELECT (?P<columns>\*|[\w ,]+?) FROM (?P<keyspace>\w+)\.(?P<table>\w+)"
    r"( WHERE (?P<where>[\w ='.-]+?))?( USING TIMEOUT \w+)? ?;?",
    re.ASCII | re.IGNORECASE,
)
_EQUALS: Final = re.compile(r"\s*(?P<column>\w+)\s*=\s*'(?P<value>[^']*)'\s*", re.ASCII)

STATEMENT_MAX: Final = 4096
"""Longest statement that is looked at; those of drivers have some hundred characters."""

_LOCAL: Final = (
    Column("key", TEXT),
    Column("bootstrapped", TEXT),
    Column("broadcast_address", INET),
    Column("cluster_name", TEXT),
    Column("cql_version", TEXT),
    Column("data_center", TEXT),
    Column("host_id", UUID),
    Column("listen_address", INET),
    Column("native_protocol_version", TEXT),
    Column("partitioner", TEXT),
    Column("rack", TEXT),
    Column("release_version", TEXT),
    Column("rpc_address", INET),
    Column("schema_version", UUID),
    Column("tokens", TEXT_SET),
)
_ADDRESSES: Final = ("broadcast_address", "listen_address", "rpc_address")
_PEERS: Final = (
    Column("peer", INET),
    Column("data_center", TEXT),
    Column("host_id", UUID),
    Column("preferred_ip", INET),
    Column("rack", TEXT),
    Column("release_version", TEXT),
    Column("rpc_address", INET),
    Column("schema_version", UUID),
    Column("tokens", TEXT_SET),
)
_NAME: Final = Column("keyspace_name", TEXT)
_SCHEMA: Final = {
    "keyspaces": (_NAME, Column("durable_writes", BOOLEAN)),
    "tables": (_NAME, Column("table_name", TEXT)),
    "columns": (_NAME, Column("table_name", TEXT), Column("column_name", TEXT)),
    "types": (_NAME, Column("type_name", TEXT)),
    "functions": (_NAME, Column("function_name", TEXT)),
    "aggregates": (_NAME, Column("aggregate_name", TEXT)),
    "indexes": (_NAME, Column("table_name", TEXT), Column("index_name", TEXT)),
    "views": (_NAME, Column("view_name", TEXT)),
}

SCHEMA_VERSION: Final = bytes(16)
"""There is no schema, so it never changes."""

RELEASE: Final = "3.0.0"
"""The release of Cassandra whose system tables these are; drivers choose their questions by it."""

_WHOLE_RING: Final = frozenset((str(-(2**63)),))


class SystemTables:
    """The tables of one node."""

    def __init__(self, node: bytes) -> None:
        self._local: dict[str, Value] = {
            "key": "local",
            "bootstrapped": "COMPLETED",
            "cluster_name": "maitred",
            "cql_version": CQL_VERSION,
            "data_center": "local",
            "host_id": node,
            "native_protocol_version": "4",
            "partitioner": PARTITIONER,
            "rack": "local",
            "release_version": RELEASE,
            "schema_version": SCHEMA_VERSION,
            "tokens": _WHOLE_RING,
        }
        self._tables: dict[tuple[str, str], tuple[tuple[Column, ...], list[dict[str, Value]]]] = {
            ("system", "local"): (_LOCAL, []),  # one row, which depends on who asks
            ("system", "peers"): (_PEERS, []),
            **{("system_schema", name): (columns, []) for name, columns in _SCHEMA.items()},
        }

    def select(self, statement: str, address: str) -> bytes:
        """The body of the RESULT; raises `UnknownRequest` or `InvalidArgument`.

        `address` is ours, as whoever asks has found us.
        """
        short = len(statement) <= STATEMENT_MAX
        found = _SELECT.fullmatch(" ".join(statement.split())) if short else None
        if found is None:
            raise UnknownRequest(
                f"The statement {statement[:60]!r} is not understood.",
                remedy="CQL is spoken for drivers' handshakes: SELECT from system tables only.",
            )
        keyspace, table = found["keyspace"].lower(), found["table"].lower()
        if (keyspace, table) not in self._tables:
            raise InvalidArgument(f"There is no table {keyspace}.{table}.")
        columns, rows = self._tables[keyspace, table]
        if columns is _LOCAL:
            rows = [self._local | dict.fromkeys(_ADDRESSES, address)]
        shown = _chosen(found["columns"], columns)
        if found["where"] is not None:
            rows = _matching(found["where"], columns, rows)
        return encode_rows(
            keyspace, table, shown, [[row[column.name] for column in shown] for row in rows]
        )


def _chosen(names: str, columns: Sequence[Column]) -> Sequence[Column]:
    if names == "*":
        return columns
    known = {column.name: column for column in columns}
    chosen = []
    for name in names.split(","):
        column = known.get(name.strip().lower())
        if column is None:
            raise InvalidArgument(f"There is no column {name.strip()[:60]!r} in that table.")
        chosen.append(column)
    return chosen


def _matching(
    where: str, columns: Sequence[Column], rows: list[dict[str, Value]]
) -> list[dict[str, Value]]:
    found = _EQUALS.fullmatch(where)
    if found is None:
        raise UnknownRequest("Only WHERE column = 'value' is understood.")
    name = found["column"].lower()
    if all(column.name != name for column in columns):
        raise InvalidArgument(f"There is no column {name[:60]!r} in that table.")
    return [row for row in rows if str(row[name]) == found["value"]]
