"""The pictures of docs/console.md, taken in a browser before an imaginary node at a fixed moment.

Each run takes all of them, and compares what is in the pages with what was there when the kept
pictures were taken. With `MAITRED_PICTURES` set in the environment, it writes them anew.
"""

from __future__ import annotations

import difflib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.console.conftest import Tab, tab
from tests.console.stage import Stage
from tests.console.world import World

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from typing import Literal

    from playwright.sync_api import Browser

FOLDER: Final = Path(__file__).parent.parent.parent / "docs" / "pictures"

AGAIN: Final = "MAITRED_PICTURES=1 .venv/bin/pytest tests/console/test_pictures.py"

MOMENT: Final = 1_767_268_800.0
"""When the pictures are taken, by the clocks of node, gateway and browser: noon of a winter's day.
So they change only with the console."""

COLOURS: Final = 256
"""Of a picture: a palette, and half of the bytes."""

WIDE: Final = (1280, 800)
NARROW: Final = (390, 780)


class Picture(NamedTuple):
    """A page of the console, and the window that shows it."""

    place: str
    heading: str
    text: str
    """What shows that the page has its data."""
    size: tuple[int, int] = WIDE
    scheme: Literal["light", "dark"] = "light"


PICTURES: Final = {
    "overview": Picture("#/", "Overview", "no worker serves it"),
    "queue": Picture("#/queues/bank/mail", "bank/mail", "24 written to"),
    "task": Picture("#/tasks/bank/mail/0/7294967296", "7294967296", "attempt 4"),
    "dead": Picture("#/dead/bank/mail", "bank/mail", "98,820"),
    "workers": Picture(
        "#/workers?open=000000000000000000000001daa66d13",
        "Workers",
        "Measured limit",
        scheme="dark",
    ),
    "nodes": Picture("#/nodes?queue=bank%2Fmail&leaving=m1", "Nodes", "16 of 25 partitions"),
    "phone": Picture("#/queues/bank/mail", "bank/mail", "p99", NARROW, "dark"),
}

LOADED: Final = """document.querySelector('.namespace')
    && !document.querySelector('.loading, [aria-busy=true]')
    && ![...document.querySelectorAll('.empty')].some(one => one.textContent.includes('Loading'))"""

STRUCTURE: Final = r"""() => {
    const named = 'h1, h2, h3, th[scope=col], dt, button, label, legend, figcaption, nav a';
    const look = (one, indent) => {
        if (!one.checkVisibility()) return '';
        const classes = [...one.classList].sort().map(each => `.${each}`).join('');
        const role = one.getAttribute('role');
        const text = one.matches(named) ? one.textContent.replace(/\d[\d,.]*/g, '0') : '';
        const line = `${indent}${one.localName}${classes}${role ? ` ${role}` : ''} ${text}`;
        const below = one.localName === 'svg' ? [] : [...one.children];
        const kinds = new Set(below.map(each => look(each, indent + ' ')));
        return [line.trimEnd(), ...kinds].filter(Boolean).join('\n');
    };
    return look(document.body, '');
}"""
"""What can be seen in a page: its elements, with the text of those that name others. Of elements
that differ in their data only, such as the rows of a table, it has one."""


def take(one: Tab, picture: Picture) -> tuple[Image.Image, str]:
    """Return a picture of a page, with few colours, and the structure of the page."""
    width, height = picture.size
    one.page.set_viewport_size({"width": width, "height": height})
    one.page.emulate_media(color_scheme=picture.scheme)
    one.go("#/nowhere", "Nothing here")
    one.go(picture.place, picture.heading)
    one.sees(picture.text)
    one.until(LOADED)
    structure: str = one.page.evaluate(STRUCTURE)
    taken = Image.open(io.BytesIO(one.page.screenshot(animations="disabled")))
    return taken.convert("RGB").quantize(COLOURS), structure


def keep(taken: Image.Image, structure: str, file: Path) -> None:
    """Write a picture, and what was in the page, into one file."""
    notes = PngInfo()
    notes.add_itxt("structure", structure, zip=True)
    taken.save(file, "PNG", optimize=True, pnginfo=notes)


def staleness(file: Path, taken: Image.Image, structure: str) -> str:
    """Return how a kept picture differs from the page; empty if it does not."""
    if not file.exists():
        return f"{file.name} is missing"
    with Image.open(file) as kept:
        if kept.size != taken.size:
            return f"{file.name} has {kept.size} pixels, the page {taken.size}"
        before = str(kept.info.get("structure", "")).splitlines()
    lines = list(difflib.unified_diff(before, structure.splitlines(), "picture", "page", n=2))
    return "\n".join([f"{file.name} shows another page:", *lines]) if lines else ""


def test_the_documents_pictures_show_the_console(browser: Browser) -> None:
    stale = []
    with (
        Stage(World(MOMENT), clock=lambda: MOMENT) as stage,
        tab(browser, stage.url, timezone_id="UTC") as one,
    ):
        one.page.clock.set_fixed_time(MOMENT * 1_000)
        one.log_in("alice")
        for name, picture in PICTURES.items():
            file = FOLDER / f"console-{name}.png"
            taken, structure = take(one, picture)
            assert len(taken.getcolors() or ()) > 20  # it is no empty page
            if "MAITRED_PICTURES" in os.environ:
                keep(taken, structure, file)
            if why := staleness(file, taken, structure):
                stale.append(why)
    assert not stale, "\n".join([*stale, f"Take them anew: {AGAIN}"])


def test_the_documents_have_all_pictures() -> None:
    page = (FOLDER.parent / "console.md").read_text()
    kept = {one.name for one in FOLDER.glob("console-*.png")}
    assert kept == {f"console-{name}.png" for name in PICTURES}
    assert {name for name in kept if f"pictures/{name}" not in page} == set()
