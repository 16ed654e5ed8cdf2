"""CPU per task of three nodes, against one node with the same load and as many shards in all.

Each cluster has its own database, worker and producer. The two take turns in slices of a few
seconds, in which the producer of the other one is stopped, so that whatever else the machine does
affects both alike. What PostgreSQL takes is not counted.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.cluster.stage import cluster
from benchmarks.measuring import Result
from benchmarks.tasks.processes import session_cpu_seconds

if TYPE_CHECKING:
    from tests.cluster.rig import Rig

QUEUES = 12
GOAL = 1.15
WARM_SECONDS = 5.0
BEGIN_SECONDS = 1.0
"""The beginning of a slice, which is not counted: connections wake up."""


def measure(*, rounds: int, seconds: float, rate: float) -> Result:
    """The ratio, the median of the rounds."""
    with ExitStack() as stack:
        sides = [
            Side(stack.enter_context(cluster(nodes, queues=QUEUES, shards=shards)), rate)
            for nodes, shards in ((3, 1), (1, 3))
        ]
        for side in sides:
            side.slice(WARM_SECONDS)
        found = []
        for number in range(rounds):
            order = sides if number % 2 else sides[::-1]
            each = {id(side): side.slice(seconds) for side in order}
            found.append((each[id(sides[0])], each[id(sides[1])]))
            print(
                f"round {number + 1} of {rounds}: three nodes {found[-1][0] * 1e6:.0f} us a task, "
                f"one {found[-1][1] * 1e6:.0f} us",
                flush=True,
            )
    ratio = median(ours / theirs for ours, theirs in found)
    return Result(
        f"CPU per task with three nodes, times one node with three shards ({rate:g} tasks/s)",
        ratio,
        GOAL,
        at_least=False,
        ours=f"three nodes {median(ours for ours, _ in found) * 1e6:.0f} us",
        peer=f"one node {median(theirs for _, theirs in found) * 1e6:.0f} us",
    )


class Side:
    """A cluster with a worker and a producer that is stopped except in slices."""

    def __init__(self, rig: Rig, rate: float) -> None:
        self._rig = rig
        worker = rig.start_worker()
        self._producer = rig.start_producer(rate=rate, kinds={"enqueue": 1, "result": 1})
        self._producer.signal_all(signal.SIGSTOP)
        pids = [worker.pid, self._producer.pid, *(node.running.pid for node in rig.nodes)]
        self._sessions = pids

    def slice(self, seconds: float) -> float:
        """Let the producer run; the CPU seconds of all processes for each task."""
        self._producer.signal_all(signal.SIGCONT)
        time.sleep(BEGIN_SECONDS)
        cpu, tasks = self._spent()
        time.sleep(seconds)
        later_cpu, later_tasks = self._spent()
        self._producer.signal_all(signal.SIGSTOP)
        return (later_cpu - cpu) / max(1, later_tasks - tasks)

    def _spent(self) -> tuple[float, int]:
        return session_cpu_seconds(self._sessions), len(self._rig.ledger.ended)
