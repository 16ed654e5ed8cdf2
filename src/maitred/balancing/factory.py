"""Create a partition selector by the name that a queue's settings give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.fewest_polls import FewestPolls
from maitred.balancing.round_robin import RoundRobin
from maitred.balancing.uniform import Uniform
from maitred.balancing.weighted import Weighted
from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from maitred.balancing.interface import PartitionSelector, RandomSource
    from maitred.balancing.settings import SelectorSettings

ALGORITHMS = ("random", "round-robin", "weighted", "fewest-polls")


def selector(
    name: str, random: RandomSource, settings: SelectorSettings | None = None
) -> PartitionSelector:
    """Create a selector; raise `UnknownAlgorithm` for a name that is not in `ALGORITHMS`."""
    match name:
        case "random":
            return Uniform(random)
        case "round-robin":
            return RoundRobin(random, settings)
        case "weighted":
            return Weighted(random, settings)
        case "fewest-polls":
            return FewestPolls(random)
        case _:
            raise UnknownAlgorithm.named("selection algorithm", name, ALGORITHMS)
