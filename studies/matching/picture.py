"""The study as a picture: the scenarios above, the sweep of the waits and limits below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from studies.matching.report import Cell, MatchingStudy

PANELS = (
    ("task_wait_seconds", "a task's wait before it is passed on"),
    ("offer_wait_seconds", "an offer's wait before it is passed on"),
    ("tasks_per_second", "tasks a partition may pass on a second"),
    ("tasks", "tasks of a partition at its parent at a time"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(study: MatchingStudy, path: Path) -> None:
    """Draw the study into a PNG or SVG file."""
    height = 1.2 + 0.2 * len(study.cells)
    with picture(path, 11, height + (3.6 if study.sweep else 0)) as figure:
        if study.sweep:
            above, below = figure.subfigures(2, 1, height_ratios=(height, 3.6), hspace=0.04)
            _draw_sweep(below, study)
        else:
            above = figure
        latency, written = above.subplots(1, 2, width_ratios=(2.4, 1.0), sharey=True)
        _draw_latency(latency, study.cells)
        _draw_written(written, study.cells)


def _draw_latency(
    axes: Any,  # noqa: ANN401 - matplotlib has no types
    cells: Sequence[Cell],
) -> None:
    places = range(len(cells))
    for metric, colour, marker, label in (
        ("p50_ms", COLOURS[4], "o", "P50"),
        ("mean_ms", COLOURS[0], "s", "mean"),
        ("p99_ms", COLOURS[5], "D", "P99"),
        ("max_ms", COLOURS[6], "|", "max"),
    ):
        means = [cell.mean(metric) for cell in cells]
        axes.errorbar(
            means,
            places,
            # A logarithmic axis ends above 0.
            xerr=[
                min(cell.interval(metric), 0.95 * mean)
                for cell, mean in zip(cells, means, strict=True)
            ],
            fmt=marker,
            color=colour,
            markersize=5,
            capsize=2,
            linewidth=1,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_yticks(places, [cell.scenario for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlabel("latency in ms, from the producer's call to the worker's start")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def _draw_written(axes: Any, cells: Sequence[Cell]) -> None:  # noqa: ANN401
    shares = [100 * cell.mean("written_share") for cell in cells]
    axes.barh(range(len(cells)), shares, color=COLOURS[2], height=0.6)
    axes.set_xlabel("tasks written, %")
    axes.set_xlim(0, 100)
    axes.grid(axis="x", alpha=0.3)


def _draw_sweep(figure: Any, study: MatchingStudy) -> None:  # noqa: ANN401
    base = {cell.scenario: cell.mean("mean_ms") for cell in study.sweep if not cell.value}
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (setting, title) in zip(panels, PANELS, strict=True):
        for number, (scenario, mean) in enumerate(base.items()):
            line = [c for c in study.sweep if (c.scenario, c.setting) == (scenario, setting)]
            axes.plot(
                [cell.value for cell in line],
                [cell.mean("mean_ms") / mean for cell in line],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                linewidth=1.2,
                label=scenario,
            )
        axes.set_yscale("log")
        axes.set_title(title, fontsize=8)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean latency / default's")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
