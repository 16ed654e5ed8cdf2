"""What the HTTP listener writes into the audit log."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from maitred.settings import Audit
from tests.gateway.fakes import get, open_door, post, query, until
from tests.gateway.test_users import ask, basic, node

if TYPE_CHECKING:
    from pathlib import Path


def told(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("choice", ["none", "hash", "text"])
def test_logins_refusals_and_queries(tmp_path: Path, choice: Any) -> None:  # noqa: ANN401
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        settings = node(audit=Audit(directory=str(tmp_path), queries=choice))
        async with open_door(settings) as place:
            bob = basic("bob", "b")
            assert (await ask(place, query("echo", b'["why"]', bob))).status == 200
            assert (await ask(place, query("echo", b'["why"]', bob))).status == 200
            assert (await ask(place, query("echo", b"[]", basic("bob", "hunter2")))).status == 401
            other = post("/v1/other/queues/echo/query", b"[1]", bob)
            assert (await ask(place, other)).status == 403
            await until(lambda: any("other" in str(one) for one in told(path)), "it is told")
            page = await ask(place, get("/metrics"))
            assert b'maitred_audit_records_total{outcome="written"}' in page.body

    asyncio.run(scenario())
    found = told(path)
    logins = [one for one in found if one["action"] in ("login", "http login")]
    assert {(one["user"], one["allowed"]) for one in logins} == {("bob", True), ("bob", False)}
    (refused,) = [one for one in found if one["action"] == "http query"]
    assert (refused["user"], refused["target"]) == ("bob", "/v1/other/queues/echo/query")
    assert not refused["allowed"]
    asked = [one for one in found if one["action"] == "query"]
    assert len(asked) == (0 if choice == "none" else 2)
    for one in asked:
        assert (one["user"], one["target"]) == ("bob", "default/echo")
        assert ("why" in one.get("query", "")) == (choice == "text")
        assert ("query_sha256" in one) == (choice == "hash")
    assert "hunter2" not in path.read_text()
    assert all(one["from"].startswith("127.0.0.1:") for one in found)
