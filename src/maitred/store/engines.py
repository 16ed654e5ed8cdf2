"""Open the storage engine that a node's `store` setting names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from maitred.errors import CannotStart, InvalidSetting
from maitred.store.sqlite import open_sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maitred.store.interface import Store, StoreLog
    from maitred.store.postgres_members import PostgresMembers

_CHOICES = "Leave it out for SQLite in the data directory, or use postgresql://user@host/database."


async def open_store(
    location: str | None, data: Path, own: int, log: StoreLog, *, owner: str = ""
) -> Store:
    """Open the store of shard `own`: SQLite in `data` if `location` is None, else PostgreSQL there.

    `owner` names this start of the shard in PostgreSQL: "<member of the cluster>/<random>". Only
    the owner that acquired a partition last can write to it. SQLite, which one node uses alone,
    needs no owner.

    A location may hold a password, so errors show nothing of it but the scheme.
    """
    if location is None:
        store = await open_sqlite(data, own)
        log.info("The store is open.", engine="sqlite")
        return store
    check_location(location)
    with _package_needed():
        from maitred.store.postgres import open_postgres
    return await open_postgres(location, log=log, owner=owner, warns=own == 0)


async def open_membership(location: str, cluster: str, log: StoreLog) -> PostgresMembers:
    """Open the membership table of the cluster in a PostgreSQL database, after migrating the
    database to this program's version."""
    check_location(location)
    with _package_needed():
        from maitred.store.postgres_members import open_members
    return await open_members(location, cluster, log)


def connect_membership(location: str, cluster: str, log: StoreLog) -> PostgresMembers:
    """Return the membership table of a database that was migrated before; it connects when it is
    first used."""
    with _package_needed():
        from maitred.store.postgres_members import members_of
    return members_of(location, cluster, log)


def check_location(location: str) -> None:
    """Raise `InvalidSetting` unless the location is that of a PostgreSQL database."""
    try:
        scheme = urlsplit(location).scheme
    except ValueError:
        scheme = ""
    if scheme not in {"postgresql", "postgres"}:
        named = f"begins with {scheme}:" if scheme and "://" in location else "is no URL"
        raise InvalidSetting(f"The store's location {named}, which is no store.", remedy=_CHOICES)


@contextmanager
def _package_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise CannotStart(
            "A PostgreSQL store needs the package asyncpg, which is not installed.",
            remedy="Install it with: pip install 'maitred[postgres]'",
        ) from None
