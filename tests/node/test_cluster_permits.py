"""Limits of users and queues hold across the nodes of a cluster, also while the view changes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import Overloaded
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import MemberState
from maitred.node import shard_permits
from maitred.node.deferred_reply import HeldHere
from maitred.node.query_limits import Limit
from maitred.protocol.frames import Opcode
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.node.clusters import cluster
from tests.node.in_process import in_a_loop, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.node.shard_permits import ShardPermits
    from tests.node.clusters import ClusterUnderTest


@asynccontextmanager
async def counting(path: Path, nodes: int, **more: Any) -> AsyncIterator[ClusterUnderTest]:  # noqa: ANN401
    """Nodes that count permits."""
    disk = SimulatedDisk(Random(1))
    async with cluster(path, nodes, adopted=False, **more) as there:
        for running in there.nodes:
            for shard in running.shards:
                shard.keep_tasks(SimulatedStore(disk))
        yield there


def permits(there: ClusterUnderTest, number: int, shard: int = 0) -> ShardPermits:
    kept = there.shard(number, shard)._partitions
    assert kept is not None
    return kept.permits


class Taking:
    """A request for permits at one node, which waits for a slot ever after."""

    def __init__(self, there: ClusterUnderTest, number: int, limit: Limit, slots: int) -> None:
        self.outcomes: list[Any] = []
        self.taken: list[bytes] | None = None
        loop = there.shard(number).loop
        self.held = HeldHere(loop, lambda: None, self.outcomes.append)
        permits(there, number).take([limit], slots, self.held, self._got)

    def _got(self, some: list[bytes]) -> None:
        self.taken = list(some)

    async def done(self) -> int:
        """How many it got."""
        await until(lambda: self.taken is not None or bool(self.outcomes))
        if self.taken is None:
            assert isinstance(self.outcomes[0], Overloaded), self.outcomes
            return 0
        return len(self.taken)


def counted_by(there: ClusterUnderTest, number: int, nodes: list[int], version: int) -> str:
    """A name that this node counts if these are active."""
    view = there.view(version, nodes)
    there.adopt(view)
    for attempt in range(1000):
        name = f"user{attempt}"
        owner = there.shard(0).owners.keeper(name)
        if there.shard(0).member_of(owner) == there.nodes[number].member:
            return name
    raise AssertionError("there is no such name")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_permits, "LEASE_SECONDS", 0.3)


@in_a_loop
async def test_one_node_alone_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_permits, "LEASE_SECONDS", 1000.0)
    async with counting(tmp_path, 1, shards=2) as there:
        there.adopt(there.view(1, states={0: MemberState.JOINING}))
        there.adopt(there.view(2))
        for attempt in range(5):
            limit = Limit(f"u{attempt}", "u", 2)
            assert await Taking(there, 0, limit, 1).done() == 1
        there.adopt(there.view(3, states={0: MemberState.DRAINING}))
        there.adopt(there.view(4))
        assert await Taking(there, 0, Limit("u0", "u", 2), 5).done() == 1


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_limit_holds_across_nodes(tmp_path: Path, shards: int) -> None:
    async with counting(tmp_path, 3, shards=shards) as there:
        name = counted_by(there, 1, [0, 1, 2], 1)
        limit = Limit(name, "ann", 3)
        got = [await Taking(there, number, limit, 2).done() for number in (0, 1, 2)]
        assert got == [2, 1, 0]
        assert sum(permits(there, 1, one).statistics()["counted"] for one in range(shards)) == 3
        assert permits(there, 0).statistics()["counted"] == 0


@in_a_loop
async def test_a_permit_that_is_given_back_is_free_for_another_node(tmp_path: Path) -> None:
    async with counting(tmp_path, 2) as there:
        limit = Limit(counted_by(there, 1, [0, 1], 1), "ann", 1)
        first = Taking(there, 0, limit, 1)
        assert await first.done() == 1
        second = Taking(there, 1, limit, 1)
        assert first.taken is not None
        permits(there, 0).free(first.taken)
        assert await second.done() == 1


@in_a_loop
async def test_the_next_counter_hears_of_everything_before_it_gives_anything(
    tmp_path: Path,
) -> None:
    async with counting(tmp_path, 3) as there:
        name = counted_by(there, 1, [0, 1, 2], 1)
        limit = Limit(name, "ann", 2)
        first = Taking(there, 0, limit, 1)
        assert await first.done() == 1
        there.nodes[1].kill(0)
        there.adopt(there.view(2, [0, 2]), 2)  # the other one hears of it later
        wanted = Taking(there, 2, limit, 2)
        there.adopt(there.view(2, [0, 2]), 0)
        assert await wanted.done() == 1
        # Every name that it counted before is counted without a wait.
        assert len(permits(there, 0)._earlier) <= 1


@in_a_loop
async def test_rule_7_a_new_counter_gives_nothing_before_all_holders_could_speak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counting(tmp_path, 3) as there:
        all_, two = there.view(1, [0, 1, 2]), there.view(2, [0, 2])
        there.adopt(all_)
        first, then = there.nodes[1].member, there.nodes[2].member
        name = next(
            one
            for one in map("user{}".format, range(1000))
            if (ClusterHomes(all_).keeper(one)[0].id, ClusterHomes(two).keeper(one)[0].id)
            == (first, then)
        )
        limit = Limit(name, "ann", 2)
        assert await Taking(there, 0, limit, 1).done() == 1
        there.nodes[1].kill(0)
        monkeypatch.setattr(shard_permits, "LEASE_SECONDS", 1000.0)
        there.adopt(two, 2)
        wanted, counter = Taking(there, 2, limit, 2), permits(there, 2)
        await until(lambda: name in counter._wishes or wanted.taken is not None)
        assert wanted.taken is None, "the holder of the first permit has not spoken"
        there.adopt(two, 0)
        await until(lambda: counter.statistics()["counted"] == 1)
        assert wanted.taken is None, "there may be other holders"
        counter._earlier.clear()  # the time is over
        counter._counts(name)
        assert await wanted.done() == 1


@in_a_loop
async def test_who_asks_a_previous_counter_is_sent_to_the_next(tmp_path: Path) -> None:
    async with counting(tmp_path, 3) as there:
        name = counted_by(there, 1, [0, 1, 2], 1)
        limit = Limit(name, "ann", 1)
        newer = there.view(2, states={1: MemberState.DRAINING})
        there.adopt(newer, 1, 2)
        assert await Taking(there, 0, limit, 1).done() == 1
        assert there.shard(0).view_version == 2
        assert permits(there, 1).statistics()["counted"] == 0
        assert there.shard(1).errors["not-owner"] >= 1


@in_a_loop
async def test_reports_that_wait_go_to_the_next_counter(tmp_path: Path) -> None:
    async with counting(tmp_path, 2) as there:
        name = counted_by(there, 1, [0, 1], 1)
        here = permits(there, 0)
        there.shard(1).holders[Opcode.COUNT] = lambda *_: pytest.fail("the previous one was told")
        here._changed(name, [b"p" * 16], held=True)
        here._changed(name, [b"o" * 16], held=False)
        there.adopt(there.view(2, [0]), 0)
        await until(lambda: here.statistics()["counted"] == 1)


@in_a_loop
async def test_without_a_view_nothing_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maitred.node.permit_taking.ASK_SECONDS", 0.2)
    async with counting(tmp_path, 1) as there:
        taking = Taking(there, 0, Limit("u", "u", 1), 1)
        await until(lambda: bool(taking.outcomes))
        assert taking.outcomes[0].code == "unavailable"
        later = Taking(there, 0, Limit("u", "u", 1), 1)
        there.adopt(there.view(1))
        assert await later.done() == 1
