"""`python -m benchmarks.cluster [--quick] [--kills 100] [--publish]`, or `... faults`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NoReturn

from benchmarks.cluster import cpu, failover, faults
from benchmarks.cluster.disturbances import Disturbed, Disturber
from benchmarks.cluster.pictures import draw
from benchmarks.cluster.stage import cluster
from benchmarks.cluster.timeline import quantile
from benchmarks.measuring import PUBLISHED, RESULTS, Result, report
from maitred.simulation.pictures import PicturesUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.rig import Rig

QUEUES, BACKLOG_QUEUES = 12, 6
RATE = 240.0
"""Requests a second to the queues with fresh tasks: about half of what two cores can do."""
BACKLOG_RATE, BACKLOG_TASK_SECONDS, BACKLOG_SLOTS = 42.0, 0.2, 8
"""More tasks a second than the slots run, so that a backlog grows slowly."""
BACKLOG_BEFORE = 600
"""Tasks of the backlog before the first disturbance."""

KILL_WINDOW, EVICT_WINDOW, DRAIN_WINDOW = 6.0, 12.0, 5.0


@dataclass(frozen=True)
class Plan:
    """How often each is done."""

    kills: int = 100
    evictions: int = 10
    drains: int = 30
    restarts: int = 3
    cpu_rounds: int = 10


QUICK = Plan(kills=2, evictions=1, drains=2, restarts=1, cpu_rounds=1)


def measure(plan: Plan) -> tuple[list[Result], list[Disturbed]]:
    """Everything."""
    found = []
    with cluster(3, queues=QUEUES + BACKLOG_QUEUES) as rig:
        _load(rig)
        disturber = Disturber(rig, QUEUES, BACKLOG_QUEUES)
        found.append(disturber.run("kill", plan.kills, KILL_WINDOW))
        found.append(disturber.run("freeze", plan.evictions, EVICT_WINDOW))
        if rig.network.can_cut:
            found.append(disturber.run("cut off", plan.evictions, EVICT_WINDOW))
        found.append(disturber.run("drain", plan.drains, DRAIN_WINDOW))
        restarts = [disturber.rolling_restart() for _ in range(plan.restarts)]
    results = [result for one in found for result in _results(one)]
    results.append(_without_errors("rolling restart of all nodes", restarts))
    results.append(_spread([*found, *restarts]))
    results.append(cpu.measure(rounds=plan.cpu_rounds, seconds=5, rate=300))
    return results, found


def _load(rig: Rig) -> None:
    fresh = [word for n in range(QUEUES) for word in ("--queue", f"q{n}", "--queue", f"ask{n}")]
    old = [
        word
        for number in range(QUEUES, QUEUES + BACKLOG_QUEUES)
        for word in ("--queue", f"q{number}")
    ]
    backlog = rig.start_producer(
        rate=BACKLOG_RATE * 5,
        kinds={"enqueue": 1},
        durations=[BACKLOG_TASK_SECONDS],
        queues=[QUEUES, QUEUES + BACKLOG_QUEUES],
    )
    rig.wait_for_acknowledged(BACKLOG_BEFORE)
    backlog.stop()
    rig.start_worker("--slots", "32", *fresh)
    rig.start_worker("--slots", str(BACKLOG_SLOTS), "--limit", "slots", *old)
    rig.start_producer(
        rate=BACKLOG_RATE,
        kinds={"enqueue": 1},
        durations=[BACKLOG_TASK_SECONDS],
        queues=[QUEUES, QUEUES + BACKLOG_QUEUES],
    )
    rig.start_producer(
        rate=RATE,
        kinds={"enqueue": 0.7, "result": 0.2, "query": 0.1},
        queues=[0, QUEUES],
    )


def _results(found: Disturbed) -> list[Result]:
    """The figures of one kind of disturbance, with the goals."""
    count = f"{found.count} times"
    if found.name == "drain":
        return [
            _at_most(
                "drain: longest wait of an enqueue, median, s", found.pauses, 0.5, 0.05, count
            ),
            _at_most("drain: longest wait of an enqueue, p99, s", found.pauses, 0.99, 0.25, count),
            _without_errors("drain", [found]),
        ]
    served = f"{found.name}: enqueues to the node's queues served again"
    middle, worst = (1.0, 3.0) if found.name == "kill" else (8.0, 8.0)
    backlog = middle + 3.0
    return [
        _at_most(f"{served}, median, s", found.served, 0.5, middle, count),
        _at_most(f"{served}, p99, s", found.served, 0.99, worst, count),
        _at_most(f"{found.name}: old backlog served again, s", found.resumed, 0.5, backlog, count),
        Result(
            f"{found.name}: p99 of the other nodes' queues, times the window before",
            found.others,
            1.1,
            at_least=False,
            ours=f"p99 {median(found.during) * 1e3:.1f} ms",
            peer=f"before {median(found.control) * 1e3:.1f} ms, {count}",
        ),
    ]


def _at_most(name: str, values: list[float], share: float, goal: float, count: str) -> Result:
    figure = quantile(values, share) if values else float("nan")
    return Result(
        name,
        figure,
        goal,
        at_least=False,
        ours=f"{len(values)} queues, longest {max(values, default=0):.3f} s",
        peer=count,
    )


def _without_errors(name: str, found: list[Disturbed]) -> Result:
    failures = sum(one.failures for one in found)
    requests = sum(one.requests for one in found)
    return Result(
        f"{name}: share of requests without an error",
        1 - failures / max(1, requests),
        1.0,
        at_least=True,
        ours=f"{failures} failed",
        peer=f"of {requests:,}",
    )


def _spread(found: list[Disturbed]) -> Result:
    spreads = [seconds for one in found for seconds in one.spreads]
    figure = quantile(spreads, 0.99) if spreads else float("nan")
    return Result(
        "a new view, from the first shard that has it to the last, p99, s",
        figure,
        0.5,
        at_least=False,
        ours=f"median {median(spreads) if spreads else 0:.3f} s",
        peer=f"{len(spreads)} versions",
    )


def _write(results: list[Result], found: list[Disturbed], folder: Path) -> None:
    report("cluster", results, folder)
    lines = [
        "| what | measured | goal |",
        "|---|---|---|",
        *(
            f"| {one.name} | {one.ratio:.3g} ({one.ours}; {one.peer}) | "
            f"{'at least' if one.at_least else 'at most'} {one.goal:g} |"
            for one in results
        ),
    ]
    (folder / "cluster.md").write_text("\n".join(lines) + "\n")
    raw = {one.name: {"served": one.served, "resumed": one.resumed, "pauses": one.pauses,
                      "control": one.control, "during": one.during, "returns": one.returns}
           for one in found}  # fmt: skip
    (folder / "cluster-raw.json").write_text(json.dumps(raw))
    try:
        draw(found, folder / "cluster.svg")
    except PicturesUnavailable as reason:
        print(reason)


def _stop(number: int, _: object) -> NoReturn:
    """End in order, so that no process, namespace or database is left behind."""
    sys.exit(128 + number)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("--quick", action="store_true", help="each once or twice")
    parser.add_argument("--kills", type=int, help="how often a node is killed")
    parser.add_argument("--evictions", type=int, help="how often it is frozen, and cut off")
    parser.add_argument("--drains", type=int, help="how often it is drained")
    parser.add_argument("--publish", action="store_true", help="write what the documents show")
    commands = parser.add_subparsers(dest="command")
    random_faults = commands.add_parser("faults", help="faults at random, and a verdict")
    random_faults.add_argument("--faults", type=int, default=300)
    random_faults.add_argument("--seed", type=int, default=1)
    random_faults.add_argument("--shards", type=int, default=1)
    random_faults.add_argument("--loopback", action="store_true", help="cut nothing")
    random_faults.add_argument("--kind", action="append", default=[], help="only this kind")
    random_faults.add_argument("--keep", action="store_true", help="keep logs and ledger")
    failing = commands.add_parser("failover", help="a PostgreSQL that fails over")
    failing.add_argument("--rounds", type=int, default=3)
    failing.add_argument("--kind", action="append", default=[], choices=failover.KINDS)
    chosen = parser.parse_args()
    if chosen.command == "failover":
        return failover.main(rounds=chosen.rounds, kinds=tuple(chosen.kind))
    if chosen.command == "faults":
        return faults.run(
            faults=chosen.faults,
            seed=chosen.seed,
            shards=chosen.shards,
            loopback=chosen.loopback,
            kinds=tuple(chosen.kind),
            keep=chosen.keep,
        )
    plan = QUICK if chosen.quick else Plan()
    for name in ("kills", "evictions", "drains"):
        if (times := getattr(chosen, name)) is not None:
            plan = replace(plan, **{name: times})
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )
    results, found = measure(plan)
    folder = PUBLISHED if chosen.publish else RESULTS
    _write(results, found, folder)
    return 0 if chosen.quick or all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
