"""Pictures of results, drawn with matplotlib if it is installed.

matplotlib is an extra: a server has no use for it. It is imported here alone, and only when a
picture is asked for, through its object interface: no window, no global state.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from maitred.errors import MaitredError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Okabe and Ito's palette: colour-blind readers can tell them apart, in print too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")


class PicturesUnavailable(MaitredError, code="pictures-unavailable"):
    """Pictures cannot be drawn, because matplotlib is not installed."""


def check_available() -> None:
    """Raise `PicturesUnavailable` now, rather than after a long run."""
    try:
        found = find_spec("matplotlib")
    except ValueError:  # it is there, but blocked or broken
        found = None
    if found is None:
        raise PicturesUnavailable(
            "Drawing a picture needs matplotlib, which is not installed.",
            remedy="Install it with pip install 'maitred[pictures]', or do without a picture.",
        )


@contextmanager
def picture(path: Path, width_inches: float, height_inches: float) -> Iterator[Any]:
    """Yield a figure, and write it after the block: PNG or SVG by the path's suffix."""
    check_available()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A fixed salt and no date: the same study gives the same file.
    with mpl.rc_context({"svg.hashsalt": "maitred", "font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
