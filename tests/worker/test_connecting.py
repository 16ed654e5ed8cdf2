"""A worker looks for its node for as long as looking may help, and no longer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from maitred import logs
from maitred.errors import MaitredError, RetryAdvice
from maitred.protocol.refusals import CLASSES
from maitred.worker import process

if TYPE_CHECKING:
    from maitred.app.app import App

FOUND = object()


class UnluckyApp:
    """Fails to connect once, and is connected at the second try."""

    def __init__(self, problem: MaitredError) -> None:
        self._problems = [problem]

    async def session(self) -> object:
        if self._problems:
            raise self._problems.pop()
        return FOUND


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.code)
def test_a_worker_tries_again_unless_its_error_says_that_it_is_pointless(
    kind: type[MaitredError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CONNECT_PAUSE_SECONDS", 0.0)

    async def look() -> object:
        app = cast("App", UnluckyApp(kind("It went wrong.")))
        return await process._connected(app, asyncio.Event(), logs.silent())

    if kind.retry is RetryAdvice.NO:
        with pytest.raises(kind):
            asyncio.run(look())
    else:
        assert asyncio.run(look()) is FOUND
