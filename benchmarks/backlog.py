"""What a large backlog costs: `python -m benchmarks.backlog`, some two minutes for 10 million.

A real node of one shard is filled in batches, as `enqueue_many` does, stopped, and started again.
Measured are the memory of the shard's process and the time from the start of the command until a
worker has its first task, with a small backlog and a large one. The goals: no more than a quarter
more memory, and ready within seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import maitred
from benchmarks.measuring import Result, report
from benchmarks.node import cpu_seconds
from maitred.protocol.tasks import Add, Added, Describe, Offer, Offered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.protocol.tasks import PartitionDescription

SMALL, LARGE = 10_000, 10_000_000
MEMORY_RATIO = 1.25
FULL_RATIO = 1.6
"""While tasks pour in, what is under way takes memory, which the allocator keeps; ten thousand are
over before that has its full size. From three hundred thousand on it grows no more."""
READY_SECONDS = 5.0
PAYLOAD = b"x" * 100
QUEUE = ("shop", "backlog", 1, 0, 0)
MESSAGE_TASKS, IN_FLIGHT = 1_000, 4
"""What is on its way takes memory, too, and is the same for both sizes."""
START_SECONDS = 60.0
HANDED_OUT = 100


@dataclass(frozen=True)
class Measured:
    """With one size of backlog."""

    tasks: int
    fill_seconds: float
    filled_bytes: int
    """Memory of the shard after the last task was taken."""
    ready_seconds: float
    """From the start of the command to the first tasks at a worker."""
    ready_bytes: int
    """Memory of the shard then."""
    ready_cpu_seconds: float
    """CPU time that the shard has used by then."""
    file_bytes: int
    """What the store takes on the disk."""


@dataclass(frozen=True)
class Started:
    """A node of one shard."""

    url: str
    shard: int
    """The process of its shard."""

    @property
    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.shard}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextmanager
def node(data: Path) -> Iterator[Started]:
    """`maitred up`, stopped in order at the end."""
    command = Path(sys.executable).parent / "maitred"
    options = ["--json", "--port", "0", "--shards", "1", "--data", str(data)]
    options += ["--set", "gateway.enabled=false"]  # it has no part in this
    process = subprocess.Popen(
        [str(command), "up", *options, "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield Started(str(ready["url"]), int(ready["shards"][0]["pid"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def backlog_of(tasks: int, directory: Path) -> Measured:
    """Fill, stop, start, and take the first tasks."""
    with node(directory) as started:
        began = time.monotonic()
        asyncio.run(_fill(started.url, tasks))
        fill_seconds = time.monotonic() - began
        filled_bytes = started.memory_bytes
    file_bytes = sum(file.stat().st_size for file in directory.glob("*.db*"))
    began = time.monotonic()
    with node(directory) as started:
        first, left = asyncio.run(_first(started.url))
        ready_seconds = time.monotonic() - began - left
        assert first == HANDED_OUT, first
        return Measured(
            tasks,
            fill_seconds,
            filled_bytes,
            ready_seconds,
            started.memory_bytes,
            cpu_seconds([started.shard]),
            file_bytes,
        )


async def _fill(url: str, tasks: int) -> None:
    async with maitred.connect(url, timeout_seconds=60) as client:
        under_way = asyncio.Semaphore(IN_FLIGHT)

        async def add(count: int) -> None:
            async with under_way:
                answer = await client.request(Add(*QUEUE, 0, [PAYLOAD] * count))
                assert cast("Added", answer).first >= 0

        sizes = [min(MESSAGE_TASKS, tasks - at) for at in range(0, tasks, MESSAGE_TASKS)]
        await asyncio.gather(*map(add, sizes))
        answer = await client.request(Describe(*QUEUE))
        assert cast("PartitionDescription", answer).backlog == tasks


async def _first(url: str) -> tuple[int, float]:
    """How many tasks there were at once, and the seconds that were spent on looking afterwards."""
    async with maitred.connect(url, timeout_seconds=60) as client:
        offer = Offer(*QUEUE, 0, bytes(16), "first", HANDED_OUT)
        given = len(cast("Offered", await client.request(offer)).tasks)
        began = time.monotonic()
        await client.request(Describe(*QUEUE))
        return given, time.monotonic() - began


def measure(small: int = SMALL, large: int = LARGE) -> list[Result]:
    """Both sizes, and what comes of it."""
    with tempfile.TemporaryDirectory(prefix="backlog-") as place:
        few = backlog_of(small, Path(place) / "small")
        many = backlog_of(large, Path(place) / "large")
    for one in (few, many):
        print(
            f"{one.tasks:>12,} tasks: filled in {one.fill_seconds:.1f} s "
            f"({one.tasks / one.fill_seconds:,.0f}/s), {one.file_bytes / 1e6:,.0f} MB on disk; "
            f"shard {one.filled_bytes / 1e6:.1f} MB when full, {one.ready_bytes / 1e6:.1f} MB "
            f"after the restart, first tasks after {one.ready_seconds:.2f} s",
            flush=True,
        )

    def memory(name: str, ours: int, peer: int, goal: float) -> Result:
        return Result(
            name,
            ours / peer,
            goal,
            at_least=False,
            ours=f"{ours / 1e6:.1f} MB with {large:,}",
            peer=f"{peer / 1e6:.1f} MB with {small:,}",
        )

    return [
        memory("backlog: memory when full", many.filled_bytes, few.filled_bytes, FULL_RATIO),
        memory("backlog: memory after a restart", many.ready_bytes, few.ready_bytes, MEMORY_RATIO),
        Result(
            "backlog: seconds until the first task after a restart",
            many.ready_seconds,
            READY_SECONDS,
            at_least=False,
            ours=f"{many.ready_seconds:.2f} s with {large:,}",
            peer=f"{few.ready_seconds:.2f} s with {small:,}",
        ),
    ]


def main() -> int:
    sizes = [int(argument) for argument in sys.argv[1:]] or [SMALL, LARGE]
    results = measure(*sizes)
    report("backlog", results)
    return 0 if all(result.met for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
