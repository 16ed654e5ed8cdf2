"""What the tests of stores share: the three engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.store.engines import Engine, Postgres, Simulated, Sqlite
from tests.store.postgres_server import empty_database, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Any]:
    base = tmp_path_factory.getbasetemp()
    # The processes of xdist have directories of their own below one that they share.
    shared = base if worker_id == "master" else base.parent
    with running_server(str(shared)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres", "simulated"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return Sqlite(tmp_path / "data")
    if request.param == "simulated":
        return Simulated()
    return Postgres(empty_database(request.getfixturevalue("postgres_server")))
