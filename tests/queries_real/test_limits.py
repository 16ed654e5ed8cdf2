"""Who may ask what, and how much: the same at both doors of a real node with real workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.errors import MaitredError, Overloaded
from maitred.protocol.tasks import Describe
from maitred.routing.names import TASKS
from maitred.security.secrets import hash_secret
from tests.cli.running import MAITRED
from tests.gateway.test_processes import ROOT, call, http_of
from tests.node.nodes import running_node, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.node.nodes import RunningNode

SECRET = "s"  # noqa: S105 - of everybody here
WORKER = (str(MAITRED), "worker", "tests.queries_real.kitchen:app")
QUERY = {"kitchen": ["query"]}
LIMITS: dict[str, dict[str, object]] = {
    "narrow": {"queues": ["kitchen/echo"]},
    "slow": {"rate_per_second": 1},
    "alone": {"concurrent": 1},
    "patient": {"waiting": 1},
    "small": {"result_bytes": 1_000},
    "brief": {"run_seconds": 0.2},
    "free": {},
}


QUEUES = {"kitchen/rationed": {"queries": {"rate_per_second": 1}}}


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    hashed = hash_secret(SECRET)
    users: dict[str, Any] = {
        name: {"secret": hashed, "permissions": QUERY, "queries": limits}
        for name, limits in LIMITS.items()
    }
    users["boss"] = {"secret": hashed, "permissions": {"*": ["admin"]}}
    users["maker"] = {"secret": hashed, "permissions": {"kitchen": ["produce"]}}
    with running_node(
        shards=1,
        gateway=True,
        environment={
            "MAITRED_USERS": json.dumps(users),
            "MAITRED_QUEUES": json.dumps(QUEUES),
        },
    ) as made:
        url = made.url.replace("://", f"://boss:{SECRET}@")
        with subprocess.Popen(
            [*WORKER, "--url", url, "--slots", "2"],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                for queue, arguments in (("echo", [1]), ("rows", [0, 1]), ("moody", [0, 1])):
                    path = f"/v1/kitchen/queues/{queue}/query"
                    boss = {"Authorization": f"Bearer boss:{SECRET}"}
                    asked = partial(call, http_of(made), "POST", path, arguments, boss)
                    wait_until(lambda asked=asked: asked()[0] == 200, "a worker serves")  # type: ignore[misc]
                yield made
            finally:
                worker.kill()


class Doors:
    """Both; each asks as anybody, and says what came of it: a result, or an error's code."""

    def __init__(self, node: RunningNode, stack: AsyncExitStack) -> None:
        self._node = node
        self._stack = stack
        self._clients: dict[str, maitred.AsyncClient] = {}

    async def native(self, user: str, queue: str, *arguments: object) -> object:
        client = self._clients.get(user)
        if client is None:
            url = self._node.url.replace("://", f"://{user}:{SECRET}@")
            client = await self._stack.enter_async_context(maitred.connect(url))
            self._clients[user] = client
        try:
            return await client.query(queue, *arguments, namespace="kitchen", timeout=20)
        except Overloaded as problem:
            return problem.code if problem.retry_after else "overloaded, and nothing more"
        except MaitredError as problem:
            return problem.code

    async def http(self, user: str, queue: str, *arguments: object) -> object:
        path = f"/v1/kitchen/queues/{queue}/query"
        who = {"Authorization": f"Bearer {user}:{SECRET}", "Accept": "application/json"}
        asking = partial(call, http_of(self._node), "POST", path, arguments, who)
        status, said, headers = await asyncio.to_thread(asking)
        if status == 200:
            return said
        code = said["error"]["code"]
        statuses = {"overloaded": 429, "permission-denied": 403, "unauthenticated": 401}
        statuses |= {"result-too-large": 502, "deadline-exceeded": 504}
        assert status == statuses[code]
        assert ("retry-after" in headers) == (status == 429)
        return code


