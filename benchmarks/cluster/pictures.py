"""The requests around each disturbance, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.cluster.disturbances import Disturbed

THINNED = 5
"""Of the requests to other nodes' queues, one of so many is drawn: all of them make a file of two
megabytes, and show no more."""

KINDS = (
    ("other", COLOURS[4], ".", "queues of the other nodes (one request of five)"),
    ("affected", COLOURS[0], ".", "queues of the node"),
    ("failed", COLOURS[5], "x", "failed"),
)


def draw(found: Sequence[Disturbed], path: Path) -> None:
    """One panel per kind of disturbance, with the requests around the first of them."""
    with picture(path, 11, 2.4 * len(found) + 0.6) as figure:
        plots = figure.subplots(len(found), 1, sharex=True, squeeze=False)
        for plot, one in zip(plots[:, 0], found, strict=True):
            for kind, colour, marker, label in KINDS:
                points = [point for point in one.points if point.kind == kind]
                points = points[:: THINNED if kind == "other" else 1]
                plot.scatter(
                    [point.at for point in points],
                    [1e3 * point.seconds for point in points],
                    color=colour,
                    marker=marker,
                    s=8 if marker == "." else 20,
                    linewidths=0.8,
                    label=label,
                )
            plot.axvline(0, color="black", linestyle="--", linewidth=1)
            plot.set_yscale("log")
            plot.set_title(f"{one.name}: a request's time by when it was sent", loc="left")
            plot.set_ylabel("milliseconds")
            plot.spines[["top", "right"]].set_visible(False)
        plots[0, 0].legend(loc="upper left", frameon=False)
        plots[-1, 0].set_xlabel("seconds after the disturbance")
