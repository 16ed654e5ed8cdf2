"""Queries at a node: slots for gateways, who is there, what people want of both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    Draining,
    InvalidArgument,
    NoWorker,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    UnknownQueue,
    UnknownWorker,
)
from maitred.node import request_table
from maitred.protocol.queries import Allocated, WorkersFound
from maitred.protocol.tasks import Offered, PartitionDescription
from maitred.security.users import GATEWAY as GATEWAY_USER
from maitred.settings import QueryLimits, QuerySettings, Queue, User
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, until
from tests.node.querying import SECONDS, WORKER, stage
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

IMPATIENT = {"*": Queue(queries=QuerySettings(no_worker_seconds=0.2))}

USERS = {
    "alice": User(secret=cheaply("a"), permissions={"*": ["admin"]}),
    "bob": User(
        secret=cheaply("b"),
        permissions={"n": ["query"]},
        queries=QueryLimits(run_seconds=7.0, result_bytes=1000, waiting=1),
    ),
    "carol": User(
        secret=cheaply("c"),
        permissions={"n": ["query"]},
        queries=QueryLimits(queues=["n/other"], rate_per_second=2.0),
    ),
    "dora": User(secret=cheaply("d"), permissions={"n": ["work"]}),
}


def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held for `SECONDS` is answered long before: a busy machine is not in time for the
    last moment."""
    monkeypatch.setattr(request_table, "EARLY_SECONDS", SECONDS - 0.3)


def partition_of(one: Any) -> Any:  # noqa: ANN401 - of a stage
    """The root, as its shard has it."""
    (owned,) = [
        owned
        for shard in one.node.shards
        for owned in shard._partitions.owned.values()
        if owned.key.partition == 0
    ]
    return owned.partition


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_slot_that_is_offered_goes_to_the_query(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards) as one:
        worker, gateway = await one.client(), await one.client()
        offer = worker.hold(one.offer(4), SECONDS)
        await one.loaded()
        await until(lambda: partition_of(one).offers.slots == 4)
        allocated = await gateway.request(one.allocate(2), SECONDS)
        offered = await offer.answer()
        assert isinstance(allocated, Allocated)
        assert isinstance(offered, Offered)
        assert [slot.token for slot in allocated.allocations] == [
            slot.token for slot in offered.reserved
        ]
        slot = allocated.allocations[0]
        assert (slot.partition, slot.session, slot.worker, slot.address) == (
            0,
            WORKER,
            "ant",
            "127.0.0.1:4000",
        )
        limits = QuerySettings()
        told = offered.reserved[0]
        assert told.reservation_seconds == limits.reservation_seconds
        assert (told.run_seconds, told.result_bytes) == (limits.run_seconds, limits.result_bytes)


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_query_waits_for_a_slot(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards) as one:
        worker, gateway = await one.client(), await one.client()
        worker.hold(one.attend(), SECONDS).tell(lambda _: None)
        await one.loaded()
        query = gateway.hold(one.allocate(3), SECONDS)
        await until(lambda: partition_of(one).allocator.lines.slots == 3)
        offered = await worker.request(one.offer(1), SECONDS)
        allocated = await query.answer()
        assert len(allocated.allocations) == len(offered.reserved) == 1  # type: ignore[union-attr]


async def _waiting(one: Any, gateway: AsyncClient) -> Any:  # noqa: ANN401
    """A query that waits at the root."""
    gateway.hold(one.attend(), SECONDS).tell(lambda _: None)
    await one.loaded()
    query = gateway.hold(one.allocate(), SECONDS)
    await until(lambda: partition_of(one).allocator.lines.slots == 1)
    return query


