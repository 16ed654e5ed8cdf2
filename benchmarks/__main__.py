"""All benchmarks: `make bench`. Fails if a goal is missed."""

from __future__ import annotations

import sys

from benchmarks import ring, simulation, tokens
from benchmarks.measuring import RESULTS, Result, report
from maitred.simulation.pictures import COLOURS, picture


def main() -> int:
    results: list[Result] = []
    for name, benchmark in (("ring", ring), ("tokens", tokens), ("simulation", simulation)):
        print(f"\n{name}", flush=True)
        measured = benchmark.measure()
        report(name, measured)
        results += measured
    draw(results)
    missed = [result for result in results if not result.met]
    print(f"\n{len(results) - len(missed)} of {len(results)} goals met; results in {RESULTS.name}/")
    return 1 if missed else 0


def draw(results: list[Result]) -> None:
    """How far beyond its goal each figure is; 1 is just met."""
    beyond = [r.ratio / r.goal if r.at_least else r.goal / r.ratio for r in results]
    colours = [COLOURS[0] if r.met else COLOURS[5] for r in results]
    with picture(RESULTS / "benchmarks.svg", 11, 0.45 * len(results) + 1.2) as figure:
        plot = figure.subplots()
        bars = plot.barh(range(len(results)), beyond, color=colours)
        plot.bar_label(bars, [f"{r.ratio:.2f}" for r in results], padding=3)
        plot.set_yticks(range(len(results)), [r.name for r in results])
        plot.invert_yaxis()
        plot.axvline(1, color="black", linestyle="--", linewidth=1)
        plot.set_xscale("log")
        plot.margins(x=0.12)
        plot.set_xlabel("times better than the goal (dashed: the goal; labels: the measured ratio)")
        plot.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
