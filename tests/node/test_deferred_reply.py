"""A request that was answered refers to nothing of what it waited for: a task that was forwarded
refers to it, and no garbage collection would find the two."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import maitred
from maitred.errors import Draining
from maitred.node.deferred_reply import DeferredReply, HeldHere, HeldWork
from maitred.protocol.tasks import Add, Added, End, Finish, Offer, Offered
from maitred.settings import Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, instances, node, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SESSION = b"a worker's own.."
ENDS: dict[str, Callable[[Any], None]] = {
    "answered": lambda held: held.answer(Mock()),
    "refused": lambda held: held.refuse(Draining("Try another.")),
    "stopped": lambda held: held.stop(None) if isinstance(held, HeldWork) else held.give_up(),
}


def over_a_connection() -> DeferredReply:
    return HeldWork(Mock(), 1, 1, 0, 0.0)


def within_a_shard() -> DeferredReply:
    return HeldHere(Mock(), Mock(), Mock())


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("make", [over_a_connection, within_a_shard])
def test_a_request_that_is_over_has_nobody_to_tell(
    make: Callable[[], DeferredReply], end: str
) -> None:
    held: Any = make()
    told = Mock()
    held.on_recall = held.on_stop = told
    ENDS[end](held)
    assert told.call_count == (end == "stopped")
    assert held.on_recall is None
    held.on_stop()
    assert told.call_count == (end == "stopped")


@in_a_loop
async def test_tasks_that_were_forwarded_leave_nothing_in_memory(tmp_path: Path) -> None:
    gc.collect()
    before = instances(HeldHere)  # of other tests
    async with node(tmp_path, queues={"*": Queue(partitions=2)}) as made:
        store = await open_sqlite(tmp_path / "data", 0)
        made.shard.keep_tasks(store)
        async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:

            async def forward_one() -> None:
                waits = Offer("shop", "mails", 1, 0, 0, 1, SESSION, "worker", 1)
                offer = asyncio.ensure_future(client.request(waits, 20))
                added = await client.request(Add("shop", "mails", 1, 1, 0, 1, [b"x"]), 20)
                assert isinstance(added, Added)
                offered = await offer
                assert isinstance(offered, Offered)
                (task,) = offered.tasks
                assert task.partition == 1, "it was forwarded"
                ends = [End(task.sequence, 1, task.proof)]
                await client.request(Finish("shop", "mails", 1, 1, 0, SESSION, ends), 20)

            def forgotten() -> bool:
                gc.collect()
                return instances(HeldHere) <= before

            for _ in range(3):
                await forward_one()
            await until(forgotten)  # when the time of the visits is over
        made.shard.close()
        await store.close()
