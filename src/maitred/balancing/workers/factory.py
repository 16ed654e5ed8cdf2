"""Create a worker policy by the name that a queue's settings give.

`idle` is not here: under it the partition allocates a slot that a worker offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.balancing.workers.adaptive import Adaptive
from maitred.balancing.workers.comparison import (
    LeastActive,
    RoundRobinPolicy,
    UniformPolicy,
    WeightedLeastConnections,
)
from maitred.balancing.workers.p2c_peak_ewma import PeakEwma
from maitred.balancing.workers.two_phase import TwoPhase
from maitred.errors import UnknownAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.interface import RandomSource
    from maitred.balancing.workers.interface import WorkerPolicy

WORKER_POLICIES: Final[dict[str, Callable[[RandomSource], WorkerPolicy]]] = {
    "random": UniformPolicy,
    "round-robin": RoundRobinPolicy,
    "least-active": LeastActive,
    "p2c-peak-ewma": PeakEwma,
    "weighted-least-connections": WeightedLeastConnections,
    "two-phase": TwoPhase,
    "adaptive": Adaptive,
}


def worker_policy(name: str, random: RandomSource) -> WorkerPolicy:
    """Create a policy; raise `UnknownAlgorithm` for a name that is not in `WORKER_POLICIES`."""
    if name not in WORKER_POLICIES:
        raise UnknownAlgorithm.named("worker policy", name, WORKER_POLICIES)
    return WORKER_POLICIES[name](random)
