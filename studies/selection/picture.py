"""The study as a picture: the scenarios above, the sweeps below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.simulation.pictures import picture
from studies.selection.report import ratio_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from studies.selection.report import SelectionStudy, SweepCell

# Okabe and Ito's colours, which also the colour-blind can tell apart; markers differ as well.
MODES = {
    "off": ("no tree", "#999999", "s"),
    "on": ("tree", "#D55E00", "o"),
    "home": ("tree, polls keep listening at home", "#0072B2", "D"),
}
LINES = (
    ("#000000", "o", 4),
    ("#E69F00", "s", 8),  # larger, for the next one covers it
    ("#56B4E9", "^", 5),
    ("#CC79A7", "D", 5),
    ("#661100", "v", 5),
)
IDEAL = "#009E73"


def draw(study: SelectionStudy, path: Path) -> None:
    """Draw the study into a PNG or SVG file."""
    lower = _lower_panels(study)
    with picture(path, 11, 7.2 if lower else 3.8) as figure:
        _fill(figure, study, lower)


def _lower_panels(study: SelectionStudy) -> list[Callable[[Any], None]]:
    """Those of the sweeps for which there is something to draw."""
    panels: list[Callable[[Any], None]] = []
    if not study.sweep:
        return panels
    threshold = [
        (cell, ratio)
        for cell in study.sweep
        if cell.setting == "threshold"
        and cell.backlog
        # Without a wait in the single queue there is nothing to compare with.
        and (ratio := ratio_of(cell.mean("mean_ms"), cell.mean("ideal_mean_ms")))
    ]
    if threshold:
        panels.append(lambda axes: _draw_threshold(axes, threshold))
    clients = [cell for cell in study.sweep if cell.setting == "clients"]
    if clients:
        panels.append(lambda axes: _draw_clients(axes, study, clients))
    waiting = [
        (mode, shares)
        for mode in study.settings.modes
        if (cell := study.cell("stable", "round-robin", mode)) is not None
        and any(shares := cell.waiting())
    ]
    if waiting:
        panels.append(lambda axes: _draw_waiting(axes, waiting))
    return panels


def _fill(
    figure: Any,  # noqa: ANN401 - matplotlib has no types
    study: SelectionStudy,
    lower: Sequence[Callable[[Any], None]],
) -> None:
    scenarios = study.settings.scenarios
    if lower:
        above, below = figure.subfigures(2, 1, height_ratios=(1.1, 1.0), hspace=0.04)
    else:
        above, below = figure, None
    handles: dict[str, Any] = {}
    panels = above.subplots(1, len(scenarios), squeeze=False)[0]
    for number, (axes, scenario) in enumerate(zip(panels, scenarios, strict=True)):
        handles |= _draw_scenario(axes, study, scenario, first=number == 0)
    above.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
    )
    if below is not None:
        for axes, draw_panel in zip(
            below.subplots(1, len(lower), squeeze=False)[0], lower, strict=True
        ):
            draw_panel(axes)


def _draw_scenario(
    axes: Any,  # noqa: ANN401
    study: SelectionStudy,
    scenario: str,
    *,
    first: bool,
) -> dict[str, Any]:
    algorithms = study.settings.algorithms
    modes = study.settings.modes
    handles = {}
    shown: list[float] = []
    for offset, mode in enumerate(modes):
        label, colour, marker = MODES[mode]
        cells = [study.cell(scenario, name, mode) for name in algorithms]
        shown += [cell.mean("mean_ms") for cell in cells if cell]
        heights = [place + 0.22 * (offset - (len(modes) - 1) / 2) for place in range(len(cells))]
        handles[label] = axes.errorbar(
            [cell.mean("mean_ms") for cell in cells if cell],
            heights,
            xerr=[
                _inside(cell.mean("mean_ms"), cell.interval("mean_ms")) for cell in cells if cell
            ],
            fmt=marker,
            color=colour,
            markersize=5,
            capsize=2,
            linewidth=1,
        )
    ideal = study.cell(scenario, algorithms[0], modes[0])
    if ideal is not None:
        shown.append(ideal.mean("ideal_mean_ms"))
        handles["single queue (nothing can beat it)"] = axes.axvline(
            ideal.mean("ideal_mean_ms"), color=IDEAL, linestyle="--", linewidth=1.5
        )
    axes.set_xscale(**_scale(shown))
    axes.margins(x=0.12)
    axes.minorticks_off()
    ticks = _ticks(*axes.get_xlim())
    axes.set_xticks(ticks, [_milliseconds(tick) for tick in ticks])
    axes.set_title(scenario.replace("-", " "))
    axes.set_xlabel("mean wait of a task")
    axes.set_yticks(range(len(algorithms)), algorithms if first else [""] * len(algorithms))
    axes.set_ylim(len(algorithms) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    return handles


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis; if there is a 0, which has no logarithm, one that is linear next to it.

    Nobody waits in a queue with enough pollers, so a 0 is nothing odd.
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return {"value": "linear"}
    if len(positive) == len(values):
        return {"value": "log"}
    return {"value": "symlog", "linthresh": min(positive)}


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or if too few of them are in sight, 1, 2 and 5 times these; and 0."""
    powers = [10.0**exponent for exponent in range(-9, 13)]
    ticks = [power for power in powers if low <= power <= high]
    if len(ticks) < 2:
        ticks = [p * by for p in powers for by in (1, 2, 5) if low <= p * by <= high]
    if not ticks:
        ticks = [float(f"{high:.2g}")]
    return [0.0, *ticks] if low <= 0 else ticks


