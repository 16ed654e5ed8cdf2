"""Migrates a PostgreSQL database to this program's version.

Nodes of two neighbouring releases may share the database during an upgrade, and the older ones must
keep running, which includes starting a shard again. A migration therefore keeps what the programs
before it call, and says so in a line `-- compatible: N`: programs that know version N or a later
one run on the migrated database. A migration without such a line shuts out all programs before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import CannotStart
from maitred.store.scripts import migrations, statements

if TYPE_CHECKING:
    import asyncpg

MIGRATION_SECONDS: Final = 600.0
"""How long one step of a migration may take, including the wait for another shard that does it."""

_STATEMENTS: Final = statements("postgres")


async def migrate(connection: asyncpg.Connection) -> None:
    """Apply the migrations that the database lacks, in one transaction; raise `CannotStart` if a
    newer program changed the database so that this one cannot use it."""
    known = migrations("postgres")
    async with connection.transaction():
        await connection.execute(_STATEMENTS["migrations_begin"])
        if not await connection.fetchval(_STATEMENTS["versions_exist"]):
            await connection.execute(_STATEMENTS["versions_make"])
        if not await connection.fetchval(_STATEMENTS["needs_exist"]):
            await connection.execute(_STATEMENTS["needs_make"])
        version, needs = await connection.fetchrow(_STATEMENTS["version"])
        if needs > known[-1].version:
            raise CannotStart(
                f"The database was written by a newer maitred: it has version {version}, which "
                f"programs that know version {needs} can use, and this program knows versions up "
                f"to {known[-1].version}.",
                remedy="Use the newer maitred.",
            )
        for migration in known:
            if migration.version > version:
                await connection.execute(migration.script)
                await connection.execute(
                    _STATEMENTS["version_reached"], migration.version, migration.compatible
                )
