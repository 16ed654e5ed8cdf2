"""Pictures of a run: how fast, and how the short queries fared among the long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.queries import echo, http, mix, stream
from benchmarks.queries.queues import SLOTS
from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.queries.running import Section

NAMES = (echo.AWAITED, echo.OURS, echo.GRPC, echo.NATS)


def draw_speed(sections: Mapping[str, Section], path: Path) -> None:
    """Bars of ours beside those of the peers, a plot a section that has run."""
    plots: list[tuple[str, dict[str, float], frozenset[str]]] = []
    if (found := sections.get("echo")) and found.medians:
        for in_flight, figure, title in (
            (echo.MANY, "rate", f"echo, {echo.MANY} in flight: queries/s"),
            (1, "p50 us", "echo, 1 in flight: p50, us (less is better)"),
        ):
            values = {
                name: found.medians[key][figure]
                for name in NAMES
                if (key := echo.key(name, in_flight)) in found.medians
            }
            plots.append((title, values, frozenset({echo.OURS})))
    if (found := sections.get("http")) and found.medians:
        values = {name: found.medians[name]["rate"] for name in (http.BARE, http.OURS)}
        title = f"HTTP, {http.CONNECTIONS:,} connections: requests/s"
        plots.append((title, values, frozenset({http.OURS})))
    if (found := sections.get("stream")) and found.medians:
        row = stream.ROWS[0]
        values = {
            name: found.medians[key]["MB/s"]
            for name in (stream.BARE, stream.OURS, stream.DOOR)
            if (key := stream.key(name, row)) in found.medians
        }
        title = "a result of 100 MB, streamed: MB/s"
        plots.append((title, values, frozenset({stream.OURS, stream.DOOR})))
    if not plots:
        return
    with picture(path, 10, 1.7 * ((len(plots) + 1) // 2) + 0.4) as figure:
        for number, (title, values, ours) in enumerate(plots):
            _bars(figure.add_subplot((len(plots) + 1) // 2, 2, number + 1), title, values, ours)


def _bars(plot: Any, title: str, values: dict[str, float], ours: frozenset[str]) -> None:  # noqa: ANN401
    colours = [COLOURS[0 if name in ours else 4] for name in values]
    bars = plot.barh(range(len(values)), list(values.values()), color=colours)
    plot.bar_label(bars, [f"{value:,.0f}" for value in values.values()], padding=3)
    plot.set_yticks(range(len(values)), list(values))
    plot.invert_yaxis()
    plot.margins(x=0.2)
    plot.set_title(title)
    plot.set_xticks([])
    plot.spines[["top", "right", "bottom"]].set_visible(False)


def draw_mix(section: Section, path: Path) -> None:
    """Which share of the short ones takes longer than that; dashed, a world without costs."""
    rows = section.rounds[mix.CURVE]
    slower = [1 - row["share"] for row in rows]
    with picture(path, 8, 4.2) as figure:
        plot = figure.subplots()
        for number, policy in enumerate((mix.OURS, mix.LEAST, mix.TURN)):
            colour = COLOURS[(0, 1, 5)[number]]
            plot.plot([row[policy] for row in rows], slower, color=colour, label=policy)
            free = [row[f"{policy}, ideal"] for row in rows]
            plot.plot(free, slower, color=colour, linestyle="--", linewidth=0.8)
        plot.axhline(0.01, color="black", linewidth=0.6)
        plot.text(1, 0.0105, "p99", va="bottom")
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.set_ylim(0.0005, 1)
        plot.set_xlabel("ms from arrival to answer")
        plot.set_ylabel("share of 1 ms queries that take longer")
        plot.set_title(
            f"1 ms queries among 5 % of 2 s, {SLOTS} slots, {mix.LOAD:.0%} load "
            "(dashed: the same choice in a world without costs)"
        )
        plot.legend(frameon=False)
        plot.spines[["top", "right"]].set_visible(False)
