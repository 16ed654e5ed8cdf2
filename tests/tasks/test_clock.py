"""A wall clock that jumps, under a real shard with a real store: what runs does not notice."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

import maitred
from maitred.logs import silent
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.protocol.tasks import DONE, Add, Added, Await, End, Finish, Offer, Offered, Outcome
from maitred.settings import Node
from maitred.store.sqlite import open_sqlite
from maitred.surroundings import Surroundings
from tests.node.in_process import NODE, held_port, in_a_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient

SESSION = bytes(16)
HOUR = 3600.0
QUEUE = ("shop", "clocks", 1, 0, 0)


class Clock:
    """The machine's, and somebody sets it."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


@asynccontextmanager
async def shard(directory: Path, clock: Clock) -> AsyncIterator[AsyncClient]:
    """A node of one, as that clock sees it."""
    held = [held_port(), held_port()]
    ports = [one.getsockname()[1] for one in held]
    place = ShardPlace(
        node=NODE,
        number=0,
        shards=1,
        host="127.0.0.1",
        port=ports[0],
        own_ports=(ports[1],),
        peer_paths=(),
    )
    made = Shard(place, Node(), Surroundings(clock, Random(4711)), silent())
    store = await open_sqlite(directory, 0)
    made.keep_tasks(store)
    await made.start()
    async with maitred.connect(f"maitred://127.0.0.1:{ports[0]}") as client:
        yield client
    await made.drain()
    await store.close()
    for one in held:
        one.close()


async def add(client: AsyncClient, payload: bytes, delay: float = 0.0, expires: float = 0.0) -> int:
    answer = await client.request(Add(*QUEUE, 0, [payload], 2, delay, expires))
    return cast("Added", answer).first


async def given(client: AsyncClient, seconds: float = 10.0) -> list[bytes]:
    """What is handed out next; finished at once."""
    answer = await client.request(Offer(*QUEUE, 0, SESSION, "ant", 9), seconds)
    tasks = cast("Offered", answer).tasks
    ends = [End(task.sequence, task.attempt, task.proof, DONE) for task in tasks]
    if ends:
        await client.request(Finish(*QUEUE, SESSION, ends))
    return [task.payload for task in tasks]


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 1e6 * HOUR, -1e5 * HOUR])
@in_a_loop
async def test_a_running_node_does_not_notice(tmp_path: Path, jump: float) -> None:
    clock = Clock()
    async with shard(tmp_path, clock) as client:
        await add(client, b"expires in a minute", expires=60)
        began = time.monotonic()
        delayed = await add(client, b"in a moment", delay=0.5)
        clock.offset = jump
        assert await given(client) == [b"expires in a minute"]
        assert await given(client) == [b"in a moment"]
        assert time.monotonic() - began >= 0.5
        ended = cast("Outcome", await client.request(Await(*QUEUE, delayed)))
        assert ended.status == "done"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
@in_a_loop
async def test_a_restart_goes_by_the_clock_that_it_finds(tmp_path: Path, jump: float) -> None:
    """Moments outlive the process as wall-clock time; what is to run now runs, whatever it says."""
    clock = Clock()
    async with shard(tmp_path, clock) as client:
        await add(client, b"now")
        await add(client, b"in half an hour", delay=HOUR / 2)
        await add(client, b"not after half an hour", expires=HOUR / 2)
    clock.offset = jump
    async with shard(tmp_path, clock) as client:
        found = await given(client)
        while len(found) < 2:
            found += await given(client)
        # Set forward, half an hour has passed; set back, it has not, and more than that is left.
        expected = [b"now", b"in half an hour" if jump > 0 else b"not after half an hour"]
        assert sorted(found) == sorted(expected)
        assert await given(client, 0.5) == []
