"""What the workers of these tests serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - read when it runs
from typing import Any

from maitred import App

app = App("default")


@app.handler("echo")
async def echo(value: Any = None) -> Any:  # noqa: ANN401 - whatever comes goes back
    return value


@app.handler("fail")
async def fail() -> None:
    raise ValueError("not today")


@app.handler("count")
async def count(many: int) -> AsyncIterator[int]:
    for number in range(many):
        yield number


@app.handler("sleep")
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"
