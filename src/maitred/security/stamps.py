"""Has a file changed? A look that costs one `stat`."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """What tells one state of the file from another; None while there is none."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
