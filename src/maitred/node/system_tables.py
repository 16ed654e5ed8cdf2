"""The tables that a stock driver reads to learn about the cluster.

`system.local` is this node, and `system.peers` are the other members of its cluster. A member that
announces a host name, not an IP address, is not among them: the column holds addresses only.
The tables of `system_schema` describe these tables themselves and nothing else: drivers read them
when they connect, and cqlsh shows no row of a table that they do not list. Only plain SELECTs of
them are understood.
"""

from __future__ import annotations

import re
import uuid as identity
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument, UnknownRequest
from maitred.membership.view import MemberState
from maitred.protocol.cql import (
    BOOLEAN,
    INET,
    INT,
    TEXT,
    TEXT_MAP,
    TEXT_SET,
    UUID,
    Column,
    Value,
    encode_rows,
)
from maitred.protocol.description import CQL_VERSION, PARTITIONER
from maitred.routing.tokens import token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.membership.view import ClusterView

# For statements with single spaces: a pattern that has to share out runs of them among its parts
# tries every way to do so, which takes hours for some thousand spaces.
_SELECT: Final = re.compile(
    r"SELECT (?P<columns>\*|[\w ,]+?) FROM (?P<keyspace>\w+)\.(?P<table>\w+)"
    r"( WHERE (?P<where>[\w ='.-]+?))?( USING TIMEOUT \w+)? ?;?",
    re.ASCII | re.IGNORECASE,
)
_EQUALS: Final = re.compile(r"\s*(?P<column>\w+)\s*=\s*'(?P<value>[^']*)'\s*", re.ASCII)

STATEMENT_MAX: Final = 4096
"""Longest statement that is parsed; those of drivers have some hundred characters."""

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
_TABLE: Final = Column("table_name", TEXT)
_SCHEMA: Final = {
    "keyspaces": (_NAME, Column("durable_writes", BOOLEAN), Column("replication", TEXT_MAP)),
    "tables": (_NAME, _TABLE, Column("flags", TEXT_SET)),
    "columns": (
        _NAME,
        _TABLE,
        Column("column_name", TEXT),
        Column("clustering_order", TEXT),
        Column("kind", TEXT),
        Column("position", INT),
        Column("type", TEXT),
    ),
    "types": (_NAME, Column("type_name", TEXT)),
    "functions": (_NAME, Column("function_name", TEXT)),
    "aggregates": (_NAME, Column("aggregate_name", TEXT)),
    "indexes": (_NAME, _TABLE, Column("index_name", TEXT)),
    "triggers": (_NAME, _TABLE, Column("trigger_name", TEXT)),
    "views": (_NAME, Column("view_name", TEXT)),
}

_COLUMNS: Final = {
    ("system", "local"): _LOCAL,
    ("system", "peers"): _PEERS,
    **{("system_schema", table): columns for table, columns in _SCHEMA.items()},
}
"""The columns of every table, by keyspace and table; the first one is the key."""

SCHEMA_VERSION: Final = bytes(16)
"""The schema is that of the system tables, so it never changes."""

RELEASE: Final = "3.0.0"
"""The release of Cassandra whose system tables these are; drivers choose their statements by it."""

_WHOLE_RING: Final = frozenset((str(-(2**63)),))
_LOCAL_STRATEGY: Final = {"class": "org.apache.cassandra.locator.LocalStrategy"}
_COMPOUND: Final = frozenset(("compound",))
"""Without this flag drivers take a table for one of compact storage, and hide its columns."""

_REMEDY: Final = "CQL is spoken for drivers' handshakes: SELECT from system tables only."


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
        self._rows: dict[tuple[str, str], list[dict[str, Value]]] = {
            ("system_schema", "keyspaces"): [
                {"keyspace_name": name, "durable_writes": True, "replication": _LOCAL_STRATEGY}
                for name in ("system", "system_schema")
            ],
            ("system_schema", "tables"): [
                {"keyspace_name": keyspace, "table_name": table, "flags": _COMPOUND}
                for keyspace, table in _COLUMNS
            ],
            ("system_schema", "columns"): [
                {
                    "keyspace_name": keyspace,
                    "table_name": table,
                    "column_name": column.name,
                    "clustering_order": "none",
                    "kind": "regular" if at else "partition_key",
                    "position": -1 if at else 0,
                    "type": column.type.name,
                }
                for (keyspace, table), columns in _COLUMNS.items()
                for at, column in enumerate(columns)
            ],
        }

    def adopt(self, view: ClusterView, own: str) -> None:
        """Describe the members of this view; `own` is the id of this node's member."""
        self._local["cluster_name"] = view.cluster
        rows: list[dict[str, Value]] = []
        for member in view.members:
            tokens = frozenset((str(token(member.name.encode())),))
            if member.id == own:
                self._local["tokens"] = tokens
            elif member.state is not MemberState.JOINING and _is_address(member.host):
                rows.append(
                    {
                        "peer": member.host,
                        "data_center": "local",
                        "host_id": _uuid(member.node),
                        "preferred_ip": None,
                        "rack": "local",
                        "release_version": RELEASE,
                        "rpc_address": member.host,
                        "schema_version": SCHEMA_VERSION,
                        "tokens": tokens,
                    }
                )
        self._rows["system", "peers"] = rows

    def select(self, statement: str, address: str) -> bytes:
        """Return the body of the RESULT; raise `UnknownRequest` or `InvalidArgument`.

        `address` is the one at which the client reached this node.
        """
        short = len(statement) <= STATEMENT_MAX
        found = _SELECT.fullmatch(" ".join(statement.split())) if short else None
        if found is None:
            raise UnknownRequest(
                f"The statement {statement[:60]!r} is not understood.",
                remedy=_REMEDY,
            )
        keyspace, table = found["keyspace"].lower(), found["table"].lower()
        columns = _COLUMNS.get((keyspace, table))
        if columns is None:
            raise InvalidArgument(
                f"Table {keyspace[:60]}.{table[:60]} does not exist.", remedy=_REMEDY
            )
        rows = self._rows.get((keyspace, table), [])
        if columns is _LOCAL:  # one row, which depends on the client's address
            rows = [self._local | dict.fromkeys(_ADDRESSES, address)]
        shown = _chosen(found["columns"], columns)
        if found["where"] is not None:
            rows = _matching(found["where"], columns, rows)
        return encode_rows(
            keyspace, table, shown, [[row[column.name] for column in shown] for row in rows]
        )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _uuid(node: str) -> bytes:
    """Return the identity of a node as the bytes of a UUID."""
    try:
        return identity.UUID(node).bytes
    except ValueError:
        return bytes(16)


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
