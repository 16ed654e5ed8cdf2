"""How a command that serves ends its process: with its output written, and at once."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from maitred.node.exits import FORCED

if TYPE_CHECKING:
    from collections.abc import Iterable


def exit_statuses(meanings: Iterable[tuple[str, str]]) -> str:
    """Return the end of a help text: each exit status of the command, and its meaning."""
    return "\b\nExit status:\n" + "\n".join(f"  {status:<9} {text}" for status, text in meanings)


def forced(number: int) -> None:
    """End the process because a second signal came."""
    leave(FORCED + number)


def leave(status: int) -> None:
    """End the process without joining its threads: one that hangs must not keep it alive."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
