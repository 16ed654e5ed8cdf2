"""The query tables of all gateways, gathered by shard 0 for people."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import InvalidArgument, PermissionDenied
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Queries, QueriesFound, Reported, Watch, Watched
from maitred.settings import User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, queries, report, row, stage, waits, watch
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import Order, QueryRow
    from tests.node.querying import Stage

OTHER = b"another gateway."

USERS = {
    "alice": User(secret=cheaply("a"), permissions={"*": ["admin"]}),
    "bob": User(secret=cheaply("b"), permissions={"n": ["admin"], "m": ["query"]}),
    "carol": User(secret=cheaply("c"), permissions={"n": ["query"]}),
    "dora": User(secret=cheaply("d"), permissions={"n": ["work"]}),
    "rita": User(secret=cheaply("r"), permissions={"n": ["read"], "m": ["operate", "reveal"]}),
}


async def reporting(
    client: AsyncClient, rows: list[QueryRow], session: bytes = GATEWAY, orders: int = 1
) -> list[Order]:
    """A gateway that answers so many orders with these rows."""
    heard: list[Order] = []
    while len(heard) < orders:
        answer = await client.request(watch(session), SECONDS)
        assert isinstance(answer, Watched)
        for order in answer.orders:
            heard.append(order)
            asked_for = order.filter.namespace
            found = [one for one in rows if asked_for in ("", one.namespace)]
            assert await client.request(report(order.number, found, session), 9) == Reported()
    return heard


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_all_gateways_are_asked(tmp_path: Path, shards: int) -> None:
    async with stage(tmp_path, shards=shards) as one:
        first, second, person = [await one.client() for _ in range(3)]
        found = await person.request(queries(), SECONDS)
        assert found == QueriesFound([], 0, 0)
        tables = [
            asyncio.ensure_future(reporting(first, [row(2, received_at=2.0)])),
            asyncio.ensure_future(reporting(second, [row(1), row(3, received_at=3.0)], OTHER)),
        ]
        await until(lambda: known(one) == 2)
        found = await person.request(queries("cancel", user="alice", most=2), SECONDS)
        assert isinstance(found, QueriesFound)
        assert [one.sequence for one in found.rows] == [2, 3]
        assert (found.gateways, found.silent) == (2, 0)
        for orders in await asyncio.gather(*tables):
            assert orders[0].action == "cancel"
            assert orders[0].filter.user == "alice"


def known(one: Stage) -> int:
    """Gateways that shard 0 has heard of."""
    hold: Any = one.node.shard.holders[Opcode.WATCH]
    return len(hold.__self__._gateways)


@in_a_loop
async def test_one_that_is_silent_is_not_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, person = await one.client(), await one.client()
        watching = gateway.hold(watch(), SECONDS)
        await waits(watching)
        asked = asyncio.get_running_loop().time()
        found = await person.request(queries(), SECONDS)
        assert found == QueriesFound([], 1, 1)
        assert asyncio.get_running_loop().time() - asked < SECONDS / 2
        (order,) = (await watching.answer()).orders
        # Too late, and for nobody.
        assert await gateway.request(report(order.number, [row(1)]), SECONDS) == Reported()


@in_a_loop
async def test_an_order_that_comes_between_two_watches_is_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        gateway, person = await one.client(), await one.client()
        watching = gateway.hold(watch(), SECONDS)
        await until(lambda: known(one) == 1)
        watched: Any = one.node.shard.holders[Opcode.WATCH]
        (seen,) = watched.__self__._gateways.values()
        watched.__self__._time_is_up(seen, seen.held)
        assert await watching.answer() == Watched()
        asked = asyncio.ensure_future(person.request(queries(), SECONDS))
        await until(lambda: bool(seen.orders))
        await reporting(gateway, [row(1)])
        found = await asked
        assert isinstance(found, QueriesFound)
        assert [one.sequence for one in found.rows] == [1]


@in_a_loop
async def test_who_asks_sees_what_he_looks_after(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as one:
        alice, bob = await one.client("alice", "a"), await one.client("bob", "b")
        carol, dora = await one.client("carol", "c"), await one.client("dora", "d")
        rows = [row(1, "n"), row(2, "m")]
        table = asyncio.ensure_future(reporting(alice, rows, orders=2))
        watching = carol.hold(watch(OTHER), SECONDS)
        await waits(watching)
        asked = asyncio.ensure_future(bob.request(queries(), SECONDS))
        (order,) = (await watching.answer()).orders
        assert order.filter.namespace == "n"
        await carol.request(report(order.number, rows, OTHER), SECONDS)
        found = await asked
        assert isinstance(found, QueriesFound)
        assert [(one.sequence, one.namespace) for one in found.rows] == [(1, "n"), (1, "n")]
        everything = Queries(0, 0, "list", within=["m"])  # nobody says for himself
        found = await bob.request(everything, SECONDS)
        assert isinstance(found, QueriesFound)
        assert {one.namespace for one in found.rows} == {"n"}
        await table
        with pytest.raises(PermissionDenied, match="'m'"):
            await bob.request(queries(namespace="m"), SECONDS)
        for client in (carol, dora):
            with pytest.raises(PermissionDenied):
                await client.request(queries(), SECONDS)
        with pytest.raises(PermissionDenied):
            await dora.request(watch(), SECONDS)


@in_a_loop
async def test_who_reads_sees_no_text_and_cancels_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as one:
        alice, rita = await one.client("alice", "a"), await one.client("rita", "r")
        carol = await one.client("carol", "c")
        for namespace in ("n", "m"):
            await one.serve_plainly(alice, namespace)
        rows = [row(1, "n"), row(2, "m")]
        for each in rows:
            each.error = "ValueError: no such card"
        table = asyncio.ensure_future(reporting(alice, rows, orders=5))
        own = asyncio.ensure_future(reporting(carol, rows, OTHER, orders=2))
        await until(lambda: known(one) == 2)
        forged = Queries(0, 0, "list", within=None, revealed=None, user="alice")
        for message in (queries(), forged):
            found = await rita.request(message, SECONDS)
            assert isinstance(found, QueriesFound)
            told = {(each.user, each.namespace): (each.query, each.error) for each in found.rows}
            assert told == {
                ("alice", "n"): ("", "ValueError"),
                ("alice", "m"): ("select", "ValueError: no such card"),
                ("carol", "n"): ("", "ValueError"),
            }
        await own
        with pytest.raises(PermissionDenied, match="'operate' in the namespace 'n'"):
            await rita.request(queries("cancel", namespace="n"), SECONDS)
        found = await rita.request(queries("cancel"), SECONDS)
        assert isinstance(found, QueriesFound)
        orders = await table
        assert [(order.action, order.filter.namespace) for order in orders[-1:]] == [
            ("cancel", "m")
        ]


@in_a_loop
async def test_only_shard_0_knows(tmp_path: Path) -> None:
    async with stage(tmp_path, shards=2) as one:
        client = await one.client()
        with pytest.raises(InvalidArgument, match="Only shard 0"):
            await client.request(Watch(1, 0, GATEWAY, "name"), SECONDS)
