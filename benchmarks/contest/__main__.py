"""`python -m benchmarks.contest`; what there is to say is in `__init__.py`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.contest import pictures
from benchmarks.contest.policies import OURS, POLICIES, RIVALS
from benchmarks.contest.results import DOOR, Contest, way
from benchmarks.contest.scale import LONG, QUICK, SHORT, Scale
from benchmarks.contest.stage import Outcome, Stage
from benchmarks.measuring import PUBLISHED, RESULTS, Result
from benchmarks.queries.http import wrk
from benchmarks.tasks.processes import Unavailable
from maitred.simulation.pictures import PicturesUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

QUIET_LOAD = 0.5
EVERYBODY = (*OURS, *(policy for policy in POLICIES if policy not in OURS), *RIVALS)
CALM = {DOOR: "two-phase", "haproxy": "haproxy leastconn", "nginx": "nginx least_conn"}
"""By whom the delay of a way is measured: those who never wait if there is room for all."""


def delay_seconds(scale: Scale, outcome: Outcome) -> float:
    """Everybody is always somewhere: what is not service, while nobody waits, is the way."""
    counts = outcome.counts
    service = counts.slept_ms / 1e3 / max(1, counts.begun)
    waited = counts.waited_seconds / max(1, counts.begun)
    return max(0.0, scale.connections / outcome.per_second - service - waited)


def run(stage: Stage, name: str, seed: int, *, calm: bool = False) -> Outcome:
    if name in RIVALS:
        return stage.by_rival(name, seed, calm=calm)
    return stage.by_policy(name, seed, calm=calm)


def measure(scale: Scale, names: Iterable[str] = EVERYBODY, *, rounds: int = 1) -> Contest:
    contest = Contest(scale)
    names = list(names)
    before = os.getloadavg()[0]
    if before > QUIET_LOAD:
        print(f"The load average is {before:.1f}: others use this machine, which costs everybody.")
    with Stage(scale) as stage:
        for number in range(rounds):
            for of in dict.fromkeys(map(way, names)):
                _delay(contest, stage, of, number + 1)
            for name in names:
                if way(name) in contest.delays and name not in contest.absent:
                    _row(contest, stage, name, number + 1)
                elif name not in contest.absent:
                    contest.absent[name] = contest.absent[way(name)]
        contest.commands = list(stage.commands)
    contest.load = (before, os.getloadavg()[0])
    return contest


def _delay(contest: Contest, stage: Stage, of: str, seed: int) -> None:
    try:
        outcome = run(stage, CALM[of], seed, calm=True)
    except Unavailable as reason:
        contest.absent[of] = str(reason)
        print(f"  SKIPPED {of}: {reason}", flush=True)
        return
    delay = delay_seconds(contest.scale, outcome)
    contest.delays.setdefault(of, []).append(delay)
    failed = sum(outcome.answers.failures.values())
    noted = f", {failed} FAILED" if failed else ""
    noted += f", VOID: {outcome.void}" if outcome.void else ""
    bound = sum(contest.scale.bounds(delay)) / len(contest.scale.phases)
    print(
        f"  the way by {of}: {1e3 * delay:.2f} ms, bound {bound:,.0f} a second{noted}", flush=True
    )


def _row(contest: Contest, stage: Stage, name: str, seed: int) -> None:
    started = time.monotonic()
    try:
        outcome = run(stage, name, seed)
    except Unavailable as reason:
        contest.absent[name] = str(reason)
        print(f"  SKIPPED {name}: {reason}", flush=True)
        return
    contest.rows.setdefault(name, []).append(outcome)
    share = outcome.per_second / contest.bound(name)
    failed = ", ".join(f"{many:,} {why}" for why, many in outcome.answers.failures.items())
    noted = f", VOID: {outcome.void}" if outcome.void else ""
    print(
        f"  {name}: {outcome.per_second:,.0f} a second, {share:.2%} of its bound, "
        f"failures: {failed or 'none'}{noted} ({time.monotonic() - started:.0f} s)",
        flush=True,
    )


def line(result: Result) -> str:
    """With more digits than others need: here half a per cent is much."""
    verdict = "MEETS" if result.met else "MISS "
    return (
        f"{verdict} {result.name}: {result.ratio:.4f} (goal >= {result.goal:g}); "
        f"{result.ours}; {result.peer}"
    )


def publish(contest: Contest, folder: Path) -> None:
    """Table, document and picture."""
    name = "contest-long" if contest.scale.stretched > 1 else "contest"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(contest.document(), indent=1) + "\n")
    (folder / f"{name}.md").write_text(contest.table())
    try:
        pictures.draw(contest, folder / f"{name}.svg")
    except PicturesUnavailable as reason:
        print(reason)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contest")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="phases of a second: does it all work")
    size.add_argument("--long", action="store_true", help="1,024 connections, time stretched")
    parser.add_argument("--policy", action="append", choices=EVERYBODY, help="only this one")
    parser.add_argument("--rounds", type=int, default=1, help="with other service times each")
    parser.add_argument("--phase-seconds", type=float, help="instead of 1, 6 or 60")
    parser.add_argument(
        "--stretched", type=int, help="times; the more, the less a busy machine shows"
    )
    parser.add_argument("--publish", action="store_true", help="write what the documents show")
    asked = parser.parse_args()
    # Else whoever ends us with SIGTERM, as `timeout` does, would leave servers and workers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scale = QUICK if asked.quick else LONG if asked.long else SHORT
    if asked.stretched:
        scale = replace(scale, stretched=asked.stretched)
    if asked.phase_seconds:
        delay = min(scale.delay_seconds, 3 * asked.phase_seconds)
        scale = replace(scale, phase_seconds=asked.phase_seconds, delay_seconds=delay)
    try:
        wrk()
    except Unavailable as reason:
        print(f"SKIPPED, all of it: {reason}")
        return 1
    contest = measure(scale, asked.policy or EVERYBODY, rounds=asked.rounds)
    if not contest.rows:
        return 1
    folder = PUBLISHED if asked.publish else RESULTS
    publish(contest, folder)
    results = contest.results()
    print(f"\n{contest.table()}", *map(line, results), sep="\n")
    void = [name for name in contest.rows if contest.void(name)]
    if void:
        print(f"VOID, a process needed more than 70 % of a core: {', '.join(void)}")
    print(f"\n{sum(r.met for r in results)} of {len(results)} goals met; results in {folder}")
    missed = contest.absent or not all(result.met for result in results)
    return 1 if (missed or set(void) & set(OURS)) and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
