"""Detects that a file has changed, at the cost of one `stat`."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """Return a value that changes with the file; None if the file does not exist."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
