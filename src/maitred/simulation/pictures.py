"""Pictures of results, drawn with matplotlib when it is there.

matplotlib is an extra: a server has no use for it. It is imported here alone, and only when a
picture is asked for, through its object interface: no window, no global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError

if TYPE_CHECKING:
    from pathlib import Path

# Okabe and Ito's palette: told apart by everybody, in print too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")


class PicturesUnavailable(MaitredError):
    """matplotlib is not installed."""

    code = "pictures-unavailable"


def figure(width_inches: float, height_inches: float, rows: int, columns: int) -> tuple[Any, Any]:
    """A figure and its grid of axes, always two-dimensional."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PicturesUnavailable(
            "Drawing a picture needs matplotlib, which is not installed.",
            remedy="Install it with: pip install 'maitred[pictures]'",
        ) from None
    drawing = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing, drawing.subplots(rows, columns, squeeze=False)


def save(drawing: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib has no types
    """Write the figure, PNG or SVG by its suffix; the same data gives the same bytes."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    fixed = {"Date": None} if path.suffix == ".svg" else {}
    with mpl.rc_context({"svg.hashsalt": "maitred"}):
        drawing.savefig(path, metadata=fixed, dpi=120)
