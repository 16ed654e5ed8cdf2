"""A store for the simulated world: a disk that outlives processes, and a handle for each of them.

    disk = SimulatedDisk(world.random("disk"), DiskFaults(unknown_probability=0.01))
    store = SimulatedStore(disk)        # in each process
    disk.fail_for(5.0)                  # from outside: down, full or slow for a while

A call takes its time to the disk, is done there in one instant, and takes its time back. So a
process that is killed has commits that never arrived, and others that are there though nobody told
it. Some arrive after its death: a database finishes what it was sent. By then another
process may own the partition, and the range id has to keep the dead one out.

Overlapping calls overtake each other, as they do on several connections to a database.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from maitred.errors import MaitredError, OutcomeUnknown, StoreFull, StoreUnavailable
from maitred.simulation.disk import Contents
from maitred.store.interface import SIGNING_KEY_BYTES, Document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from maitred.matching.records import (
        Acquired,
        Changes,
        Damaged,
        DamagedKind,
        Dead,
        Later,
        PartitionKey,
        Result,
    )
    from maitred.store.interface import (
        Acquisition,
        EmptyPartition,
        QueueContents,
        Refusal,
        SegmentRead,
        StoreUse,
    )

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """How long a disk takes and how often it misbehaves; probabilities are per call."""

    delay_min_seconds: float = 0.000_1
    """Shortest way to the disk, and back."""

    delay_max_seconds: float = 0.002
    """Longest usual one; delays are uniform in between."""

    spike_probability: float = 0.0
    """One of the two ways takes up to `spike_seconds` longer."""

    spike_seconds: float = 0.5
    """Longest spike: a disk that others use, a server that waits for its own."""

    failure_probability: float = 0.0
    """`StoreUnavailable`, and nothing was done."""

    unknown_probability: float = 0.0
    """A commit ends with `OutcomeUnknown`; half of those were done."""

    posthumous_probability: float = 0.5
    """A write under way when its process dies is done all the same."""

    def calm(self) -> DiskFaults:
        """The same delays, no faults."""
        return replace(
            self, spike_probability=0.0, failure_probability=0.0, unknown_probability=0.0
        )

    @classmethod
    def drawn(cls, random: Random) -> DiskFaults:
        """A storm of its own for each seed: with everything always on, the frequent faults would
        hide what the rare ones find."""
        return cls(
            delay_max_seconds=random.choice((0.000_2, 0.002, 0.02)),
            spike_probability=random.choice((0.0, 0.0, 0.01, 0.1)),
            failure_probability=random.choice((0.0, 0.0, 0.01, 0.1)),
            unknown_probability=random.choice((0.0, 0.0, 0.01, 0.05)),
            posthumous_probability=random.choice((0.0, 0.5, 1.0)),
        )


class SimulatedDisk:
    """One database, or one node's disk. Belongs to no process."""

    def __init__(self, random: Random, faults: DiskFaults | None = None) -> None:
        self.faults = faults or DiskFaults()
        """The faults of the disk; they may be changed during a run."""
        self.contents = Contents()
        """The contents of the disk, for checks from outside, which take no time and cannot fail."""
        self.random = random
        self._down_until = self._full_until = self._slow_until = 0.0
        self._slowness = 1.0
        self._signing_key = b""
        self._documents: dict[str, Document] = {}

    def fail_for(self, seconds: float) -> None:
        """Let every call fail for this time; commits in progress may have been written."""
        self._down_until = asyncio.get_running_loop().time() + seconds

    def fill_for(self, seconds: float) -> None:
        """Refuse every write for this time, as a full disk does."""
        self._full_until = asyncio.get_running_loop().time() + seconds

    def slow_for(self, seconds: float, factor: float) -> None:
        """Let calls that begin within this time take `factor` times as long."""
        self._slow_until = asyncio.get_running_loop().time() + seconds
        self._slowness = factor

    def calm(self) -> None:
        """End all faults of the disk."""
        self.faults = self.faults.calm()
        self._down_until = self._full_until = self._slow_until = 0.0

    def signing_key(self) -> bytes:
        """Return the signing key, which is created on first use from the seed."""
        if not self._signing_key:
            self._signing_key = self.random.randbytes(SIGNING_KEY_BYTES)
        return self._signing_key

    def document(self, name: str, known: int) -> Document | None:
        found = self._documents.get(name)
        return None if found is None or found.version == known else found

    def replace_document(self, name: str, version: int, body: bytes) -> bool:
        found = self._documents.get(name)
        if version != (found.version if found is not None else 0):
            return False
        self._documents[name] = Document(version + 1, body)
        return True

    def down(self, now: float) -> bool:
        return now < self._down_until

    def full(self, now: float) -> bool:
        return now < self._full_until

    def delay(self, now: float) -> float:
        """Draw the delay of one way to the disk, in seconds."""
        faults, random = self.faults, self.random
        shortest = faults.delay_min_seconds
        # As `uniform` draws it, which is a detour for every call.
        delay = shortest + (faults.delay_max_seconds - shortest) * random.random()
        if random.random() < faults.spike_probability:
            delay += random.uniform(0, faults.spike_seconds)
        return delay * self._slowness if now < self._slow_until else delay


