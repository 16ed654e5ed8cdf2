"""A shard that keeps tasks, under well-formed requests that were altered.

What is added in one request is found by the next, so each input has a shard and a store of its own:
otherwise what one input breaks would show in another.
"""

from __future__ import annotations

from random import Random
from typing import Final

from fuzz.server import World, composed
from maitred.simulation.store import DiskFaults, SimulatedDisk, SimulatedStore

_TURNS: Final = 30
"""Of the loop, in which the store answers and partitions do what they were asked."""

_AT_ONCE: Final = DiskFaults(delay_min_seconds=0.0, delay_max_seconds=0.0)


def examine_tasks(pattern: int, data: bytes) -> None:
    """Requests chosen and altered by the bytes, all on one connection."""
    world = World(SimulatedStore(SimulatedDisk(Random(1), _AT_ONCE)))
    try:
        world.run(pattern, composed(data), _TURNS)
    finally:
        world.close()
