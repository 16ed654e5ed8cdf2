"""An app with one handler, which blocks the loop of its worker."""

from __future__ import annotations

import time
from pathlib import Path

import maitred

app = maitred.App("shop")


@app.handler("blocking", retries=0)
async def block(gate: str) -> None:
    """Wait, without `await`, until the test makes the file."""
    while not Path(gate).exists():  # noqa: ASYNC240 - that is the point
        time.sleep(0.01)  # noqa: ASYNC251 - likewise
