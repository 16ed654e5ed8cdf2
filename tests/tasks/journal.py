"""What was run, as the handlers of `shop.py` wrote it down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Line(NamedTuple):
    what: str
    """began, ended or cancelled."""
    number: int
    """The test's own number of the task."""
    attempt: int
    pid: int
    at: float
    """Wall-clock seconds, for people."""
    task: str

    @property
    def partition(self) -> int:
        return int(self.task.rsplit("/", 2)[1])

    @property
    def sequence(self) -> int:
        return int(self.task.rsplit("/", 2)[2])


class Journal:
    """A file; read as often as one likes, each byte once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = 0
        self._lines: list[Line] = []

    def lines(self, what: str | None = None) -> list[Line]:
        """All so far, in the order in which they were written."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        for text in whole.decode().splitlines():
            kind, number, attempt, pid, at, task = text.split(" ", 5)
            line = Line(kind, int(number), int(attempt), int(pid), float(at), task)
            self._lines.append(line)
        return [line for line in self._lines if what in (None, line.what)]

    def numbers(self, what: str) -> list[int]:
        """Of all such lines."""
        return [line.number for line in self.lines(what)]

    def ended(self) -> set[int]:
        """Which tasks ran to their end."""
        return set(self.numbers("ended"))

    def repeated(self) -> dict[int, int]:
        """How often those were begun that were begun more than once."""
        counts = Counter(self.numbers("began"))
        return {number: count for number, count in counts.items() if count > 1}

    def begun_by(self) -> dict[int, list[int]]:
        """For each task the processes that began it, in order."""
        found: dict[int, list[int]] = {}
        for line in self.lines("began"):
            found.setdefault(line.number, []).append(line.pid)
        return found
