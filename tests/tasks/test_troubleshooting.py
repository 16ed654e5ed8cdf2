"""Of six handlers one fails at times, one is slow and one is not served: an operator finds out
which and why, and mends it, by the command line alone and by HTTP alone. tests/console has the
third way."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.cli.running import maitred
from tests.node.nodes import wait_until
from tests.tasks.troubled_shop import DEAD, by_queue, troubled_shop

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY = ("orders", "mails", "stock")


def test_by_the_command_line_alone(tmp_path: Path) -> None:
    with troubled_shop(tmp_path) as shop:

        def admin(*arguments: str, status: int = 0) -> str:
            done = maitred("admin", *arguments, environment=shop.environment)
            assert done.returncode == status, (arguments, done.stdout, done.stderr)
            return done.stdout

        def problems() -> dict[str, dict[str, Any]]:
            done = maitred("admin", "problems", "--json", environment=shop.environment)
            return by_queue(json.loads(done.stdout)["problems"])

        wait_until(lambda: {"reports", "payments", "invoices"} == problems().keys(), "they show")
        wait_until(lambda: problems()["payments"]["tasks"] == DEAD, "all of them have died")

        looks: list[str] = []

        def is_seen_busy() -> bool:
            """Between two tasks of the slow handler its slot is free for a moment."""
            looks.append(admin("problems", status=1))
            return "1 task runs at a time; no slot is free" in " ".join(looks[-1].split())

        wait_until(is_seen_busy, "the slow handler is seen at work")
        unserved, failing, behind, last = looks[-1].strip().split("\n\n")
        assert unserved.startswith("shop/invoices\nunserved")
        assert "no worker serves it" in unserved
        assert "--queue invoices`" in unserved
        assert failing.startswith("shop/payments\nfailing     8 dead letters; ")
        assert "LookupError: no exchange rate for CHF (8)" in failing
        assert behind.startswith("shop/reports\nbehind")
        assert last == "3 problems: looked at 6 queues."
        misspelt = maitred("admin", "problems", "--namespace", "shpo", environment=shop.environment)
        assert misspelt.returncode == 2
        assert "Did you mean 'shop'?" in misspelt.stderr

        head, *lines = admin("queue", "list").splitlines()
        assert head.split()[-3:] == ["failed", "run", "p50"]
        rows = {line.split()[0]: line for line in lines}
        assert rows.keys() == {f"shop/{name}" for name in (*problems(), *HEALTHY)}
        listed = {
            one["queue"]: one for one in json.loads(admin("queue", "list", "--json"))["queues"]
        }
        assert max(listed, key=lambda name: listed[name]["run_p50_seconds"] or 0) == "reports"
        assert [name for name, one in listed.items() if one["recent_failed"]] == ["payments"]
        assert [name for name, one in listed.items() if not one["workers"]] == ["invoices"]

        shop.mend_payments()
        admin("task", "retry", "shop/payments", "--all", "--yes")
        shop.work(8, "invoices")
        shop.work(500, "reports")
        wait_until(lambda: not problems(), "nothing is wrong")
        assert admin("problems") == "Nothing is wrong: looked at 6 queues.\n"


def test_by_http_alone(tmp_path: Path) -> None:
    with troubled_shop(tmp_path) as shop:

        def ask(path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(  # noqa: S310 - a node of this machine
                f"{shop.http}{path}", data, {"Content-Type": "application/json"} if data else {}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - likewise
                return json.loads(answer.read())

        def problems() -> dict[str, dict[str, Any]]:
            return by_queue(ask("/v1/problems?namespace=shop")["problems"])

        wait_until(lambda: {"reports", "payments", "invoices"} == problems().keys(), "they show")
        wait_until(lambda: problems()["payments"]["tasks"] == DEAD, "all of them have died")
        found = problems()
        assert {name: one["kind"] for name, one in found.items()} == {
            "invoices": "unserved",
            "payments": "failing",
            "reports": "behind",
        }
        assert found["payments"]["why"] == "LookupError: no exchange rate for CHF (8)"
        rows = {one["queue"]: one for one in ask("/v1/queues?namespace=shop")["queues"]}
        assert rows.keys() == {*found, *HEALTHY}
        assert max(rows, key=lambda name: rows[name]["run_p50"] or 0) == "reports"
        (group,) = ask("/v1/shop/queues/payments/dead-groups")["groups"]
        assert (group["count"], group["message"]) == (DEAD, "no exchange rate for CHF")
        events = ask(f"/v1/shop/queues/payments/tasks/{group['example']}/history")["events"]
        assert [one["what"] for one in events][-1] == "dead"

        shop.mend_payments()
        retry = {"action": "retry", "state": "dead", "reason": "the rate is there"}
        assert ask("/v1/shop/queues/payments/tasks/actions", retry)["done"] == DEAD
        # Nobody wants these invoices any more.
        assert ask("/v1/shop/queues/invoices/purge", {"states": ["waiting"]})["tasks"]["waiting"]
        shop.work(500, "reports")
        wait_until(lambda: not problems(), "nothing is wrong")
