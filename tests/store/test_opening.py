"""Which engine a setting means, and what is said about one that means none."""

from __future__ import annotations

import sys
import traceback
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from maitred.errors import CannotStart, InvalidSetting, StoreUnavailable
from maitred.logs import silent
from maitred.store.engines import open_store
from maitred.store.scripts import migrations, statements
from tests.store.engines import awaited
from tests.store.samples import KEY, acquire

if TYPE_CHECKING:
    from pathlib import Path


@awaited
async def test_nothing_means_sqlite_in_the_data_directory(tmp_path: Path) -> None:
    store = await open_store(None, tmp_path, 2, silent())
    assert (await acquire(store, KEY)).range_id == 1
    await store.close()
    assert (tmp_path / "tasks-2.db").exists()


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("mysql://me:hunter2@host/db", "begins with mysql:"),
        ("hunter2", "is no URL"),
        ("me:hunter2@host/db", "is no URL"),
        ("http://[hunter2", "is no URL"),
        ("", "is no URL"),
    ],
)
@awaited
async def test_a_location_that_is_none(location: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=problem) as raised:
        await open_store(location, tmp_path, 0, silent())
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    assert "postgresql://" in str(raised.value)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/db", StoreUnavailable),
        ("postgres://me:hunter2@127.0.0.1:1/db", StoreUnavailable),
        ("postgresql://me:hunter2@127.0.0.1:port/db", CannotStart),
        ("postgresql://me:hunter2@127.0.0.1:1/db?sslmode=hunter2", CannotStart),
        ("postgresql://me:hunter2@127.0.0.1:1/db?target_session_attrs=hunter2", CannotStart),
    ],
)
@awaited
async def test_no_secret_is_ever_told(location: str, error: type, tmp_path: Path) -> None:
    with pytest.raises(error) as raised:
        await open_store(location, tmp_path, 0, silent())
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


@awaited
async def test_postgresql_without_its_package_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in ("postgres", "postgres_errors"):
        monkeypatch.delitem(sys.modules, f"maitred.store.{name}", raising=False)
    with pytest.raises(CannotStart, match=r"pip install 'maitred\[postgres\]'"):
        await open_store("postgresql://host/db", tmp_path, 0, silent())


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_sql_is_where_the_program_looks_for_it(engine: str) -> None:
    names = {file.name for file in files("maitred.store").joinpath("sql", engine).iterdir()}
    assert {"0001_initial.sql", "statements.sql"} <= names
    assert [step.version for step in migrations(engine)] == [*range(1, len(migrations(engine)) + 1)]
    assert all(text and "-- name" not in text for text in statements(engine).values())
