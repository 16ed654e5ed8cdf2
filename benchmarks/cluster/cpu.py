"""CPU per task of three nodes, against one node that has the same load at the same time.

Both clusters run side by side, each with its own database, worker and producer, and as many shards
in all, so that whatever else the machine does affects both. What PostgreSQL takes is not counted.
"""

from __future__ import annotations

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


def measure(*, rounds: int, seconds: float, rate: float) -> Result:
    """The ratio, the median of the rounds."""
    with ExitStack() as stack:
        one = stack.enter_context(cluster(1, queues=QUEUES, shards=3))
        three = stack.enter_context(cluster(3, queues=QUEUES, shards=1))
        pids = {id(rig): _loaded(rig, rate) for rig in (one, three)}
        time.sleep(WARM_SECONDS)
        found = []
        for number in range(rounds):
            before = {id(rig): _spent(rig, pids[id(rig)]) for rig in (one, three)}
            time.sleep(seconds)
            each = {}
            for rig in (one, three):
                cpu, tasks = _spent(rig, pids[id(rig)])
                earlier_cpu, earlier_tasks = before[id(rig)]
                each[id(rig)] = (cpu - earlier_cpu) / max(1, tasks - earlier_tasks)
            found.append((each[id(three)], each[id(one)]))
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


def _loaded(rig: Rig, rate: float) -> list[int]:
    """Start a worker and a producer; the sessions of all processes that count."""
    worker = rig.start_worker()
    producer = rig.start_producer(rate=rate, kinds={"enqueue": 1, "result": 1})
    return [worker.pid, producer.pid, *(node.running.pid for node in rig.nodes)]


def _spent(rig: Rig, sessions: list[int]) -> tuple[float, int]:
    """CPU seconds of these sessions so far, and the tasks that have run."""
    return session_cpu_seconds(sessions), len(rig.ledger.ended)
