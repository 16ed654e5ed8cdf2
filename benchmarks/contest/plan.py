"""What the driver and the providers, processes of their own, tell each other by files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "CONTEST_FOLDER"
NUMBER = "CONTEST_PROVIDER"
"""The variables by which a provider learns where the files are, and who it is."""


class Plan(msgspec.Struct, frozen=True):
    """When which permits and means are valid, of all providers."""

    seed: int
    pools: tuple[int, ...]
    calm: tuple[tuple[int, float], ...]
    """Before it begins; of each provider permits and the mean in ms."""
    phases: tuple[tuple[tuple[int, float], ...], ...]
    phase_seconds: float

    @property
    def seconds(self) -> float:
        return len(self.phases) * self.phase_seconds


class Counts(msgspec.Struct):
    """What a provider did in a phase."""

    begun: int = 0
    slept_ms: int = 0
    """As it was drawn, all together."""
    held_seconds: float = 0.0
    """How long permits were really held."""
    waited: int = 0
    waited_seconds: float = 0.0
    refused: int = 0


class Told(msgspec.Struct):
    """What it says at the end."""

    phases: list[Counts]


def plan_file(folder: Path) -> Path:
    return folder / "plan.json"


def begin_file(folder: Path) -> Path:
    """Appears with the wall-clock time at which the first phase begins."""
    return folder / "begin"


def told_file(folder: Path, number: int) -> Path:
    return folder / f"told-{number}.json"


def write(path: Path, content: bytes) -> None:
    """All of it or nothing, for whoever looks."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)