@in_a_loop
async def test_a_query_that_is_taken_back_leaves_the_line(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway = await one.client()
        query = await _waiting(one, gateway)
        query.take_back()
        with pytest.raises(Cancelled):
            await query.answer()
        assert partition_of(one).allocator.lines.slots == 0


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_the_queries_of_a_lost_connection_leave_the_line(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards) as one:
        gateway = await one.client()
        query = await _waiting(one, gateway)
        for shard in one.node.shards:
            for connection in list(shard.connections):
                if not connection._peer:
                    connection.abort()
        with pytest.raises(ConnectionLost):
            await query.answer()
        await until(lambda: partition_of(one).allocator.lines.slots == 0)


@in_a_loop
async def test_a_query_whose_time_is_up_leaves_the_line(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway = await one.client()
        (await _waiting(one, gateway)).tell(lambda _: None)
        with pytest.raises(DeadlineExceeded):
            await gateway.request(one.allocate(), 0.1)
        await until(lambda: partition_of(one).allocator.lines.slots == 1)


@in_a_loop
async def test_a_node_that_stops_tells_those_who_wait(tmp_path: Path) -> None:
    async with stage(tmp_path, drain_seconds=0.5) as one:
        gateway = await one.client()
        query = await _waiting(one, gateway)
        draining = asyncio.ensure_future(one.node.shard.drain())
        with pytest.raises(Draining):
            await query.answer()
        await draining


@in_a_loop
async def test_a_queue_that_nobody_ever_used_is_refused_and_the_nearest_are_named(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        client = await one.client()
        with pytest.raises(UnknownQueue):
            await client.request(one.allocate(queue="orders"), SECONDS)
        one.queue = "EQUITY_MARKET_RDB"
        await client.request(one.add(), SECONDS)
        with pytest.raises(UnknownQueue, match="EQUITY_MARKET_RDB"):
            await client.request(one.allocate(queue="EQUITY_MARKET_RBD"), SECONDS)
        with pytest.raises(UnknownQueue):
            await client.request(one.allocate(queue="EQUITY_MARKET_RBD", partition=3), SECONDS)


@in_a_loop
async def test_a_queue_without_workers_refuses_after_its_grace(tmp_path: Path) -> None:
    async with stage(tmp_path, queues=IMPATIENT) as one:
        client = await one.client()
        await client.request(one.add(), SECONDS)
        with pytest.raises(NoWorker, match=r"0\.2 s"):
            await client.hold(one.allocate(), SECONDS).answer()


@in_a_loop
async def test_a_full_line_is_overload_and_says_when_to_come_back(tmp_path: Path) -> None:
    queues = {"*": Queue(queries=QuerySettings(waiting=1))}
    async with stage(tmp_path, queues=queues) as one:
        gateway = await one.client()
        (await _waiting(one, gateway)).tell(lambda _: None)
        with pytest.raises(Overloaded) as caught:
            await gateway.hold(one.allocate(), SECONDS).answer()
        assert caught.value.retry_after == 60.0


# The tree


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_query_at_one_partition_finds_a_slot_at_another(
    tmp_path: Path, shards: int
) -> None:
    async with stage(tmp_path, shards=shards) as one:
        worker, gateway = await one.client(), await one.client()
        await worker.request(one.add(), SECONDS)
        first = await worker.request(one.offer(1), SECONDS)
        assert isinstance(first, Offered)
        assert len(first.tasks) == 1
        await one.resize(worker, 3)
        query = gateway.hold(one.allocate(partition=1), SECONDS)
        await until(lambda: partition_of(one).allocator.lines.slots == 1)
        offered = await worker.request(one.offer(1, partition=2), SECONDS)
        allocated = await query.answer()
        assert [slot.token for slot in allocated.allocations] == [
            slot.token
            for slot in offered.reserved  # type: ignore[union-attr]
        ]
        assert allocated.allocations[0].address == "127.0.0.1:4000"
        assert allocated.allocations[0].partition == 0
        # And one that waits there is forgotten when it is taken back.
        query = gateway.hold(one.allocate(partition=1), SECONDS)
        await until(lambda: partition_of(one).allocator.lines.slots == 1)
        query.take_back()
        with pytest.raises(Cancelled):
            await query.answer()
        await until(lambda: partition_of(one).allocator.lines.slots == 0)


# Who is there


@in_a_loop
async def test_workers_are_listed_and_told_what_to_do(tmp_path: Path) -> None:
    async with stage(tmp_path, shards=2) as one:
        worker, person = await one.client(), await one.client()
        await worker.request(one.attend(), SECONDS)  # answered at once: it is known
        attending = worker.hold(one.attend(), SECONDS)
        await until(lambda: all(x.token for x in partition_of(one).presence.serving()))
        found = await person.request(one.workers(), SECONDS)
        assert isinstance(found, WorkersFound)
        (listed,) = found.workers
        assert (listed.worker, listed.address, listed.slots, listed.busy) == (
            "ant",
            "127.0.0.1:4000",
            8,
            2,
        )
        assert (listed.state, listed.suspected) == ("online", False)
        assert (listed.limit, listed.limit_reason, listed.blocked) == (5, "waiting", 3)
        assert listed.heard_seconds < SECONDS
        await person.request(one.workers("offline", "ant"), SECONDS)
        assert (await attending.answer()).order == "offline"
        attending = worker.hold(one.attend("offline"), SECONDS)
        await until(lambda: not partition_of(one).presence.count)
        await person.request(one.workers("online", WORKER.hex()[:10]), SECONDS)
        assert (await attending.answer()).order == "online"
        with pytest.raises(UnknownWorker, match="ant"):
            await person.request(one.workers("offline", "ants"), SECONDS)
        with pytest.raises(InvalidArgument):
            await person.request(one.workers("offline"), SECONDS)
        await one.resize(person, 2)
        with pytest.raises(InvalidArgument, match="root"):
            await worker.request(one.attend(partition=1), SECONDS)


@in_a_loop
async def test_a_worker_that_attends_is_answered_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early(monkeypatch)
    async with stage(tmp_path) as one:
        worker = await one.client()
        answer = await worker.request(one.attend(), SECONDS)
        assert answer.order == ""  # type: ignore[union-attr]


@pytest.mark.parametrize("partition", [0, 1])
@in_a_loop
async def test_a_suspected_workers_offers_are_taken_down(tmp_path: Path, partition: int) -> None:
    async with stage(tmp_path, shards=2) as one:
        worker, gateway = await one.client(), await one.client()
        worker.hold(one.attend(), SECONDS).tell(lambda _: None)
        await one.resize(worker, 2)
        offer = worker.hold(one.offer(4, partition), SECONDS)
        await one.loaded()
        await until(lambda: partition_of(one).offers.slots == 4)
        answer = await gateway.request(one.suspect(partition), SECONDS)
        assert answer.offers == 1  # type: ignore[union-attr]
        assert (await offer.answer()).tasks == []
        await until(lambda: not partition_of(one).presence.count)
        found = await gateway.request(one.workers(), SECONDS)
        assert [row.suspected for row in found.workers] == [True]  # type: ignore[union-attr]
        await until(lambda: partition_of(one).offers.slots == 0)


@in_a_loop
async def test_a_worker_that_hangs_serves_no_other_queue_either(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        worker, gateway = await one.client(), await one.client()
        here = worker.hold(one.offer(4), SECONDS)
        elsewhere = worker.hold(replace(one.offer(4), queue="another"), SECONDS)
        stranger = worker.hold(replace(one.offer(4), namespace="m"), SECONDS)
        shard: Any = one.node.shards[0]

        def slots() -> int:
            return sum(owned.partition.offers.slots for owned in shard._partitions.owned.values())

        await until(lambda: slots() == 12)
        await gateway.request(one.suspect(), SECONDS)
        assert (await here.answer()).tasks == []
        assert (await elsewhere.answer()).tasks == []
        assert slots() == 4
        stranger.take_back()  # what is said in one namespace counts in that one


@in_a_loop
async def test_a_partition_tells_how_its_queries_are(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway = await one.client()
        await _waiting(one, gateway)
        told = await gateway.request(one.describe(), SECONDS)
        assert isinstance(told, PartitionDescription)
        assert (told.queries_waiting, told.allocated) == (1, 0)
        await gateway.request(one.offer(), SECONDS)
        told = await gateway.request(one.describe(), SECONDS)
        assert isinstance(told, PartitionDescription)
        assert (told.queries_waiting, told.allocated) == (0, 1)


# Permissions and limits


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_user_is_who_he_is_and_has_his_limits(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as one:
        admin = await one.client("alice", "a")
        bob = await one.client("bob", "b")
        gateway = await one.client(GATEWAY_USER, GATEWAY_SECRET)
        admin.hold(one.attend(), SECONDS).tell(lambda _: None)
        await one.loaded()
        for client, said, user in ((bob, "alice", "bob"), (gateway, "bob", "bob")):
            query = client.hold(one.allocate(user=said), SECONDS)
            await until(lambda: partition_of(one).allocator.lines.slots == 1)
            with pytest.raises(Overloaded):
                await client.hold(one.allocate(user=said), SECONDS).answer()
            offered = await admin.request(one.offer(), SECONDS)
            (reserved,) = offered.reserved  # type: ignore[union-attr]
            assert (reserved.user, reserved.run_seconds) == (user, 7.0)
            assert (reserved.result_bytes, reserved.stream_bytes) == (1000, 1000)
            await query.answer()


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_user_asks_only_the_queues_that_are_his(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as one:
        carol = await one.client("carol", "c")
        gateway = await one.client(GATEWAY_USER, GATEWAY_SECRET)
        for client in (carol, gateway):
            with pytest.raises(PermissionDenied, match="carol"):
                await client.request(one.allocate(user="carol"), SECONDS)
        with pytest.raises(UnknownQueue):
            await carol.request(one.allocate(queue="other"), SECONDS)


@in_a_loop
async def test_a_user_asks_no_faster_than_allowed(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as one:
        admin, carol = await one.client("alice", "a"), await one.client("carol", "c")
        one.queue = "other"
        admin.hold(one.offer(10), SECONDS).tell(lambda _: None)
        await one.loaded()
        await until(lambda: partition_of(one).offers.slots == 10)
        await carol.request(one.allocate(2), SECONDS)
        with pytest.raises(Overloaded, match="2 queries a second") as caught:
            await carol.hold(one.allocate(), SECONDS).answer()
        assert 0 < (caught.value.retry_after or 0.0) <= 0.5


@in_a_loop
async def test_who_may_not_query_gets_no_slot_and_who_may_not_work_does_not_attend(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, users=USERS) as one:
        dora, bob = await one.client("dora", "d"), await one.client("bob", "b")
        for message in (one.allocate(), one.suspect(), one.workers(), one.relay(bytes(16))):
            with pytest.raises(PermissionDenied):
                await dora.request(message, SECONDS)
        for request in (one.attend(), one.fetch(bytes(16)), one.deliver(bytes(16), 0, b"")):
            with pytest.raises(PermissionDenied):
                await bob.request(request, SECONDS)


@in_a_loop
async def test_nobody_else_is_the_nodes_gateway(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as one:
        with pytest.raises(Unauthenticated):
            await (await one.client(GATEWAY_USER, "guessed")).request(one.allocate(), SECONDS)
        assert GATEWAY_SECRET not in repr(one.node.shard.place)


@in_a_loop
async def test_where_there_are_no_users_whoever_asks_may_say_whose_query_it_is(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        gateway = await one.client(GATEWAY_USER, GATEWAY_SECRET)
        gateway.hold(one.allocate(user="somebody"), SECONDS).tell(lambda _: None)
        gateway.hold(one.attend(), SECONDS).tell(lambda _: None)
        await one.loaded()
        gateway.hold(one.allocate(user="somebody"), SECONDS).tell(lambda _: None)
        await until(lambda: partition_of(one).allocator.lines.users.get("somebody") is not None)
