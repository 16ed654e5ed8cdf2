"""The settings of sessions, what PostgreSQL says besides its answers, and what its settings put at
risk."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import asyncpg

from maitred.errors import CannotStart, OutcomeUnknown, StoreUnavailable
from maitred.store.scripts import statements

if TYPE_CHECKING:
    from types import TracebackType

    from maitred.store.interface import StoreLog

CONNECTIONS: Final = 4
"""The most connections of one shard: one commits while the others read. A server has about a
hundred for all of its clients together."""

MEMBER_CONNECTIONS: Final = 1
"""The connections of a node to its membership table."""

USUAL_NODES: Final = 3
"""The nodes of a cluster for whose connections the server should have room."""

UNCONFIRMED: Final = "01000"
"""The code of the warning with which PostgreSQL reports success of a commit whose wait for the
standby was cancelled: the commit is on the disk of this server alone."""

SYNCHRONOUS: Final = ("on", "remote_apply")
"""The values of synchronous_commit with which an acknowledged commit survives the loss of a server
that has a synchronous standby."""

_STATEMENTS: Final = statements("postgres")


async def begin_session(
    connection: asyncpg.Connection, command_seconds: float, lock_seconds: float = 0.0
) -> str:
    """Make the commits of a session synchronous, and let the server give up statements a little
    before the client does, so that it is known that nothing was done; return synchronous_commit.

    These are no parameters of the login, which some poolers refuse."""
    timeouts = (command_seconds * 900, lock_seconds * 1000)
    values = (str(int(milliseconds)) for milliseconds in timeouts)
    return str((await connection.fetchrow(_STATEMENTS["session"], *values))[0])


async def refuse_unsafe_commits(connection: asyncpg.Connection) -> None:
    """Raise `CannotStart` if the server does not let a session commit synchronously."""
    found = await begin_session(connection, 0.0)
    if found not in SYNCHRONOUS:
        raise CannotStart(
            f"The database server commits with synchronous_commit = {found} and does not let "
            "maitred raise it: acknowledged tasks could be lost.",
            remedy="Set synchronous_commit = on for maitred's user or database.",
        )


async def warn_of_risks(connection: asyncpg.Connection, log: StoreLog) -> None:
    """Log which failures of the server can lose acknowledged tasks."""
    fsync, synchronous, standbys = await connection.fetchrow(_STATEMENTS["risks"])
    if fsync == "off":
        log.warning("The database server runs with fsync = off: a power failure can lose tasks.")
    if synchronous:
        return
    if standbys:
        log.warning(
            "The database server has no synchronous standby: a failover can lose tasks that were "
            "acknowledged just before it. Set synchronous_standby_names of the server (Patroni: "
            "synchronous_mode)."
        )
    else:
        log.warning(
            "The database server has no standby: if its disk is lost, all tasks are lost, and "
            "while it is down, no task can be stored."
        )


class UnconfirmedCommit:
    """Raises at its end if the server warned that a commit was not confirmed by its standby:
    `OutcomeUnknown` for a commit, `StoreUnavailable` for everything else."""

    __slots__ = ("_commit", "_connection", "_warning")

    def __init__(self, connection: asyncpg.Connection, *, commit: bool) -> None:
        self._connection = connection
        self._commit = commit
        self._warning = ""

    def __enter__(self) -> Self:
        self._connection.add_log_listener(self._logged)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(asyncpg.InterfaceError):  # the connection was terminated
            self._connection.remove_log_listener(self._logged)
        if self._warning and problem is None:
            sentence = f"The database server did not confirm a commit: {self._warning}."
            raise OutcomeUnknown(sentence) if self._commit else StoreUnavailable(sentence)

    def _logged(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        if message.sqlstate == UNCONFIRMED:
            self._warning = str(message).splitlines()[0].rstrip(".")


def warn_of_few_connections(connections: int, shards: int, log: StoreLog) -> None:
    """Warn if a cluster of three nodes with so many shards would need more connections than the
    server has for clients."""
    node = shards * CONNECTIONS + MEMBER_CONNECTIONS
    if node * USUAL_NODES > connections:
        warning = (
            f"A node with {shards} shards uses up to {node} connections to the database server, "
            f"and the server has {connections} for all clients: {USUAL_NODES} nodes do not fit. "
            "Raise max_connections of the server, or start the nodes with fewer shards."
        )
        log.warning(warning)
