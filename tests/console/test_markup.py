"""Markup, a template and an address in every field that a user or a user's program can set: each
page shows them as text, and nothing runs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.console.conftest import tab
from tests.console.world import POISON, POISON_NAME, World

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.console.conftest import Tab
    from tests.console.stage import Stage

NAME = quote(POISON_NAME, safe="")
TEXT = quote(POISON, safe="")
DEAD = "7294967296"
DONE = "8294967296"
"""Numbers of a dead letter and of a task that succeeded, in partition 0."""
WORKER = f"{3 * 2_654_435_761:032x}"
"""Session of the worker that serves the poisoned queue."""

PLACES: dict[str, tuple[str, ...]] = {
    "#/": (
        "header .user",
        "header option",
        "main > .note.warn",
        "[aria-labelledby=needs] li a",
        "[aria-labelledby=failures] li a",
        "[aria-labelledby=failures] li span",
        "[aria-labelledby=busiest] th a",
    ),
    "#/queues": ("td.main a", ".note.warn"),
    "#/queues?only=paused": ("td .badge[title]",),
    f"#/queues/shop/{NAME}": (
        "h1",
        "[aria-labelledby=its-tasks] td.low",
        "[aria-labelledby=settings] small",
        "[aria-labelledby=settings] dd[title]",
    ),
    f"#/queues/shop/{NAME}nothing": (".problem strong", ".problem"),
    "#/queues/media/mail": ("main > .note.warn",),
    f"#/queues/shop/{NAME}/new": (
        "h1 a",
        ".lead code",
        ".argument code",
        ".argument .dim",
        ".argument option",
        ".argument input[name]",
        ".argument select[aria-label]",
    ),
    "#/tasks": (".picks a", ".note.warn"),
    f"#/tasks/shop/{NAME}?state=dead&reveal=true": (
        "h1 a",
        "td.mid",
        "td .bad",
        "td .dim",
        "td.code.stretch",
        "td.low",
    ),
    f"#/tasks/shop/{NAME}?error={TEXT}&by={TEXT}&worker={TEXT}&argument={TEXT}%3D1": (
        ".chip:nth-child(1)",
        ".chip:nth-child(2)",
        ".chip:nth-child(3)",
        ".chip:nth-child(4)",
    ),
    f"#/tasks/shop/{NAME}/0/{DEAD}": (
        "h1 a",
        "dl.facts dd",
        "dl.facts dd a",
        ".lane .name small",
        "table.events td:nth-child(4)",
        "table.events td:nth-child(5)",
        "table.events td .bad",
        "table.events td .dim",
        "[aria-labelledby=arguments] pre",
        "[aria-labelledby=outcome] .problem strong",
        "[aria-labelledby=outcome] .problem",
        "[aria-labelledby=outcome] pre",
    ),
    f"#/tasks/bank/mail/0/{DONE}": ("[aria-labelledby=outcome] pre",),
    "#/dead": (".picks a", ".note.warn"),
    f"#/dead/shop/{NAME}": (
        "h1 a",
        ".groups code",
        ".groups .told",
        ".groups button[aria-label]",
    ),
    "#/workers": ("td.main a", "td.low a", "td .cell[title]", "td button[aria-label]"),
    f"#/workers?open={WORKER}": (
        ".drawer h2",
        ".drawer p",
        ".drawer p a",
        ".drawer table[aria-label]",
        ".drawer td:nth-child(2)",
    ),
    "#/queries/bank?status=failed": (".chip", "td a", "td:nth-child(4)", "td.mid", "td.bad"),
    "#/queries/bank?status=refused": ("td.bad",),
    "#/queries/bank?status=late": ("td.bad",),
    f"#/nodes?queue=shop%2F{NAME}&leaving=m1": ("main p",),
}
"""CSS selectors of the elements of each place that have the poison in their text, or in the
attribute that ends the selector."""

COMMON = POISON.partition("javascript")[0]
"""What the poison and its form in names have in common."""


def wait_until_shown(one: Tab, selector: str) -> None:
    """Wait until an element has the poison."""
    if re.search(r"\[[a-z-]+\]$", selector):
        found = one.page.locator(f'{selector[:-1]}*="{COMMON}"]')
    else:
        found = one.page.locator(selector, has_text=COMMON)
    found.first.wait_for(state="attached")


def check_harmless(one: Tab) -> None:
    page = one.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.locator("script").count() == 1
    targets = page.evaluate("[...document.querySelectorAll('[href]')].map(one => one.href)")
    assert not [one for one in targets if not one.startswith("http")]


def test_every_page_shows_markup_as_text(browser: Browser, stage: Stage) -> None:
    stage.world = World(time.time(), queues=100, workers=50, poisoned=True)
    with tab(browser, stage.url) as one:
        one.log_in(POISON_NAME)
        for place, selectors in PLACES.items():
            one.go("#/nowhere", "Nothing here")
            one.page.goto(f"{stage.url}/console/{place}")
            if place.endswith((DEAD, DONE)):
                one.button("Show private data").click()
            for selector in selectors:
                wait_until_shown(one, selector)
            check_harmless(one)
            if place.endswith((DEAD, DONE)):  # the key and the value
                data = one.page.get_by_role("region", name=re.compile("^(Arguments|Result)$"))
                assert data.last.inner_text().count(POISON) == 2, place


def test_dialogs_messages_suggestions_and_answers_show_markup_as_text(
    browser: Browser, stage: Stage
) -> None:
    stage.world = World(time.time(), queues=100, workers=50, poisoned=True)
    queue = f"#/queues/shop/{NAME}"
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        page.get_by_role("combobox", name="Search queues").fill("onerror")
        wait_until_shown(one, "#search [role=option]")
        check_harmless(one)
        one.go(queue, POISON_NAME)
        one.button("Pause").click()
        wait_until_shown(one, "dialog h2")
        check_harmless(one)
        one.confirm("Pause", reason=POISON)
        one.sees(f"shop/{POISON_NAME} is paused.")
        assert stage.world.changes[-1][2] == {"reason": POISON}
        one.button("Purge").click()
        wait_until_shown(one, "dialog form code")
        one.confirm("Purge", typed=POISON_NAME)
        one.sees("412 deleted.")
        wait_until_shown(one, "dialog h2")
        check_harmless(one)
        one.button("Close").click()
        one.go("#/workers", "Workers")
        page.locator(".cell").first.wait_for()
        page.get_by_role("button", name=f"Offline: {POISON}0", exact=True).click()
        wait_until_shown(one, "dialog h2")
        one.confirm("Take offline")
        one.sees(f"{POISON}0 is offline.")
        check_harmless(one)
        one.go(f"#/tasks/shop/{NAME}?state=dead", POISON_NAME)
        for qualifier in ("worker", "error", "by", "argument"):
            page.get_by_role("combobox", name="Filter tasks").fill(f"{qualifier}:")
            suggested = page.get_by_role("option", name=f"{qualifier}:{POISON}")
            suggested.first.wait_for()
            check_harmless(one)
        one.go(f"{queue}/new", POISON_NAME)
        for name, value in (("address", POISON), ("order", "5"), ("card", POISON)):
            page.get_by_label(name).fill(value)
        one.button("Enqueue a task").click()
        wait_until_shown(one, "[role=status] a")
        one.button("Ask a query").click()
        wait_until_shown(one, "[aria-label=Answer] pre")
        assert stage.world.changes[-1][2]["address"] == POISON
        check_harmless(one)


def test_a_refusal_shows_the_users_name_as_text(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in(POISON_NAME)
        one.go("#/queues/bank/mail", "bank/mail")
        one.button("Pause").click(force=True)
        wait_until_shown(one, "#messages .message")
        wait_until_shown(one, "button[title]")
        check_harmless(one)


def test_the_browser_refuses_to_parse_markup(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        blocked = one.page.evaluate(
            """() => {
                try { document.body.innerHTML = '<b>hacked</b>'; return 'parsed'; }
                catch (problem) { return problem.name; }
            }"""
        )
        assert blocked == "TypeError"
        one.problems.clear()  # the browser reports what was tried here
