"""The overview before a real node, from nothing to the first task: how soon the page shows it."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from maitred.gateway.http.live import pause_after
from tests.console.conftest import WAIT_MS, tab
from tests.console.stage import Stage
from tests.console.test_real_node import add
from tests.console.world import World
from tests.node.nodes import running_node

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUICK_LOOK = 0.01
"""Seconds that a look at a node with few queues takes at most, on a machine that is not busy."""


class Looks(Stage):
    """A gateway before a real node, whose page looks at the node when the test lets it."""

    def __init__(self, node: str) -> None:
        super().__init__(World(0.0), users=False, node=node)
        self._changed = threading.Condition()
        self._steps: list[str] = []
        """What the page did: asked for the namespaces, looked at the queues, or began to."""
        self._held = False
        self._gate = asyncio.Semaphore(0)

    async def _start(self) -> None:
        await super()._start()
        self._gateway.connect()
        await self._gateway.reaches_shards.wait()

    def _replace(self) -> None:
        views = self.listener._live._views
        real = views.by_handler["list_queues"]

        async def list_queues(caller: Any, params: dict[str, Any], *values: Any) -> Any:  # noqa: ANN401
            if params.get("most") == 1:
                answer = await real(caller, params, *values)
                self._did("asked for the namespaces")
                return answer
            if self._held:
                self._did("began to look")
                await self._gate.acquire()
            answer = await real(caller, params, *values)
            self._did("looked")
            return answer

        views.by_handler["list_queues"] = list_queues

    def _did(self, step: str) -> None:
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()

    def _until(self, *steps: str) -> None:
        """Wait until the page has done this, one after the other, whatever it did between."""

        def done() -> bool:
            found = iter(self._steps)
            return all(step in found for step in steps)

        with self._changed:
            assert self._changed.wait_for(done, WAIT_MS / 1_000), self._steps

    def hold_looks(self) -> None:
        """Hold each look from the next one on, which has begun when this returns."""
        # A shard uses an order of its queues for a second. The namespaces, which a page asks for
        # when it is opened, may have brought the one that the look after them sees.
        self._until("asked for the namespaces", "looked")
        self._held = True
        self._until("began to look")

    def let_one_look(self) -> None:
        """Let the look that was held go on."""
        self.call(self._gate.release)


def test_the_first_task_is_on_an_open_page_after_one_look(browser: Browser) -> None:
    with running_node(shards=1) as node, Looks(node.url) as looks, tab(browser, looks.url) as one:
        page = one.page
        with page.expect_request(re.compile(r"/v1/live\?")) as asked:
            page.goto(f"{looks.url}/console")
        one.sees("There are no queues yet: the first task makes one.")
        looks.hold_looks()
        add(looks.url, 1)
        assert page.get_by_text("shop/mail").count() == 0
        looks.let_one_look()
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="shop/mail"))
        row.get_by_role("cell", name="1", exact=True).wait_for()  # it waits
        # The next look begins after this pause, so the page shows a task within a second.
        interval = float(parse_qs(urlsplit(asked.value.url).query)["interval"][0])
        assert pause_after(QUICK_LOOK, interval, is_whole=True) <= 1.0
