"""A browser for the tests of the console: Debian's chromium, driven by playwright."""

from __future__ import annotations

import time
from collections.abc import Iterator  # noqa: TC003 - pytest reads the annotations
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.stage import USERS, Stage
from tests.console.world import World
from tests.debian import installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

WAIT_MS = 120_000
"""How long a test waits for what it expects. On a machine that is busy an answer takes long, and
the gateway then pauses for up to half a minute before it looks again."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: until it is closed, this thread has a running event loop, and no
    other test could use asyncio."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: `make` installs it"
    )
    program = installed("chromium")
    if program is None:
        pytest.skip("chromium is missing, and could not be installed from Debian's packages")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=program, args=FLAGS, headless=True)
        yield found
        found.close()


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with Stage(World(time.time())) as found:
        yield found


@pytest.fixture(autouse=True)
def new_world(request: pytest.FixtureRequest) -> None:
    """Begin each test with a node that nobody has changed."""
    if "stage" in request.fixturenames:
        stage = request.getfixturevalue("stage")
        stage.world = World(time.time())
        stage.away = False


class Tab:
    """A page of the console, and what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:  # noqa: ANN401
        # The browser itself tells of answers such as 401 and 503, which the console handles.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def go(self, place: str, heading: str) -> None:
        """Show a place of the console, and wait for its heading."""
        self.page.goto(f"{self.url}/console/{place}")
        self.page.get_by_role("heading", level=1, name=heading).wait_for()

    def log_in(self, user: str) -> None:
        page = self.page
        page.goto(f"{self.url}/console")
        page.get_by_label("User").fill(user)
        page.get_by_label("Secret").fill(USERS[user][1])
        page.get_by_role("button", name="Log in", exact=True).click()
        page.get_by_role("heading", level=1, name="Overview").wait_for()

    def button(self, name: str) -> Any:  # noqa: ANN401
        return self.page.get_by_role("button", name=name, exact=True)

    def confirm(self, name: str, *, typed: str = "", reason: str = "") -> None:
        """Answer the question before an action."""
        asked = self.page.get_by_role("dialog")
        # Another dialog may follow at once, with the progress.
        box = self.page.get_by_role("dialog", name=asked.get_attribute("aria-label"), exact=True)
        if typed:
            box.get_by_label("to confirm").fill(typed)
        if reason:
            box.get_by_label("Reason").fill(reason)
        box.get_by_role("button", name=name, exact=True).click()
        box.wait_for(state="detached")

    def until(self, condition: str) -> None:
        """Wait until a condition in JavaScript holds; the page tries it before each frame that it
        draws. Its policy forbids playwright's own way, which evaluates text there again."""
        self.page.evaluate(
            f"""new Promise(done => {{
                const look = () => ({condition}) ? done() : requestAnimationFrame(look);
                look();
            }})"""
        )

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()


@contextmanager
def tab(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:  # noqa: ANN401
    """A new page with cookies of its own; fails if anything went wrong in it."""
    context: BrowserContext = browser.new_context(
        viewport=options.pop("viewport", {"width": 1440, "height": 900}), locale="en-GB", **options
    )
    try:
        found = Tab(context.new_page(), url)
        yield found
        assert found.problems == []
    finally:
        context.close()
