"""What people are told of a queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import maitred
from maitred.errors import UnknownQueue
from maitred.protocol.tasks import Describe, Offer, PartitionDescription
from maitred.settings import Forwarding, Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, node
from tests.node.raw import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

HOME, FAR = 3, 8
"""Free slots at the root, and at a partition below it."""


async def described(client: AsyncClient) -> list[PartitionDescription]:
    found = []
    for number in (0, 1):
        one = await client.request(Describe("shop", "mails", 1, number, 0), 5)
        assert isinstance(one, PartitionDescription)
        found.append(one)
    return found


@in_a_loop
async def test_a_free_slot_counts_once_wherever_its_offer_waits(tmp_path: Path) -> None:
    """An offer that went up the tree waits at home as well."""
    queue = Queue(partitions=2, hold_seconds=0.0, forwarding=Forwarding(offer_wait_seconds=0.01))
    async with node(tmp_path, queues={"*": queue}) as made:
        store = await open_sqlite(tmp_path / "data", 0)
        made.shard.keep_tasks(store)
        async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
            offers = [
                Offer("shop", "mails", 1, number, 0, 1, name.encode() * 4, name, slots)
                for number, name, slots in ((0, "home", HOME), (1, "far.", FAR))
            ]
            waiting = [asyncio.ensure_future(client.request(offer, 20)) for offer in offers]
            async with asyncio.timeout(PATIENCE_SECONDS):
                found: list[PartitionDescription] = []
                while not found or found[0].workers != ["far.", "home"]:  # both are at the root
                    await asyncio.sleep(0.01)
                    with suppress(UnknownQueue):
                        found = await described(client)
            assert found[1].forwarded_offers == 1
            assert [one.offers for one in found] == [HOME, FAR]
            for request in waiting:
                request.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        made.shard.close()
        await store.close()
