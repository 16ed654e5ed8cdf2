"""`module:attribute`: what is found, and what is said if it is not."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import pytest

from maitred.errors import CannotLoad, UnknownChoice
from maitred.worker.app_loader import handlers_of, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS = itertools.count()

GOOD = """
from maitred import App
app = App("shop")
empty = App("empty")
text = "app"
class group:
    inner = app
@app.handler("thumbnails")
async def thumbnail(url: str) -> str: return url
@app.handler("mails")
def mail(to: str) -> None: ...
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def module(place: Path, text: str) -> str:
    name = f"loaded_{next(NUMBERS)}"
    (place / f"{name}.py").write_text(text)
    return name


def test_an_app_is_found(place: Path) -> None:
    name = module(place, GOOD)
    app = load(f"{name}:app", place)
    assert list(app.handlers) == ["thumbnails", "mails"]
    assert load(f"{name}:group.inner", place) is app
    assert [one.queue for one in handlers_of(app, [])] == ["thumbnails", "mails"]
    assert [one.queue for one in handlers_of(app, ["mails"])] == ["mails"]
    with pytest.raises(UnknownChoice, match="Did you mean 'mails'"):
        handlers_of(app, ["mail"])


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("ap", r"has no 'ap'. It has loaded_\d+:app, loaded_\d+:empty"),
        ("text", "is a str, no App. It has"),
        ("thumbnail", "is a handler"),
        ("empty", "has no handlers"),
        ("group.outer", "has no 'group.outer'"),
    ],
)
def test_a_wrong_attribute_is_explained(place: Path, attribute: str, words: str) -> None:
    name = module(place, GOOD)
    with pytest.raises(CannotLoad, match=words) as caught:
        load(f"{name}:{attribute}", place)
    assert caught.value.code == "cannot-load"


@pytest.mark.parametrize("target", ["shop", "shop:", ":app", "", "shop:app()", "a/b:app", "a:b:c"])
def test_a_wrong_form_is_explained(place: Path, target: str) -> None:
    with pytest.raises(CannotLoad, match="module:attribute"):
        load(target, place)


@pytest.mark.parametrize("target", ["no_such_shop:app", "no_such.shop:app"])
def test_a_module_that_is_not_there(place: Path, target: str) -> None:
    with pytest.raises(CannotLoad, match="There is no module 'no_such"):
        load(target, place)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*line 1\)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError"),
        ("from maitred import App\nApp('a:b')", "invalid-name"),
    ],
)
def test_a_module_that_cannot_be_imported(place: Path, text: str, words: str) -> None:
    with pytest.raises(CannotLoad, match=words):
        load(f"{module(place, text)}:app", place)
