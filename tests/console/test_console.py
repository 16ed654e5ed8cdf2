"""The console in a real browser, before an imaginary node of 10,000 queues."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from maitred.gateway.http.routes import ROUTES
from tests.console.conftest import Tab, tab

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

    from maitred.gateway.http.routes import HttpRoute
    from tests.console.stage import Stage

QUEUE = "#/queues/bank/mail"
DEAD_TASK = "7294967296"
"""Number of the first dead letter of bank/mail, in partition 0."""

PAGES = (
    ("#/", "Overview"),
    ("#/queues", "Queues"),
    (QUEUE, "bank/mail"),
    ("#/queues/bank/mail/new", "enqueue or ask"),
    ("#/tasks", "Tasks"),
    ("#/tasks/bank/mail?state=dead", "bank/mail"),
    (f"#/tasks/bank/mail/0/{DEAD_TASK}", DEAD_TASK),
    ("#/dead", "Dead letters"),
    ("#/dead/bank/mail", "bank/mail"),
    ("#/workers", "Workers"),
    ("#/queries/bank", "Queries"),
    ("#/nodes", "Nodes"),
)

SHOWN = {
    "#/": "no worker serves it; 412 tasks wait",
    "#/queues": "media/thumbnails",
    QUEUE: "24 written to, 25 read",
    "#/queues/media/mail": "Paused by alice",
    "#/queues/bank/mail/new": "send_mail",
    "#/tasks": "media/thumbnails",
    "#/tasks/bank/mail?state=dead": "ConnectionRefusedError",
    "#/tasks/bank/mail?state=delayed": "ConnectionRefusedError",
    f"#/tasks/bank/mail/0/{DEAD_TASK}": "attempt 4",
    "#/dead": "162,000",
    "#/dead/bank/mail": "98,820",
    "#/workers": "worker-0003",
    "#/queries/bank": "deadline-exceeded",
    "#/nodes": "10.0.0.2:4747",
}
"""Something that is on each page only once its data has come."""

NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, a, table')]
    .filter(one => one.checkVisibility() && !one.labels?.length
        && !one.getAttribute('aria-labelledby')
        && !/[\\p{L}\\p{N}]/u.test(one.getAttribute('aria-label') ?? one.textContent))
    .map(one => one.outerHTML.slice(0, 120))"""
"""Controls without a name that a screen reader could say; a symbol is none."""


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return wide


def test_every_page_shows_its_data_and_fits_a_desk_and_a_phone(
    browser: Browser, stage: Stage
) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        page.goto(f"{stage.url}/console")
        page.get_by_label("User").fill("alice")
        page.get_by_label("Secret").fill("wrong")
        one.button("Log in").click()
        page.get_by_role("alert").wait_for()
        one.log_in("alice")
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            for place, heading in PAGES:
                one.go(place, heading)
                one.sees(SHOWN[place])
                assert overflow(page) <= 0, (place, width)
                assert page.evaluate(NAMELESS) == [], place
                assert page.get_by_role("main").count() == 1
                assert page.get_by_role("navigation").count() == 1
                if place == "#/":
                    box = page.get_by_role("columnheader", name="dead").bounding_box()
                    assert box is not None
                    assert box["x"] + box["width"] <= width, "the numbers of queues are in sight"
        one.button("Log out").click()
        page.get_by_label("Secret").wait_for()
        page.goto(f"{stage.url}/console/#/queues")
        page.get_by_label("Secret").wait_for()


def test_the_keyboard_and_the_theme(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url, color_scheme="dark") as one:
        page = one.page
        one.log_in("alice")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_title("Theme: as the system").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        page.keyboard.press("g")
        page.keyboard.press("q")
        page.get_by_role("heading", level=1, name="Queues").wait_for()
        one.sees("media/thumbnails")
        page.keyboard.press("/")
        page.keyboard.type("bank/mail")
        page.get_by_role("link", name="media/thumbnails", exact=True).wait_for(state="detached")
        page.get_by_role("link", name="bank/mail", exact=True).wait_for()
        page.keyboard.press("ArrowDown")
        focused = "document.activeElement.getAttribute('aria-rowindex')"
        one.until(f"{focused} === '2'")
        page.keyboard.press("ArrowDown")
        one.until(f"{focused} === '3'")
        page.keyboard.press("Home")
        one.until(f"{focused} === '2'")
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="bank/mail").wait_for()
        page.keyboard.press("/")
        page.keyboard.type(f"bank/mail/0/{DEAD_TASK}")
        page.keyboard.press("Enter")
        one.sees("attempt 4")


