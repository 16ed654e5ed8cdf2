"""What these tests share: the stores, and a stage on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.store.postgres_server import new_database, running_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Any]:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with running_server(str(shared)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str | None:
    """The location of an empty one; None: files of the node's own."""
    if request.param == "sqlite":
        return None
    return new_database(request.getfixturevalue("postgres_server"))
