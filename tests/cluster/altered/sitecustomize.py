"""Alters each interpreter that finds this directory in PYTHONPATH, before it runs anything.

Environment:

- `ALTERED_VERSIONS`: the only versions of the protocol that the process speaks, such as `3,4`.
- `ALTERED_CLOCK`: how many seconds its wall clock is ahead of the machine's.

A node hands its environment on to its processes, so the whole node is altered, and nothing in the
product has to know of it.
"""

import os
import time

_versions = os.environ.get("ALTERED_VERSIONS")
if _versions:
    from maitred.protocol import description

    description.VERSIONS = tuple(map(int, _versions.split(",")))  # type: ignore[assignment, misc]

_ahead = float(os.environ.get("ALTERED_CLOCK") or 0)
if _ahead:
    _right = time.time
    time.time = lambda: _right() + _ahead
