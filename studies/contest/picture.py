"""The study as a picture: the contest over time, and what each policy reaches in each scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.simulation.pictures import COLOURS, picture
from studies.contest.measures import BUCKET_SECONDS
from studies.contest.phases import best_per_second

if TYPE_CHECKING:
    from pathlib import Path

    from studies.contest.report import Cell, ContestStudy

STYLES = ("-", "--")


def draw(study: ContestStudy, path: Path) -> None:
    """Draw the study into a PNG or SVG file."""
    policies = list(dict.fromkeys(cell.policy for cell in study.cells))
    looks = {
        policy: (COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS)])
        for number, policy in enumerate(policies)
    }
    contest = [cell for cell in study.cells if cell.scenario == "contest"]
    with picture(path, 11, 8 if contest else 4) as figure:
        rows = figure.subplots(2 if contest else 1, 1, squeeze=False)
        if contest:
            _draw_over_time(rows[0][0], contest, looks)
        _draw_scenarios(rows[-1][0], study, looks)


def _draw_over_time(
    axes: Any,  # noqa: ANN401 - matplotlib has no types
    cells: list[Cell],
    looks: dict[str, tuple[str, str]],
) -> None:
    for cell in cells:
        colour, style = looks[cell.policy]
        tenths = cell.over_time()
        axes.plot(
            [BUCKET_SECONDS * (number + 0.5) for number in range(len(tenths))],
            [sum(runs) / len(runs) / BUCKET_SECONDS for runs in tenths],
            color=colour,
            linestyle=style,
            linewidth=1,
            label=cell.policy,
        )
    model = cells[0].model
    best = [best_per_second(p, model.connections, model.delay_seconds) for p in model.phases]
    edges = [number * model.phase_seconds for number in range(len(best) + 1)]
    axes.stairs(best, edges, color="grey", linewidth=2, alpha=0.5, label="the bound")
    axes.set_xlabel("seconds")
    axes.set_ylabel("answers a second")
    axes.set_title("the contest: throughput against the bound")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7, ncols=3)


def _draw_scenarios(
    axes: Any,  # noqa: ANN401 - matplotlib has no types
    study: ContestStudy,
    looks: dict[str, tuple[str, str]],
) -> None:
    scenarios = list(dict.fromkeys(cell.scenario for cell in study.cells))
    width = 0.8 / len(looks)
    for number, (policy, (colour, style)) in enumerate(looks.items()):
        cells = [cell for cell in study.cells if cell.policy == policy]
        axes.bar(
            [scenarios.index(cell.scenario) - 0.4 + (number + 0.5) * width for cell in cells],
            [cell.mean("percent_of_bound") for cell in cells],
            width,
            yerr=[cell.interval("percent_of_bound") for cell in cells],
            color=colour,
            hatch="//" if style == "--" else None,
            label=policy,
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(range(len(scenarios)), scenarios, rotation=20, ha="right")
    axes.set_ylim(60, 102)
    axes.set_ylabel("% of the bound (from 60)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower left")
