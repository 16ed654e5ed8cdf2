"""Gateways that pick workers themselves, at a node: rosters for them, passes for the workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    Cancelled,
    ConnectionLost,
    Draining,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    UnknownQueue,
)
from maitred.protocol.queries import Allocated, Attended, Roster
from maitred.security.users import GATEWAY as GATEWAY_USER
from maitred.settings import QueryLimits, QuerySettings, Queue, Shedding, User
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, WORKER, stage, waits
from tests.node.test_queries import early, partition_of
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll

QUERIES = QuerySettings(policy="adaptive", pass_seconds=50.0, shedding=Shedding(length=7))
ADAPTIVE = {"*": Queue(queries=QUERIES)}

USERS = {
    "alice": User(secret=cheaply("a"), permissions={"*": ["admin"]}),
    "bob": User(
        secret=cheaply("b"),
        permissions={"n": ["query"]},
        queries=QueryLimits(run_seconds=7.0, result_bytes=1000),
    ),
    "carol": User(
        secret=cheaply("c"),
        permissions={"n": ["query"]},
        queries=QueryLimits(queues=["n/other"]),
    ),
    "dora": User(secret=cheaply("d"), permissions={"n": ["work"]}),
    "emil": User(
        secret=cheaply("e"),
        permissions={"n": ["query"]},
        queries=QueryLimits(rate_per_second=100.0),
    ),
}


async def attending(one: Any, worker: AsyncClient) -> LongPoll:  # noqa: ANN401 - of a stage
    """A worker that is there."""
    await worker.request(one.attend(), SECONDS)  # answered at once: it is known
    held = worker.hold(one.attend(), SECONDS)
    await until(lambda: all(x.token for x in partition_of(one).presence.serving()))
    return held


async def there(one: Any, worker: AsyncClient) -> None:  # noqa: ANN401
    """The same, whatever it is told."""
    (await attending(one, worker)).tell(lambda _: None)


async def roster_of(one: Any, gateway: AsyncClient, version: int = 0, **more: Any) -> Roster:  # noqa: ANN401
    roster = await gateway.request(one.subscribe(version, **more), SECONDS)
    assert isinstance(roster, Roster)
    return roster


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_roster_and_the_same_pass_at_the_worker(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards, queues=ADAPTIVE) as one:
        worker, gateway = await one.client(), await one.client()
        held = await attending(one, worker)
        roster = await roster_of(one, gateway)
        (member,) = roster.members
        assert (member.session, member.worker, member.address) == (WORKER, "ant", "127.0.0.1:4000")
        assert (member.slots, roster.policy, roster.shedding.length) == (8, "adaptive", 7)
        attended = await held.answer()
        assert isinstance(attended, Attended)
        (told,) = attended.passes
        assert (attended.order, told.token, told.gateway) == ("", member.token, GATEWAY)
        limits = QuerySettings()
        assert (told.user, told.seconds, told.stream_bytes) == ("", 50.0, 0)
        assert (told.run_seconds, told.result_bytes) == (limits.run_seconds, limits.result_bytes)


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_it_is_held_until_it_changes(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards, queues=ADAPTIVE) as one:
        worker, gateway, person = [await one.client() for _ in range(3)]
        held = await attending(one, worker)
        roster = await roster_of(one, gateway)
        await held.answer()
        worker.hold(one.attend(), SECONDS).tell(lambda _: None)
        news = gateway.hold(one.subscribe(roster.version), SECONDS)
        await waits(news)
        await person.request(one.suspect(), SECONDS)
        changed = await news.answer()
        assert (changed.version > roster.version, changed.members) == (True, [])
        news = gateway.hold(one.subscribe(changed.version), SECONDS)
        worker.hold(one.offer(), SECONDS).tell(lambda _: None)  # it speaks: it does not hang
        assert (await news.answer()).members == roster.members


@in_a_loop
async def test_it_is_answered_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early(monkeypatch)
    async with stage(tmp_path, queues=ADAPTIVE) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        roster = await roster_of(one, gateway)
        again = await gateway.request(one.subscribe(roster.version), SECONDS)
        assert again == roster


@in_a_loop
async def test_one_that_is_taken_back_or_lost_is_not_answered(tmp_path: Path) -> None:
    async with stage(tmp_path, queues=ADAPTIVE) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        roster = await roster_of(one, gateway)
        rosters = partition_of(one).presence.rosters
        held = gateway.hold(one.subscribe(roster.version), SECONDS)
        await until(lambda: len(rosters.held) == 1)
        held.take_back()
        with pytest.raises(Cancelled):
            await held.answer()
        await until(lambda: not rosters.held)
        held = gateway.hold(one.subscribe(roster.version), SECONDS)
        await until(lambda: len(rosters.held) == 1)
        for connection in list(one.node.shard.connections):
            connection.abort()
        with pytest.raises(ConnectionLost):
            await held.answer()
        await until(lambda: not rosters.held)
        # It comes back with what it had.
        assert (await roster_of(one, gateway)).members == roster.members


@in_a_loop
async def test_a_node_that_stops_tells_those_who_subscribe(tmp_path: Path) -> None:
    async with stage(tmp_path, drain_seconds=0.5, queues=ADAPTIVE) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        roster = await roster_of(one, gateway)
        held = gateway.hold(one.subscribe(roster.version), SECONDS)
        await until(lambda: len(partition_of(one).presence.rosters.held) == 1)
        draining = asyncio.ensure_future(one.node.shard.drain())
        with pytest.raises(Draining):
            await held.answer()
        await draining


@in_a_loop
async def test_a_queue_that_gives_slots_out_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        roster = await roster_of(one, gateway)
        assert (roster.policy, roster.members) == ("idle", [])
        assert (await roster_of(one, gateway, roster.version)).policy == "idle"
        assert not partition_of(one).presence.rosters.subscribers


@in_a_loop
async def test_only_the_root_of_a_queue_that_there_is(tmp_path: Path) -> None:
    async with stage(tmp_path, queues=ADAPTIVE) as one:
        gateway = await one.client()
        with pytest.raises(UnknownQueue):
            await gateway.request(one.subscribe(), SECONDS)
        await there(one, gateway)
        await one.resize(gateway, 2)
        gateway.hold(one.offer(partition=1), SECONDS).tell(lambda _: None)
        partitions: Any = one.node.shard._partitions
        await until(lambda: len(partitions.owned) == 2)
        with pytest.raises(InvalidArgument, match="root"):
            await gateway.request(one.subscribe(partition=1), SECONDS)


# The policy, with slots


@pytest.mark.parametrize(("queues", "policy"), [({}, ""), (ADAPTIVE, "adaptive")])
@pytest.mark.parametrize("partition", [0, 1])
@in_a_loop
async def test_who_gets_a_slot_hears_of_the_policy(
    tmp_path: Path, queues: dict[str, Queue], policy: str, partition: int
) -> None:
    async with stage(tmp_path, shards=2, queues=queues) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        await one.resize(worker, 2)
        worker.hold(one.offer(), SECONDS).tell(lambda _: None)
        allocated = await gateway.request(one.allocate(partition=partition), SECONDS)
        assert isinstance(allocated, Allocated)
        assert allocated.policy == policy


@pytest.mark.parametrize("partition", [0, 1])
@in_a_loop
async def test_who_does_not_wait_is_refused_at_once(tmp_path: Path, partition: int) -> None:
    async with stage(tmp_path, shards=2) as one:
        worker, gateway = await one.client(), await one.client()
        await there(one, worker)
        await one.resize(worker, 2)
        message = one.allocate(partition=partition, do_not_queue=True)
        with pytest.raises(Overloaded) as caught:
            await gateway.hold(message, SECONDS).answer()
        assert (caught.value.retry_after or 0.0) > 0.0
        assert not partition_of(one).allocator.lines.total
        worker.hold(one.offer(), SECONDS).tell(lambda _: None)
        await until(lambda: partition_of(one).offers.slots == 1)
        allocated = await gateway.request(message, SECONDS)
        assert len(allocated.allocations) == 1  # type: ignore[union-attr]


# Permissions and limits


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_user_is_who_he_is_and_has_his_limits(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards, users=USERS, queues=ADAPTIVE) as one:
        admin = await one.client("alice", "a")
        bob = await one.client("bob", "b")
        gateway = await one.client(GATEWAY_USER, GATEWAY_SECRET)
        tokens = set()
        # All of them name the same session.
        for client, said, user in (
            (gateway, "", ""),
            (bob, "alice", "bob"),
            (gateway, "alice", "alice"),
        ):
            held = await attending(one, admin)
            roster = await roster_of(one, client, user=said)
            tokens.add(roster.members[0].token)
            (told,) = [told for told in (await held.answer()).passes if told.user == user]
            assert told.token == roster.members[0].token
            if user == "bob":
                assert (told.run_seconds, told.result_bytes) == (7.0, 1000)
                assert told.stream_bytes == 1000
        assert len(tokens) == 3


@in_a_loop
async def test_who_may_not_query_or_not_this_queue_gets_no_roster(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS, queues=ADAPTIVE) as one:
        await there(one, await one.client("alice", "a"))
        gateway = await one.client(GATEWAY_USER, GATEWAY_SECRET)
        carol, dora = await one.client("carol", "c"), await one.client("dora", "d")
        for client in (carol, gateway):
            with pytest.raises(PermissionDenied, match="carol"):
                await client.request(one.subscribe(user="carol"), SECONDS)
        with pytest.raises(PermissionDenied):
            await dora.request(one.subscribe(), SECONDS)


@in_a_loop
async def test_a_user_with_a_rate_asks_for_every_slot(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS, queues=ADAPTIVE) as one:
        admin, emil = await one.client("alice", "a"), await one.client("emil", "e")
        await there(one, admin)
        roster = await roster_of(one, emil)
        assert (roster.policy, roster.members) == ("idle", [])
        admin.hold(one.offer(), SECONDS).tell(lambda _: None)
        allocated = await emil.request(one.allocate(), SECONDS)
        assert allocated.policy == ""  # type: ignore[union-attr]
