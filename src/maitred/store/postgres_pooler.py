"""Detects a connection pooler that lends out the server's connections for single transactions.

Through such a pooler (PgBouncer's `pool_mode = transaction`) a session loses what maitred relies
on: settings of the session, above all synchronous commits, prepared statements, and notifications.
A pooler that lends out a connection for a whole session loses nothing.

A pooler is detected by its own cancel key: the process number that it sends at the login is not
that of the server's process. Whether it shares that process is seen by asking from two sessions in
turns: a process that serves both, or a session that meets two processes, is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

from maitred.errors import CannotStart

if TYPE_CHECKING:
    from maitred.store.postgres_hosts import PostgresServers

ROUNDS: Final = 5
"""How often both sessions ask. One is enough unless others use the pooler in the same moment."""

_ASK: Final = "SELECT pg_backend_pid()"


async def refuse_shared_sessions(
    servers: PostgresServers, connection: asyncpg.Connection, connect_seconds: float
) -> None:
    """Raise `CannotStart` if a pooler shares the server's processes between sessions."""
    try:
        shared = await _is_shared(servers, connection, connect_seconds)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        shared = True  # a statement was prepared in one process and executed in another
    if shared:
        raise CannotStart(
            "Between maitred and the database server is a connection pooler that lends out "
            "connections for single transactions: settings of the session and notifications are "
            "lost.",
            remedy="Name the PostgreSQL server itself in `store`, or let the pooler lend out "
            "connections for whole sessions (PgBouncer: pool_mode = session).",
        )


async def _is_shared(
    servers: PostgresServers, connection: asyncpg.Connection, connect_seconds: float
) -> bool:
    first = await connection.fetchval(_ASK)
    if first == connection.get_server_pid():
        return False
    other = await servers.connect(timeout=connect_seconds, command_timeout=connect_seconds)
    try:
        mine, others = {first}, set()
        for _ in range(ROUNDS):
            others.add(await other.fetchval(_ASK))
            mine.add(await connection.fetchval(_ASK))
    finally:
        other.terminate()
    return len(mine) > 1 or len(others) > 1 or bool(mine & others)
