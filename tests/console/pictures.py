"""The pictures of docs/console.md, taken in the browser of the tests.

    python -m tests.console.pictures

takes them anew.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.console.conftest import FLAGS, Tab, tab
from tests.console.stage import Stage
from tests.console.world import World
from tests.debian import installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER: Final = Path(__file__).parent.parent.parent / "docs" / "pictures"

COLOURS: Final = 256
"""Of a picture: a palette, and half of the bytes."""

WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 800}}
NARROW: Final[dict[str, Any]] = {"viewport": {"width": 390, "height": 780}}

PICTURES: Final[dict[str, tuple[str, str, str, dict[str, Any]]]] = {
    "overview": ("#/", "Overview", "no worker serves it", WIDE),
    "queue": ("#/queues/bank/mail", "bank/mail", "24 written to", WIDE),
    "task": ("#/tasks/bank/mail/0/7294967296", "7294967296", "attempt 4", WIDE),
    "dead": ("#/dead/bank/mail", "bank/mail", "98,820", WIDE),
    "workers": (
        "#/workers?open=000000000000000000000001daa66d13",
        "Workers",
        "Measured limit",
        {**WIDE, "color_scheme": "dark"},
    ),
    "nodes": (
        "#/nodes?queue=bank%2Fmail&leaving=m1",
        "Nodes",
        "16 of 25 partitions",
        WIDE,
    ),
    "phone": ("#/queues/bank/mail", "bank/mail", "p99", {**NARROW, "color_scheme": "dark"}),
}
"""The place, its heading, what shows that it has its data, and the window, by name."""


def picture(one: Tab, name: str) -> bytes:
    """Return a picture of a place, with few colours."""
    from PIL import Image

    place, heading, text, _ = PICTURES[name]
    one.go(place, heading)
    one.sees(text)
    taken = Image.open(io.BytesIO(one.page.screenshot()))
    small = io.BytesIO()
    taken.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


def take(browser: Browser, stage: Stage, name: str) -> bytes:
    """Return the picture of this name."""
    options = dict(PICTURES[name][3])
    with tab(browser, stage.url, **options) as one:
        one.log_in("alice")
        return picture(one, name)


def main() -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with Stage(World(time.time())) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=installed("chromium"), args=FLAGS, headless=True
        )
        for name in PICTURES:
            (FOLDER / f"console-{name}.png").write_bytes(take(browser, stage, name))
        browser.close()


if __name__ == "__main__":
    main()
