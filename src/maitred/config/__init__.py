"""The settings of a node from a file, the environment and the command line, checked."""

from maitred.config.checks import check, cores
from maitred.config.sources import Loaded, load, load_with_sources, telemetry_settings
from maitred.schema import Row, rows
from maitred.security.hosts import is_loopback

__all__ = [
    "Loaded",
    "Row",
    "check",
    "cores",
    "describe",
    "is_loopback",
    "load",
    "load_with_sources",
    "telemetry_settings",
]


def describe() -> list[Row]:
    """Return every setting with its type, its default and the reason for it."""
    return list(rows())
