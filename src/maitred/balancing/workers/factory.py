"""Create a worker policy by the name that a queue's settings give.

`idle` is not here: under it the partition allocates a slot that a worker offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.adaptive import Adaptive
from maitred.balancing.workers.least_active import LeastActive
from maitred.balancing.workers.p2c_peak_ewma import PeakEwma
from maitred.balancing.workers.round_robin import RoundRobinPolicy
from maitred.balancing.workers.two_phase import TwoPhase
from maitred.balancing.workers.uniform import UniformPolicy
from maitred.balancing.workers.weighted_least_connections import WeightedLeastConnections
from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers.interface import WorkerPolicy

WORKER_POLICIES = (
    "random",
    "round-robin",
    "least-active",
    "p2c-peak-ewma",
    "weighted-least-connections",
    "two-phase",
    "adaptive",
)


def worker_policy(name: str, random: RandomSource) -> WorkerPolicy:
    """Create a policy; raise `UnknownAlgorithm` for a name that is not in `WORKER_POLICIES`."""
    match name:
        case "random":
            return UniformPolicy(random)
        case "round-robin":
            return RoundRobinPolicy()
        case "least-active":
            return LeastActive(random)
        case "p2c-peak-ewma":
            return PeakEwma(random)
        case "weighted-least-connections":
            return WeightedLeastConnections()
        case "two-phase":
            return TwoPhase(random)
        case "adaptive":
            return Adaptive(random)
        case _:
            raise UnknownAlgorithm.named("worker policy", name, WORKER_POLICIES)
