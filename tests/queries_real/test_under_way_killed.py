"""A limit to what is under way, with real processes: both doors, and a worker that is killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.errors import NoWorker, Overloaded, UnknownQueue, WorkerLost
from maitred.matching.permits import LEASE_SECONDS
from maitred.node.shard_permits import RENEW_SECONDS
from tests.cli.running import MAITRED
from tests.gateway.test_processes import ROOT, call, http_of
from tests.node.nodes import running_node
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from maitred.client.client import AsyncClient
    from tests.node.nodes import RunningNode

SECRET = "s"  # noqa: S105 - of everybody here
USERS: dict[str, Any] = {
    "alone": {
        "secret": cheaply(SECRET),
        "permissions": {"kitchen": ["query"]},
        "queries": {"concurrent": 1},
    },
    "boss": {"secret": cheaply(SECRET), "permissions": {"*": ["admin"]}},
}
RESERVATION_SECONDS = 0.5
QUEUES = {"*": {"queries": {"reservation_seconds": RESERVATION_SECONDS}}}
BOUND_SECONDS = RESERVATION_SECONDS + LEASE_SECONDS + 2 * RENEW_SECONDS
SPARE_SECONDS = 30.0
"""For another worker to come up, on a machine that has much else to do."""


def url(node: RunningNode, user: str) -> str:
    return node.url.replace("://", f"://{user}:{SECRET}@")


def worker(node: RunningNode) -> subprocess.Popen[bytes]:
    command = [str(MAITRED), "worker", "tests.queries_real.kitchen:app", "--slots", "4"]
    return subprocess.Popen(
        [*command, "--url", url(node, "boss")], cwd=ROOT, stderr=subprocess.DEVNULL
    )


async def echo(client: AsyncClient) -> object:
    return await client.query("echo", "hi", namespace="kitchen", timeout=20)


async def body(node: RunningNode) -> None:
    path = "/v1/kitchen/queues/echo/query"
    who = {"Authorization": f"Bearer alone:{SECRET}"}
    by_http = partial(call, http_of(node), "POST", path, ["hi"], who)
    native = url(node, "alone")
    async with maitred.connect(native) as one, maitred.connect(native) as two:
        first = worker(node)
        second = None
        try:
            assert await served(two) == "hi"
            assert (await asyncio.to_thread(by_http))[0] == 200
            running = asyncio.ensure_future(
                one.query("moody", 600, 1, namespace="kitchen", timeout=900)
            )
            while True:  # until it is under way
                try:
                    await echo(two)
                except Overloaded:
                    break
            status, _, headers = await asyncio.to_thread(by_http)
            assert status == 429
            assert float(headers["retry-after"]) > 0
            first.kill()
            killed_at = time.monotonic()
            second = worker(node)
            with pytest.raises(WorkerLost):
                await running
            assert await served(two) == "hi"
            assert time.monotonic() - killed_at < BOUND_SECONDS + SPARE_SECONDS
            assert (await asyncio.to_thread(by_http))[0] == 200
        finally:
            for each in (first, second):
                if each is not None:
                    each.kill()
                    each.wait()


async def served(client: AsyncClient) -> object:
    """As soon as somebody is let in and served."""
    while True:
        try:
            return await echo(client)
        except (Overloaded, NoWorker, UnknownQueue):
            await asyncio.sleep(0.05)


def test_a_worker_that_is_killed_has_nothing_under_way() -> None:
    environment = {"MAITRED_USERS": json.dumps(USERS), "MAITRED_QUEUES": json.dumps(QUEUES)}
    with running_node(shards=2, gateway=True, environment=environment) as node:
        asyncio.run(asyncio.wait_for(body(node), 100))
