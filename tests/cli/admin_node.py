"""A node with canned queues, in a thread of its own: what `maitred admin` talks to in its tests.

The connection, the protocol and the routing are real; only what partitions would say is made up
here, so that each answer that a command may get can be had.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvloop
from msgspec import msgpack
from msgspec.structs import replace

from maitred.errors import UnknownQueue
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import (
    Counts,
    DeadLetter,
    DeadLetters,
    DeadLettersFound,
    Describe,
    Failure,
    PartitionDescription,
    Queues,
    QueuesFound,
    Resize,
    Resized,
)
from maitred.routing.counts import PartitionCounts
from tests.node.in_process import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maitred.errors import MaitredError
    from maitred.node.shard import Shard

PATIENCE_SECONDS = 20
SECOND_RANGE = 2 * 2**32


def letter(partition: int, number: int, **changes: Any) -> DeadLetter:  # noqa: ANN401
    """A dead letter; `number` counts from 0 in its partition."""
    payload = msgpack.encode({"url": f"https://example.org/{number}"})
    made = DeadLetter(
        partition=partition,
        sequence=SECOND_RANGE + number,
        died_at=1_700_000_000.0 + number,
        reason="failed",
        attempts=4,
        added_at=1_690_000_000.0,
        failure=msgpack.encode(Failure("ValueError", f"no {number}", "Traceback: ...")),
        payload=payload,
        payload_bytes=len(payload),
    )
    return replace(made, **changes)


class CannedQueue:
    """One queue, as its partitions would tell it."""

    def __init__(self, read: int = 1, write: int = 1, version: int = 0) -> None:
        self.counts = PartitionCounts(read, write, version)
        self.changes: dict[int, dict[str, Any]] = {}
        """What a partition says that is not the default."""
        self.silent: dict[int, MaitredError] = {}
        """Partitions that answer with this."""
        self.dead: dict[int, list[DeadLetter]] = {}
        self.drained: dict[int, int] = {}

    def describe(self, partition: int, shard: int) -> PartitionDescription:
        if partition in self.silent:
            raise self.silent[partition]
        told: dict[str, Any] = {
            "partition": partition,
            "node": "node",
            "shard": shard,
            "state": "writable" if self.counts.writable(partition) else "read-only",
            "counts": Counts(self.counts.read, self.counts.write, self.counts.version),
            "range_id": 2,
            "read_level": SECOND_RANGE + 100,
            "ack_level": SECOND_RANGE + 90,
            "backlog": 1_200,
            "backlog_age_seconds": 3.4,
            "running": 7,
            "later": 3,
            "dead": len(self.dead.get(partition, ())),
            "offers": 12,
            "workers": ["ant", "bee"],
            "added": 400,
            "added_per_second": 12.34,
            "finished": 200,
            "finished_per_second": 0.5,
            "failed": 5,
            "lost": 1,
            "matched_at_once": 100,
            "never_written": 40,
            "forwarded_tasks": 30,
            "forwarded_offers": 20,
            "wait_p50_seconds": 0.0012,
            "wait_p99_seconds": 0.34,
            "parent": None if partition == 0 else 0,
            "namespace_queues": 0 if partition else 3,
            "namespace_queues_max": 0 if partition else 1_000,
            "worker_details": [("ant", 5, 0.5 + partition), ("bee", 2, 1.5)],
        }
        return PartitionDescription(**told | self.changes.get(partition, {}))

    def letters(self, asked: DeadLetters) -> DeadLettersFound:
        if asked.partition in self.silent:
            raise self.silent[asked.partition]
        if asked.partition >= self.counts.read and asked.partition not in self.dead:
            raise UnknownQueue("Nobody ever used this partition.")
        here = self.dead.get(asked.partition, [])
        if asked.action == "list":
            after = asked.sequences[0] if asked.sequences else -1
            found = [replace(one, payload=b"") for one in here if one.sequence > after]
            return DeadLettersFound(found[: asked.most], len(here))
        found = [one for one in here if one.sequence in set(asked.sequences)]
        if asked.action != "show":
            self.dead[asked.partition] = [one for one in here if one not in found]
        return DeadLettersFound(found, len(self.dead.get(asked.partition, ())))


class CannedNode:
    """Its queues, what was asked of it, and where it is."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str, int], CannedQueue] = {}
        self.asked: list[Any] = []
        self.under_way = 0
        self.most_under_way = 0
        self.url = ""
        self.no_names: MaitredError | None = None

    def queue(self, name: str, *, queue_type: int = 1, **counts: int) -> CannedQueue:
        namespace, _, queue = name.partition("/")
        made = self.queues[namespace, queue, queue_type] = CannedQueue(**counts)
        return made

    def serve(self, shard: Shard) -> None:
        def found(message: Any) -> CannedQueue:  # noqa: ANN401
            self.asked.append(message)
            return self.queues[message.namespace, message.queue, message.queue_type]

        async def describe(message: Describe) -> PartitionDescription:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            return found(message).describe(message.partition, shard.number)

        def resize(message: Resize) -> Resized:
            queue = found(message)
            if message.force:
                counts = queue.counts.forced(read=message.read, write=message.write)
            else:
                counts = queue.counts.changed(
                    read=message.read, write=message.write, drained=queue.drained
                )
            queue.counts = counts
            return Resized(Counts(counts.read, counts.write, counts.version))

        def queues(message: Queues) -> QueuesFound:
            self.asked.append(message)
            if self.no_names:
                raise self.no_names
            return QueuesFound(list(self.queues), {name: 1_000 for name, _, _ in self.queues})

        handlers: dict[int, Callable[[Any], Any]] = {
            Opcode.DESCRIBE: describe,
            Opcode.RESIZE: resize,
            Opcode.DEAD: lambda message: found(message).letters(message),
            Opcode.QUEUES: queues,
        }
        shard.handlers.update(handlers)


@contextmanager
def canned_node(
    directory: Path, shards: int = 2, canned: CannedNode | None = None
) -> Iterator[CannedNode]:
    """Serve until the test is over; whatever fails in the node fails the test."""
    canned = canned or CannedNode()
    started = threading.Event()
    failed: list[BaseException] = []
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        async with node(directory, shards=shards) as running:
            for shard in running.shards:
                canned.serve(shard)
            canned.url = f"maitred://127.0.0.1:{running.port}"
            end = asyncio.Event()
            loop = asyncio.get_running_loop()
            ends.append(lambda: loop.call_soon_threadsafe(end.set))
            started.set()
            await end.wait()

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as problem:  # noqa: BLE001 - told to the test below
            failed.append(problem)
        finally:
            started.set()

    serving = threading.Thread(target=thread)
    serving.start()
    assert started.wait(PATIENCE_SECONDS)
    try:
        if not failed:
            yield canned
    finally:
        for end in ends:
            end()
        serving.join(PATIENCE_SECONDS)
    assert not failed, failed
