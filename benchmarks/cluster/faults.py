"""Faults at random under load, and the verdict: `python -m benchmarks.cluster faults`.

Everything that was written down stays in the folder that it names, if something is wrong.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from tests.cluster.faults import WEIGHTS, Faults
from tests.node.nodes import wait_until

from benchmarks.cluster.stage import cluster

QUEUES = 9
PARTITIONS = 2
WORKERS = 2
PRODUCERS = 2
RATE = 40.0
"""Requests a second, of each producer."""
KINDS = {"enqueue": 0.5, "result": 0.3, "query": 0.2}
DURATIONS = (0.0, 0.0, 0.0, 0.01, 0.05, 0.3)
DONE_SECONDS = 180.0
"""How long everything may take to run after the last fault."""


def run(
    *,
    faults: int,
    seed: int,
    shards: int,
    loopback: bool = False,
    kinds: tuple[str, ...] = (),
    keep: bool = False,
) -> int:
    """Do so many faults; 0 if the run was clean. `keep` keeps the folder even then."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    began = time.monotonic()
    with cluster(
        3, queues=QUEUES, shards=shards, partitions=PARTITIONS, loopback=loopback, folder=folder
    ) as rig:
        for _ in range(WORKERS):
            rig.start_worker()
        producers = [
            rig.start_producer(rate=RATE, kinds=KINDS, durations=DURATIONS, seed=seed + number)
            for number in range(PRODUCERS)
        ]
        injector = Faults(rig, seed, kinds or tuple(WEIGHTS))
        print(f"seed {seed}, logs in {folder}", flush=True)
        for number in range(faults):
            injector.pause()
            done = injector.strike()
            print(
                f"{time.monotonic() - began:7.1f} s  {number + 1:4} of {faults}: {done}; "
                f"{len(rig.ledger.acknowledged):,} acknowledged, {len(rig.ledger.missing())} to "
                f"run, {len(rig.ledger.failed)} failed requests",
                flush=True,
            )
        for producer in producers:
            producer.stop(DONE_SECONDS)
        try:
            wait_until(lambda: not rig.ledger.missing(), "all tasks have run", DONE_SECONDS)
        except AssertionError as problem:
            print(problem)
        verdict = rig.ledger.verdict()
    print(f"{time.monotonic() - began:.0f} s: {verdict}")
    print(*verdict.unexplained, sep="\n")
    for number in sorted(verdict.lost):
        print(f"lost: {number}")
    if verdict.is_clean and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what was written down: {folder}")
    return 0 if verdict.is_clean else 1
