"""What the HTTP listener writes into the audit log."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from msgspec import msgpack

from maitred.gateway.http import audited_queries
from maitred.gateway.http.audited_queries import AuditedQueries
from maitred.security.audit_records import TEXT_LETTERS, query_fields
from maitred.settings import Audit
from tests.gateway.fakes import HIDING, PLAIN, FakeNode, get, open_door, post, query, until
from tests.gateway.test_users import ask, basic, node

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import SignaturesFound
    from maitred.settings import Node


def told(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def queries(path: Path) -> list[dict[str, Any]]:
    return [one for one in told(path) if one["action"] == "query"]


def text_audit(directory: Path) -> Node:
    return node(audit=Audit(directory=str(directory), queries="text"))


@pytest.mark.parametrize("choice", ["none", "hash", "text"])
def test_logins_refusals_and_queries(tmp_path: Path, choice: Any) -> None:  # noqa: ANN401
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        settings = node(audit=Audit(directory=str(tmp_path), queries=choice))
        async with open_door(settings) as place:
            place.gateway.client = cast("AsyncClient", FakeNode([PLAIN]))
            bob = basic("bob", "b")
            assert (await ask(place, query("echo", b'["why"]', bob))).status == 200
            assert (await ask(place, query("echo", b'["why"]', bob))).status == 200
            assert (await ask(place, query("echo", b"[]", basic("bob", "hunter2")))).status == 401
            other = post("/v1/other/queues/echo/query", b"[1]", bob)
            assert (await ask(place, other)).status == 403
            await until(lambda: any("other" in str(one) for one in told(path)), "it is told")
            asked = 0 if choice == "none" else 2
            await until(lambda: len(queries(path)) == asked, "so are the queries")
            place.gateway.client = None  # it has no metrics
            page = await ask(place, get("/metrics"))
            assert b'maitred_audit_records_total{outcome="written"}' in page.body

    asyncio.run(scenario())
    found = told(path)
    logins = [one for one in found if one["action"] in ("login", "http login")]
    assert {(one["user"], one["allowed"]) for one in logins} == {("bob", True), ("bob", False)}
    (refused,) = [one for one in found if one["action"] == "http query"]
    assert (refused["user"], refused["target"]) == ("bob", "/v1/other/queues/echo/query")
    assert not refused["allowed"]
    asked = queries(path)
    assert len(asked) == (0 if choice == "none" else 2)
    for one in asked:
        assert (one["user"], one["target"]) == ("bob", "default/echo")
        assert ("why" in one.get("query", "")) == (choice == "text")
        assert ("query_sha256" in one) == (choice == "hash")
    assert "hunter2" not in path.read_text()
    assert all(one["from"].startswith("127.0.0.1:") for one in found)


@pytest.mark.parametrize("announced", [[HIDING], [PLAIN, HIDING], [], None])
def test_a_text_that_may_have_hidden_values_is_recorded_as_a_hash(
    tmp_path: Path, announced: list[bytes] | None
) -> None:
    """A handler hides an argument, none has announced anything, or the node cannot be asked."""
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            if announced is not None:
                place.gateway.client = cast("AsyncClient", FakeNode(announced))
            asked = query("echo", b'["4111-hidden"]', basic("bob", "b"))
            assert (await ask(place, asked)).status == 200
            await until(lambda: bool(queries(path)), "it is recorded")

    asyncio.run(scenario())
    (record,) = queries(path)
    assert record["query_sha256"] == sha256(msgpack.encode(["4111-hidden"])).hexdigest()
    assert (record["user"], record["target"]) == ("bob", "default/echo")
    assert "4111" not in path.read_text()


@pytest.mark.parametrize("announced", [PLAIN, HIDING])
def test_short_arguments_are_decoded_or_hashed_and_not_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bytes
) -> None:
    path = tmp_path / "gateway.jsonl"
    made: list[str] = []

    def counted(choice: Literal["hash", "text"], payload: bytes) -> dict[str, str]:
        made.append(choice)
        return query_fields(choice, payload)

    monkeypatch.setattr(audited_queries, "query_fields", counted)

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            place.gateway.client = cast("AsyncClient", FakeNode([announced]))
            bob = basic("bob", "b")
            await ask(place, query("echo", b'["shown"]', bob))
            await until(lambda: len(queries(path)) == 1, "it is recorded")
            assert made == ["text" if announced is PLAIN else "hash"]
            await ask(place, query("echo", b'["%b"]' % (b"x" * 2 * TEXT_LETTERS), bob))
            await until(lambda: len(queries(path)) == 2, "so is a long one")

    asyncio.run(scenario())
    if announced is PLAIN:
        short, long = (one["query"] for one in queries(path))
        assert short.endswith("shown")
        assert len(long) == TEXT_LETTERS
    assert ["query_sha256" in one for one in queries(path)] == [announced is HIDING] * 2


class FaultyNode(FakeNode):
    """Has a defect."""

    async def request(self, _message: object, _timeout: float | None = None) -> SignaturesFound:
        raise ZeroDivisionError


def test_a_defect_at_the_question_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.jsonl"
    monkeypatch.setattr(audited_queries, "WAITING_MAX", 1)

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            place.gateway.client = cast("AsyncClient", FaultyNode([PLAIN]))
            await ask(place, query("echo", b'["4111-hidden"]', basic("bob", "b")))
            await until(lambda: bool(queries(path)), "it is recorded")
            (fields,) = [said for event, said in place.lines if "signatures not read" in event]
            assert fields == {"namespace": "default", "queue": "echo"}
            place.gateway.client = cast("AsyncClient", FakeNode([PLAIN]))
            await ask(place, query("echo", b'["shown"]', basic("bob", "b")))
            await until(lambda: len(queries(path)) == 2, "there is room again")

    asyncio.run(scenario())
    assert ["query_sha256" in one for one in queries(path)] == [True, False]
    assert "4111" not in path.read_text()


def test_an_answer_is_for_the_queries_that_came_before_the_question(tmp_path: Path) -> None:
    """While an answer is on its way, a handler that hides the argument starts, and a query
    comes."""
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            fake = FakeNode([PLAIN])
            fake.answers.clear()
            place.gateway.client = cast("AsyncClient", fake)
            bob = basic("bob", "b")
            await ask(place, query("echo", b'["shown"]', bob))
            await until(lambda: fake.asked == 1, "the node is asked")
            fake.announced = [HIDING]
            await ask(place, query("echo", b'["4111-hidden"]', bob))
            await until(lambda: fake.asked == 2, "the node is asked again")
            assert not queries(path)
            fake.answers.set()
            await until(lambda: len(queries(path)) == 2, "both are recorded")

    asyncio.run(scenario())
    assert ["shown" in one.get("query", "") for one in queries(path)] == [True, False]
    assert "4111" not in path.read_text()


def test_queries_of_a_queue_that_come_together_share_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            fake = FakeNode([PLAIN])
            place.gateway.client = cast("AsyncClient", fake)
            audit = place.gateway.guard.audit
            assert audit is not None
            audited = AuditedQueries(audit, place.gateway, place.door.spawn)
            for queue in ("echo", "echo", "rows"):
                audited.tell("default", queue, b"[1]", user="bob", source="")
            await until(lambda: len(queries(path)) == 3, "all are recorded")
            assert fake.asked == 2

    asyncio.run(scenario())
    assert all("query" in one for one in queries(path))


def test_queries_that_wait_for_an_answer_are_recorded_when_the_gateway_stops(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gateway.jsonl"

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            fake = FakeNode([PLAIN])
            fake.answers.clear()
            place.gateway.client = cast("AsyncClient", fake)
            await ask(place, query("echo", b"[1]", basic("bob", "b")))
            await until(lambda: fake.asked == 1, "the node is asked")
            await ask(place, query("echo", b"[2]", basic("bob", "b")))
        audit = place.gateway.guard.audit
        assert audit is not None
        await audit.close()

    asyncio.run(scenario())
    assert ["query_sha256" in one for one in queries(path)] == [True, True]


def test_queries_beyond_those_that_may_wait_are_recorded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.jsonl"
    monkeypatch.setattr(audited_queries, "WAITING_MAX", 1)

    async def scenario() -> None:
        async with open_door(text_audit(tmp_path)) as place:
            fake = FakeNode([PLAIN])
            fake.answers.clear()
            place.gateway.client = cast("AsyncClient", fake)
            for text in (b'["first"]', b'["second"]'):
                await ask(place, query("echo", text, basic("bob", "b")))
            await until(lambda: len(queries(path)) == 1, "the second is recorded")
            fake.answers.set()
            await until(lambda: len(queries(path)) == 2, "the first as well")
            await ask(place, query("echo", b'["third"]', basic("bob", "b")))
            await until(lambda: len(queries(path)) == 3, "there is room again")

    asyncio.run(scenario())
    second, first, third = queries(path)
    assert "query_sha256" in second
    assert "first" in first["query"]
    assert "third" in third["query"]
    assert first["at"] <= second["at"], "each has the time at which it arrived"
