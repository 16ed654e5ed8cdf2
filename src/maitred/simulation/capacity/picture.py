"""The picture of a plan: how many wait how long, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.simulation.capacity.plan import CapacityPlan

POINTS_MAX: Final = 1_000
"""Points of one run: more of them cannot be told apart, and make a large file."""

COLOUR_OF: Final = {"one fewer": COLOURS[5], "as asked": COLOURS[0], "one more": COLOURS[2]}


def draw(plan: CapacityPlan, path: Path) -> None:
    """Draw the share that waits longer on the left, and waits by time of arrival on the right."""
    with picture(path, 10, 4) as figure:
        shares, moments = figure.subplots(1, 2)
        for name, run in plan.runs.items():
            label = f"{run.workers_in_words}, {name}"
            waits = sorted(wait for _, wait in run.points)
            every = max(1, len(waits) // POINTS_MAX)
            longer = [1 - at / len(waits) for at in range(len(waits))]
            shares.plot(waits[::every], longer[::every], color=COLOUR_OF[name], label=label)
            _points(moments, run.points, COLOUR_OF[name])
        shares.set_yscale("log")
        shares.axhline(0.01, color="#BBBBBB", linewidth=0.8, linestyle="--")
        shares.set_title(f"share of {plan.settings.work} that wait longer (dashed: 1 %)")
        shares.set_xlabel("wait in seconds")
        shares.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        shares.legend(frameon=False, fontsize=8)
        moments.set_title("wait by time of arrival")
        moments.set_xlabel("seconds since the first arrival")
        moments.set_ylabel("wait in seconds")
        for axes in (shares, moments):
            axes.grid(alpha=0.3)
            axes.set_xlim(left=0)
        moments.set_ylim(bottom=0)


def _points(axes: Any, points: tuple[tuple[float, float], ...], colour: str) -> None:  # noqa: ANN401 - matplotlib's
    every = max(1, len(points) // POINTS_MAX)
    shown = points[::every]
    axes.plot(
        [moment for moment, _ in shown],
        [wait for _, wait in shown],
        color=colour,
        marker=".",
        markersize=2,
        linestyle="none",
    )
