"""How busy processes are: CPU, and time in which they wanted it and did not get it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

Spent = dict[str, tuple[float, float]]


def spent(pids: dict[str, int]) -> Spent:
    """Seconds on the CPU, and seconds of waiting for it, of all threads, by name."""
    found = {}
    for name, pid in pids.items():
        running = waiting = 0
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                words = (task / "schedstat").read_text().split()
                running += int(words[0])
                waiting += int(words[1])
        found[name] = (running / 1e9, waiting / 1e9)
    return found


def shares(before: Spent, after: Spent, seconds: float) -> Spent:
    """Both as shares of a core."""
    return {
        name: (
            max(0.0, (after[name][0] - cpu) / seconds),
            max(0.0, (after[name][1] - waited) / seconds),
        )
        for name, (cpu, waited) in before.items()
    }
