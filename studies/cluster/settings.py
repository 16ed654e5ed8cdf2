"""The settings of the cluster study."""

from __future__ import annotations

from dataclasses import dataclass

from maitred.errors import InvalidArgument
from maitred.routing.keys import check_partitions
from maitred.routing.placement import placement_named

NODES_MAX = 1_000
"""Beyond this the simulated membership takes hours."""

PARTITIONS_MAX = 1_000_000

PARTS = ("membership", "placement", "takeover")

CHANGES = ("killed", "frozen", "drained", "joined")

RUNS_MAX = 10
"""More runs of the same faults do not change the median."""


@dataclass(frozen=True, slots=True)
class ClusterStudySettings:
    """Which clusters to study, and in which detail."""

    sizes: tuple[int, ...] = (3, 30, 300)
    """Nodes of each cluster."""

    partitions: int = 100_000
    partitions_per_queue: int = 64

    shards: int = 8
    """Shards of a node."""

    runs: int = 300
    """Each size is simulated this many divided by its nodes times, at least once and at most
    `RUNS_MAX` times, each with a seed of its own."""

    steady_seconds: float = 2.0
    """How long the load of membership is measured, in virtual seconds, while no node changes."""

    changes: tuple[str, ...] = ("killed", "joined", "frozen", "joined", "drained")
    """What happens to nodes, one after another; `joined` starts the node of the change before
    again."""

    parts: tuple[str, ...] = PARTS
    """Which parts of the study to run."""

    placements: tuple[tuple[str, int], ...] = (("wrap", 0), ("wrap", 8), ("steady", 8))
    """Placements and batch sizes. With batch size 0 both placements are the same."""

    steady_partitions: int = 20_000
    """With the placement `steady`, which takes over ten times as long, this many partitions are
    placed at most."""

    acquire_ms: tuple[float, ...] = (1.0, 5.0, 20.0)
    """How long the store takes to acquire a group of partitions."""

    read_ms: float = 1.0
    """How long the store takes to look up the owners of a group of partitions."""

    with_work: tuple[float, ...] = (0.1, 1.0)
    """Shares of the partitions that have stored tasks."""

    seed: int = 1

    def __post_init__(self) -> None:
        check_partitions(self.partitions_per_queue)
        for placement, _ in self.placements:
            placement_named(placement)
        if not self.parts or not set(self.parts) <= set(PARTS):
            raise InvalidArgument(f"The parts of this study are {', '.join(PARTS)}.")
        if not self.sizes or not all(3 <= size <= NODES_MAX for size in self.sizes):
            raise InvalidArgument(
                f"A cluster of this study has 3 to {NODES_MAX:,} nodes, not {self.sizes}."
            )
        if not set(self.changes) <= set(CHANGES) or self.changes[:1] == ("joined",):
            raise InvalidArgument(
                f"A node is {', '.join(CHANGES)} in this study; it joins after another change."
            )
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidArgument(
                f"The partitions are {self.partitions}; 1 to {PARTITIONS_MAX:,} can be studied."
            )
        if (
            min(self.shards, self.runs, self.steady_partitions) < 1
            or self.steady_seconds <= 0
            or self.read_ms <= 0
        ):
            raise InvalidArgument("The shards, runs and times of a cluster study are positive.")
        if not all(ms > 0 for ms in self.acquire_ms):
            raise InvalidArgument("The store takes more than 0 ms to acquire partitions.")
        if not all(0 < share <= 1 for share in self.with_work):
            raise InvalidArgument("The share of partitions with tasks is above 0, and at most 1.")

    def runs_of(self, size: int) -> int:
        """Return how many times a cluster of this size is simulated."""
        return max(1, min(RUNS_MAX, self.runs // size))


QUICK = ClusterStudySettings(sizes=(3,), partitions=1_000, runs=3)
"""A study that takes a second or two."""
