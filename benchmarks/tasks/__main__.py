"""All peers in one run: `python -m benchmarks.tasks`; what there is to say is in `__init__.py`.

Sessions of all peers alternate, and of each figure the best round counts: noise only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import against
from benchmarks.measuring import PUBLISHED, RESULTS
from benchmarks.tasks import versions
from benchmarks.tasks.lineup import OURS, PEERS, Peer
from benchmarks.tasks.processes import Unavailable
from benchmarks.tasks.session import RATE, Budget, Figures, measure
from maitred.simulation.pictures import COLOURS, PicturesUnavailable, picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROUNDS = 2
QUIET_LOAD = 0.5
QUICK = Budget(enqueue=0.5, end_to_end=1, latency=1.5, backlog=20_000)

LESS_IS_BETTER = ("cpu us", "p50 ms", "p99 ms", "memory after drain")
ON_REDIS = ("Dramatiq + Redis", "Taskiq + Redis", "arq + Redis")
GOALS = (
    ("end to end", ("Celery + Redis",), 20.0),
    ("end to end", ON_REDIS, 8.0),
    ("end to end", ("JetStream, fsync",), 8.0),
    ("end to end", ("JetStream",), 1.0),
    ("enqueue", (), 1.0),
    ("drain", (), 1.0),
    ("p50 ms", (), 1.0),
)
"""How many times better than each of these, or than everybody."""
MEMORY_GOAL = 1.25
"""What our server has in memory after a backlog was drained, by what it had before. It grows by the
results of the last minute, of which it keeps 50,000, and by nothing that grows with the backlog."""
NUMBERS_OF_TASKS = ("backlog", "tasks")
SHOWN = {
    "end to end": "end to end, tasks/s",
    "enqueue": "enqueue, tasks/s",
    "drain": "drain a backlog, tasks/s",
    "p50 ms": f"latency p50 at {RATE}/s, ms",
    "p99 ms": f"latency p99 at {RATE}/s, ms",
    "cpu us": "CPU of all processes, us a task",
}


@dataclass
class Entry:
    """A peer and how it did."""

    peer: Peer
    rounds: list[Figures] = field(default_factory=list)
    many: str = ""
    failed: list[str] = field(default_factory=list)
    """Why a round has no figures."""

    @property
    def absent(self) -> str | None:
        """Why it did not take part, if it did not."""
        return self.failed[-1] if self.failed and not self.rounds else None

    def run(self, budget: Budget) -> None:
        try:
            figures, self.many = measure(self.peer, budget)
        except Unavailable as reason:
            # One bad round of a busy machine does not undo a good one, but it is told.
            self.failed.append(str(reason))
        else:
            self.rounds.append(figures)

    def best(self) -> Figures:
        """Each figure's best round; how many tasks there were, of the round with the most."""
        return {
            name: (min if name in LESS_IS_BETTER else max)(each[name] for each in self.rounds)
            for name in (self.rounds[0] if self.rounds else {})
        }

    def told(self, figures: Figures) -> str:
        if self.absent:
            return f"{self.peer.name}: absent, {self.absent}"
        return (
            f"{self.peer.name}: end to end {figures['end to end']:,.0f}/s, "
            f"enqueue {figures['enqueue']:,.0f}/s ({self.many}; "
            f"64 in flight {figures['enqueue, 64 in flight']:,.0f}/s), "
            f"drain {figures['drain']:,.0f}/s (of {figures['backlog']:,.0f}), "
            f"p50 {figures['p50 ms']:.2f} ms, p99 {figures['p99 ms']:.2f} ms, "
            f"CPU {figures['cpu us']:,.0f} us a task"
        )


def ratios(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """How many times better we are than each peer, figure by figure; empty without us."""
    ours = next((e.best() for e in entries if e.peer.name == OURS and e.rounds), None)
    if ours is None:
        return {}
    return {
        entry.peer.name: {
            name: theirs[name] / ours[name] if name in LESS_IS_BETTER else ours[name] / theirs[name]
            for name in SHOWN
        }
        for entry in entries
        if entry.peer.name != OURS and (theirs := entry.best())
    }


def goals(entries: Sequence[Entry]) -> list[tuple[str, float, float, bool]]:
    """What was aimed at, what came of it, and whether that is enough; for those who took part."""
    found = []
    better = ratios(entries)
    for figure, whom, least in GOALS:
        against = [name for name in better if not whom or name in whom]
        if against:
            worst = min(against, key=lambda name: better[name][figure])
            ratio = better[worst][figure]
            best = worst if len(against) == 1 else f"the best, {worst}"
            title = f"{figure}: times better than {best}"
            found.append((title, ratio, least, ratio >= least))
    ours = next((entry.best() for entry in entries if entry.peer.name == OURS), {})
    if ours:
        flat = ours["memory after drain"]
        title = "memory of the server after a drain, by that before"
        found.append((title, flat, MEMORY_GOAL, flat <= MEMORY_GOAL))
    return found


def fsyncs_a_second(seconds: float = 0.5) -> float:
    """What the disk under the temporary folder can do: 100 bytes, then an fsync, one by one."""
    with tempfile.TemporaryFile() as file:
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            file.write(b"x" * 100)
            file.flush()
            os.fsync(file.fileno())
            done += 1
        return done / (time.monotonic() - started)


def document(entries: Sequence[Entry], fsyncs: float, load: float) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load average before": round(load, 1),
        "fsyncs a second": round(fsyncs),
        "peers": [
            {
                "name": entry.peer.name,
                "versions": entry.peer.versions(),
                "loses in a crash": entry.peer.loses,
                "settings": entry.peer.settings,
                "enqueues many": entry.many,
                "best": _rounded(entry.best()),
                "rounds": [_rounded(each) for each in entry.rounds],
                "failed rounds": entry.failed,
            }
            for entry in entries
            if entry.rounds
        ],
        "absent": {entry.peer.name: entry.absent for entry in entries if entry.absent},
        "goals": [
            {"goal": title, "is": float(f"{value:.4g}"), "should be": bound, "met": met}
            for title, value, bound, met in goals(entries)
        ],
        "times better than": {name: _rounded(figures) for name, figures in ratios(entries).items()},
    }


