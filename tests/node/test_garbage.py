"""Requests leave no reference cycles, and cycles cannot keep much memory."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from maitred.errors import StoreUnavailable
from maitred.node import garbage as garbage_module
from maitred.node.garbage import GROWN_BYTES, GarbageLimit, spare_the_collector
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.inspection import ListTasks
from maitred.protocol.messages import encode
from maitred.protocol.queries import Allocate
from maitred.protocol.tasks import (
    Add,
    DamagedRows,
    Describe,
    Offer,
    PurgeTasks,
    Signatures,
)
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.node.in_process import in_a_loop, node, until
from tests.node.raw import error_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from maitred.matching.records import Acquired
    from maitred.protocol.messages import AnyRequest
    from maitred.store.interface import Acquisition, Refusal

MANY = 20
"""Requests of one kind: what the first of them makes once does not matter."""

SESSION = b"s" * 16

REFUSED: dict[str, AnyRequest] = {
    "add": Add("n", "q0", 1, 99, 5000, version=0, payloads=[b"\xc4\x01x"]),
    "signatures": Signatures("n", "none", 1, 0, 5000, must_exist=True),
    "describe": Describe("n", "none", 1, 0, 5000),
    "offer": Offer("n", "q0", 1, 99, 300, version=0, session=SESSION, worker="w", slots=1),
    "list tasks": ListTasks("n", "none", 1, 0, 5000, state="waiting"),
    "damaged": DamagedRows("n", "none", 1, 0, 5000, "list"),
    "purge": PurgeTasks("n", "none", 1, 0, 5000, state="waiting"),
    "allocate": Allocate("n", "none", 1, 0, 300, version=0, session=SESSION),
}
"""Requests for partitions that do not exist, which they do not create."""


class UnreadableStore(SimulatedStore):
    """Refuses to load partitions once it is told to."""

    is_broken = False

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        if self.is_broken:
            raise StoreUnavailable("The disk is on fire.")
        return await super().acquire(group)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Have the garbage collector run only when a test says so."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def garbage() -> Counter[str]:
    """Collect the cycles, and count their objects by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.garbage.clear()
        gc.set_debug(0)
        gc.collect()  # the first one has only told them


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", REFUSED)
@in_a_loop
async def test_a_request_for_a_missing_partition_leaves_no_cycle(kind: str, tmp_path: Path) -> None:
    """A cycle would keep the whole request, with its payloads, until a collection."""
    message = REFUSED[kind]
    asked = encode_frame(REQUEST, 0, 1, message.opcode, encode(message))
    async with node(tmp_path) as running:
        running.shard.keep_tasks(SimulatedStore(SimulatedDisk(Random(1))))
        client = await running.ready()
        await client.ask(asked)
        garbage()
        for _ in range(MANY):
            await client.ask(asked)
        left = garbage()
        assert left.total() < MANY, left


@pytest.mark.usefixtures("uncollected")
@in_a_loop
async def test_a_request_whose_partition_cannot_be_loaded_leaves_no_cycle(tmp_path: Path) -> None:
    message = Add("n", "q0", 1, 0, 5000, version=0, payloads=[b"\xc4\x01x"])
    asked = encode_frame(REQUEST, 0, 1, Opcode.ADD, encode(message))
    async with node(tmp_path) as running:
        store = UnreadableStore(SimulatedDisk(Random(1)))
        running.shard.keep_tasks(store)
        client = await running.ready()
        store.is_broken = True
        assert isinstance(error_in(await client.ask(asked)), StoreUnavailable)
        garbage()
        for _ in range(MANY):
            await client.ask(asked)
        left = garbage()
        assert left.total() < MANY, left


class Memory:
    """The memory of a process, as a test sets it, and a cycle in it."""

    def __init__(self, used: int) -> None:
        self.used = used
        self.make_cycle()

    def make_cycle(self) -> None:
        cycle = Cycle()
        cycle.itself = cycle
        self._cycle = weakref.ref(cycle)

    def is_collected(self) -> bool:
        return self._cycle() is None

    def used_bytes(self) -> int:
        return self.used


class Cycle:
    """Refers to itself."""

    itself: Cycle


@pytest.mark.usefixtures("uncollected")
def test_garbage_is_collected_when_the_memory_has_grown() -> None:
    memory = Memory(GROWN_BYTES)
    limit = GarbageLimit(memory.used_bytes)
    memory.used += GROWN_BYTES - 1
    limit.look()
    assert not memory.is_collected()
    memory.used += 1
    limit.look()
    assert memory.is_collected()
    memory.make_cycle()
    limit.look()  # what the last collection left counts as in use
    assert not memory.is_collected()


@pytest.mark.usefixtures("uncollected")
def test_a_large_process_collects_after_it_grew_by_half() -> None:
    memory = Memory(10 * GROWN_BYTES)
    limit = GarbageLimit(memory.used_bytes)
    memory.used += 5 * GROWN_BYTES - 1
    limit.look()
    assert not memory.is_collected()
    memory.used += 1
    limit.look()
    assert memory.is_collected()


@pytest.mark.usefixtures("uncollected")
def test_growth_counts_from_the_least_memory_since_the_last_collection() -> None:
    memory = Memory(10 * GROWN_BYTES)
    limit = GarbageLimit(memory.used_bytes)
    for used in (GROWN_BYTES, 2 * GROWN_BYTES):
        assert not memory.is_collected()
        memory.used = used
        limit.look()
    assert memory.is_collected()


@pytest.mark.usefixtures("uncollected")
@in_a_loop
async def test_a_process_looks_at_its_memory_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # the other tests need what this would change
    monkeypatch.setattr(gc, "set_threshold", lambda *_given: None)
    monkeypatch.setattr(garbage_module, "LOOK_SECONDS", 0.001)
    memory = Memory(GROWN_BYTES)
    monkeypatch.setattr(garbage_module, "GarbageLimit", partial(GarbageLimit, memory.used_bytes))
    spare_the_collector()
    memory.make_cycle()
    memory.used += GROWN_BYTES
    await until(memory.is_collected)
