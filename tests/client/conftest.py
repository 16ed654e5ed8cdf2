"""Both loops that people use: asyncio's own, and uvloop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Run = Callable[[Coroutine[Any, Any, None]], None]

BOUND_SECONDS = 30
"""No test waits longer for anything."""


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine, bounded."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_it(main: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(BOUND_SECONDS):
                await main

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run_it
