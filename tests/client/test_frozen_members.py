"""A member of the cluster freezes, in virtual time: its connections stay open, and nothing answers
until it thaws, or until the others have taken over what it owns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.client.connection import (
    LEFT_SECONDS,
    MEMBER_SILENCE_SECONDS,
    STALL_SECONDS,
)
from maitred.errors import NOTHING, UNKNOWN, ConnectionLost, MaitredError, Unavailable
from maitred.protocol.messages import Echo, Echoed
from maitred.protocol.tasks import Add, Signatures
from maitred.simulation.world import World
from tests.client.clusters import owned_by
from tests.client.simulated_clusters import TOLD_SECONDS, SimulatedCluster, following, who

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from maitred.client.client import AsyncClient

    Main = Callable[[SimulatedCluster, AsyncClient], Coroutine[Any, Any, None]]

STALLED_SECONDS = MEMBER_SILENCE_SECONDS * 2 + STALL_SECONDS + 0.1
"""By then a connection to a frozen node is stalled, if a request was sent on it."""

SOON_SECONDS = 2 * TOLD_SECONDS + 0.05
"""A view is told, and a request is answered."""


def in_a_cluster(main: Main, nodes: int = 3, **settings: Any) -> None:  # noqa: ANN401
    with World(5) as world:
        cluster = SimulatedCluster(world, nodes)

        async def with_client(client: AsyncClient) -> None:
            await main(cluster, client)

        async def scenario() -> None:
            for node in cluster.nodes:
                node.start()
            await cluster.use(with_client, **settings)

        world.run(scenario())


class Asked:
    """The payloads of the echoes that a node was asked for."""

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        self.payloads: list[bytes] = []
        node = cluster.nodes[number]
        usual = node.answer

        def answer(message: Echo, shard: int) -> Echoed:
            self.payloads.append(bytes(message.payload))
            return usual(message, shard)

        node.answer = answer


@pytest.fixture
def unrepeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo that must not be done twice, as it is with ADD."""
    assert not Add.repeatable
    monkeypatch.setattr(Echo, "repeatable", False)


def now() -> float:
    return asyncio.get_running_loop().time()


async def frozen(cluster: SimulatedCluster, client: AsyncClient) -> int:
    """Freeze the last node; return a partition that it owns."""
    view = cluster.tell(*range(len(cluster.nodes)))
    await following(client, view)
    # The client looks for silence more often from the second time on.
    await asyncio.sleep(5)
    partition = owned_by(view, cluster.nodes[-1].member())
    assert await who(client, partition) == len(cluster.nodes) - 1
    cluster.nodes[-1].freeze()
    return partition


async def echo(client: AsyncClient, partition: int, payload: bytes, timeout: float = 30) -> int:  # noqa: ASYNC109
    answer = await client.echo("shop", "q", payload, partition=partition, timeout=timeout)
    return int(answer.payload)


@pytest.mark.parametrize("seconds", [0.1, 5.0])
def test_a_repeatable_request_at_a_frozen_node_goes_to_the_next_owner_with_the_view(
    seconds: float,
) -> None:
    """An enqueue waits for the signatures of its queue, which are asked for at the owner: without
    this it waited three seconds longer than the takeover took."""
    assert Signatures.repeatable

    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        asked = asyncio.create_task(who(client, partition, timeout=60))
        await asyncio.sleep(seconds)
        cluster.tell(0, 1, by=[0, 1])
        told_at = now()
        assert await asked in (0, 1)
        # At once if the silence was known, and otherwise after one look.
        known = seconds > STALLED_SECONDS
        assert now() - told_at <= (0 if known else LEFT_SECONDS) + SOON_SECONDS
        cluster.nodes[2].thaw()

    in_a_cluster(main)


@pytest.mark.usefixtures("unrepeatable")
def test_requests_are_not_sent_to_a_silent_node_and_go_to_the_next_owner() -> None:
    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        asked = Asked(cluster, 2)
        first = asyncio.create_task(echo(client, partition, b"first"))
        await asyncio.sleep(STALLED_SECONDS)
        others = [asyncio.create_task(echo(client, partition, b"other")) for _ in range(20)]
        await asyncio.sleep(3)
        assert not any(one.done() for one in (first, *others))
        cluster.tell(0, 1, by=[0, 1])
        told_at = now()
        assert set(await asyncio.gather(*others)) <= {0, 1}
        # Whether the first one was done is not known: the node may do it when it thaws.
        with pytest.raises(ConnectionLost) as caught:
            await first
        assert caught.value.outcome is UNKNOWN
        assert now() - told_at <= SOON_SECONDS
        cluster.nodes[2].thaw()
        await asyncio.sleep(1)
        assert set(asked.payloads) <= {b"first"}

    in_a_cluster(main)


