"""Shards tell what all their queues have, and a client adds it up: in a simulated cluster, and at
real nodes with users."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.client.queue_states import ListedQueue, QueuePages
from maitred.errors import DeadlineExceeded, PermissionDenied
from maitred.matching.quotas import LOOK_SECONDS
from maitred.matching.records import PartitionKey, Terms
from maitred.node.queue_state_requests import (
    FRESH_SECONDS,
    STORED_SECONDS,
    UNUSED_SECONDS,
    QueueStateRequests,
)
from maitred.protocol.queries import Attend
from maitred.protocol.queue_overview import ListQueueStates, QueueStatesListed
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import FAILED, Add, ControlQueue, End, Finish, Offer, Resize
from maitred.security.users import GATEWAY as GATEWAY_USER
from maitred.settings import User
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, node
from tests.node.members import in_town
from tests.node.town_client import TownClient
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maitred.client.queue_states import QueueStatesPage
    from tests.node.members import Town, TownShard

SECRET = b"secret of worker"
SESSION = session_of_secret(SECRET)
SECONDS = 20.0
PARTITIONS = 6


def add(queue: str, count: int = 1, partition: int = 0, version: int = 1) -> Add:
    terms = Terms(retries=0, retention=60.0)
    return Add("shop", queue, 1, partition, 0, version, [b"\x90"] * count, terms=terms)


async def states(client: TownClient, **what: Any) -> dict[str, ListedQueue]:  # noqa: ANN401
    """Ask as soon as the shards look again."""
    await asyncio.sleep(max(FRESH_SECONDS, LOOK_SECONDS) + 0.5)
    page = await QueuePages(client).page(**what)
    return {one.queue: one for one in page.queues}


async def fail(town: Town, queue: str, count: int) -> None:
    """Let a worker take so many tasks, which fail and become dead letters."""
    offered = await town.ask(Offer("shop", queue, 1, 0, 0, 1, SESSION, "ant", count))
    ends = [End(one.sequence, one.attempt, one.proof, FAILED, b"\xc3") for one in offered.tasks]
    assert len(ends) == count
    await town.ask(Finish("shop", queue, 1, 0, 0, SESSION, ends))


def test_tasks_that_are_planned_are_known_as_such_after_a_move() -> None:
    """The next owner leaves them to the store until they are nearly due."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        later = add(queue, 5)
        later.delay = 86_400.0
        await town.ask(later)
        await town.ask(add(queue, 2))
        town.states(a="draining")
        await town.ask(add(queue, 1))
        one = (await states(TownClient(town)))[queue]
        assert (one.backlog, one.delayed) == (8, 5)

    in_town(main)


def test_the_states_of_all_queues_are_told_without_asking_partitions() -> None:
    async def main(town: Town) -> None:
        client = TownClient(town)
        busy, paused, quiet = (town.queue_of(name) for name in "abc")
        await town.ask(add(busy, 9))
        await fail(town, busy, 2)
        await town.ask(Offer("shop", busy, 1, 0, 0, 1, SESSION, "ant", 3))
        town.begin(Attend("shop", busy, 1, 0, 0, SECRET, "ant", "", 8, 3), seconds=60.0)
        await town.ask(add(paused, 3))
        await town.ask(ControlQueue("shop", paused, 1, 0, 0, "pause", "repair"))
        town.begin(Offer("shop", quiet, 1, 0, 0, 1, SESSION, "ant", 5), seconds=60.0)
        found = await states(client)
        assert found.keys() == {busy, paused, quiet}
        one = found[busy]
        assert (one.backlog, one.running, one.failed, one.died, one.dead) == (4, 3, 2, 2, 2)
        assert (one.partitions, one.loaded, one.workers, one.slots_free) == (1, 1, 1, 0)
        assert one.oldest_seconds > 1
        assert one.added_per_second > 0 < one.finished_per_second
        assert one.pause is None
        pause = found[paused].pause
        assert pause is not None
        assert pause.reason == "repair"
        assert (found[paused].backlog, found[quiet].slots_free) == (3, 5)
        for sort in ("backlog", "oldest", "added"):
            assert [*await states(client, sort=sort)] == [busy, paused, quiet]
        assert [*await states(client, sort="dead")] == [busy, *sorted((paused, quiet))]

    in_town(main)


def test_the_partitions_of_a_queue_on_several_nodes_are_added_up() -> None:
    async def main(town: Town) -> None:
        client = TownClient(town)
        queue = town.queue_of("a")
        await town.ask(add(queue))
        await town.ask(Resize("shop", queue, 1, 0, 0, PARTITIONS, PARTITIONS))
        for partition in range(PARTITIONS):
            await town.ask(add(queue, partition + 1, partition, version=99))
        assert len({town.owner(queue, partition) for partition in range(PARTITIONS)}) > 1
        one = (await states(client))[queue]
        assert one.backlog == 1 + sum(range(PARTITIONS + 1))
        assert (one.partitions, one.loaded) == (PARTITIONS, PARTITIONS)
        client.silent["a"] = DeadlineExceeded("It did not answer in time.")
        page = await QueuePages(client).page(sort="backlog")
        assert [found.address for found in page.unreachable] == ["a"]
        assert 0 < page.queues[0].backlog < one.backlog

    in_town(main)


