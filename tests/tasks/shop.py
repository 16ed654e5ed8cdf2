"""The app that real workers serve in these tests; its handlers write down each run.

A line is one `write` to a file that is opened for appending, so it is whole or not there, and is
there even if the process is killed right after it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final

import maitred

JOURNAL_VARIABLE: Final = "SHOP_JOURNAL"
MANY: Final = 1_000
"""Retries, for tasks that are to outlive any number of lost workers."""

app = maitred.App("shop")
_files: dict[str, int] = {}


def note(what: str, number: int) -> None:
    """One line: what, which, the attempt, by whom, when, and the task's id."""
    path = os.environ.get(JOURNAL_VARIABLE)
    if path is None:
        return
    if path not in _files:
        _files[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    attempt = maitred.current()
    who_and_when = f"{os.getpid()} {time.time():.3f}"
    line = f"{what} {number} {attempt.number} {who_and_when} {attempt.task_id}\n"
    os.write(_files[path], line.encode())


@app.handler("orders", retries=MANY, backoff=(0.05, 0.2), retention=600)
async def order(number: int, seconds: float = 0.0) -> int:
    """On the loop."""
    note("began", number)
    if seconds:
        await asyncio.sleep(seconds)
    note("ended", number)
    return number


@app.handler("prints", retries=MANY, backoff=(0.05, 0.2))
def printed(number: int, seconds: float = 0.0) -> int:
    """In a thread."""
    note("began", number)
    if seconds:
        time.sleep(seconds)
    note("ended", number)
    return number


@app.handler("big", retries=MANY)
async def big(number: int, text: str) -> int:
    """With a payload as large as the test likes."""
    note("began", number)
    note("ended", number)
    return len(text)


@app.handler("gated", retries=MANY, backoff=(0.05, 0.2))
async def gated(number: int, gate: str) -> int:
    """Runs until the test makes the file `gate`."""
    note("began", number)
    try:
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the test is another process
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled", number)
        raise
    note("ended", number)
    return number


@app.handler("gated-threads", retries=MANY, backoff=(0.05, 0.2))
def gated_thread(number: int, gate: str) -> int:
    """The same in a thread, which looks now and then whether it should stop."""
    note("began", number)
    while not Path(gate).exists():
        if maitred.current().cancelled:
            note("cancelled", number)
            raise RuntimeError("stopped")
        time.sleep(0.01)
    note("ended", number)
    return number


@app.handler("failing", retries=1, backoff=0.01)
async def fail(number: int) -> int:
    """Raises, whatever it is given."""
    note("began", number)
    raise ValueError(f"not {number}")


@app.handler("unwritable", retries=0)
async def unwritable(number: int) -> Any:  # noqa: ANN401 - that is the point
    """Returns a value that cannot be serialised, or one that is too large."""
    note("began", number)
    return "x" * number if number else object()


@app.handler("endless", retries=0, timeout=0.2)
async def endless(number: int) -> None:
    """Never returns."""
    note("began", number)
    try:
        await asyncio.Event().wait()
    finally:
        note("cancelled", number)


@app.handler("endless-threads", retries=0, timeout=0.2)
def endless_thread(number: int, gate: str) -> None:
    """Does not return before the test makes the file, whatever it is told."""
    note("began", number)
    while not Path(gate).exists():
        time.sleep(0.01)
    note("ended", number)


@app.handler("versioned", retries=0)
async def versioned(number: int, colour: str = "red") -> str:
    """`old_shop.py` has an older one."""
    return f"{number} in {colour}"


@app.handler("unserved")
async def unserved(number: int) -> int:
    """No worker serves it, unless a test starts one."""
    note("began", number)
    note("ended", number)
    return number