class SimulatedStore:
    """The handle of one process to a `SimulatedDisk`; implements `Store`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._contents = disk.contents
        self._under_way = 0
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        return await self._write(lambda: self._contents.acquire(group))

    async def commit(self, group: Sequence[Changes]) -> Sequence[PartitionKey]:
        return await self._write(lambda: self._contents.commit(group), commit=True)

    async def segments(
        self, key: PartitionKey, priority: int, after: int, tasks: int, most_bytes: int
    ) -> list[SegmentRead]:
        return await self._read(
            lambda: self._contents.segments(key, priority, after, tasks, most_bytes)
        )

    async def segments_around(self, key: PartitionKey, sequence: int) -> list[SegmentRead]:
        return await self._read(lambda: self._contents.segments_around(key, sequence))

    async def later(
        self, key: PartitionKey, before: float, most: int, most_bytes: int
    ) -> list[Later]:
        return await self._read(lambda: self._contents.later(key, before, most, most_bytes))

    async def later_one(self, key: PartitionKey, sequence: int) -> Later | None:
        return await self._read(lambda: self._contents.later_one(key, sequence))

    async def dead(self, key: PartitionKey, after: int, most: int) -> list[Dead]:
        return await self._read(lambda: self._contents.dead(key, after, most))

    async def dead_one(self, key: PartitionKey, sequence: int) -> Dead | None:
        return await self._read(lambda: self._contents.dead_one(key, sequence))

    async def dead_count(self, key: PartitionKey) -> int:
        return await self._read(lambda: self._contents.dead_count(key))

    async def damaged(self, key: PartitionKey, after: tuple[int, str], most: int) -> list[Damaged]:
        return await self._read(lambda: self._contents.damaged(key, after, most))

    async def damaged_one(self, key: PartitionKey, kind: DamagedKind, first: int) -> Damaged | None:
        return await self._read(lambda: self._contents.damaged_one(key, kind, first))

    async def damaged_around(self, key: PartitionKey, sequence: int) -> list[Damaged]:
        return await self._read(lambda: self._contents.damaged_around(key, sequence))

    async def damaged_count(self, key: PartitionKey) -> tuple[int, int]:
        return await self._read(lambda: self._contents.damaged_count(key))

    async def result(self, key: PartitionKey, sequence: int) -> Result | None:
        return await self._read(lambda: self._contents.result(key, sequence))

    async def forget_results(self, before: float, most: int) -> int:
        return await self._write(lambda: self._contents.forget_results(before, most))

    async def partitions(self) -> list[PartitionKey]:
        return await self._read(self._contents.partitions)

    async def queues(self, namespace: str, most: int) -> list[str]:
        return await self._read(lambda: self._contents.queues(namespace, most))

    async def queue_count(self, namespace: str) -> int:
        return await self._read(lambda: self._contents.queue_count(namespace))

    async def empty_partitions(self, after: PartitionKey | None, most: int) -> list[EmptyPartition]:
        return await self._read(lambda: self._contents.empty_partitions(after, most))

    async def forget(self, group: Sequence[tuple[PartitionKey, int]]) -> list[PartitionKey]:
        return await self._write(lambda: self._contents.forget(group))

    async def delete_queue(self, key: PartitionKey, *, force: bool) -> QueueContents:
        return await self._write(lambda: self._contents.delete_queue(key, force=force))

    async def children_with_tasks(self) -> list[PartitionKey]:
        return await self._read(self._contents.children_with_tasks)

    async def use(self) -> StoreUse:
        return await self._read(self._contents.use)

    async def signing_key(self) -> bytes:
        return await self._write(self._disk.signing_key)

    async def document(self, name: str, known: int = 0) -> Document | None:
        return await self._read(lambda: self._disk.document(name, known))

    async def replace_document(self, name: str, version: int, body: bytes) -> bool:
        return await self._write(
            lambda: self._disk.replace_document(name, version, body), commit=True
        )

    async def close(self) -> None:
        self._closed = True
        while self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def _read(self, action: Callable[[], _Result]) -> _Result:
        return await self._ask(action, writes=False, commit=False)

    async def _write(self, action: Callable[[], _Result], *, commit: bool = False) -> _Result:
        return await self._ask(action, writes=True, commit=commit)

    async def _ask(self, action: Callable[[], _Result], *, writes: bool, commit: bool) -> _Result:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        loop, disk = asyncio.get_running_loop(), self._disk
        answer: asyncio.Future[_Result] = loop.create_future()
        there, back = disk.delay(loop.time()), disk.delay(loop.time())

        def arrive() -> None:
            outcome = self._outcome(action, loop.time(), writes=writes, commit=commit)
            loop.call_later(back, settle, outcome)

        def settle(outcome: _Result | MaitredError) -> None:
            self._left()
            if commit and disk.down(loop.time()) and not isinstance(outcome, MaitredError):
                outcome = OutcomeUnknown("The store was lost before it confirmed.")
            if answer.done():  # the caller has stopped waiting
                return
            if isinstance(outcome, MaitredError):
                answer.set_exception(outcome)
                answer.exception()  # counts as seen: a process that was killed never will
            else:
                answer.set_result(outcome)

        # Nothing of a dead process runs, unless it runs in the context of no process.
        posthumous = writes and disk.random.random() < disk.faults.posthumous_probability
        loop.call_later(there, arrive, context=contextvars.Context() if posthumous else None)
        self._under_way += 1
        return await answer

    def _outcome(
        self, action: Callable[[], _Result], now: float, *, writes: bool, commit: bool
    ) -> _Result | MaitredError:
        disk = self._disk
        faults, luck = disk.faults, disk.random.random()
        if disk.down(now) or luck < faults.failure_probability:
            return StoreUnavailable("The store does not answer.")
        if writes and disk.full(now):
            return StoreFull("The disk is full.")
        if commit and luck > 1 - faults.unknown_probability:
            if luck > 1 - faults.unknown_probability / 2:
                action()
            return OutcomeUnknown("The store was lost before it confirmed.")
        return action()

    def _left(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
