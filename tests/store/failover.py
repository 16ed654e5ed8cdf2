"""An asynchronous failover of a PostgreSQL database, as its clients see it: rows are again as they
were a while ago, connections are cut, and the timeline is another one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TABLES = ("partitions", "segments", "marks", "later", "dead", "results")
TIMELINE = """
CREATE OR REPLACE FUNCTION maitred.timeline() RETURNS text LANGUAGE sql AS $$
    SELECT '{:08X}'
$$
"""
CUT_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
"""

Rows = dict[str, list[Any]]


async def rows_now(location: str) -> Rows:
    """What a standby has that receives nothing more from now on."""
    async with _connected(location) as connection, connection.transaction(isolation="serializable"):
        return {
            table: await connection.fetch(f"SELECT * FROM maitred.{table}")  # noqa: S608
            for table in TABLES
        }


async def fail_over(location: str, rows: Rows) -> None:
    """Let a server with these rows take over."""
    async with _connected(location) as connection:
        async with connection.transaction():
            for table, found in rows.items():
                await connection.execute(f"LOCK TABLE maitred.{table}")
                await connection.execute(f"DELETE FROM maitred.{table}")  # noqa: S608
                await connection.copy_records_to_table(table, schema_name="maitred", records=found)
            present = await connection.fetchval("SELECT maitred.timeline()")
            await connection.execute(TIMELINE.format(int(present, 16) + 1))
        await connection.execute(CUT_OTHERS)


@asynccontextmanager
async def _connected(location: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(location)
    try:
        yield connection
    finally:
        await connection.close()