@pytest.mark.usefixtures("unrepeatable")
def test_a_node_that_thaws_in_time_gets_what_waited_for_it_in_order_and_once() -> None:
    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        asked = Asked(cluster, 2)
        tasks = [asyncio.create_task(echo(client, partition, b"0"))]
        await asyncio.sleep(STALLED_SECONDS)
        for number in range(1, 10):
            tasks.append(asyncio.create_task(echo(client, partition, b"%d" % number)))
            await asyncio.sleep(0.1)
        cluster.nodes[2].thaw()
        thawed_at = now()
        assert await asyncio.gather(*tasks) == [2] * 10
        assert now() - thawed_at <= SOON_SECONDS
        assert asked.payloads == [b"%d" % number for number in range(10)]
        # From then on requests are sent as ever.
        begun = now()
        assert await who(client, partition) == 2
        assert now() - begun <= SOON_SECONDS

    in_a_cluster(main)


@pytest.mark.usefixtures("unrepeatable")
def test_a_request_whose_deadline_passes_while_it_waits_was_not_sent() -> None:
    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        asked = Asked(cluster, 2)
        first = asyncio.create_task(echo(client, partition, b"first"))
        await asyncio.sleep(STALLED_SECONDS)
        begun = now()
        with pytest.raises(Unavailable, match="not sent") as caught:
            await echo(client, partition, b"short", timeout=1)
        assert caught.value.outcome is NOTHING
        assert 0.9 <= now() - begun <= 1.1
        cluster.nodes[2].thaw()
        assert await first == 2
        assert asked.payloads == [b"first"]

    in_a_cluster(main)


@pytest.mark.usefixtures("unrepeatable")
def test_a_request_waits_for_the_takeover_also_when_the_connection_was_given_up_before() -> None:
    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        for node in cluster.nodes[:2]:
            node.answer = _refuse  # as a node does that cannot reach the owner
        first = asyncio.create_task(echo(client, partition, b"first"))
        await asyncio.sleep(STALLED_SECONDS)
        second = asyncio.create_task(echo(client, partition, b"second"))
        with pytest.raises(ConnectionLost):
            await first  # the connection to its shard is gone, and the other shard is silent
        third = asyncio.create_task(echo(client, partition, b"third"))
        await asyncio.sleep(1)
        assert not client.nodes()[2].covered
        assert not second.done()
        assert not third.done()
        for node in cluster.nodes[:2]:
            node.answer = node._echo
        cluster.tell(0, 1, by=[0, 1])
        told_at = now()
        assert {await second, await third} <= {0, 1}
        assert now() - told_at <= SOON_SECONDS
        cluster.nodes[2].thaw()

    def _refuse(message: Echo, shard: int) -> Echoed:
        raise Unavailable(f"Shard {shard} cannot reach the owner of {message.partition}.")

    in_a_cluster(main)


@pytest.mark.usefixtures("unrepeatable")
@pytest.mark.parametrize("case", ["one node", "no takeover"])
def test_without_other_nodes_to_take_over_requests_are_sent_as_ever(case: str) -> None:
    async def main(cluster: SimulatedCluster, client: AsyncClient) -> None:
        partition = await frozen(cluster, client)
        asked = Asked(cluster, -1)
        tasks = [asyncio.create_task(echo(client, partition, b"first"))]
        await asyncio.sleep(STALLED_SECONDS)
        tasks.append(asyncio.create_task(echo(client, partition, b"second")))
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(isinstance(one, MaitredError) for one in outcomes)
        cluster.nodes[-1].thaw()
        await asyncio.sleep(1)
        assert (
            sum(
                pool.counts(shard).requests
                for pool in client._router.pools.values()
                for shard in range(2)
            )
            >= 3
        )
        assert set(asked.payloads) <= {b"first", b"second"}

    if case == "one node":
        in_a_cluster(main, nodes=1)
    else:
        in_a_cluster(main, takeover_seconds=0)