def _milliseconds(value: float) -> str:
    return f"{value:g} ms" if value < 1_000 else f"{value / 1_000:g} s"


def _inside(mean: float, interval: float) -> float:
    """An error bar that stays above 0, as a logarithmic axis needs it."""
    return min(interval, 0.95 * mean)


def _draw_threshold(
    axes: Any,  # noqa: ANN401
    ratios: Sequence[tuple[SweepCell, float]],
) -> None:
    values = list(dict.fromkeys(cell.value for cell, _ in ratios))
    for (colour, marker, size), value in zip(LINES, values, strict=False):
        line = [(cell.backlog, ratio) for cell, ratio in ratios if cell.value == value]
        axes.plot(
            [backlog for backlog, _ in line],
            [ratio for _, ratio in line],
            color=colour,
            marker=marker,
            markersize=size,
            linewidth=1.2,
            linestyle="--" if value is None else "-",
            label="round robin" if value is None else f"threshold {value:g}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [1, 2, 3, 5, 10, 20]
    if max(ratio for _, ratio in ratios) > 50:
        ticks = [1, 10, 100, 1_000, 10_000]
    axes.set_yticks(ticks, [f"{tick:,}" if tick > 999 else str(tick) for tick in ticks])
    axes.minorticks_off()
    backlogs = sorted({cell.backlog for cell, _ in ratios})
    axes.set_xticks(backlogs, [f"{backlog:,}" for backlog in backlogs])
    axes.set_title("weighted: when to follow a backlog")
    axes.set_xlabel("tasks in the backlog of one partition")
    axes.set_ylabel("mean wait / single queue's")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _draw_clients(
    axes: Any,  # noqa: ANN401
    study: SelectionStudy,
    cells: Sequence[SweepCell],
) -> None:
    """What it costs that a client knows only its own polls."""
    for algorithm, style in (("round-robin", "-"), ("fewest-polls", ":")):
        if algorithm not in {cell.algorithm for cell in cells}:
            continue
        for mode in study.settings.modes:
            line = [c for c in cells if (c.algorithm, c.forwarding) == (algorithm, mode)]
            _, colour, marker = MODES[mode]
            axes.plot(
                [cell.value for cell in line],
                [cell.mean("mean_ms") for cell in line],
                linestyle=style,
                color=colour,
                marker=marker,
                markersize=5,
                linewidth=1.4,
            )
        axes.plot([], [], linestyle=style, color="#000000", label=algorithm)
    axes.set_xscale("log")
    axes.set_yscale(**_scale([cell.mean("mean_ms") for cell in cells]))
    axes.minorticks_off()
    clients = sorted({cell.value for cell in cells if cell.value})
    axes.set_xticks(clients, [f"{count:g}" for count in clients])
    ticks = _ticks(*axes.get_ylim())
    axes.set_yticks(ticks, [_milliseconds(tick) for tick in ticks])
    axes.set_title("stable: pollers split over clients")
    axes.set_xlabel("client processes")
    axes.set_ylabel("mean wait of a task")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _draw_waiting(
    axes: Any,  # noqa: ANN401
    waiting: Sequence[tuple[str, list[float]]],
) -> None:
    """U_i by partition: is it 1/N, as the argument for even polls assumes?"""
    shown = len(waiting[0][1])
    for mode, shares in waiting:
        _, colour, marker = MODES[mode]
        axes.plot(range(shown), shares, marker=marker, color=colour, linewidth=1.2, markersize=5)
    axes.axhline(1 / shown, color=IDEAL, linestyle="--", linewidth=1.5)
    axes.text(1.01, 1 / shown, "1/N", color=IDEAL, va="center",
              transform=axes.get_yaxis_transform())  # fmt: skip
    if shown <= 20:  # more of them would cover each other
        axes.set_xticks(range(shown))
    axes.set_ylim(bottom=0)
    axes.set_title("stable, round robin: where tasks wait")
    axes.set_xlabel("partition written to (0 is the root)")
    axes.set_ylabel("share of all waiting")
    axes.grid(alpha=0.3)
