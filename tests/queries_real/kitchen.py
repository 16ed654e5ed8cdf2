"""What workers serve while things are killed around them: handlers that write down their runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator  # noqa: TC003 - handlers' annotations are read
from pathlib import Path
from typing import Any

import maitred
from maitred import App
from tests.tasks.shop import note

app = App("kitchen")


@app.handler("rationed")
async def rationed(value: Any) -> Any:  # noqa: ANN401 - whatever it is
    """A queue with a rate."""
    return value


@app.handler("echo")
async def echo(value: Any = None) -> Any:  # noqa: ANN401 - whatever comes goes back
    return value


@app.handler("gated")
async def gated(number: int, gate: str) -> int:
    """Until the test makes the file `gate`."""
    note("began", number)
    try:
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the test is another process
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        note("cancelled", number)
        raise
    note("ended", number)
    return number


@app.handler("gated-threads")
def gated_thread(number: int, gate: str) -> int:
    """The same in a thread that looks whether it should stop."""
    note("began", number)
    while not Path(gate).exists():
        if maitred.current().cancelled:
            note("cancelled", number)
            return -1
        time.sleep(0.005)
    note("ended", number)
    return number


@app.handler("deaf")
def deaf(number: int, gate: str) -> int:
    """In a thread that does not care."""
    note("began", number)
    while not Path(gate).exists():
        time.sleep(0.005)
    note("ended", number)
    return number


@app.handler("stubborn")
async def stubborn(number: int, gate: str) -> int:
    """On the loop, and it does not care either."""
    note("began", number)
    while not Path(gate).exists():  # noqa: ASYNC240
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note("cancelled", number)
    note("ended", number)
    return number


@app.handler("rows")
async def rows(number: int, most: int, gate: str = "") -> AsyncIterator[int]:
    """So many, and then it waits for the gate."""
    note("began", number)
    try:
        for row in range(most):
            yield row
        while gate and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.005)
    finally:
        note("ended", number)


@app.handler("moody")
async def moody(seconds: float, number: int) -> int:
    """For those who leave at any moment."""
    if seconds:
        await asyncio.sleep(seconds)
    return number
