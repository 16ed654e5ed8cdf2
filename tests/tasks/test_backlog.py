"""A backlog thirty times as large takes no more memory, and the node is as soon ready with it.

The sizes of the issue, ten thousand and ten million, are in `python -m benchmarks.backlog`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from benchmarks.backlog import FULL_RATIO, MEMORY_RATIO, QUEUE, backlog_of, node

import maitred
from maitred.protocol.tasks import Add, Added, End, Finish, Offer, Offered

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.backlog import Started

SMALL, LARGE = 10_000, 300_000
MEGABYTE = 1_000_000
MEGABYTES = 300
AT_ONCE = 4
MEMORY_MEGABYTES = 200
"""More than a shard has at any time: some 40 for itself, the buffer's 32, and what is on its way
between store, buffer and worker, some of it twice."""
WORKER = bytes(16)


def test_memory_and_start_do_not_grow_with_the_backlog(tmp_path: Path) -> None:
    few = backlog_of(SMALL, tmp_path / "small")
    many = backlog_of(LARGE, tmp_path / "large")
    assert many.file_bytes > 10 * few.file_bytes, "nothing large was written"
    assert many.filled_bytes < FULL_RATIO * few.filled_bytes
    assert many.ready_bytes < MEMORY_RATIO * few.ready_bytes
    # The start of a process is most of it. CPU time, which a busy machine does not make longer.
    assert many.ready_cpu_seconds < 2 * few.ready_cpu_seconds


def test_memory_does_not_grow_with_large_payloads(tmp_path: Path) -> None:
    with node(tmp_path) as started:
        asyncio.run(_fill(started))
    with node(tmp_path) as started:
        asyncio.run(_drain(started))


async def _fill(started: Started) -> None:
    async with maitred.connect(started.url, timeout_seconds=60) as client:
        for first in range(0, MEGABYTES, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            payloads = [number.to_bytes(4, "big") + bytes(MEGABYTE) for number in numbers]
            answer = await client.request(Add(*QUEUE, 0, payloads))
            assert cast("Added", answer).first >= 0
            assert started.memory_bytes < MEMORY_MEGABYTES * MEGABYTE


async def _drain(started: Started) -> None:
    async with maitred.connect(started.url, timeout_seconds=60) as client:
        numbers: list[int] = []
        while len(numbers) < MEGABYTES:
            offered = await client.request(Offer(*QUEUE, 0, WORKER, "one", AT_ONCE))
            tasks = cast("Offered", offered).tasks
            numbers += [int.from_bytes(task.payload[:4], "big") for task in tasks]
            ends = [End(task.sequence, task.attempt, task.proof) for task in tasks]
            await client.request(Finish(*QUEUE, WORKER, ends))
            assert started.memory_bytes < MEMORY_MEGABYTES * MEGABYTE
        assert numbers == list(range(MEGABYTES))
