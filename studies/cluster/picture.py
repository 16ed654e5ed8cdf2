"""The picture of the cluster study: three panels over the number of nodes."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from maitred.simulation.pictures import COLOURS, picture
from studies.cluster.settings import CHANGES

if TYPE_CHECKING:
    from pathlib import Path

    from studies.cluster.report import ClusterStudy


def draw(study: ClusterStudy, path: Path) -> None:
    """Draw the study into a PNG or SVG file."""
    with picture(path, 13, 3.9) as figure:
        axes = figure.subplots(1, 3)
        if study.membership:
            _draw_load(axes[0], study)
            _draw_changes(axes[1], study)
        if study.spreads:
            _draw_moves(axes[2], study)
        for one in axes:
            one.set_xscale("log")
            one.set_xticks(study.settings.sizes, [str(size) for size in study.settings.sizes])
            one.set_xlabel("nodes")
            one.set_yscale("log")
            one.legend(fontsize=8)


def _draw_load(axes: Any, study: ClusterStudy) -> None:  # noqa: ANN401
    names = {"statements": "statements", "rows_read": "rows read", "messages": "messages"}
    for number, (name, label) in enumerate(names.items()):
        means = [
            fmean(getattr(run, name) for run in study.membership if run.nodes == size)
            for size in study.settings.sizes
        ]
        axes.plot(study.settings.sizes, means, "o-", color=COLOURS[number], label=label)
    axes.set_ylabel("per second, whole cluster")
    axes.set_title("membership while no node changes")


def _draw_changes(axes: Any, study: ClusterStudy) -> None:  # noqa: ANN401
    kinds = [kind for kind in CHANGES if kind in study.settings.changes]
    for number, kind in enumerate(kinds):
        worst = [
            max(
                change.everywhere_seconds
                for run in study.membership
                if run.nodes == size
                for change in run.changes
                if change.kind == kind
            )
            for size in study.settings.sizes
        ]
        axes.plot(study.settings.sizes, worst, "o-", color=COLOURS[number], label=kind)
    axes.set_ylabel("seconds, at most")
    axes.set_title("until the view is everywhere")


def _draw_moves(axes: Any, study: ClusterStudy) -> None:  # noqa: ANN401
    for number, (placement, batch_size) in enumerate(study.settings.placements):
        moved = [
            100 * one.moved_by_loss / one.partitions
            for one in study.spreads
            if (one.placement, one.batch_size) == (placement, batch_size)
        ]
        label = f"{placement}, batch {batch_size}" if batch_size else "basic"
        axes.plot(study.settings.sizes, moved, "o-", color=COLOURS[number], label=label)
    axes.set_ylabel("% of partitions")
    axes.set_title("moved when one node is lost")
