"""How soon the knee of a back end is followed, for many sizes and seeds: docs/capacity.md has it.

    python -m tests.balancing.knee_study 2000 2040 2 4 8 32 128

The seeds, from and to, and how many are served at a time. Takes four minutes.
"""

from __future__ import annotations

import sys
from math import ceil

from tests.balancing.test_workers_knee import LOOK_SECONDS, MEAN_SECONDS, SMALL_MEAN_SECONDS, Hidden

SMALL_MOST = 8
"""Up to this size, a query takes as long as in the tests of small back ends."""
GIVEN_UP_SECONDS = 90.0
DEMANDS = (0.1, 0.7, 0.3, 0.05, 0.8)
"""Shares of the capacity, one after the other."""


def followed(back_end: Hidden) -> float:
    """How long it takes until the limit is about right, and stays so for a second."""
    permits = back_end.permits
    least, most = ceil(0.75 * permits), max(permits + 2, ceil(1.6 * permits))
    began = since = back_end.now
    while back_end.now < since + 1.0 and since < began + GIVEN_UP_SECONDS:
        back_end.run(LOOK_SECONDS)
        if not least <= back_end.prober.knee <= most:
            since = back_end.now
    return since - began


def one(permits: int, seed: int) -> dict[str, float]:
    back_end = Hidden(permits, seed)
    back_end.mean = SMALL_MEAN_SECONDS if permits <= SMALL_MOST else MEAN_SECONDS
    found: dict[str, float] = {"found": followed(back_end)}
    back_end.run(20.0)
    found["throughput"] = back_end.run(30.0)
    for name, share in (("half", 2), ("fifth", 5)):
        back_end.permits = max(1, permits // share)
        found[name] = followed(back_end)
        back_end.run(10.0)
        back_end.permits = permits
        found[f"back from {name}"] = followed(back_end)
        back_end.run(10.0)
    back_end.mean *= 2.0
    found["throughput, slower"] = back_end.run(5.0)
    back_end.mean /= 2.0
    back_end.run(15.0)
    before = lowest = back_end.prober.knee
    for demand in DEMANDS:
        back_end.run(2.0, demand=max(1, round(demand * permits)))
        lowest = min(lowest, back_end.prober.knee)
    found["limit, less demand"] = lowest / before
    return found


def main() -> None:
    first, last, *sizes = (int(word) for word in sys.argv[1:])
    print("| at a time | what | median | 90 % | worst |\n|---|---|---|---|---|")
    for permits in sizes:
        rows = [one(permits, seed) for seed in range(first, last)]
        for what in rows[0]:
            shares = "t, " in what or what.startswith("throughput")
            values = sorted((row[what] for row in rows), reverse=shares)
            middle, most, worst = (values[int(at * (len(values) - 1))] for at in (0.5, 0.9, 1.0))
            print(f"| {permits} | {what} | {middle:.2f} | {most:.2f} | {worst:.2f} |", flush=True)


if __name__ == "__main__":
    main()
