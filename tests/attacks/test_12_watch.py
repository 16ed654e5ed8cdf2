"""A user with `query` who holds a WATCH learns nothing of what operators look for, and speaks for
nobody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import TooManyGateways
from maitred.node import query_tables
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Order, QueriesFound, QueryFilter, Reported, Watched
from maitred.security.users import GATEWAY as OUR_GATEWAY
from maitred.settings import User
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, Stage, queries, report, row, stage, watch
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

OTHER = b"another gateway."
USERS = {
    "boss": User(secret=cheaply("s"), permissions={"*": ["admin"]}),
    "ann": User(secret=cheaply("s"), permissions={"n": ["query"]}),
    "eve": User(secret=cheaply("s"), permissions={"n": ["query"], "evil": ["query"]}),
}


class Eve:
    """Holds a WATCH, keeps the orders that it hears, and answers them with rows."""

    def __init__(self, client: AsyncClient, *rows: Any, session: bytes = GATEWAY) -> None:  # noqa: ANN401
        self.client = client
        self.orders: list[Order] = []
        self.rows = list(rows)
        self.session = session
        self.running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            answer = await self.client.request(watch(self.session), SECONDS)
            assert isinstance(answer, Watched)
            for order in answer.orders:
                self.orders.append(order)
                told = report(order.number, self.rows, self.session)
                assert await self.client.request(told, SECONDS) == Reported()


async def watched(here: Stage, gateways: int = 1) -> None:
    hold: Any = here.node.shard.holders[Opcode.WATCH]
    await until(
        lambda: sum(one.held is not None for one in hold.__self__._gateways.values()) == gateways
    )


SECRET_FILTERS = [
    {"user": "ann"},
    {"namespace": "shop"},
    {"user": "eve", "queue": "salaries"},
    {"worker": "paymaster-7"},
    {"gateway": "front"},
    {"namespace": "n", "queue": "salaries", "worker": "paymaster-7", "status": "running"},
]


@pytest.mark.parametrize("action", ["list", "cancel"])
@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_what_an_operator_looks_for_is_not_shown(
    tmp_path: Path, shards: int, action: str
) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        boss = await here.client("boss", "s")
        eve = Eve(await here.client("eve", "s"))
        for wanted in SECRET_FILTERS:
            await watched(here)
            found = await boss.request(queries(action, **wanted), SECONDS)
            assert isinstance(found, QueriesFound)
            assert (found.rows, found.silent) == ([], 0)
        seen = repr(eve.orders)
        for secret in ("ann", "shop", "salaries", "paymaster", "front"):
            assert secret not in seen
        for order in eve.orders:
            assert order.filter.namespace in ("", "n")
            assert not order.filter.user
        eve.running.cancel()


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_an_operator_still_finds_and_cancels_what_a_user_asks_by_himself(
    tmp_path: Path, shards: int
) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        boss = await here.client("boss", "s")
        rows = [row(1), row(2), row(3)]
        for one, queue in zip(rows, ("salaries", "menu", "salaries"), strict=True):
            one.queue, one.status = queue, "running"
        rows[2].status = "done"
        eve = Eve(await here.client("eve", "s"), *rows)
        await watched(here)
        found = await boss.request(queries(queue="salaries"), SECONDS)
        assert isinstance(found, QueriesFound)
        assert [one.sequence for one in found.rows] == [1, 3]
        await watched(here)
        found = await boss.request(queries("cancel", queue="salaries"), SECONDS)
        assert isinstance(found, QueriesFound)
        assert [one.sequence for one in found.rows] == [1]
        await until(lambda: eve.orders[-1].action == "cancel")
        assert eve.orders[-1].filter == QueryFilter(sequence=1)
        assert [order.action for order in eve.orders[:-1]] == ["list", "list"]
        eve.running.cancel()


@in_a_loop
async def test_nobody_reports_queries_of_others_or_for_another_users_gateway(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, users=USERS) as here:
        boss, ann = await here.client("boss", "s"), await here.client("ann", "s")
        mine = Eve(ann, row(1))
        await watched(here)
        # The same session, and rows that name another user and another gateway.
        forged = row(7)
        forged.user, forged.gateway = "ann", "11111111"
        eve = Eve(await here.client("eve", "s"), forged, row(8, "shop"))
        await watched(here, 2)
        found = await boss.request(queries(), SECONDS)
        assert isinstance(found, QueriesFound)
        assert (found.gateways, found.silent) == (2, 0)
        assert sorted((one.user, one.sequence, one.gateway) for one in found.rows) == [
            ("ann", 1, GATEWAY.hex()[:8]),
            ("eve", 7, GATEWAY.hex()[:8]),
        ]
        # Nor does he answer an order that somebody else's gateway got.
        (order,) = mine.orders
        assert order.number not in [one.number for one in eve.orders]
        for one in (mine, eve):
            one.running.cancel()


@in_a_loop
async def test_the_nodes_own_gateway_hears_the_filter(tmp_path: Path) -> None:
    """It has the queries of all users, and finds them by it."""
    async with stage(tmp_path, users=USERS) as here:
        boss = await here.client("boss", "s")
        ours = Eve(await here.client(OUR_GATEWAY, GATEWAY_SECRET), row(1), session=OTHER)
        await watched(here)
        found = await boss.request(queries(user="alice", queue="menu"), SECONDS)
        assert isinstance(found, QueriesFound)
        assert [one.user for one in found.rows] == ["alice"]
        (order,) = ours.orders
        assert (order.filter.user, order.filter.queue) == ("alice", "menu")
        ours.running.cancel()


def sessions(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_one_user_cannot_take_all_places(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_tables, "USER_GATEWAYS_MAX", 4)
    monkeypatch.setattr(query_tables, "RETURN_SECONDS", 0.0)
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        boss, eve = await here.client("boss", "s"), await here.client("eve", "s")
        held = [asyncio.ensure_future(eve.request(watch(one), 60)) for one in sessions(4)]
        await watched(here, 4)
        for client in (eve, await here.client("eve", "s")):
            with pytest.raises(TooManyGateways, match="eve"):
                await client.hold(watch(GATEWAY), 60).answer()
        ann = Eve(await here.client("ann", "s"), row(1))
        await watched(here, 5)
        found = await boss.request(queries(user="ann"), SECONDS)
        assert isinstance(found, QueriesFound)
        assert [one.sequence for one in found.rows] == [1]
        # A place that she leaves is hers again.
        held[0].cancel()
        await watched(here, 4)
        held.append(asyncio.ensure_future(eve.request(watch(GATEWAY), 60)))
        await watched(here, 5)
        for one in (ann.running, *held):
            one.cancel()


@in_a_loop
async def test_one_address_cannot_take_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever users' names it has; the node's own gateway has a place all the same."""
    monkeypatch.setattr(query_tables, "ADDRESS_GATEWAYS_MAX", 3)
    async with stage(tmp_path, users=USERS) as here:
        eve, ann = await here.client("eve", "s"), await here.client("ann", "s")
        held = [asyncio.ensure_future(eve.request(watch(one), 60)) for one in sessions(3)]
        await watched(here, 3)
        with pytest.raises(TooManyGateways, match=r"127\.0\.0\.1"):
            await ann.hold(watch(), 60).answer()
        ours = await here.client(OUR_GATEWAY, GATEWAY_SECRET)
        held.append(asyncio.ensure_future(ours.request(watch(OTHER), 60)))
        await watched(here, 4)
        for one in held:
            one.cancel()
