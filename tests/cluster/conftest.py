"""What these tests share: a database server."""

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


@pytest.fixture
def store(postgres_server: Any) -> str:  # noqa: ANN401 - the package's own class
    """The location of an empty one."""
    return new_database(postgres_server)