def each_door(
    node: RunningNode,
    door: str,
    main: Callable[[Callable[..., Awaitable[object]]], Awaitable[None]],
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            await main(getattr(Doors(node, stack), door))

    asyncio.run(whole())


DOORS = ("native", "http")


@pytest.mark.parametrize("door", DOORS)
def test_permissions(node: RunningNode, door: str) -> None:
    async def main(ask: Callable[..., Awaitable[object]]) -> None:
        assert await ask("free", "echo", "hi") == "hi"
        assert await ask("maker", "echo", "hi") == "permission-denied"
        assert await ask("narrow", "echo", "hi") == "hi"
        assert await ask("narrow", "moody", 0, 1) == "permission-denied"

    each_door(node, door, main)


@pytest.mark.parametrize("door", DOORS)
def test_rate(node: RunningNode, door: str) -> None:
    async def main(ask: Callable[..., Awaitable[object]]) -> None:
        told = [await ask("slow", "echo", number) for number in range(4)]
        assert told[0] in {0, "overloaded"}  # the other door may have asked just before
        assert "overloaded" in told
        while await ask("slow", "echo", "again") != "again":
            pass

    each_door(node, door, main)


@pytest.mark.parametrize("door", DOORS)
def test_rate_of_a_queue(node: RunningNode, door: str) -> None:
    """Two users at once have one rate together."""

    async def main(ask: Callable[..., Awaitable[object]]) -> None:
        told = [await ask(user, "rationed", 1) for user in ("free", "boss", "free", "boss")]
        assert "overloaded" in told
        assert await ask("free", "echo", 2) == 2, "other queues have none"
        while await ask("free", "rationed", 3) != 3:
            pass

    each_door(node, door, main)


@pytest.mark.parametrize("door", DOORS)
def test_results_and_times(node: RunningNode, door: str) -> None:
    async def main(ask: Callable[..., Awaitable[object]]) -> None:
        assert await ask("small", "echo", "x" * 900) == "x" * 900
        assert await ask("small", "echo", "x" * 1100) == "result-too-large"
        assert await ask("small", "rows", 1, 200) == list(range(200))
        assert await ask("small", "rows", 1, 2000) == "result-too-large"
        assert await ask("brief", "moody", 0, 1) == 1
        assert await ask("brief", "moody", 15, 1) == "deadline-exceeded"
        assert await ask("free", "moody", 0.3, 1) == 1

    each_door(node, door, main)


@pytest.mark.parametrize("door", DOORS)
def test_how_many(node: RunningNode, door: str) -> None:
    async def main(ask: Callable[..., Awaitable[object]]) -> None:
        holding = [asyncio.ensure_future(ask("boss", "moody", 3, one)) for one in range(2)]
        await _taken(node)
        # Both slots are taken: one may wait, a second of the same user may not, others may.
        first = asyncio.ensure_future(ask("patient", "moody", 0, 1))
        second = asyncio.ensure_future(ask("patient", "moody", 0, 2))
        other = asyncio.ensure_future(ask("free", "moody", 0, 3))
        found, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert {one.result() for one in found} == {"overloaded"}
        one = asyncio.ensure_future(ask("alone", "moody", 0, 4))
        two = asyncio.ensure_future(ask("alone", "moody", 0, 5))
        done, _ = await asyncio.wait({one, two}, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result() for each in done} == {"overloaded"}
        assert {await one, await two} & {4, 5}
        assert [await each for each in holding] == [0, 1]
        assert await other == 3
        assert {await first, await second} & {1, 2}

    each_door(node, door, main)


async def _taken(node: RunningNode) -> None:
    """Until both slots are."""
    url = node.url.replace("://", f"://boss:{SECRET}@")
    async with maitred.connect(url) as client:
        while True:
            told: Any = await client.request(Describe("kitchen", "moody", TASKS, 0, 0))
            if not told.offers:
                return
            await asyncio.sleep(0.01)
