"""The first tasks of a producer that does not know yet how many partitions a queue has."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from maitred import App
from maitred.client.enqueue_batches import SPREAD_TASKS, Conditions
from maitred.gateway.gateway import Gateway
from maitred.logs import silent
from maitred.settings import Node, Queue
from maitred.store.sqlite import open_sqlite
from maitred.surroundings import Surroundings
from tests.node.in_process import in_a_loop, node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PARTITIONS = 4
TASKS = 600
SHARE = TASKS // PARTITIONS


async def mail(number: int) -> int:
    return number


@asynccontextmanager
async def a_queue_of_four(directory: Path) -> AsyncIterator[str]:
    """Run a node whose queues have four partitions; yields its address."""
    async with node(directory, queues={"*": Queue(partitions=PARTITIONS)}) as made:
        store = await open_sqlite(directory / "data", 0)
        made.shard.keep_tasks(store)
        yield f"maitred://127.0.0.1:{made.port}"
        made.shard.close()
        await store.close()


def a_new_producer(url: str) -> App:
    app = App("shop", node=url)
    app.handler("mails")(mail)
    return app


@in_a_loop
async def test_the_first_batch_of_a_client_is_spread(tmp_path: Path) -> None:
    async with a_queue_of_four(tmp_path) as url, a_new_producer(url) as app:
        handler = app.handlers["mails"]
        tasks = await handler.enqueue_many([handler.call(number) for number in range(TASKS)])
        assert Counter(task.partition for task in tasks) == dict.fromkeys(range(4), SHARE)
        assert len({task.id for task in tasks}) == TASKS


@in_a_loop
async def test_first_tasks_that_are_added_one_by_one_are_spread(tmp_path: Path) -> None:
    async with a_queue_of_four(tmp_path) as url, a_new_producer(url) as app:
        handler = app.handlers["mails"]
        tasks = await asyncio.gather(*(handler.enqueue(number) for number in range(TASKS)))
        assert Counter(task.partition for task in tasks) == dict.fromkeys(range(4), SHARE)


@in_a_loop
async def test_first_tasks_of_many_new_clients_are_spread(tmp_path: Path) -> None:
    """Each of them adds so few that they stay together; not all in the root, as it was."""
    async with a_queue_of_four(tmp_path) as url:

        async def produce() -> list[int]:
            async with a_new_producer(url) as app:
                handler = app.handlers["mails"]
                calls = [handler.call(number) for number in range(SPREAD_TASKS)]
                return [task.partition for task in await handler.enqueue_many(calls)]

        clients = 40
        added = await asyncio.gather(*(produce() for _ in range(clients)))
        # Each begins at a random partition: that 32 of 40 begin at the same one does not happen.
        counted = Counter(partition for one in added for partition in one)
        assert sum(counted.values()) == clients * SPREAD_TASKS
        assert counted[0] < 0.8 * clients * SPREAD_TASKS


@in_a_loop
async def test_the_first_tasks_of_a_gateway_are_spread(tmp_path: Path) -> None:
    async with a_queue_of_four(tmp_path) as url:
        gateway = Gateway(url, Node(), Surroundings.real(), silent())
        gateway.connect()
        await gateway.connected.wait()
        try:
            places = await asyncio.gather(
                *(gateway.add("shop", "mails", Conditions(), b"\x91\x01") for _ in range(TASKS))
            )
        finally:
            await gateway.close()
        assert Counter(place.partition for place in places) == dict.fromkeys(range(4), SHARE)