def test_ten_thousand_queues(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        one.go("#/queues?sort=name", "Queues")
        one.sees("bank/imports")
        rows = "document.querySelectorAll('tbody tr:not(.spacer)').length"
        for loaded in range(200, 1_200, 100):
            page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
            one.sees(f"{loaded:,} loaded")
            assert page.evaluate(rows) < 80
        page.get_by_role("button", name="waiting").click()
        one.sees("9,")
        assert page.evaluate("document.querySelector('.scroller').scrollTop") == 0


@pytest.mark.parametrize(
    ("place", "heading"), [("#/workers", "Workers"), ("#/tasks/bank/mail?state=dead", "bank/mail")]
)
def test_a_thousand_workers_and_many_dead_letters(
    browser: Browser, stage: Stage, place: str, heading: str
) -> None:
    rows = "[...document.querySelectorAll('.scroller tbody tr:not(.spacer)')]"
    last = f"Math.max(0, ...{rows}.map(one => Number(one.getAttribute('aria-rowindex'))))"
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        one.go(place, heading)
        for loaded in range(100, 900, 100):
            # The next page is loaded when its place comes into sight, and the box grows then.
            one.until(f"(document.querySelector('.scroller').scrollTop = 1e9) && {last} > {loaded}")
            assert 10 < one.page.evaluate(f"{rows}.length") < 80


def act_on_a_queue(one: Tab, made: list[Any]) -> None:
    one.go(QUEUE, "bank/mail")
    one.button("Pause").click()
    one.confirm("Pause", reason="the provider is down")
    one.sees("Paused by alice")
    assert made[-1] == ("POST", "pause_queue", {"reason": "the provider is down"})
    one.button("Resume").click()
    one.confirm("Resume")
    one.button("Pause").wait_for()
    one.button("Purge").click()
    one.confirm("Purge", typed="mail")
    one.sees("412 deleted.")
    one.button("Close").click()
    assert made[-1][2]["states"] == ["waiting"]
    partitions = one.page.get_by_role("region", name="Partitions")
    partitions.get_by_role("button", name="Change").click()
    one.page.get_by_role("dialog").get_by_label("Written to", exact=True).fill("12")
    one.confirm("Set")
    one.sees("12 partitions to write to")
    assert made[-1] == ("POST", "resize_queue", {"read": 25, "write": 12, "force": False})
    settings = one.page.get_by_role("region", name="Live settings")
    settings.get_by_role("button", name="Change rate_per_second", exact=True).click()
    one.page.get_by_role("dialog").get_by_label("Tasks per second", exact=True).fill("50")
    one.confirm("Set", reason="slower")
    one.sees("rate_per_second is set.")
    assert made[-1][2] == {
        "set": {"rate_per_second": 50},
        "unset": [],
        "reason": "slower",
        "expect_version": 7,
    }
    one.button("Delete").click()
    one.confirm("Delete", typed="mail")
    one.page.get_by_role("heading", level=1, name="Queues", exact=True).wait_for()
    assert made[-1][:2] == ("DELETE", "delete_queue")


def act_on_tasks(one: Tab, made: list[Any]) -> None:
    page = one.page
    one.go("#/dead/bank/mail", "bank/mail")
    group = page.get_by_role("listitem").filter(has_text="ValueError")
    group.get_by_role("button", name="Retry").click()
    one.confirm("Retry 38,880", reason="repaired")
    one.sees("38,880 tried again.")
    assert made[-1][2]["filter"]["error"] == "ValueError"
    assert [body["dry_run"] for _, handler, body in made[-2:] if handler == "act_on_tasks"] == [
        True,
        False,
    ]
    one.button("Close").click()
    one.go("#/tasks/bank/mail?state=dead", "bank/mail")
    one.sees("ConnectionRefusedError")
    page.get_by_label("Select bank/mail/0/").first.check()
    one.button("Drop selected").click()
    one.confirm("Drop")
    one.sees("1 task dropped.")
    assert made[-1][2]["ids"] == [f"0/{DEAD_TASK}"]
    filters = page.get_by_role("combobox", name="Filter tasks")
    filters.fill("err")
    page.get_by_role("option", name="error:").click()
    page.get_by_role("option", name="error:KeyError").click()
    page.get_by_title("Remove this filter").wait_for()
    assert "error=KeyError" in page.url
    one.go("#/tasks/bank/mail/1/7294967300", "7294967300")
    one.button("Show private data").click()
    one.sees("provider.send(address, text)")
    one.button("Retry").click()
    one.confirm("Retry")
    one.sees("1 task tried again.")
    one.button("With other arguments").click()
    page.get_by_label("address").wait_for()
    one.until(
        "document.querySelector('[name=argument-address]').value === 'customer-1@example.com'"
    )
    page.get_by_label("card").fill("4111")
    page.get_by_label("order").fill("12345678901234567890")
    one.button("Enqueue a task").click()
    page.get_by_role("link", name="bank/mail/0/4294967300").wait_for()
    assert made[-1][2] == {
        "address": "customer-1@example.com",
        "order": 12345678901234567890,
        "lines": [1, 2, 3],
        "card": "4111",
    }
    one.button("Ask a query").click()
    page.get_by_role("region", name="Answer").first.wait_for()


def act_on_workers_and_queries(one: Tab, made: list[Any]) -> None:
    one.go("#/workers", "Workers")
    one.button("Offline: worker-0000").click()
    one.confirm("Take offline")
    one.sees("worker-0000 is offline.")
    assert made[-1][:2] == ("POST", "worker_offline")
    one.page.get_by_role("link", name="worker-0003").click()
    one.page.get_by_role("table", name="What worker-0003 runs").wait_for()
    drawer = one.page.get_by_role("region", name="worker-0003").inner_text()
    assert re.search(r"Runs: \d+ of \w+/\w+", drawer), drawer
    # The page was opened a moment ago, and shows what the worker measured before.
    one.page.get_by_role("img", name="Measured limit, and busy slots, the last hour").wait_for()
    one.go("#/queries/bank", "Queries")
    one.button("Cancel").first.click()
    one.confirm("Cancel the query")
    one.sees("is being cancelled.")
    assert made[-1][:2] == ("DELETE", "cancel_query")


def test_what_moves_if_a_node_leaves(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        one.go("#/nodes", "Nodes")
        page.get_by_role("img", name="Load, in cores, the last hour").first.wait_for()
        page.get_by_role("combobox", name="Partitions of the queue").fill("bank/mail")
        page.keyboard.press("Enter")
        shares = page.get_by_role("table", name="Shares of the ring")
        shares.get_by_text("1 4 7 8 11 14 17 20 23").wait_for()
        page.get_by_label("What moves if a member leaves").select_option("10.0.0.1:4747 leaves")
        one.sees("If 10.0.0.1:4747 leaves, 16 of 25 partitions of bank/mail move, 7 of them")
        assert page.url.endswith("#/nodes?queue=bank%2Fmail&leaving=m1")
        page.reload()
        one.sees("16 of 25 partitions")


def test_every_action(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        made = stage.world.changes
        act_on_a_queue(one, made)
        act_on_tasks(one, made)
        act_on_workers_and_queries(one, made)


def test_who_went_elsewhere_meanwhile_stays_there(browser: Browser, stage: Stage) -> None:
    """A deleted queue, or a task that runs again, shows another page, unless the user left; and a
    page that was left asks for nothing more."""
    asked: list[str] = []
    with tab(browser, stage.url) as one:
        page = one.page

        def leave(route: Route) -> None:
            if route.request.method in {"DELETE", "POST"}:
                page.evaluate("location.hash = '#/workers'")
                page.get_by_role("heading", level=1, name="Workers").wait_for()
                asked.clear()
            route.continue_()

        one.log_in("alice")
        page.route(re.compile("/v1/bank/queues/mail"), leave)
        page.on("request", lambda request: asked.append(request.url))
        one.go(QUEUE, "bank/mail")
        one.button("Pause").click()
        one.confirm("Pause")
        one.sees("bank/mail is paused.")
        page.evaluate("fetch('/v1/me').then(one => one.text())")
        assert not [url for url in asked if "/v1/live" in url and "mail" in url]
        assert asked[-1].endswith("/v1/me")
        one.go(QUEUE, "bank/mail")
        one.button("Delete").click()
        one.confirm("Delete", typed="mail")
        one.sees("bank/mail is deleted.")
        assert page.url.endswith("#/workers")
        one.go(f"#/tasks/bank/mail/0/{DEAD_TASK}", DEAD_TASK)
        one.button("Run again").click()
        one.confirm("Run again")
        one.sees("1 task added again.")
        assert page.url.endswith("#/workers")


def test_waits_of_long_ago_are_not_those_of_now(browser: Browser, stage: Stage) -> None:
    nothing = "\N{EN DASH}"
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        waits = one.page.locator(".fact", has_text="wait p99").locator("dd")
        legend = one.page.get_by_role("figure").filter(has_text="Wait until the start")
        for steps, begins in ((0, True), (5, True), (6, False)):
            stage.world.still_steps = steps
            one.go("#/queues", "Queues")
            one.go("#/", "Overview")
            waits.wait_for()
            assert (waits.inner_text() != nothing) == begins, steps
            shown = " ".join(legend.inner_text().split())
            assert (f"p99 {nothing}" not in shown) == begins, (steps, shown)


PRIVATE = "Show private data"

WITHHELD: dict[str, set[str]] = {
    "#/": set(),
    "#/queues": set(),
    QUEUE: {"Pause", "Purge", "Delete", "Change", "Cancel all…", PRIVATE},
    "#/queues/media/mail": {"Resume", "Purge", "Delete", "Change", "Cancel all…", PRIVATE},
    "#/queues/bank/mail/new": {"Enqueue a task", "Ask a query"},
    "#/tasks": set(),
    "#/tasks/bank/mail?state=dead": {"Retry all…", "Drop all…", "Run again all…", PRIVATE},
    "#/tasks/bank/mail?state=delayed": {"Cancel all…", "Run now all…", PRIVATE},
    f"#/tasks/bank/mail/0/{DEAD_TASK}": {
        *("Retry", "Drop", "Run again", "With other arguments", PRIVATE)
    },
    "#/dead": set(),
    "#/dead/bank/mail": {"Retry all", "Drop all", "Retry", "Drop"},
    "#/workers": {"Offline", "Online"},
    "#/queries/bank": {"Cancel"},
    "#/nodes": set(),
}
"""The controls of each page that a user without rights sees and cannot use."""

CONTROLS = """() => [...document.querySelectorAll('main button')]
    .filter(one => !one.matches('.sort, .tab, .chip') && one.textContent !== 'Hide the last hour')
    .map(one => {
        const denied = one.getAttribute('aria-disabled') === 'true';
        if (denied) one.click();
        return [one.textContent, denied, one.title, getComputedStyle(one).color];
    })"""
"""Everything in a page that does more than sort and filter; what is disabled is clicked."""


def test_a_user_without_rights_can_use_no_control(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("rita")
        one.sees("read-only")
        colours = set()
        for place, names in WITHHELD.items():
            one.go("#/nowhere", "Nothing here")
            one.go(place, "")
            one.sees(SHOWN[place])
            found = page.evaluate(CONTROLS)
            assert [text for text, denied, _, _ in found if not denied] == [], place
            assert {text for text, _, _, _ in found} == names, place
            for text, _, title, colour in found:
                assert "it needs the permission" in title, (place, text)
                colours.add(colour)
            if names:
                one.sees("The user rita may not do this: it needs the permission ")
            assert page.get_by_role("dialog").count() == 0
        assert len(colours) == 1, "all of them look disabled"
        one.go("#/queues/bank/mail/new", "enqueue or ask")
        for label, value in (("address", "a@example.com"), ("order", "5"), ("card", "4111")):
            page.get_by_label(label).fill(value)
        page.keyboard.press("Enter")
        assert stage.world.changes == []


BODIES: dict[str, dict[str, Any]] = {
    "act_on_tasks": {"action": "drop", "ids": [f"0/{DEAD_TASK}"], "reason": ""},
    "pause_queue": {"reason": "for a test"},
    "resize_queue": {"read": 2, "write": 1},
}
"""What a request that changes something has as its body, if not an empty object."""

SEND = """([method, path, body, mark]) => fetch(path, {
    method,
    headers: {'Content-Type': 'application/json', ...(mark === null ? {} : {'Maitred-Csrf': mark})},
    body: method === 'DELETE' ? undefined : JSON.stringify(body),
}).then(async answer => [answer.status, await answer.text()])"""


def changing() -> Iterator[tuple[HttpRoute, tuple[str, str, dict[str, Any]]]]:
    """Yield each route of the API that changes something, with a request."""
    for route in ROUTES:
        if route.method != "GET":
            names = {"namespace": "bank", "queue": "mail", "worker": "worker-0000"}
            path = route.path.format(**names, partition=0, sequence=DEAD_TASK)
            yield route, (route.method, path, BODIES.get(route.handler, {}))


def mark_of(page: Page) -> str:
    """Return the mark of the page's session."""
    mark: str = page.evaluate("fetch('/v1/me').then(one => one.json()).then(one => one.csrf)")
    assert mark
    return mark


def test_the_gateway_refuses_what_the_console_disables(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        one.log_in("rita")
        mark = mark_of(one.page)
        for route, request in changing():
            if route.permission is not None:  # of a query, its own user may do more
                status, said = one.page.evaluate(SEND, [*request, mark])
                assert status == 403, route.handler
                assert f"{route.permission!r}" in said, (route.handler, said)
        assert stage.world.changes == []


def test_a_session_changes_nothing_without_its_mark(browser: Browser, stage: Stage) -> None:
    """A page of another origin can make the browser send the cookie, and cannot know the mark."""
    made = stage.world.changes
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        mark = mark_of(one.page)
        for route, request in changing():
            for wrong in (None, "", mark[:-1], mark + "a"):
                status, said = one.page.evaluate(SEND, [*request, wrong])
                assert status == 403, (route.handler, wrong)
                assert "lacks the mark of that session" in said, (route.handler, said)
            assert made == [], route.handler
            status, said = one.page.evaluate(SEND, [*request, mark])
            assert status in {200, 202}, (route.handler, said)
            assert [(method, handler) for method, handler, _ in made] == [
                (route.method, route.handler)
            ]
            made.clear()


def test_a_node_that_goes_away_and_comes_back(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        page = one.page
        one.log_in("alice")
        one.go("#/queries/bank", "Queries")
        one.sees("deadline-exceeded")
        stage.away = True
        one.sees("Reconnecting: the gateway or its node does not answer.")
        assert page.get_by_text("deadline-exceeded").count() > 0
        stage.away = False
        page.get_by_role("button", name="Live").wait_for()

        def cut() -> None:
            for connection in list(stage.listener.connections):
                connection.transport.abort()

        stage.call(cut)
        page.get_by_role("button", name="Live").wait_for()
        # Nobody looks: nothing is asked of the node.
        hide = """state => {
            Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }"""
        page.evaluate(hide, "hidden")
        page.get_by_role("button", name="Paused").wait_for()
        stage.wait_for_streams(0)
        page.evaluate(hide, "visible")
        page.get_by_role("button", name="Live").wait_for()
        stage.wait_for_streams(1)


def test_a_window_without_the_focus_asks_for_nothing_after_a_while(
    browser: Browser, stage: Stage
) -> None:
    """docs/console.md: paused once the window was not used for 20 s."""
    with tab(browser, stage.url) as one:
        page = one.page
        page.clock.install(time="2026-01-01T00:00:00Z")
        one.log_in("alice")
        stage.wait_for_streams(1)
        page.clock.pause_at("2026-01-02T00:00:00Z")

        def later(event: str, seconds: float) -> None:
            """Let the page have an event, and then the time pass."""
            page.evaluate(f"window.dispatchEvent(new Event('{event}'))")
            page.clock.run_for(int(seconds * 1_000))

        begun = stage.streams_begun
        later("blur", 19.9)
        assert page.get_by_role("button", name="Live").count() == 1
        later("focus", 30)  # a glance at another window is no reason to reconnect
        later("blur", 19.9)
        assert page.get_by_role("button", name="Live").count() == 1
        assert (stage.streams, stage.streams_begun) == (1, begun)
        page.clock.run_for(200)
        assert page.get_by_role("button", name="Paused").count() == 1
        stage.wait_for_streams(0)
        for used in ("focus", "pointerdown"):
            later(used, 0.1)
            assert page.get_by_role("button", name="Live").count() == 1
            stage.wait_for_streams(1)
            later("blur", 20.1)
            assert page.get_by_role("button", name="Paused").count() == 1
            stage.wait_for_streams(0)
