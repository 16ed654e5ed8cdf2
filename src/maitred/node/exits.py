"""The exit statuses of `maitred up` and of the processes of a node."""

from __future__ import annotations

from typing import Final

FINISHED: Final = 0
CANNOT_START: Final = 1
BAD_INPUT: Final = 2
CUT_OFF: Final = 4
FORCED: Final = 128
"""Plus the number of the signal, as shells report it."""

MEANINGS: Final = (
    ("0", "stopped, and everything under way was finished"),
    ("1", "could not start here: an address in use, a directory that cannot be written"),
    ("2", "bad input: an option or a setting that cannot be used"),
    ("3", "a shard kept dying"),
    ("4", "stopped, and some work was cut off when drain_seconds were over"),
    ("130, 143", "forced by a second signal (SIGINT, SIGTERM)"),
)
