"""The picture of the placement study: a row of panels a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.simulation.pictures import COLOURS, picture
from studies.placement.study import GRADUAL_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from studies.placement.study import Cluster, PlacementStudy


def draw(study: PlacementStudy, path: Path) -> None:
    """Draw the study into a PNG or SVG file."""
    clusters = study.settings.clusters
    with picture(path, 13, 3.9 * len(clusters)) as figure:
        grid = figure.subplots(len(clusters), 3, squeeze=False)
        for axes, cluster in zip(grid, clusters, strict=True):
            _draw_movement(axes[0], study, cluster)
            _draw_balance(axes[1], study, cluster)
            _draw_gradual(axes[2], study, cluster)


def _draw_movement(axes: Any, study: PlacementStudy, cluster: Cluster) -> None:  # noqa: ANN401
    _bars(axes, study, cluster, "moved_by_loss", scale=100)
    least = 100 / cluster.hosts
    axes.axhline(least, color="grey", linestyle="--", linewidth=1)
    axes.annotate(
        f"a host holds: {least:.3g} %",
        (0.98, 0.94),
        xycoords="axes fraction",
        ha="right",
        color="grey",
    )
    axes.set_ylabel("% of partitions that move")
    axes.set_title(f"{cluster}\none host lost")


def _draw_balance(axes: Any, study: PlacementStudy, cluster: Cluster) -> None:  # noqa: ANN401
    _bars(axes, study, cluster, "queue_on_host", scale=1)
    axes.set_ylabel(f"of a queue's {study.settings.partitions_per_queue} partitions")
    axes.set_title("on the queue's fullest host")
    axes.legend(fontsize=8, title="placement", title_fontsize=8)


def _draw_gradual(axes: Any, study: PlacementStudy, cluster: Cluster) -> None:  # noqa: ANN401
    moments = [100 * step / GRADUAL_STEPS for step in range(GRADUAL_STEPS + 1)]
    for number, gradual in enumerate(g for g in study.gradual if g.cluster == cluster):
        axes.plot(
            moments,
            [100 * share for share in gradual.moved],
            color=COLOURS[number],
            marker=".",
            label=f"0 to {gradual.batch_size}, {gradual.placement}",
        )
    axes.set_xlabel("% of the change's time")
    axes.set_ylabel("% of partitions moved so far")
    axes.set_ylim(bottom=0)
    axes.set_title("a gradual change of the batch size")
    axes.legend(fontsize=8)


def _bars(axes: Any, study: PlacementStudy, cluster: Cluster, name: str, scale: float) -> None:  # noqa: ANN401
    batch_sizes = study.settings.batch_sizes
    placements = study.settings.placements
    width = 0.8 / len(placements)
    for number, placement in enumerate(placements):
        found = {
            one.batch_size: getattr(one, name) * scale
            for one in study.measured
            if one.cluster == cluster and (one.placement == placement or not one.batch_size)
        }
        positions = [
            at + (number - (len(placements) - 1) / 2) * width for at in range(len(batch_sizes))
        ]
        bars = axes.bar(
            positions,
            [found[size] for size in batch_sizes],
            width,
            color=COLOURS[number],
            label=placement,
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=1)
    axes.set_xticks(range(len(batch_sizes)), [f"{size or 'basic'}" for size in batch_sizes])
    axes.set_xlabel("batch size")
    axes.margins(y=0.18)
    axes.spines[["top", "right"]].set_visible(False)
