"""The console before a real node: from an unserved queue on the overview to the end of a task, and
while the node is killed and comes back."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import tab
from tests.node.nodes import running_node

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser


def add(http: str, number: int) -> str:
    """Add a task, and return its id."""
    request = urllib.request.Request(  # noqa: S310 - a node of this machine
        f"{http}/v1/shop/queues/mail/tasks?delay={3600 if number == 0 else 0}",
        json.dumps([f"customer-{number}"]).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - likewise
        added: str = json.loads(answer.read())["id"]
        return added


def test_an_operator_finds_an_unserved_queue_and_what_waits_there(browser: Browser) -> None:
    with running_node(shards=2, gateway=True) as node:
        http, console = node.ready["http"], node.ready["console"]
        assert console == f"{http}/console"
        delayed, *others = [add(http, number) for number in range(4)]
        with tab(browser, http) as one:
            page = one.page
            page.goto(console)
            one.sees("no worker serves it;")
            page.get_by_role("link", name="shop/mail").first.click()
            page.get_by_role("heading", level=1, name="shop/mail").wait_for()
            one.button("Pause").click()
            one.confirm("Pause", reason="looking at it")
            one.sees("looking at it")
            one.button("delayed").click()
            number = delayed.partition("mail/")[2]
            page.get_by_label(f"Select {delayed}").check()
            one.button("Run now selected").click()
            one.confirm("Run now")
            one.sees("1 task due at once.")
            one.go(f"#/tasks/{others[0]}", others[0].partition("mail/")[2])
            one.button("Cancel").click()
            one.confirm("Cancel")
            one.go("#/tasks/shop/mail?state=waiting", "shop/mail")
            one.sees(number)
            one.sees("3 tasks")
            one.go("#/queues/shop/mail", "shop/mail")
            one.button("Purge").click()
            one.confirm("Purge", typed="mail")
            one.sees("3 deleted.")
            one.button("Close").click()
            one.go("#/nodes", "Nodes")
            page.get_by_role("table", name="Shards of").first.wait_for()
            assert page.get_by_text("serving").count() == 2


def test_a_page_outlives_a_node_that_is_killed(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(shards=1, gateway=True, data=data) as node:
        http = node.ready["http"]
        add(http, 1)
        with tab(browser, http) as one:
            page = one.page
            page.goto(f"{http}/console/#/tasks/shop/mail?state=waiting")
            one.sees("1 task")
            page.evaluate("window.same = true")
            os.killpg(node.process.pid, signal.SIGKILL)
            away = page.get_by_text("Reconnecting: the gateway or its node does not answer.")
            away.wait_for()
            one.sees("1 task")
            again = ("--set", f"gateway.port={http.rpartition(':')[2]}")
            with running_node(*again, shards=1, gateway=True, port=node.port, data=data):
                away.wait_for(state="detached")
                page.get_by_role("button", name="Live").wait_for()
                add(http, 2)
                one.sees("2 tasks")
                assert page.evaluate("window.same"), "the page was loaded anew"
