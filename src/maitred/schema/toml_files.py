"""Reads TOML files; errors are sentences with a line number."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time
from pathlib import Path

from maitred.errors import InvalidSetting

FILE_BYTES = 16 * 2**20
"""Most bytes that are read: some 100,000 users. It also bounds a device that never ends."""

_PLACE = re.compile(
    r"(?P<what>.*) \(at ((?P<line>line \d+, column \d+)|end of document)\)", re.DOTALL
)


def read_toml(path: str) -> dict[str, object]:
    """Return the content of the file; dates and times become RFC 3339 text, as everywhere else."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES + 1)
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL in it
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidSetting(
            f"The file {path} cannot be read: {reason}.",
            remedy="Check the path, and who may read the file.",
        ) from None
    if len(content) > FILE_BYTES:
        raise InvalidSetting(f"The file {path} is larger than {FILE_BYTES:,} bytes.")
    return parse_toml(content, path)


def parse_toml(content: bytes, path: str) -> dict[str, object]:
    """Parse bytes that were already read; errors call them `path`."""
    try:
        return {key: _plain(one) for key, one in tomllib.loads(content.decode()).items()}
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        reason = f"it is not UTF-8 (line {line})"
    except tomllib.TOMLDecodeError as problem:
        found = _PLACE.fullmatch(str(problem))
        last = f"line {len(content.splitlines())}, at the end"
        where = found["line"] or last if found else last
        reason = f"{found['what'] if found else problem} ({where})"
    except (ValueError, RecursionError):
        reason = "a number is too long, or something is nested too deep"
    raise InvalidSetting(f"The file {path} is not TOML: {reason}.")


def _plain(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