def _rounded(figures: Figures) -> Figures:
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def draw(entries: Sequence[Entry], path: Path) -> None:
    present = [entry for entry in entries if entry.rounds]
    absent = [entry.peer.name for entry in entries if entry.absent]
    with picture(path, 11, 0.6 * len(present) + 2.4) as figure:
        if absent:
            figure.supxlabel(f"absent: {', '.join(absent)}", fontsize=8)
        for number, (name, title) in enumerate(SHOWN.items()):
            plot = figure.add_subplot(2, 3, number + 1)
            values = [entry.best()[name] for entry in present]
            colours = [COLOURS[0 if entry.peer.name == OURS else 4] for entry in present]
            bars = plot.barh(range(len(present)), values, color=colours)
            labels = [f"{value:,.0f}" if value >= 20 else f"{value:.2g}" for value in values]
            plot.bar_label(bars, labels, padding=3)
            names = [entry.peer.name for entry in present]
            plot.set_yticks(range(len(present)), names if number % 3 == 0 else [""] * len(names))
            plot.invert_yaxis()
            plot.margins(x=0.2)
            plot.set_title(title + (" (less is better)" if name in LESS_IS_BETTER else ""))
            plot.set_xticks([])
            plot.spines[["top", "right", "bottom"]].set_visible(False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks")
    parser.add_argument("--quick", action="store_true", help="one short round: does it all work")
    parser.add_argument("--publish", action="store_true", help="write what the documents show")
    parser.add_argument(
        "--rounds", type=int, help=f"default {ROUNDS}, with --against {against.ROUNDS}"
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="CPU a task of the working tree by that of a commit, in one run; exit status 0 if it "
        f"is at most {against.LIMIT:g}, 1 if it is more, 2 if that cannot be told",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="PEER",
        help=f"one of {', '.join(peer.name for peer in PEERS)}, or the beginning of a name",
    )
    parser.add_argument(
        "--traced",
        type=float,
        metavar="FRACTION",
        help="CPU a task with this fraction of all traces recorded, by that without any; "
        f"the same with {against.TRACED_LIMIT:g}",
    )
    asked = parser.parse_args()
    # Else whoever ends us with SIGTERM, as `timeout` does, would leave servers and workers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if asked.against or asked.traced is not None:
        start = versions.start(quick=asked.quick)
        return against.run_asked(asked, start, RESULTS, "tasks")
    entries = [
        Entry(peer)
        for peer in PEERS
        if not asked.only or any(peer.name.lower().startswith(o.lower()) for o in asked.only)
    ]
    if not entries:
        parser.error("nobody has that name")
    fsyncs, load = fsyncs_a_second(), os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"The load average is {load:.1f}: others use this machine, rates will be low.")
    for number in range(1 if asked.quick else asked.rounds or ROUNDS):
        for entry in entries:
            if entry.absent:
                continue
            rounds_before = len(entry.rounds)
            started = time.monotonic()
            entry.run(QUICK if asked.quick else Budget())
            took = time.monotonic() - started
            if entry.rounds and len(entry.rounds) == rounds_before:
                told = f"{entry.peer.name}: this round failed, {entry.failed[-1]}"
            else:
                told = entry.told(entry.rounds[-1] if entry.rounds else {})
            print(f"round {number + 1}, {took:.0f} s: {told}", flush=True)
    print()
    for entry in entries:
        print(entry.told(entry.best()))
    for name, figures in ratios(entries).items():
        print(f"times better than {name}:", {n: round(ratio, 2) for n, ratio in figures.items()})
    reached = goals(entries)
    print()
    for title, value, bound, met in reached:
        print(f"{'ok  ' if met else 'MISS'}  {title}: {value:.2f} (goal {bound:g})")
    folder = PUBLISHED if asked.publish else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(document(entries, fsyncs, load), indent=2) + "\n")
    try:
        draw(entries, folder / "tasks.svg")
    except PicturesUnavailable as reason:
        print(reason)
    print(f"\nfsyncs a second, one by one: {fsyncs:,.0f}; results in {folder}")
    return 0 if asked.quick or all(met for *_, met in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
