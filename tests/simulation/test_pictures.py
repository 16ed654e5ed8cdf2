"""Pictures: the same drawing gives the same file, and without matplotlib the remedy is told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from maitred.simulation.pictures import COLOURS, PicturesUnavailable, check_available, picture

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_same_drawing_gives_the_same_file(suffix: str, start: bytes, tmp_path: Path) -> None:
    drawn = []
    for name in ("one", "other"):
        path = tmp_path / "made" / f"{name}{suffix}"
        with picture(path, 2, 1) as figure:
            axes = figure.subplots()
            axes.plot([1, 2], [3, 4], color=COLOURS[0], label="a line")
            axes.legend()
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(start)


def test_without_matplotlib_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How Python is told that a module is not there.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PicturesUnavailable, match=r"maitred\[pictures\]"):
        check_available()
    with pytest.raises(PicturesUnavailable), picture(tmp_path / "x.svg", 1, 1):
        pass
    assert list(tmp_path.iterdir()) == []
