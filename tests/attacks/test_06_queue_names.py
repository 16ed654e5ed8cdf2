"""New queue names: bounded by quota and rate, forgotten when idle, deleted by operators, and no
load of a partition stalls another tenant. Over the wire, against shards with real stores."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.errors import (
    MaitredError,
    PermissionDenied,
    QueueDeleted,
    QueueInUse,
    TaskForgotten,
    TooManyNewQueues,
    TooManyQueues,
    UnknownQueue,
)
from maitred.matching.idleness import Idleness
from maitred.matching.records import PartitionKey
from maitred.node import caretaker, partition_loader
from maitred.protocol.queries import Allocate, Attend, Subscribe, Workers
from maitred.protocol.tasks import (
    Add,
    Added,
    Await,
    DeadLetters,
    DeletedQueue,
    DeleteQueue,
    Describe,
    End,
    Finish,
    Heartbeat,
    Offer,
    Offered,
    PartitionDescription,
    Queues,
    QueuesFound,
    Resize,
    Resized,
    Revoke,
)
from maitred.settings import Limits, Namespace, Queue, Scaling, User
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import NodeUnderTest, in_a_loop, node, until
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.messages import AnyRequest
    from maitred.store.interface import Acquisition, Store

SESSION = b"a worker's own.."
SECONDS = 20.0
PLENTY = Limits(new_queues_per_second=1e6, new_queues=1_000_000)


class CountedStore:
    """The real one; counts how partitions are acquired, and can keep that waiting."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.groups: list[list[PartitionKey]] = []
        self.may_load = asyncio.Event()
        self.may_load.set()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        return getattr(self._store, name)

    async def acquire(self, group: Sequence[Acquisition]) -> Any:  # noqa: ANN401 - as it has it
        self.groups.append([one.key for one in group])
        await self.may_load.wait()
        return await self._store.acquire(group)


class House:
    """A node whose shards keep tasks."""

    def __init__(self, made: NodeUnderTest, clients: AsyncExitStack) -> None:
        self.node = made
        self._clients = clients
        self.stores: list[CountedStore] = []

    async def client(self, user: str = "") -> AsyncClient:
        who = f"{user}:secret@" if user else ""
        address = f"maitred://{who}127.0.0.1:{self.node.port}"
        return await self._clients.enter_async_context(
            maitred.connect(address, close_seconds=0.1, retries=0)
        )

    async def rows(self) -> list[PartitionKey]:
        found: list[PartitionKey] = await self.stores[0].partitions()
        return found

    def in_memory(self) -> list[PartitionKey]:
        shards: list[Any] = [*self.node.shards]
        return sorted(key for shard in shards for key in shard._partitions.owned)

    async def nothing_in_memory(self) -> None:
        await until(lambda: not self.in_memory())


@asynccontextmanager
async def house(
    directory: Path,
    *,
    shards: int = 1,
    limits: Limits = PLENTY,
    **settings: Any,  # noqa: ANN401 - whatever a node has
) -> AsyncIterator[House]:
    async with (
        node(directory, shards=shards, limits=limits, **settings) as made,
        AsyncExitStack() as clients,
    ):
        one = House(made, clients)
        for number, shard in enumerate(made.shards):
            store = CountedStore(await open_sqlite(directory / "data", number))
            one.stores.append(store)
            shard.keep_tasks(store)
        try:
            yield one
        finally:
            await clients.aclose()
            for shard in made.shards:
                shard.close()
            for store in one.stores:
                await store.close()


def add(queue: str, namespace: str = "evil", partition: int = 0, **more: Any) -> Add:  # noqa: ANN401
    queue_type, version = more.pop("queue_type", 1), more.pop("version", 0)
    return Add(namespace, queue, queue_type, partition, 0, version, [b"task"], **more)


def offer(queue: str, namespace: str = "evil", partition: int = 0) -> Offer:
    return Offer(namespace, queue, 1, partition, 0, 0, SESSION, "ant", 1)


async def outcomes(client: AsyncClient, messages: Sequence[AnyRequest]) -> list[object]:
    asked = (client.request(message, SECONDS) for message in messages)
    return [*await asyncio.gather(*asked, return_exceptions=True)]


