"""The sliders for rates and partitions, moved in a real browser, beside their number fields."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import Tab, tab

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

    from tests.console.stage import Stage

QUEUE = "#/queues/bank/mail"


def opened(one: Tab, button: str, label: str) -> tuple[Locator, Locator]:
    """Open a dialog, and return its slider and its number field with this label."""
    one.go(QUEUE, "bank/mail")
    one.button(button).click()
    box = one.page.get_by_role("dialog")
    slider = box.get_by_role("slider", name=f"{label}, slider", exact=True)
    number = box.get_by_role("spinbutton", name=label, exact=True)
    slider.wait_for()
    return slider, number


def position(slider: Locator) -> float:
    """Return where the thumb is: 0 at the left end, 1 at the right end."""
    share: float = slider.evaluate("one => (one.value - one.min) / (one.max - one.min)")
    return share


def test_a_rate_is_set_by_a_logarithmic_slider_or_as_a_number(
    browser: Browser, stage: Stage
) -> None:
    with tab(browser, stage.url) as one:
        keys = one.page.keyboard
        one.log_in("alice")
        slider, number = opened(one, "Change rate_per_second", "Tasks per second")

        def says(words: str, digits: str) -> None:
            assert slider.get_attribute("aria-valuetext") == words
            assert number.input_value() == digits

        says("no limit", "")
        assert position(slider) == 1
        assert number.get_attribute("placeholder") == "no limit"
        hint = slider.get_attribute("aria-describedby")
        assert hint == number.get_attribute("aria-describedby")
        assert "no limit" in one.page.locator(f"#{hint}").inner_text()

        slider.focus()
        keys.press("ArrowLeft")
        says("100,000 per second", "100000")
        keys.press("ArrowRight")
        says("no limit", "")
        keys.press("Home")
        says("0.1 per second", "0.1")
        for rate in (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0):
            # The same number of steps is the same factor, wherever the slider is.
            for _ in range(10):
                before = float(number.input_value())
                keys.press("ArrowRight")
                assert 1.1 < float(number.input_value()) / before < 1.4
            assert float(number.input_value()) == rate
        keys.press("End")
        says("no limit", "")

        number.fill("1000")
        says("1,000 per second", "1000")
        thousand = position(slider)
        number.fill("10")
        assert position(slider) < thousand
        number.fill("990")
        says("990 per second", "990")
        assert position(slider) == thousand
        number.fill("1000000")
        assert thousand < position(slider) < 1, "a limit that no slider has is a limit"
        number.fill("0.001")
        assert position(slider) == 0
        number.fill("")
        says("no limit", "")
        assert position(slider) == 1

        number.press_sequentially("1.05")
        keys.press("Backspace")
        keys.press("7")
        says("1.07 per second", "1.07")
        one.confirm("Set", reason="slower")
        one.sees("rate_per_second is set.")
        assert stage.world.changes[-1][2]["set"] == {"rate_per_second": 1.07}

        slider, number = opened(one, "Change rate_per_second", "Tasks per second")
        slider.focus()
        keys.press("Home")
        keys.press("End")
        keys.press("Enter")
        one.until("document.querySelector('dialog') === null")
        assert stage.world.changes[-1][2]["set"] == {"rate_per_second": None}


def test_partitions_are_set_by_sliders_or_as_numbers(browser: Browser, stage: Stage) -> None:
    with tab(browser, stage.url) as one:
        keys = one.page.keyboard
        one.log_in("alice")
        slider, number = opened(one, "Change partitions", "Written to")
        assert (slider.input_value(), number.input_value()) == ("24", "24")
        slider.focus()
        keys.press("ArrowLeft")
        assert (slider.get_attribute("aria-valuetext"), number.input_value()) == ("23", "23")
        keys.press("Home")
        assert number.input_value() == "1"
        number.fill("7")
        assert slider.input_value() == "7"
        number.fill("1000")
        assert position(slider) == 1
        one.sees("Every partition that is written to has to be read.")
        assert one.button("Set").is_disabled()
        slider.focus()
        keys.press("PageDown")
        assert number.input_value() == slider.input_value() != "64"
        slider.fill("12")
        one.page.get_by_role("slider", name="Read from, slider").fill("30")
        one.confirm("Set")
        one.sees("12 partitions to write to, 30 to read")
        assert stage.world.changes[-1][2] == {"read": 30, "write": 12, "force": False}


def test_the_words_below_the_slider_stand_beside_each_other(browser: Browser, stage: Stage) -> None:
    words = """() => [...document.querySelectorAll('.marks span')]
        .map(one => one.getBoundingClientRect()).map(one => [one.left, one.right])"""
    with tab(browser, stage.url) as one:
        one.log_in("alice")
        slider, _ = opened(one, "Change rate_per_second", "Tasks per second")
        for width in (1440, 390):
            one.page.set_viewport_size({"width": width, "height": 844})
            edges = one.page.evaluate(words)
            assert len(edges) == 7
            assert all(left[1] + 2 < right[0] for left, right in pairwise(edges))
            box = slider.bounding_box()
            assert box is not None
            assert box["width"] > 140
            assert box["height"] >= (24 if width == 390 else 16), "a finger hits it"
