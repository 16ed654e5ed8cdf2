"""A small random queue: partitions, tree, pollers and producers on the real selectors.

What must hold: no task is lost or served twice, no poller gets lost, and at the end everything is
as it was in the beginning. The model checks that itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.simulation.selection.checking import random_settings
from maitred.simulation.selection.model import play

if TYPE_CHECKING:
    from maitred.simulation.world import World


async def selection(world: World) -> None:
    """Run the scenario of partition selection."""
    await play(world.loop, random_settings(world.seed), world.seed)