# Quotas and rates


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_namespace_gets_no_more_queues_than_its_quota(tmp_path: Path, shards: int) -> None:
    quotas = {"*": Namespace(queues=100), "evil": Namespace(queues=5)}
    async with house(tmp_path, shards=shards, namespaces=quotas) as one:
        evil, shop = await one.client(), await one.client()
        found = await outcomes(evil, [add(f"random-{n}") for n in range(12)])
        refused = [each for each in found if isinstance(each, TooManyQueues)]
        assert len(refused) == 7
        assert "5 queues" in refused[0].sentence
        assert "admin queue delete" in str(refused[0].remedy)
        assert len(await one.rows()) == 5
        # What exists goes on; other namespaces do, too; another type is another queue.
        known = next(key.queue for key in await one.rows())
        assert isinstance(await evil.request(add(known), SECONDS), Added)
        assert isinstance(await shop.request(add("orders", "shop"), SECONDS), Added)
        with pytest.raises(TooManyQueues):
            await evil.request(add(known, queue_type=2), SECONDS)
        for message in (
            Attend("evil", "another", 1, 0, 0, SESSION, "ant", "", 1, 0),
            Resize("evil", "another", 1, 0, 0, 2, 2),
            offer("another"),
            offer("another", partition=7),
        ):
            with pytest.raises(TooManyQueues):
                await evil.request(message, SECONDS)
        assert len(await one.rows()) == 6
        told = await shop.request(Describe("evil", known, 1, 0, 0), SECONDS)
        assert isinstance(told, PartitionDescription)
        assert (told.namespace_queues, told.namespace_queues_max) == (5, 5)
        listed = await shop.request(Queues(0, 0), SECONDS)
        assert isinstance(listed, QueuesFound)
        assert listed.quotas == {"evil": 5, "shop": 100}


@in_a_loop
async def test_a_user_makes_queues_at_a_rate_and_others_are_not_held_up(tmp_path: Path) -> None:
    limits = Limits(new_queues_per_second=0.001, new_queues=3)
    users = {
        name: User(secret=cheaply("secret"), permissions={"*": ["produce", "work"]})
        for name in ("eve", "sam")
    }
    async with house(tmp_path, limits=limits, users=users) as one:
        eve, sam = await one.client("eve"), await one.client("sam")
        # Whom it names counts for nothing.
        forged = [add(f"random-{n}", user=f"user-{n}") for n in range(8)]
        found = await outcomes(eve, forged)
        refused = [each for each in found if isinstance(each, TooManyNewQueues)]
        assert len(refused) == 5
        assert "'eve'" in refused[0].sentence
        assert refused[0].retry_after
        assert isinstance(await sam.request(add("orders", "shop"), SECONDS), Added)
        assert isinstance(await eve.request(add("orders", "shop"), SECONDS), Added)


@in_a_loop
async def test_a_store_gets_no_more_queues_than_it_may_whatever_the_namespaces(
    tmp_path: Path,
) -> None:
    limits = Limits(new_queues_per_second=1e6, new_queues=1_000, queues=4)
    async with house(tmp_path, limits=limits) as one:
        client = await one.client()
        found = await outcomes(client, [add("q", f"random-{n}") for n in range(9)])
        assert sum(isinstance(each, TooManyQueues) for each in found) == 5
        assert len(await one.rows()) == 4


# Naming is not making

QUESTIONS: list[AnyRequest] = [
    Describe("evil", "typo", 1, 0, 0),
    Describe("evil", "typo", 1, 3, 0),
    Await("evil", "typo", 1, 0, 0, 7),
    Revoke("evil", "typo", 1, 0, 0, 7),
    DeadLetters("evil", "typo", 1, 0, 0, "list"),
    Workers("evil", "typo", 1, 0, 0, "list"),
    Allocate("evil", "typo", 1, 0, 0, 0, SESSION, 1),
    Allocate("evil", "typo", 1, 5, 0, 0, SESSION, 1),
    Subscribe("evil", "typo", 1, 0, 0, SESSION, 0),
    DeadLetters("evil", "real", 1, 9, 0, "list"),
    Describe("evil", "real", 1, 9, 0),
    Finish("evil", "typo", 1, 0, 0, SESSION, [End(7, 1, bytes(16))]),
    Finish("evil", "real", 1, 4, 0, SESSION, [End(7, 1, bytes(16))]),
    Heartbeat("evil", "typo", 1, 0, 0, SESSION, "ant", []),
]


@in_a_loop
async def test_who_asks_for_what_does_not_exist_makes_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, shards=2) as one:
        client = await one.client()
        await client.request(add("real"), SECONDS)
        for question in QUESTIONS:
            with pytest.raises(UnknownQueue, match="does not exist"):
                await client.request(question, SECONDS)
        gone = await client.request(DeleteQueue("evil", "typo", 1, 0, 0), SECONDS)
        assert gone == DeletedQueue(0, 0, 0, 0)
        assert await one.rows() == one.in_memory() == [PartitionKey("evil", "real", 1, 0)]


