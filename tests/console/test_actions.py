"""Actions of operators in a real browser: each is clicked, and the gateway understands the request.
Those on a whole queue are clicked before a real node."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from maitred.gateway.admin.bodies import read_body
from maitred.gateway.http.admin import BODIES
from tests.console.conftest import Tab, tab
from tests.console.test_real_node import add
from tests.console.world import World
from tests.node.nodes import running_node

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Request, Route

    from tests.console.stage import Stage

DEAD = "#/dead/bank/mail"
ACTIONS = re.compile(r"/tasks/actions$")
PORTION = "60,000"
"""How many dead letters one request of a bulk action changes."""

BLUR_MS = 20_000
"""How long after the window lost the focus a page pauses."""


def check_bodies(stage: Stage) -> None:
    """Read what the console sent as the gateway does."""
    for _, handler, body in stage.world.changes:
        read_body(BODIES[handler], json.dumps(body).encode(), packed=False)


def bulk(stage: Stage) -> dict[str, Any]:
    """Return the body of the newest bulk action, which was counted before with the same filter."""
    bodies = [body for _, handler, body in stage.world.changes if handler == "act_on_tasks"]
    newest: dict[str, Any] = bodies[-1]
    counted = next(body for body in reversed(bodies) if body["dry_run"])
    same = ("action", "state", "filter")
    assert [counted[name] for name in same] == [newest[name] for name in same]
    assert not newest["dry_run"]
    return newest


# Tasks


def test_dead_letters_of_one_error_are_dropped_and_then_all(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go(DEAD, "bank/mail")
        one.button("Drop ValueError").click()
        one.confirm("Drop 38,880", reason="test data")
        one.sees("38,880 dropped.")
        one.button("Close").click()
        body = bulk(stage)
        assert (body["action"], body["state"], body["reason"]) == ("drop", "dead", "test data")
        assert body["filter"]["error"] == "ValueError"
        one.button("Drop all").click()
        one.confirm("Drop 162,000")
        one.sees("162,000 dropped.")
        one.button("Close").click()
        body = bulk(stage)
        assert body["action"] == "drop"
        assert not any(body["filter"].values())
        check_bodies(stage)


def test_all_tasks_that_match_the_filters_are_changed(browser: Browser, stage: Stage) -> None:
    argument = "order=9007199254740993"  # a number that JavaScript rounds
    filters = f"error=ValueError&by=carol&since=86400&argument={quote(argument)}"
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go(f"#/tasks/bank/mail?state=dead&{filters}", "bank/mail")
        one.button("Run again all that match…").click()
        one.sees("All dead tasks of bank/mail, error ValueError, by carol, argument")
        one.confirm("Run again 38,880")
        one.sees("38,880 added again.")
        one.button("Close").click()
        body = bulk(stage)
        assert (body["action"], body["state"]) == ("again", "dead")
        wanted = body["filter"]
        assert (wanted["worker"], wanted["error"], wanted["by"]) == ("", "ValueError", "carol")
        assert 86_000 < stage.world.now - wanted["added_after"] < 87_000
        assert wanted["argument"] == {"name": "order", "value": 9_007_199_254_740_993}
        check_bodies(stage)


def test_a_task_is_run_again_as_it_was(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go("#/tasks/bank/mail/1/7294967300", "7294967300")
        one.button("Run again").click()
        one.confirm("Run again", reason="the address was mended")
        one.sees("1 task added again.")
        # The new task is shown.
        one.page.get_by_role("heading", level=1, name="bank/mail/0/4294967312").wait_for()
        body = stage.world.changes[-1][2]
        assert (body["action"], body["ids"]) == ("again", ["1/7294967300"])
        check_bodies(stage)


@pytest.mark.parametrize("way", ["Stop", "Escape"])
def test_a_bulk_action_is_stopped_while_it_goes_on(
    browser: Browser, stage: Stage, way: str
) -> None:
    held: list[Route] = []

    def changes(request: Request) -> bool:
        return '"dry_run":false' in (request.post_data or "")

    def hold(route: Route) -> None:
        if changes(route.request):
            held.append(route)
        else:
            route.continue_()

    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go(DEAD, "bank/mail")
        one.page.route(ACTIONS, hold)
        one.button("Retry all").click()
        with one.page.expect_request(changes):
            one.confirm("Retry 162,000")
        one.sees("0 tried again so far…")
        one.page.get_by_role("progressbar").wait_for()
        if way == "Stop":
            one.button("Stop").click()
        else:
            one.page.keyboard.press("Escape")
        held.pop().continue_()
        one.sees(f"{PORTION} tried again, and stopped.")
        if way == "Stop":
            one.button("Close").click()
        one.page.get_by_role("dialog").wait_for(state="detached")
        # A request that followed would have been sent by now: the list is asked for after it.
        one.go("#/", "Overview")
        assert held == []
        done = [body for _, _, body in stage.world.changes if not body["dry_run"]]
        assert [body["cursor"] for body in done] == [None]


# Workers, queries, the frame


@dataclass
class ManyQueues(World):
    """A world in which each worker serves more queues than the node names."""

    def worker(self, number: int) -> dict[str, Any]:
        return super().worker(number) | {"queue_count": 1_234}


@pytest.mark.parametrize("has_more", [False, True])
def test_a_worker_is_put_online(browser: Browser, stage: Stage, *, has_more: bool) -> None:
    if has_more:
        stage.world = ManyQueues(stage.world.now)
    named = len(stage.world.worker(5)["queues"])
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go("#/workers?match=worker-0005", "Workers")
        one.button("Online: worker-0005").click()
        one.confirm("Put online")
        some = f" for {named} of its 1,234 queues" if has_more else ""
        one.sees(f"worker-0005 is online{some}.")
        assert stage.world.changes == named * [("POST", "worker_online", {})]
        check_bodies(stage)


def test_queries_are_filtered_by_the_chip_of_a_user(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        one.go("#/queries/bank", "Queries")
        table = page.get_by_role("table", name="Queries")
        others = table.get_by_role("cell", name="carol", exact=True)
        others.first.wait_for()
        chip = page.get_by_role("button", name=re.compile("^bob: "))
        assert chip.get_attribute("aria-pressed") == "false"
        chip.click()
        others.first.wait_for(state="detached")
        assert table.get_by_role("cell", name="bob", exact=True).count() > 10
        assert page.url.endswith("#/queries/bank?user=bob")
        assert chip.get_attribute("aria-pressed") == "true"
        chip.click()
        others.first.wait_for()
        assert page.url.endswith("#/queries/bank")


def test_a_pinned_page_stays_live_without_the_focus(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        page.clock.install()
        one.log_in("alice")
        light = page.get_by_role("button", name=re.compile("^(Live|Paused)$"))

        def says(word: str, *, pinned: bool) -> None:
            page.get_by_role("button", name=word, pressed=pinned).wait_for()
            assert light.get_by_text("pinned").count() == pinned

        def blur() -> None:
            page.evaluate("window.dispatchEvent(new Event('blur'))")
            page.clock.fast_forward(BLUR_MS)

        says("Live", pinned=False)
        light.click()
        says("Live", pinned=True)
        blur()
        one.go("#/queues", "Queues")
        one.sees("media/thumbnails")  # asked for without the focus
        says("Live", pinned=True)
        light.click()
        says("Live", pinned=False)
        blur()
        says("Paused", pinned=False)
        light.click()
        says("Live", pinned=True)


# A queue


def setting(one: Tab, name: str) -> Locator:
    """Return what the page says of a live setting."""
    region = one.page.get_by_role("region", name="Live settings")
    return region.locator(f"dt:text-is('{name}') + dd")


def change_setting(one: Tab, name: str) -> Locator:
    """Open the dialog of a live setting, and return it."""
    one.button(f"Change {name}").click()
    return one.page.get_by_role("dialog", name=name, exact=True)


def set_and_unset(one: Tab) -> None:
    switch = setting(one, "scaling.adaptive")
    was = switch.locator("b").inner_text()
    assert was in ("on", "off")
    box = change_setting(one, "scaling.adaptive")
    box.get_by_role("checkbox", name="on").click()
    one.confirm("Set", reason="counts are mine")
    one.sees("scaling.adaptive is set.")
    switch.get_by_text("off" if was == "on" else "on", exact=True).wait_for()
    switch.get_by_text("counts are mine").wait_for()

    word = setting(one, "queries.policy")
    word.get_by_text("idle", exact=True).wait_for()
    change_setting(one, "queries.policy").get_by_role("combobox").select_option("adaptive")
    one.confirm("Set")
    word.get_by_text("adaptive", exact=True).wait_for()
    change_setting(one, "queries.policy")
    one.confirm("Back to the settings file")
    one.sees("queries.policy is what the settings file says.")
    word.get_by_text("idle", exact=True).wait_for()
    word.get_by_text("by default").wait_for()

    rate = setting(one, "rate_per_second")
    change_setting(one, "rate_per_second").get_by_role("spinbutton").fill("0.5")
    one.confirm("Set")
    rate.get_by_text("0.5", exact=True).wait_for()
    change_setting(one, "rate_per_second").get_by_role("spinbutton").fill("")
    one.confirm("Set")
    rate.get_by_text("no limit", exact=True).wait_for()


def purge(one: Tab, *states: str, older: str = "0") -> None:
    """Open the dialog, choose states and an age, and answer it."""
    one.button("Purge").click()
    box = one.page.get_by_role("dialog")
    for name in ("waiting", "delayed", "dead letters"):
        box.get_by_role("checkbox", name=name).set_checked(name in states)
    box.get_by_label("Older than, in seconds").fill(older)
    box.get_by_label("to confirm").fill("mail")
    box.get_by_role("button", name="Purge", exact=True).click()


def purged(one: Tab, count: int) -> None:
    one.sees(f"{count} deleted.")
    one.button("Close").click()


def purge_by_state_and_age(one: Tab) -> None:
    purge(one)
    one.sees("Choose at least one kind of task.")
    one.button("Back").click()
    purge(one, "waiting", "delayed", older="5")
    one.sees("Delayed tasks have no age: purge them without one.")
    one.button("Back").click()
    purge(one, "waiting", "dead letters", older="86400")
    purged(one, 0)
    purge(one, "delayed")
    purged(one, 1)
    fact(one, "delayed", "0")
    fact(one, "waiting", "3")


def fact(one: Tab, name: str, value: str) -> None:
    """Wait for a figure on top of the page."""
    found = one.page.locator(".fact", has=one.page.locator(f"dt:text-is('{name}')"))
    found.locator("dd").get_by_text(value, exact=True).wait_for()


def resize(one: Tab, number: str, *, force: bool = False) -> None:
    one.button("Change partitions").click()
    box = one.page.get_by_role("dialog", name="Partitions")
    for label in ("Written to", "Read from"):
        box.get_by_role("spinbutton", name=label).fill(number)
    if force:
        box.get_by_role("checkbox", name="Remove partitions although they hold tasks").check()
        box.get_by_text("The tasks of the removed partitions are lost.").wait_for()
    one.confirm("Set")


def resize_with_force(one: Tab, http: str) -> None:
    resize(one, "8")
    one.sees("8 written to, 8 read")
    for number in range(1, 25):
        add(http, number)
    fact(one, "waiting", "27")
    resize(one, "1")
    one.sees("Partitions 1 to 7 are still written to.")
    one.sees("8 written to, 8 read")
    resize(one, "1", force=True)
    one.sees("1 partition to write to, 1 to read")
    one.sees("1 written to, 1 read")


def test_a_queue_is_changed_in_every_way(browser: Browser) -> None:
    with running_node(shards=1, gateway=True) as node:
        http = node.ready["http"]
        for number in range(4):  # the first one is delayed
            add(http, number)
        with tab(browser, http) as one:
            one.go("#/queues/shop/mail", "shop/mail")
            set_and_unset(one)
            purge_by_state_and_age(one)
            resize_with_force(one, http)


def test_the_namespace_at_the_top_narrows_every_area(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        one.go("#/queues?sort=name", "Queues")
        names = page.get_by_role("table", name="Queues").get_by_role("link")
        page.get_by_role("link", name="bank/imports", exact=True).wait_for()
        chosen = page.get_by_role("combobox", name="Namespace", exact=True)
        chosen.select_option("desk")
        page.get_by_role("link", name="imports", exact=True).wait_for()
        assert {name.partition("/")[0] for name in links(names)} == {"desk"}
        one.go("#/", "Overview")
        page.get_by_role("heading", name="Overview").wait_for()
        page.locator(".head .badge", has_text="desk").wait_for()
        one.go("#/queries", "Queries")
        page.get_by_role("table", name="Queries").wait_for()
        assert page.url.endswith("#/queries/desk")
        chosen.select_option("shop")
        own = page.get_by_role("combobox", name="Namespace of the queries")
        own.locator("option:checked", has_text="shop").wait_for(state="attached")
        assert page.url.endswith("#/queries/shop")
        page.reload()
        page.get_by_role("heading", name="Queries").wait_for()
        chosen.locator("option:checked", has_text="shop").wait_for(state="attached")
        chosen.select_option("")
        one.go("#/queues?sort=name", "Queues")
        page.get_by_role("link", name="bank/imports", exact=True).wait_for()


def links(found: Locator) -> list[str]:
    """Return where links lead: namespace and queue."""
    addresses: list[str] = found.evaluate_all("all => all.map(one => one.getAttribute('href'))")
    return [one.removeprefix("#/queues/") for one in addresses]
