"""What the tests of the studies share."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from matplotlib.figure import Figure


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Figure]]:
    """Lets a module draw its pictures to figures, which it collects, instead of to files.

    Everything is drawn as for a file, so that whatever cannot be drawn fails, but neither laid out
    nor written, which takes two thirds of the time. `test_commands.py` writes a real file with each
    study.
    """
    from matplotlib.figure import Figure  # late: every process would import it to collect tests

    def sketched(module: str) -> list[Figure]:
        figures: list[Figure] = []

        @contextmanager
        def picture(_path: Path, width_inches: float, height_inches: float) -> Iterator[Any]:
            figure = Figure(figsize=(width_inches, height_inches))
            yield figure
            figure.draw_without_rendering()
            figures.append(figure)

        monkeypatch.setattr(f"{module}.picture", picture)
        return figures

    return sketched
