"""All benchmarks: `make bench`. Fails if a goal is missed.

`python -m benchmarks --publish` writes to where docs/benchmarks.md finds them; `--contest` adds the
contest, which takes a quarter of an hour.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks import many_queues, node, ring, simulation, tokens
from benchmarks.contest.__main__ import measure as measure_contest
from benchmarks.contest.__main__ import publish as publish_contest
from benchmarks.contest.scale import SHORT
from benchmarks.measuring import PUBLISHED, RESULTS, Result, report
from benchmarks.queries.__main__ import measure as measure_queries
from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    folder = PUBLISHED if "--publish" in sys.argv[1:] else RESULTS
    results: list[Result] = []
    for name, benchmark in (
        ("ring", ring),
        ("tokens", tokens),
        ("simulation", simulation),
        ("node", node),
        ("many_queues", many_queues),
    ):
        print(f"\n{name}", flush=True)
        measured = benchmark.measure()
        report(name, measured, folder)
        results += measured
    print("\nqueries", flush=True)
    for section in measure_queries(folder).values():
        results += section.results
    if "--contest" in sys.argv[1:]:
        print("\ncontest", flush=True)
        contest = measure_contest(SHORT)
        publish_contest(contest, folder)
        results += contest.results()
    draw(results, folder / "benchmarks.svg")
    missed = [result for result in results if not result.met]
    print(f"\n{len(results) - len(missed)} of {len(results)} goals met; results in {folder}")
    return 1 if missed else 0


def draw(results: list[Result], path: Path) -> None:
    """How far beyond its goal each figure is; 1 is just met."""
    colours = [COLOURS[0] if result.met else COLOURS[5] for result in results]
    with picture(path, 11, 0.45 * len(results) + 1.2) as figure:
        plot = figure.subplots()
        bars = plot.barh(range(len(results)), [r.beyond for r in results], color=colours)
        plot.bar_label(bars, [f"{r.ratio:.2f}" for r in results], padding=3)
        plot.set_yticks(range(len(results)), [r.name for r in results])
        plot.invert_yaxis()
        plot.axvline(1, color="black", linestyle="--", linewidth=1)
        plot.set_xscale("log")
        plot.margins(x=0.12)
        plot.set_xlabel("times better than the goal (labels: the ratio)")
        plot.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
