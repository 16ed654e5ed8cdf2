"""The engines, each as a place that can be opened again and again."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from maitred.logs import silent
from maitred.simulation.store import DiskFaults, SimulatedDisk, SimulatedStore
from maitred.store.postgres import open_postgres
from maitred.store.sqlite import open_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from maitred.store.interface import Store


class Engine(Protocol):
    """What lasts, and how to open it."""

    async def open(self, own: int = 0, owner: str = "") -> Store:
        """A store as shard `own` opens it; may be called while others are open."""


class Sqlite:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def open(self, own: int = 0, owner: str = "") -> Store:  # noqa: ARG002 - one node's own
        return await open_sqlite(self.directory, own)


class Postgres:
    def __init__(self, location: str) -> None:
        self.location = location

    async def open(self, own: int = 0, owner: str = "") -> Store:  # noqa: ARG002 - all share it
        return await open_postgres(self.location, log=silent(), owner=owner)


class Simulated:
    def __init__(self) -> None:
        # Real time passes here, so it takes next to none.
        self.disk = SimulatedDisk(
            Random(4711), DiskFaults(delay_min_seconds=0.0, delay_max_seconds=1e-6)
        )

    async def open(self, own: int = 0, owner: str = "") -> Store:  # noqa: ARG002 - all share it
        return SimulatedStore(self.disk, owner)


@asynccontextmanager
async def opened(engine: Engine, *owns: int) -> AsyncIterator[Any]:
    """One store, or several; closed at the end."""
    async with AsyncExitStack() as stack:
        stores = []
        for own in owns or (0,):
            store = await engine.open(own)
            stack.push_async_callback(store.close)
            stores.append(store)
        yield stores if owns else stores[0]


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An `async def` as a test."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run
