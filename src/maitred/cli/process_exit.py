"""How a command that serves ends its process: with what it has said written out, and at once."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from maitred.node.exits import FORCED


def forced(number: int) -> None:
    """End the process because a second signal came."""
    leave(FORCED + number)


def leave(status: int) -> None:
    """End the process without waiting for threads: one that never ends must not keep it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
