"""How many queries are under way at a time: one limit for all clients and shards of a node.

Clients that ask for themselves, workers and shards are real, in the test's own loop.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred import App
from maitred.client.query_gateway import QueryGateway
from maitred.errors import Overloaded
from maitred.matching.permits import LEASE_SECONDS
from maitred.node.shard_permits import RENEW_SECONDS
from maitred.protocol.queries import Allocate
from maitred.settings import Querying as QueryingSettings
from maitred.settings import QueryLimits, QuerySettings, Queue, User
from maitred.surroundings import Surroundings
from tests.client.nodes import HOST, QUICK
from tests.node.in_process import in_a_loop, until
from tests.queries_real.house import House, Scene
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.client.client import AsyncClient
    from maitred.node.shard import Shard
    from maitred.node.shard_place import ShardPlace

SECRET = "s"  # noqa: S105 - of everybody here
HASHED = cheaply(SECRET)


def user(**limits: Any) -> User:  # noqa: ANN401 - whatever they have
    queries = QueryLimits(**limits)
    return User(secret=HASHED, permissions={"shop": ["query"]}, queries=queries)


TWOS = [f"two{number}" for number in range(9)]
"""Users who are counted by one shard or another."""
USERS = {
    **dict.fromkeys(["ann", *TWOS], user(concurrent=2)),
    "bob": user(),
    "one": user(concurrent=1),
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
}
QUEUES = {
    "shop/narrow": Queue(queries=QuerySettings(concurrent=2)),
    "shop/wide": Queue(partitions=4),
}
SPARE_SECONDS = 1.0
"""For what takes no time, on a machine that has much else to do."""


class Shop:
    """An app whose handlers wait until the test lets one of them go."""

    def __init__(self) -> None:
        self.app = app = App("shop")
        self.running: dict[str, asyncio.Event] = {}
        self.most = 0

        async def wait(name: str) -> str:
            self.running[name] = asyncio.Event()
            self.most = max(self.most, len(self.running))
            try:
                await self.running[name].wait()
            finally:
                del self.running[name]
            return name

        app.handler("wait")(wait)
        app.handler("narrow")(wait)
        app.handler("wide")(wait)

        @app.handler("echo")
        async def echo(value: int) -> int:
            return value

    def let_go(self, *names: str) -> None:
        for name in names or list(self.running):
            self.running[name].set()

    async def begun(self, *names: str) -> None:
        await until(lambda: set(names) <= set(self.running))


class GuardedHouse(House):
    """One whose workers come as its boss."""

    @property
    def url(self) -> str:
        return f"maitred://boss:{SECRET}@{HOST}:{self.port}"

    restarts = 0

    def _place(self, number: int) -> ShardPlace:
        return replace(super()._place(number), restarts=self.restarts)

    def counted(self) -> int:
        """Permits, wherever they are counted."""
        return sum(_counting(shard).statistics()["counted"] for shard in self.shards)

    def owner(self, name: str) -> int:
        found: int = _counting(self.shards[0]).counter_of(name)
        return found

    async def restart(self, number: int) -> None:
        """As the supervisor does with one that was killed."""
        await self.stop(number)
        self.restarts = 1
        await self.start(number)


def _counting(shard: Shard) -> Any:  # noqa: ANN401 - only for looking
    assert shard._partitions is not None
    return shard._partitions.permits


class Guests(Scene):
    """Those who ask, each by a client of their own."""

    house: GuardedHouse

    async def guest(self, name: str) -> AsyncClient:
        client = await maitred.connect(
            f"maitred://{name}:{SECRET}@{HOST}:{self.house.port}", close_seconds=0.05, **QUICK
        )
        self._clients.append(client)
        client.ask_with(QueryGateway(client, QueryingSettings(), Surroundings.real()))
        return client


def ask(client: AsyncClient, name: str, queue: str = "wait") -> asyncio.Future[str]:
    return asyncio.ensure_future(client.query(queue, name, namespace="shop", timeout=20))


async def refused(*asked: asyncio.Future[str]) -> None:
    for one in asked:
        with pytest.raises(Overloaded, match="has 2 queries under way, as many as allowed") as told:
            await one
        assert told.value.retry_after


@asynccontextmanager
async def guests(shop: Shop, shards: int, **settings: Any) -> AsyncIterator[Guests]:  # noqa: ANN401
    async with GuardedHouse(shards, **{"users": USERS, "queues": QUEUES, **settings}) as house:
        shop.app.node = house.url
        made = Guests(house, shop.app)
        try:
            async with asyncio.timeout(30):
                yield made
                shop.let_go()
                await until(lambda: not house.counted())  # nothing is, for ever
        finally:
            await made.close()


SHARDS = pytest.mark.parametrize("shards", [1, 3])


@SHARDS
@pytest.mark.parametrize("queue", ["wait", "wide"])
@in_a_loop
async def test_a_user_over_two_connections(shards: int, queue: str) -> None:
    shop = Shop()
    async with guests(shop, shards) as made:
        await made.worker(slots=8)
        first, second = await made.guest("ann"), await made.guest("ann")
        asked = [ask(first, "1", queue)]
        await shop.begun("1")
        asked.append(ask(second, "2", queue))
        await shop.begun("1", "2")
        await refused(ask(first, "3", queue), ask(second, "4", queue), ask(second, "5", queue))
        bob = await made.guest("bob")
        others = [ask(bob, f"b{number}", queue) for number in range(4)]
        await shop.begun("b0", "b1", "b2", "b3")
        shop.let_go("1")
        assert await asked[0] == "1"
        asked.append(ask(second, "6", queue))
        await shop.begun("2", "6")
        await refused(ask(first, "7", queue))
        shop.let_go()
        assert await asyncio.gather(*asked, *others)
        assert shop.most == 6


@SHARDS
@pytest.mark.parametrize("queue", ["wait", "wide"])
@in_a_loop
async def test_five_at_once(shards: int, queue: str) -> None:
    """Asked for together: there is room for two of them."""
    shop = Shop()
    async with guests(shop, shards) as made:
        await made.worker(slots=8)
        clients = [await made.guest("ann"), await made.guest("ann")]
        asked = [ask(clients[number % 2], str(number), queue) for number in range(5)]
        await until(lambda: sum(one.done() for one in asked) == 3)
        await refused(*(one for one in asked if one.done()))
        left = [one for one in asked if not one.done()]
        await until(lambda: len(shop.running) == 2)
        assert shop.most == 2
        shop.let_go()
        await asyncio.gather(*left)


@SHARDS
@in_a_loop
async def test_a_queue_has_one_limit_for_all_its_users(shards: int) -> None:
    shop = Shop()
    async with guests(shop, shards) as made:
        await made.worker(slots=8)
        bob, one = await made.guest("bob"), await made.guest("one")
        asked = [ask(bob, "b", "narrow"), ask(one, "o", "narrow")]
        await shop.begun("b", "o")
        await refused(ask(bob, "b2", "narrow"))
        # The user may have no second one either, and is told so first.
        with pytest.raises(Overloaded, match="'one' has 1 queries under way"):
            await ask(one, "o2", "narrow")
        elsewhere = ask(bob, "w")
        await shop.begun("w")
        shop.let_go("b")
        assert await asked[0] == "b"
        asked.append(ask(bob, "b3", "narrow"))
        await shop.begun("b3", "o")
        shop.let_go()
        await asyncio.gather(*asked, elsewhere)


@SHARDS
@in_a_loop
async def test_one_after_the_other_is_never_refused(shards: int) -> None:
    """Who has the answer and asks again at once may be faster than the word of the end."""
    shop = Shop()
    async with guests(shop, shards) as made:
        await made.worker(slots=2)
        client = await made.guest("one")
        for number in range(100):
            assert await client.query("echo", number, namespace="shop", timeout=20) == number


@SHARDS
@in_a_loop
async def test_who_waits_counts_and_who_leaves_does_not(shards: int) -> None:
    shop = Shop()
    async with guests(shop, shards) as made:
        await made.worker(slots=1)
        bob, ann, other = [await made.guest(name) for name in ("bob", "ann", "ann")]
        running = ask(bob, "b")
        await shop.begun("b")
        waiting = [ask(ann, "1"), ask(other, "2")]
        await until(lambda: made.house.counted() == 2)
        await refused(ask(ann, "3"))
        before = asyncio.get_running_loop().time()
        waiting[0].cancel()
        await until(lambda: made.house.counted() == 1)
        await other.close()  # with what it has under way
        await until(lambda: made.house.counted() == 0)
        assert asyncio.get_running_loop().time() - before < RENEW_SECONDS
        waiting[1].exception()
        shop.let_go("b")
        assert await running == "b"


@in_a_loop
async def test_a_slot_that_nobody_uses() -> None:
    """Whoever takes slots and does not come for them has them until their time is up."""
    queues = {"shop/wait": Queue(queries=QuerySettings(reservation_seconds=0.1))}
    shop = Shop()
    async with guests(shop, 2, queues=queues) as made:
        await made.worker(slots=8)
        ann = await made.guest("ann")
        taken = Allocate("shop", "wait", 1, 0, 0, 0, b"g" * 16, slots=5)
        answer: Any = await ann.request(taken, 5)
        assert len(answer.allocations) == 2
        assert made.house.counted() == 2
        await until(lambda: made.house.counted() == 0)
        running = ask(ann, "1")
        await shop.begun("1")
        shop.let_go()
        await running


@SHARDS
@in_a_loop
async def test_a_worker_that_falls_silent(shards: int) -> None:
    """Nobody knows what became of its queries, until it speaks again."""
    queues = {"shop/wait": Queue(queries=QuerySettings(reservation_seconds=0.1))}
    bound = 0.1 + LEASE_SECONDS + 2 * RENEW_SECONDS + SPARE_SECONDS
    shop = Shop()
    async with guests(shop, shards, queues=queues) as made:
        serving = await made.worker(slots=8)
        ann = await made.guest("ann")
        asked = [ask(ann, "1"), ask(ann, "2")]
        await shop.begun("1", "2")
        await refused(ask(ann, "3"))
        counted: Any = serving.worker.querying.permits
        counted._say_to = lambda _: None
        await until(lambda: made.house.counted() == 0, bound)
        asked.append(ask(ann, "4"))
        await shop.begun("4")
        del counted._say_to
        await until(lambda: made.house.counted() == 3, bound)
        shop.let_go()
        await asyncio.gather(*asked)


@pytest.mark.parametrize("same", [False, True])
@in_a_loop
async def test_a_shard_that_is_started_again(*, same: bool) -> None:
    """What runs is known again soon: nobody gets in besides, and everybody afterwards. Once with
    the shard that counts, once with one that has reserved the slots as well."""
    shop = Shop()
    async with guests(shop, 3) as made:
        await made.worker(slots=8)
        house = made.house
        reserving = house.shards[0].owner_of(Allocate("shop", "wait", 1, 0, 0, 0, b"g" * 16))
        name = next(one for one in TWOS if (house.owner(one) == reserving) == same)
        guest = await made.guest(name)
        asked = [ask(guest, "1"), ask(guest, "2")]
        await shop.begun("1", "2")
        await house.restart(house.owner(name))
        await refused(ask(guest, "3"))
        assert house.counted() == 2
        shop.let_go()
        await asyncio.gather(*asked)
        await until(lambda: house.counted() == 0)
        asked = [ask(guest, "4"), ask(guest, "5")]
        await shop.begun("4", "5")
        assert shop.most == 2
        shop.let_go()
        await asyncio.gather(*asked)
