"""Where a gateway waits for the orders of operators: one member of a cluster, and the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from maitred.cli.admin_query_ask import ask
from maitred.client.query_table_watch import QueryTableWatch
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import (
    Order,
    Queries,
    QueriesFound,
    QueryFilter,
    Report,
    Reported,
    Watch,
    Watched,
)
from tests.client.clusters import RunningCluster, joined
from tests.client.nodes import until
from tests.client.waiters import until as until_soon
from tests.node.querying import row

if TYPE_CHECKING:
    from maitred.protocol.queries import QueryRow
    from tests.client.conftest import Run


class WatchedTable:
    """A gateway with some queries."""

    name = "one"
    session = b"one".ljust(16)

    def __init__(self, *rows: QueryRow) -> None:
        self.table: Any = self
        self._rows = list(rows)

    def rows(self, _: QueryFilter) -> list[QueryRow]:
        return self._rows

    def cancel(self, sequence: int) -> bool:
        raise NotImplementedError(sequence)


class Watching:
    """Shard 0 of each node, as far as gateways see it."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.now = [0] * len(cluster.nodes)
        """Long polls that wait at each node."""
        self.orders: list[asyncio.Queue[Order]] = []
        self.reports: list[list[Report]] = []
        for number, node in enumerate(cluster.nodes):
            self.orders.append(asyncio.Queue())
            self.reports.append([])
            self._take_over(number, node.shards[0].handlers)

    def _take_over(self, number: int, handlers: dict[int, Any]) -> None:
        async def watch(_: Watch) -> Watched:
            self.now[number] += 1
            try:
                return Watched([await self.orders[number].get()])
            finally:
                self.now[number] -= 1

        def report(message: Report) -> Reported:
            self.reports[number].append(message)
            return Reported()

        handlers |= {Opcode.WATCH: watch, Opcode.REPORT: report}


def test_a_gateway_watches_at_one_member_and_follows_when_it_leaves(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(3, 1) as cluster, cluster.connect() as client:
            watching = Watching(cluster)
            watch = QueryTableWatch(client, WatchedTable(row(7)))
            watch.start()
            await until_soon(lambda: watching.now == [1, 0, 0])
            await joined(client, cluster, 0, 1, 2)
            await joined(client, cluster, 0, 1)
            assert watching.now == [1, 0, 0]
            view = cluster.tell(1, 2)
            await until(client, lambda: client.view == view)
            await until_soon(lambda: sum(watching.now[1:]) == 1 and not watching.now[0])
            (at,) = [number for number, count in enumerate(watching.now) if count]
            watching.orders[at].put_nowait(Order(3, "list", QueryFilter()))
            await until_soon(lambda: watching.reports[at])
            assert [one.sequence for one in watching.reports[at][0].rows] == [7]
            await cluster.nodes[at].stop()
            left = cluster.tell(3 - at)
            await until(client, lambda: client.view == left)
            await until_soon(lambda: watching.now[3 - at] == 1)
            await watch.stop()

    run(main())


def test_without_a_cluster_it_watches_at_each_node_of_the_address(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2, 1) as cluster, cluster.connect(0, 1) as client:
            watching = Watching(cluster)
            watch = QueryTableWatch(client, WatchedTable())
            watch.start()
            await until_soon(lambda: watching.now == [1, 1])
            # One of the two is enough when they turn out to be a cluster.
            await joined(client, cluster, 0, 1)
            await until_soon(lambda: sum(watching.now) == 1)
            await watch.stop()

    run(main())


def test_operators_ask_every_member(run: Run) -> None:
    found = [
        QueriesFound([row(1, received_at=1.0), row(3, received_at=3.0)], 2, 1),
        QueriesFound([row(2, received_at=2.0), row(4, received_at=4.0)], 3, 0),
    ]

    async def main() -> None:
        async with RunningCluster(2, 1) as cluster:
            for node, answer in zip(cluster.nodes, found, strict=True):
                _answer_queries(node.shards[0].handlers, answer)
            async with cluster.connect() as person:
                await joined(person, cluster, 0, 1)
                asked = await ask(person, "list", QueryFilter(most=10))
                assert [one.sequence for one in asked.rows] == [1, 2, 3, 4]
                assert (asked.gateways, asked.silent, asked.silent_nodes) == (5, 1, {})
                newest = await ask(person, "list", QueryFilter(most=3))
                assert [one.sequence for one in newest.rows] == [2, 3, 4]

    run(main())


def _answer_queries(handlers: dict[int, Any], answer: QueriesFound) -> None:
    def find(_: Queries) -> QueriesFound:
        return answer

    handlers[Opcode.QUERIES] = find
