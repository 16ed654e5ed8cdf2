"""What a driver reads of the cluster, and what it gets for anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from msgspec import structs

from maitred.membership.view import MemberState
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.notation import Reader
from tests.node.clusters import cluster, member_of
from tests.node.in_process import NODE, in_a_loop, node, own_seconds
from tests.node.raw import error_in, query

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.raw import RawClient

Rows = list[dict[str, bytes | None]]


async def rows_of(client: RawClient, statement: str) -> tuple[list[str], Rows]:
    """The names of the columns, and the rows, as a driver would take them apart."""
    answer = await client.ask(query(statement))
    assert answer.opcode == Opcode.RESULT, error_in(answer)
    reader = Reader(answer.body)
    assert reader.integer() == 2  # rows
    assert reader.integer() == 1  # one table for all columns
    count = reader.integer()
    assert f"{reader.string()}.{reader.string()}" in statement.lower()
    names = []
    for _ in range(count):
        names.append(reader.string())
        for _ in range({0x21: 2, 0x22: 1}.get(reader.short(), 0)):  # elements of maps and sets
            reader.short()
    rows = [{name: reader.blob() for name in names} for _ in range(reader.integer())]
    assert reader.at_end
    return names, rows


@in_a_loop
async def test_local_is_this_node(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        names, [row] = await rows_of(client, "SELECT * FROM system.local WHERE key='local'")
        assert names[0] == "key"
        assert row["cluster_name"] == b"maitred"
        assert row["host_id"] == NODE.bytes
        assert row["partitioner"] == b"org.apache.cassandra.dht.Murmur3Partitioner"
        assert row["release_version"] == b"3.0.0"
        assert row["rpc_address"] == row["broadcast_address"] == bytes([127, 0, 0, 1])
        assert row["schema_version"] == UUID(int=0).bytes
        tokens = Reader(row["tokens"] or b"")
        assert [tokens.blob() for _ in range(tokens.integer())] == [str(-(2**63)).encode()]


@in_a_loop
async def test_columns_come_as_they_were_asked_for(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        statement = "select Rack , data_center\n from SYSTEM.Local where key = 'local' ;"
        names, rows = await rows_of(client, statement)
        assert names == ["rack", "data_center"]
        assert rows == [{"rack": b"local", "data_center": b"local"}]


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("SELECT key FROM system.local USING TIMEOUT 2000ms", 1),
        ("SELECT key FROM system.local WHERE key='local' USING TIMEOUT 2000ms", 1),
        ("SELECT key FROM system.local WHERE key='other'", 0),
        ("SELECT key FROM system.local WHERE key=''", 0),
        ("SELECT * FROM system.peers", 0),
        ("SELECT peer, host_id FROM system.peers WHERE peer = '10.0.0.1'", 0),
        ("SELECT * FROM system_schema.keyspaces", 2),
        ("SELECT * FROM system_schema.tables USING TIMEOUT 2000ms", 11),
        ("SELECT * FROM system_schema.tables WHERE keyspace_name='system'", 2),
        ("SELECT * FROM system_schema.columns WHERE table_name='local'", 15),
        *(
            ("SELECT * FROM system_schema." + table + " USING TIMEOUT 2000ms", 0)  # noqa: S608 - no database here
            for table in ("types", "functions", "aggregates", "indexes", "triggers", "views")
        ),
    ],
)
@in_a_loop
async def test_what_drivers_ask(statement: str, count: int, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        names, rows = await rows_of(client, statement)
        assert names
        assert len(rows) == count


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT * FROM system.size_estimates", "invalid-argument"),
        ("SELECT * FROM mine.own", "invalid-argument"),
        ("SELECT colour FROM system.local", "invalid-argument"),
        ("SELECT key, FROM system.local", "invalid-argument"),
        ("SELECT key FROM system.local WHERE colour='red'", "invalid-argument"),
        ("SELECT key FROM system.local WHERE key=local", "unknown-request"),
        ("SELECT key FROM system.local WHERE key='a' AND rack='b'", "unknown-request"),
        ("SELECT key FROM local", "unknown-request"),
        ("SELECT key FROM system.local LIMIT 1", "unknown-request"),
        ("SELECT count(*) FROM system.local", "unknown-request"),
        ("INSERT INTO system.local (key) VALUES ('x')", "unknown-request"),
        ("DROP KEYSPACE system", "unknown-request"),
        ("USE system", "unknown-request"),
        ("", "unknown-request"),
        ("\0" * 100, "unknown-request"),
        ("SELECT * FROM system.local" + " " * 4096, "unknown-request"),
        ("\N{SNOWMAN}" * 3000, "unknown-request"),
    ],
)
@in_a_loop
async def test_what_is_not_understood(statement: str, code: str, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        assert error_in(await client.ask(query(statement))).code == code
        await client.lives()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT" + " " * 4000,
        "SELECT a" + " " * 4000 + "!",
        " " * 4000,
        "SELECT a FROM a.b WHERE" + " " * 4000 + "!",
        "SELECT a FROM a.b WHERE a='" + " " * 4000,
        "SELECT a" + ", a" * 1300 + "!",
        "SELECT " + "a FROM a " * 400,
        "SELECT a FROM a.b WHERE " + "a USING TIMEOUT " * 200 + "!",
        "SELECT a FROM a." + "b" * 4000 + "!",
    ],
)
@in_a_loop
async def test_no_statement_takes_long_to_refuse(statement: str, tmp_path: Path) -> None:
    """A pattern that tries every way to share out the spaces would hold up everybody for hours."""
    async with node(tmp_path) as running:
        client = await running.ready()
        began = own_seconds()
        answer = await client.ask(query(statement))
        assert error_in(answer).code in {"unknown-request", "invalid-argument"}
        assert own_seconds() - began < 1


@in_a_loop
async def test_a_query_cut_short(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.ready()
        for body in (b"", b"\0\0\0", b"\0\0\0\x05SELE", b"\xff\xff\xff\xff", b"\0\0\0\1\xff"):
            answer = await client.ask(encode_frame(REQUEST, 0, 0, Opcode.QUERY, body))
            assert error_in(answer).code == "protocol-violation"
        await client.lives()


@in_a_loop
async def test_peers_are_the_other_members(tmp_path: Path) -> None:
    async with cluster(tmp_path, 4) as there:
        client = await there.nodes[0].ready()
        there.adopt(there.view(2, states={2: MemberState.JOINING}))
        _, [local] = await rows_of(client, "SELECT * FROM system.local")
        assert local["cluster_name"] == b"test"
        _, rows = await rows_of(client, "SELECT * FROM system.peers")
        assert {row["host_id"] for row in rows} == {
            there.nodes[number].identity.bytes for number in (1, 3)
        }
        assert {row["rpc_address"] for row in rows} == {bytes([127, 0, 0, 1])}
        assert len({row["tokens"] for row in (local, *rows)}) == 3
        # A name is no address, and a node that is no UUID has none.
        odd = [
            structs.replace(member_of(there.nodes[1]), host="node1.example"),
            structs.replace(member_of(there.nodes[2]), node="x"),
        ]
        view = there.view(3, [0])
        there.shard(0).adopt(structs.replace(view, members=(*view.members, *odd)))
        _, [row] = await rows_of(client, "SELECT host_id FROM system.peers")
        assert row["host_id"] == bytes(16)
