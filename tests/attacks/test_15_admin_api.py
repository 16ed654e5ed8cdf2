"""The admin API gives nobody more than the native protocol does.

A gateway's own connection may ask its node anything, so whatever the gateway forgets to check is
open to every caller. Users who look send every GET, with every wish to see more; users who only
look send every change; pages of other origins send changes through a browser that is logged in; and
a gateway on another host has callers that may do more than its own user at the node.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.gateway.gateway import Gateway
from maitred.gateway.http.admin import BODIES
from maitred.gateway.http.listener import HttpListener
from maitred.gateway.http.routes import ROUTES
from maitred.matching.signatures import SIGNATURES_MAX
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.queries import Attend, Queries, QueriesFound
from maitred.protocol.tasks import Failure
from maitred.settings import GatewaySettings, Node
from maitred.surroundings import Surroundings
from tests.gateway.admin_stage import AdminStage, admin_stage
from tests.gateway.fakes import _Log
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.logs import Logger

PRIVATE, HIDDEN = "4111-private", "4222-hidden"
QUEUE = "/v1/shop/queues/mails"


async def filled(here: AdminStage) -> list[int]:
    """Tasks in all states, each with a private and a hidden argument, and a query."""
    client = await here.client()
    await here.attend(client, "mails")
    arguments = [PRIVATE, HIDDEN]
    failure = Failure("CardError", f"no money on {PRIVATE}", f"line 1: {PRIVATE}")
    (dead,) = await here.serve_dead(client, "mails", [arguments], failure)
    (done,) = await here.add(client, "mails", [arguments])
    (task,) = await here.take(client, "mails")
    await here.finish(client, "mails", task, [PRIVATE, HIDDEN])
    (running,) = await here.add(client, "mails", [arguments])
    assert [one.sequence for one in await here.take(client, "mails")] == [running]
    (waiting,) = await here.add(client, "mails", [arguments])
    (delayed,) = await here.add(client, "mails", [arguments], delay=600.0)
    await here.attend(client, "asked", shape=PLAIN)
    path, headers = "/v1/shop/queues/asked/query", ("Maitred-Timeout: 0.05",)
    status, _ = await here.call("POST", path, [PRIVATE], user="customer", headers=headers)
    assert status == 504
    return [dead, done, running, waiting, delayed]


PLAIN = HandlerShape("look", [("first", "any", True), ("second", "any", False)])
"""Of a handler that hides nothing."""


def looks(numbers: list[int]) -> list[str]:
    """Every GET of the admin API, with every wish."""
    found = []
    for route in ROUTES:
        if route.method != "GET" or route.is_open or route.handler == "task_result":
            continue
        path = route.path.replace("{namespace}", "shop").replace("{queue}", "mails")
        for number in numbers if "{sequence}" in path else [0]:
            one = path.replace("{partition}", "0").replace("{sequence}", str(number))
            found.append(one)
            if "reveal" in route.parameters:
                found.append(f"{one}?reveal=true")
            if "error" in route.parameters:
                found += [f"{one}?error=4111&reveal=true", f"{one}?state=ended&reveal=true"]
    return found


@in_a_loop
async def test_no_answer_has_more_than_its_user_may_see(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        paths = looks(await filled(here))
        assert len(paths) > 20
        seen: dict[str, set[str]] = {}
        for user in ("reader", "operator", "customer", "stranger", "auditor", "boss"):
            for path in paths:
                _, said = await here.call("GET", path, user=user)
                text = json.dumps(said)
                assert HIDDEN not in text, (user, path)
                if PRIVATE in text:
                    seen.setdefault(user, set()).add(path.partition("?")[0])
        assert seen.keys() == {"auditor", "boss", "customer"}
        assert seen["customer"] == {"/v1/shop/queries"}, "the own one"
        # Otherwise there would be nothing to see.
        assert seen["auditor"] >= {f"{QUEUE}/tasks", f"{QUEUE}/dead-groups", "/v1/shop/queries"}
        assert len([path for path in seen["auditor"] if path.endswith("/history")]) == 5


@in_a_loop
async def test_the_text_of_a_query_does_not_tell_what_its_handler_hides(tmp_path: Path) -> None:
    """The handler of the mails hides the card, so the whole text of its queries is left out. Of the
    queue `unserved` no handler is known, and of `many` the one that hides comes after as many
    others as the root remembers."""
    async with admin_stage(tmp_path) as here:
        client = await here.client()
        await here.attend(client, "mails")
        await here.attend(client, "plain", shape=PLAIN)
        await here.add(client, "unserved", [[1]])
        others = [HandlerShape(f"look{at}", PLAIN.parameters) for at in range(SIGNATURES_MAX)]
        hiding = HandlerShape("look", PLAIN.parameters, ["second"])
        for number, shape in enumerate([*others, hiding]):
            message = Attend(
                *here.at("many"), b"secret%010d" % number, "bee", "127.0.0.1:4000", 8, 2
            )
            message.signature = encode_shape(shape)
            await client.request(message, 20)
        headers = ("Maitred-Timeout: 0.05",)
        for queue in ("mails", "plain", "unserved", "many"):
            path = f"/v1/shop/queues/{queue}/query"
            await here.call("POST", path, [1, HIDDEN], user="customer", headers=headers)
        expected = dict.fromkeys(("mails", "unserved", "many"), "[hidden]")
        expected["plain"] = f'[1,"{HIDDEN}"]'
        for user in ("boss", "auditor", "customer"):
            rows = (await here.get("/v1/shop/queries", user=user))["queries"]
            assert {row["queue"]: row["query"] for row in rows} == expected, user
        found = await client.request(Queries(0, 0, "list"), 20)
        assert isinstance(found, QueriesFound)
        assert {row.queue: row.query for row in found.rows} == expected


CHANGES = [route for route in ROUTES if route.handler in BODIES or route.handler == "delete_queue"]
BODY: dict[str, Any] = {
    "act_on_tasks": {"action": "drop", "state": "dead"},
    "resize_queue": {"read": 2, "write": 2},
    "set_queue": {"set": {"rate_per_second": 1}},
}


def change(handler: str, path: str, number: int = 0) -> tuple[str, Any]:
    """The path and the body of a change that would work."""
    path = path.replace("{namespace}", "shop").replace("{queue}", "mails")
    path = path.replace("{partition}", "0").replace("{sequence}", str(number))
    path = path.replace("{worker}", "ant")
    if handler == "delete_queue":
        return f"{path}?force=true", None
    return path, BODY.get(handler, {})


@in_a_loop
async def test_who_looks_changes_nothing_nor_does_a_page_of_another_origin(tmp_path: Path) -> None:
    async with admin_stage(tmp_path) as here:
        await filled(here)
        before = await here.get(QUEUE)
        assert len(CHANGES) == 9
        foreign = ("Origin: https://evil.example",)
        for route in CHANGES:
            path, body = change(route.handler, route.path)
            for user, headers in (
                ("reader", ()),
                ("auditor", ()),
                ("customer", ()),
                ("stranger", ()),
                ("boss", foreign),
                ("boss", ("Sec-Fetch-Site: cross-site",)),
            ):
                status, said = await here.call(route.method, path, body, user=user, headers=headers)
                assert status == 403, (route.handler, user, said)
                assert said["error"]["code"] == "permission-denied"
        after = await here.get(QUEUE)
        for name in ("backlog", "running", "dead", "controls", "workers"):
            assert after[name] == before[name], name
        assert len(after["partitions"]) == 1


@pytest.mark.parametrize("user", ["reader", "operator"])
@in_a_loop
async def test_a_gateway_elsewhere_gets_what_its_own_user_may_see(
    tmp_path: Path, user: str
) -> None:
    """It has no users, so its callers may do anything there; the node decides."""
    async with admin_stage(tmp_path) as here:
        numbers = await filled(here)
        gateway = Gateway(
            f"maitred://{user}:s@127.0.0.1:{here.node.port}",
            Node(gateway=GatewaySettings(port=0)),
            Surroundings.real(),
            cast("Logger", _Log([])),
        )
        address = await gateway.open(HttpListener(port=0))
        gateway.connect()
        try:
            await asyncio.wait_for(gateway.reaches_shards.wait(), 20)
            away = AdminStage(here.node, gateway, int(address.rpartition(":")[2]), here.clients, "")
            for path in looks(numbers):
                if path == "/v1/shop/queries":
                    continue  # those of this gateway
                _, said = await away.call("GET", path)
                assert PRIVATE not in json.dumps(said), path
            (row,) = (await away.get(f"{QUEUE}/tasks", state="dead", reveal="true"))["tasks"]
            assert (row["error"], row["withheld"]) == ("CardError", "permission")
            status, said = await away.call("GET", f"{QUEUE}/tasks?argument=order%3D1")
            assert (status, said["error"]["code"]) == (403, "permission-denied")
            for route in CHANGES:
                path, body = change(route.handler, route.path)
                if user == "operator" and route.handler == "delete_queue":
                    continue
                status, said = await away.call(route.method, path, body)
                assert status == (403 if user == "reader" else 200), (route.handler, said)
        finally:
            await gateway.close()
