"""Throughput against the bound over time, each policy a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contest.policies import OURS, RIVALS
from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.contest.results import Contest

STYLES = ("-", "--")


def draw(contest: Contest, path: Path) -> None:
    ours = [name for name in contest.rows if name in OURS]
    rivals = [name for name in contest.rows if name in RIVALS]
    others = [name for name in contest.rows if name not in OURS and name not in RIVALS]
    plots = [
        (title, [*ours, *names])
        for title, names in (
            ("beside HAProxy and nginx", rivals),
            ("beside other policies", others),
        )
        if names
    ] or [("ours", ours)]
    with picture(path, 11, 3.6 * len(plots) + 0.4) as figure:
        rows = figure.subplots(len(plots), 1, squeeze=False)
        for (axes,), (title, names) in zip(rows, plots, strict=True):
            _over_time(axes, contest, title, names)


def _over_time(axes: Any, contest: Contest, title: str, names: list[str]) -> None:  # noqa: ANN401
    scale = contest.scale
    for number, name in enumerate(names):
        curve = contest.curve(name)
        step = scale.phase_seconds * len(scale.phases) / len(curve)
        axes.plot(
            [step * (at + 0.5) for at in range(len(curve))],
            curve,
            color=COLOURS[number % len(COLOURS)],
            linestyle=STYLES[number // len(COLOURS) % len(STYLES)],
            linewidth=1.4 if name in OURS else 0.9,
            label=f"{name}: {100 * contest.share(name):.1f} %{', void' * bool(contest.void(name))}",
        )
    best = scale.bounds(min(map(contest.delay, names)))
    edges = [number * scale.phase_seconds for number in range(len(best) + 1)]
    axes.stairs(best, edges, color="grey", linewidth=2, alpha=0.5, label="the bound")
    axes.set_xlabel("seconds")
    axes.set_ylabel("good answers a second")
    axes.set_title(f"the contest for real ({scale.name} run), {title}")
    axes.set_ylim(bottom=0.6 * min(best))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7, ncols=4)