def test_a_queue_that_no_shard_has_loaded_is_told_by_that_of_its_root() -> None:
    """As after a restart: nobody has asked for it yet."""

    async def main(town: Town) -> None:
        client = TownClient(town)
        queue, empty = town.queue_of("a"), town.queue_of("b")
        await town.ask(add(queue, 7))
        await fail(town, queue, 2)
        await town.ask(add(empty, 1))
        await fail(town, empty, 1)
        for name, letters in ((queue, 2), (empty, 1)):
            assert (await states(client))[name].dead == letters
        _unload(town, queue, empty)
        await asyncio.sleep(STORED_SECONDS)
        found = await states(client)
        assert (found[queue].backlog, found[queue].dead, found[queue].loaded) == (5, 2, 0)
        assert (found[empty].backlog, found[empty].dead, found[empty].loaded) == (0, 1, 0)
        assert [*await states(client, sort="backlog", most=1)] == [queue]
        assert [*await states(client, sort="dead")] == [queue, empty]
        # Once it is loaded, what the partition has counts.
        await town.ask(add(queue, 1))
        assert (await states(client))[queue].backlog == 6

    in_town(main, idle_seconds=1e6)


def _unload(town: Town, *queues: str) -> None:
    """As if the shards that own them had just been started."""
    for shard in town.shards.values():
        for queue in queues:
            owned = shard.partitions.owned.pop(PartitionKey("shop", queue, 1, 0), None)
            if owned is not None:
                owned.partition.leave()


def test_a_list_is_looked_up_again_after_a_while_and_forgotten_when_nobody_asks() -> None:
    async def main(town: Town) -> None:
        (shard,) = town.of("a")
        queues = [one for one in map("q{}".format, range(60)) if town.owner(one) is shard]
        await town.ask(add(queues[0]))
        assert await _listed(shard) == queues[:1]
        for queue in queues[1:]:
            await town.ask(add(queue))
        await asyncio.sleep(FRESH_SECONDS)
        assert await _listed(shard) == sorted(queues)
        # Rows are those of now, though the order is older.
        await town.ask(add(queues[0], 10))
        (first, *_) = (await _answer(shard, sort="backlog", names=[("shop", queues[0])])).rows
        assert first.backlog == 11
        requests = shard.handlers[ListQueueStates.opcode].__self__  # type: ignore[attr-defined]
        assert isinstance(requests, QueueStateRequests)
        assert requests._keys
        await asyncio.sleep(UNUSED_SECONDS)
        assert not requests._keys
        assert await _listed(shard) == sorted(queues)

    in_town(main)


async def _answer(shard: TownShard, **what: Any) -> QueueStatesListed:  # noqa: ANN401
    message = ListQueueStates(0, 0, **what)
    answer: Any = shard.handlers[message.opcode](message)
    found = await answer
    assert isinstance(found, QueueStatesListed)
    return found


async def _listed(shard: TownShard) -> list[str]:
    return [one.queue for one in (await _answer(shard)).rows]


USERS = {
    "root": User(secret=cheaply("root"), permissions={"*": ["admin"]}),
    "anna": User(secret=cheaply("anna"), permissions={"shop": ["read"]}),
    "paul": User(secret=cheaply("paul"), permissions={"shop": ["produce", "work", "query"]}),
}


@in_a_loop
async def test_who_may_list_the_queues_of_which_namespace(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS, shards=2) as running:
        stores = [await open_sqlite(tmp_path / "data", number) for number in range(2)]
        for shard, store in zip(running.shards, stores, strict=True):
            shard.keep_tasks(store)

        async def ask(user: str, secret: str = "", **what: Any) -> QueueStatesPage:  # noqa: ANN401
            address = f"maitred://{user}:{secret or user}@127.0.0.1:{running.port}"
            async with maitred.connect(address, close_seconds=0.1) as client:
                return await QueuePages(client).page(timeout=SECONDS, **what)

        def names(page: QueueStatesPage) -> Sequence[tuple[str, str]]:
            return [(one.namespace, one.queue) for one in page.queues]

        try:
            address = f"maitred://root:root@127.0.0.1:{running.port}"
            async with maitred.connect(address, close_seconds=0.1) as client:
                for namespace in ("office", "shop"):
                    for queue in ("a", "b", "c"):
                        message = Add(namespace, queue, 1, 0, 0, 1, [b"\x90"])
                        await client.request(message, SECONDS)
            every = [(space, name) for space in ("office", "shop") for name in "abc"]
            shop = every[3:]
            for sort in ("name", "backlog"):
                assert names(await ask("root", sort=sort)) == every
                assert names(await ask("root", sort=sort, namespace="shop", match="B")) == shop[1:2]
                found = await ask("anna", sort=sort)
                assert names(found) == shop
                # What a caller says of itself counts for nothing, and no name helps.
                assert names(await ask("anna", sort=sort, within=["office", "shop"])) == shop
                gateway = (GATEWAY_USER, GATEWAY_SECRET)
                assert names(await ask(*gateway, sort=sort, within=["office"])) == every[:3]
                assert names(await ask(*gateway, sort=sort)) == every
                for user, what in (("anna", {"namespace": "office"}), ("paul", {})):
                    with pytest.raises(PermissionDenied):
                        await ask(user, sort=sort, **what)
            address = f"maitred://anna:anna@127.0.0.1:{running.port}"
            async with maitred.connect(address, close_seconds=0.1) as client:
                for number in range(2):
                    asked = ListQueueStates(number, 0, names=[*every], within=None)
                    answer = await client.request(asked, SECONDS)
                    assert isinstance(answer, QueueStatesListed)
                    assert {one.namespace for one in answer.rows} <= {"shop"}
        finally:
            for shard in running.shards:
                shard.close()
            for store in stores:
                await store.close()
