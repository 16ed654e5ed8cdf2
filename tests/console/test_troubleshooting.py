"""Of six handlers one fails at times, one is slow and one is not served: an operator finds out
which and why, and mends it, by the console alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import tab
from tests.tasks.troubled_shop import troubled_shop

pytestmark = pytest.mark.timeout(300)
"""The first test may have to install the browser."""

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser


def test_by_the_console_alone(browser: Browser, tmp_path: Path) -> None:
    with troubled_shop(tmp_path) as shop, tab(browser, shop.http) as one:
        page = one.page
        one.go("#/", "Overview")
        one.sees("8 dead letters; ")
        one.sees("LookupError: no exchange rate for CHF (8)")
        one.sees("1 task runs at a time; no slot is free")
        needs = page.get_by_role("region", name="Needs attention")
        failures = page.get_by_role("region", name="Dead letters by error")
        unserved = needs.get_by_role("listitem").filter(has_text="shop/invoices")
        assert "no worker serves it; 24 tasks wait" in unserved.inner_text()
        behind = needs.get_by_role("listitem").filter(has_text="shop/reports")
        assert "an attempt takes" in behind.inner_text()
        assert needs.get_by_role("listitem").count() == 2
        assert failures.get_by_role("listitem").count() == 1

        shop.mend_payments()
        failures.get_by_role("link", name="shop/payments").click()
        one.button("Retry all").click()
        one.confirm("Retry 8")
        one.sees("8 tried again")
        one.button("Close").click()
        shop.work(500, "reports")
        one.go("#/queues/shop/invoices", "shop/invoices")
        one.button("Purge").click()
        one.confirm("Purge", typed="invoices")
        one.sees("24 deleted.")
        one.button("Close").click()
        one.go("#/", "Overview")
        one.sees("All queues are served, and no task waits for long.")
        one.sees("No task has used up its attempts.")
