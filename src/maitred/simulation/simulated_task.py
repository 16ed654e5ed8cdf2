"""The task of the simulated loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maitred.simulation.process import Process


class SimulatedTask(asyncio.Task[Any]):
    """A task that knows its process and hashes by its number.

    Task groups and `asyncio.wait` hold tasks in sets; by address, their order would differ from
    run to run.
    """

    number: int
    process: Process | None

    def __hash__(self) -> int:
        return self.number