@in_a_loop
async def test_a_number_beyond_the_counts_makes_no_partition(tmp_path: Path) -> None:
    async with house(tmp_path, shards=2) as one:
        client = await one.client()
        await client.request(add("real"), SECONDS)
        for number in range(1, 30):
            answer = await client.request(add("real", partition=number), SECONDS)
            assert isinstance(answer, Added)
            assert answer.first == -1
            assert answer.counts is not None
            offered = await client.request(offer("real", partition=number), SECONDS)
            assert isinstance(offered, Offered)
            assert offered.tasks == []
        assert await one.rows() == one.in_memory() == [PartitionKey("evil", "real", 1, 0)]
        resized = await client.request(Resize("evil", "real", 1, 0, 0, 3, 3), SECONDS)
        assert isinstance(resized, Resized)
        answer = await client.request(add("real", partition=2), SECONDS)
        assert isinstance(answer, Added)
        assert answer.first > 0


# Loads


@in_a_loop
async def test_another_tenants_enqueues_are_served_while_a_hundred_loads_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that does not come back from a load: what is loaded already goes on."""
    # A busy machine takes longer than 5 s.
    monkeypatch.setattr(partition_loader, "SILENT_SECONDS", 60.0)
    async with house(tmp_path) as one:
        evil, shop = await one.client(), await one.client()
        await shop.request(add("orders", "shop"), SECONDS)
        store = one.stores[0]
        store.may_load.clear()
        before = len(store.groups)
        attack = [evil.request(add(f"random-{n}"), SECONDS) for n in range(100)]
        under_way = asyncio.gather(*attack)
        await until(lambda: len(store.groups) > before)
        for _ in range(5):
            assert isinstance(await shop.request(add("orders", "shop"), SECONDS), Added)
        assert len(store.groups) == before + 1, "one load is under way, whoever else waits"
        # Its own new queue comes with the next group, not behind a hundred others.
        mine = asyncio.ensure_future(shop.request(add("bills", "shop"), SECONDS))
        await shop.request(add("orders", "shop"), SECONDS)
        store.may_load.set()
        await mine
        await under_way
        bills = PartitionKey("shop", "bills", 1, 0)
        assert next(at for at, group in enumerate(store.groups) if bills in group) <= before + 2
        # 101 new queues: looked for, then made, in groups.
        assert len(store.groups) - before <= 16


@in_a_loop
async def test_more_loads_than_may_wait_are_refused(tmp_path: Path) -> None:
    limits = Limits(new_queues_per_second=1e6, new_queues=1_000_000, loading=10)
    async with house(tmp_path, limits=limits) as one:
        evil, shop = await one.client(), await one.client()
        store = one.stores[0]
        store.may_load.clear()
        asked = [asyncio.ensure_future(evil.request(add(f"q{n}"), SECONDS)) for n in range(60)]
        await until(lambda: sum(each.done() for each in asked) >= 17)
        mine = asyncio.ensure_future(shop.request(add("orders", "shop"), SECONDS))
        await asyncio.sleep(0)
        store.may_load.set()
        assert isinstance(await mine, Added)
        found = await asyncio.gather(*asked, return_exceptions=True)
        problems = [each for each in found if isinstance(each, MaitredError)]
        assert {each.code for each in problems} == {"overloaded"}


# Forgetting


@in_a_loop
async def test_idle_empty_queues_are_forgotten_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    passes: list[Idleness] = []
    end = Idleness.pass_ends

    def counted(idleness: Idleness) -> None:
        passes.append(idleness)
        end(idleness)

    monkeypatch.setattr(Idleness, "pass_ends", counted)
    short = Queue(
        idle_seconds=0.05,
        forget_seconds=0.2,
        hold_seconds=0.0,
        scaling=Scaling(adaptive=False, look_seconds=0.02),
    )
    async with house(tmp_path, shards=2, queues={"*": short}) as one:
        client = await one.client()
        taking = [asyncio.ensure_future(client.request(offer(f"q{n}"), 0.3)) for n in range(20)]
        await client.request(add("kept", delay=3600.0), SECONDS)
        await client.request(Resize("evil", "scaled", 1, 0, 0, 2, 2), SECONDS)
        await asyncio.gather(*taking, return_exceptions=True)
        kept = {"kept", "scaled"}
        while {key.queue for key in await one.rows()} != kept:  # noqa: ASYNC110 - the test's limit is pytest's
            await asyncio.sleep(0.01)
        # Nor are they forgotten later: one has a task, and a person has resized the other.
        await until(lambda: not any(key.queue == "scaled" for key in one.in_memory()))
        enough = len(passes) + 20  # both shards look four times in `forget_seconds`
        await until(lambda: len(passes) >= enough)
        assert {key.queue for key in await one.rows()} == kept
        # Whoever uses one again makes it anew, and its sequence numbers are higher.
        added = await client.request(add("q1"), SECONDS)
        assert isinstance(added, Added)
        assert added.first >= 2 * 2**32


# Deleting


@in_a_loop
async def test_a_queue_is_deleted_and_can_be_used_anew(tmp_path: Path) -> None:
    async with house(tmp_path, shards=2) as one:
        client, worker = await one.client(), await one.client()
        await client.request(Resize("evil", "q", 1, 0, 0, 4, 4), SECONDS)
        places: list[tuple[int, int]] = []
        for number in range(4):
            added = await client.request(add("q", partition=number, version=1), SECONDS)
            assert isinstance(added, Added)
            places.append((number, added.first))
        with pytest.raises(QueueInUse, match="4 tasks"):
            await client.request(DeleteQueue("evil", "q", 1, 0, 0), SECONDS)
        taken = await worker.request(offer("q", partition=1), SECONDS)
        assert isinstance(taken, Offered)
        waiting = asyncio.ensure_future(client.request(Await("evil", "q", 1, *_at(places[3])), 9))
        deleted = await client.request(DeleteQueue("evil", "q", 1, 0, 0, force=True), SECONDS)
        assert isinstance(deleted, DeletedQueue)
        assert (deleted.partitions, deleted.tasks) == (4, 4)
        with pytest.raises((QueueDeleted, UnknownQueue)):
            await waiting
        assert await one.rows() == one.in_memory() == []
        again = await client.request(DeleteQueue("evil", "q", 1, 0, 0), SECONDS)
        assert again == DeletedQueue(0, 0, 0, 0)
        # The next life: nothing of the first one means anything in it.
        added = await client.request(add("q"), SECONDS)
        assert isinstance(added, Added)
        assert added.first > max(sequence for _, sequence in places)
        for number, sequence in places[:1]:
            with pytest.raises(TaskForgotten):
                await client.request(Await("evil", "q", 1, number, 0, sequence), SECONDS)
        # Whoever goes by the old counts hears of the new ones, which are newer.
        told = await client.request(Add("evil", "q", 1, 3, 0, 1, [b"task"]), SECONDS)
        assert isinstance(told, Added)
        assert told.first == -1
        assert told.counts is not None
        assert (told.counts.read, told.counts.version > 1) == (1, True)


def _at(place: tuple[int, int]) -> tuple[int, int, int]:
    return place[0], 0, place[1]


@in_a_loop
async def test_a_queue_with_workers_is_deleted_by_force_alone(tmp_path: Path) -> None:
    async with house(tmp_path, shards=2) as one:
        client, worker = await one.client(), await one.client()
        waiting = worker.hold(offer("q"), SECONDS)
        await until(lambda: len(one.in_memory()) == 1)
        with pytest.raises(QueueInUse, match="1 worker"):
            await client.request(DeleteQueue("evil", "q", 1, 0, 0), SECONDS)
        deleted = await client.request(DeleteQueue("evil", "q", 1, 0, 0, force=True), SECONDS)
        assert deleted == DeletedQueue(1, 0, 0, 1)
        with pytest.raises(QueueDeleted):
            await waiting.answer()


@in_a_loop
async def test_only_an_admin_of_the_namespace_deletes(tmp_path: Path) -> None:
    users = {
        "eve": User(
            secret=cheaply("secret"),
            permissions={"evil": ["admin"], "shop": ["produce", "work", "query"]},
        )
    }
    async with house(tmp_path, users=users) as one:
        eve = await one.client("eve")
        await eve.request(add("orders", "shop"), SECONDS)
        for force in (False, True):
            with pytest.raises(PermissionDenied):
                await eve.request(DeleteQueue("shop", "orders", 1, 0, 0, force), SECONDS)
        await eve.request(add("q"), SECONDS)
        await eve.request(DeleteQueue("evil", "q", 1, 0, 0, force=True), SECONDS)
        assert [key.queue for key in await one.rows()] == ["orders"]
