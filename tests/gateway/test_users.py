"""The node's users at the HTTP API: who comes in, and what they may do."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from maitred.client.asked_query import Whole
from maitred.security.users import CREDENTIALS_IGNORED
from maitred.settings import GatewaySettings, Node, QueryLimits, User
from tests.gateway.fakes import Answer, Opened, get, open_door, post, query, until
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

ALICE, BOB = cheaply("open sesame"), cheaply("b")


def node(**more: object) -> Node:
    return Node(
        gateway=GatewaySettings(port=0, idle_seconds=1.0),
        users={
            "alice": User(secret=ALICE, permissions={"*": ["admin"]}),
            "bob": User(
                secret=BOB,
                permissions={"default": ["query"]},
                queries=QueryLimits(queues=["default/echo"]),
            ),
        },
        **more,  # type: ignore[arg-type]
    )


def basic(user: str, secret: str) -> str:
    return f"Authorization: Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"


async def ask(place: Opened, request: bytes) -> Answer:
    caller = await place.dial()
    try:
        caller.send(request)
        return await caller.answer()
    finally:
        caller.close()


@pytest.mark.parametrize(
    "header",
    [
        basic("alice", "open sesame"),
        "Authorization: bearer alice:open sesame",
        f"Authorization: Bearer {b64encode(b'alice:open sesame').decode()}",
    ],
)
def test_who_knows_the_secret_comes_in(header: str) -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            for _ in range(2):  # verified, then remembered
                answer = await ask(place, query("echo", b"[1]", header))
                assert (answer.status, answer.body) == (200, b"1")
            assert place.asking.asked[0].ask.user == "alice"
            caller = await place.dial()
            for _ in range(3):
                caller.send(query("echo", b"[1]", header))
                assert (await caller.answer()).status == 200
            caller.send(query("echo", b"[1]"))  # a connection is nobody's
            assert (await caller.answer()).status == 401
            caller.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (basic("alice", "wrong"),),
        (basic("maitred-gateway", "x"),),
        (basic("nobody", "open sesame"),),
        ("Authorization: Basic %%%",),
        ("Authorization: Digest x",),
        ("Authorization: Basic",),
    ],
)
def test_who_does_not_is_told_how(headers: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            answer = await ask(place, query("echo", b"[1]", *headers))
            assert answer.status == 401
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert json.loads(answer.body)["error"]["code"] == "unauthenticated"
            assert not place.asking.asked
            assert (await ask(place, get("/health"))).status == 200

    asyncio.run(scenario())


def test_failed_logins_are_logged_once_a_second_and_without_the_secret() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            for _ in range(3):
                await ask(place, query("echo", b"", basic("alice", "hunter2")))
            told = [fields for event, fields in place.lines if event == "authentication failed"]
            assert told
            assert told[0]["user"] == "alice"
            assert "hunter2" not in str(place.lines)

    asyncio.run(scenario())


def test_permissions_count_by_namespace() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            bob = basic("bob", "b")
            assert (await ask(place, query("echo", b"[1]", bob))).status == 200
            for request in (
                post("/v1/other/queues/echo/query", b"[1]", bob),
                post("/v1/default/queues/echo/tasks", b"[1]", bob),
                get("/v1/default/queues/echo", bob),
                get("/v1/default/queries?user=alice", bob),
            ):
                answer = await ask(place, request)
                assert answer.status == 403, answer
            assert place.gateway.guard.users.query_limits("bob") == QueryLimits(
                queues=["default/echo"]
            )

    asyncio.run(scenario())


def test_who_is_no_admin_sees_and_cancels_his_own_queries() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            alice, bob = basic("alice", "open sesame"), basic("bob", "b")
            waiting = await place.dial()
            waiting.send(query("hang", b"", alice))
            await until(lambda: bool(place.asking.asked), "the query")
            number = place.asking.asked[0].sequence
            seen = await ask(place, get("/v1/default/queries", bob))
            assert json.loads(seen.body) == {"queries": []}
            path = f"/v1/default/queries/{number}"
            assert (await ask(place, get(path, bob, method="DELETE"))).status == 404
            assert (await ask(place, get(path, alice, method="DELETE"))).status == 200
            assert (await waiting.answer()).status == 409
            waiting.close()

    asyncio.run(scenario())


def test_the_users_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"

    def write(secret: str) -> None:
        file.write_text(f'[users.carol]\nsecret = "{secret}"\npermissions = {{"*" = ["query"]}}\n')

    async def scenario() -> None:
        write(cheaply("first"))
        async with open_door(node(users_file=str(file))) as place:
            first, second = basic("carol", "first"), basic("carol", "second secret")
            assert (await ask(place, query("echo", b"[1]", first))).status == 200
            assert (await ask(place, query("echo", b"[1]", second))).status == 401
            before = place.gateway.guard.users.generation
            write(cheaply("second secret"))
            await until(lambda: place.gateway.guard.users.generation > before, "it is read")
            assert (await ask(place, query("echo", b"[1]", second))).status == 200
            assert (await ask(place, query("echo", b"[1]", first))).status == 401

    asyncio.run(scenario())


def test_what_is_under_way_ends_with_its_user(tmp_path: Path) -> None:
    """A query that never ends, of a user who is removed, and of one who is not."""
    file = tmp_path / "users.toml"

    def write(*names: str) -> None:
        file.write_text(
            "".join(
                f'[users.{name}]\nsecret = "{cheaply(name)}"\npermissions = {{"*" = ["query"]}}\n'
                for name in names
            )
        )

    async def scenario() -> None:
        write("carol", "dora")
        async with open_door(node(users_file=str(file))) as place:
            callers = {}
            for name in ("carol", "dora"):
                caller = callers[name] = await place.dial()
                caller.send(query("hang", b"[1]", basic(name, name)))
            await until(lambda: len(place.asking.asked) == 2, "both are asked")
            write("dora")
            with suppress(ConnectionError):
                assert await asyncio.wait_for(callers["carol"].reader.read(), 20) == b""
            await until(lambda: bool(place.asking.cancelled), "the query is cancelled")
            assert [one.ask.user for one in place.asking.cancelled] == ["carol"]
            [dora] = [one for one in place.asking.asked if one.ask.user == "dora"]
            dora.finish(Whole(b"\x05"))
            assert (await callers["dora"].answer()).status == 200
            for caller in callers.values():
                caller.close()

    asyncio.run(scenario())


def test_logins_are_counted_by_outcome() -> None:
    async def scenario() -> None:
        async with open_door(node()) as place:
            right, wrong = basic("alice", "open sesame"), basic("alice", "wrong")
            for header in (right, right, wrong, wrong):
                await ask(place, query("echo", b"[1]", header))
            page = (await ask(place, get("/metrics", right))).body.decode()
            assert 'maitred_logins_total{outcome="verified"} 1\n' in page
            assert 'maitred_logins_total{outcome="wrong"} 2\n' in page
            assert "maitred_logins_waiting 0\n" in page
            assert "# TYPE maitred_reloads_total counter\n" in page

    asyncio.run(scenario())


def test_credentials_that_nobody_looks_at_draw_one_warning() -> None:
    async def scenario() -> None:
        async with open_door() as place:
            assert (await ask(place, query("echo", b"[1]"))).status == 200
            assert not place.lines
            for _ in range(3):
                answer = await ask(place, query("echo", b"[1]", basic("alice", "open sesame")))
                assert answer.status == 200
            ((event, fields),) = place.lines
            assert event == CREDENTIALS_IGNORED
            assert "127.0.0.1" in fields["peer"]
            assert "open sesame" not in repr(fields)

    asyncio.run(scenario())
