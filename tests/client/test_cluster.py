"""A client of a cluster: learns its members, follows them, and hides from its callers that they
come and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred.client.connection import Connection
from maitred.errors import (
    ConnectionLost,
    Draining,
    InvalidArgument,
    NodeUnreachable,
    NotOwner,
    ProtocolViolation,
    Unavailable,
)
from maitred.node.handshake import Handshake
from maitred.protocol import cql
from maitred.protocol.access import ListTokens, TokensFound
from maitred.protocol.frames import EVENT_STREAM, Opcode
from maitred.protocol.messages import Echo, Echoed, ShardStatus
from tests.client.clusters import (
    DRAINING,
    RunningCluster,
    joined,
    owned_by,
    owner,
    routed,
)
from tests.client.handlers import Held, answer_echo
from tests.client.nodes import HOST, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client.conftest import Run

PARTITIONS = range(24)


def echo(partition: int, payload: bytes = b"x") -> Echo:
    return Echo("shop", "q", 1, partition, 0, payload)


def say_who(cluster: RunningCluster) -> None:
    """Have each shard answer echoes with the number of its node."""
    for number, node in enumerate(cluster.nodes):
        for shard in node.shards:
            answer_echo(shard, _saying(str(number).encode(), shard.number))


def _saying(name: bytes, shard: int) -> Callable[[Echo], Echoed]:
    return lambda _: Echoed(name, shard)


async def who(client: Any, partition: int, timeout: float = 10) -> int:  # noqa: ANN401, ASYNC109
    """The number of the node that answers for the partition."""
    return int((await client.echo("shop", "q", b"", partition=partition, timeout=timeout)).payload)


def test_one_address_is_enough_to_find_all_members_and_their_shards(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster() as cluster, cluster.connect() as client:
            say_who(cluster)
            assert client.view is None
            await joined(client, cluster, 0, 1, 2)
            assert [len(node.covered) for node in client.nodes()] == [2, 2, 2]
            view = cluster.view
            assert view is not None
            for partition in PARTITIONS:
                assert routed(client, partition) == owner(view, partition)
                answered = await who(client, partition)
                assert cluster.member(answered).id == owner(view, partition)[0]
            statistics = client.statistics()
            assert statistics.misroutes == statistics.fallbacks == statistics.retries == 0
            assert {one.requests > 0 for one in statistics.nodes} == {True}
            # Each node sends its views on one connection.
            assert [cluster.registered(number) for number in range(3)] == [1, 1, 1]

    run(main())


def test_another_connection_registers_when_the_first_one_ends(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(1) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0)
            (viewer,) = [
                connection
                for shard in cluster.nodes[0].shards
                for connection in shard.connections
                if cql.VIEW in connection.events
            ]
            viewer.transport.abort()
            await until(client, lambda: client.statistics().reconnects == 1)
            await until(client, lambda: cluster.registered(0) == 1)
            view = cluster.tell(0)
            await until(client, lambda: client.view == view)

    run(main())


def test_only_a_newer_view_of_the_same_cluster_counts(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            older = cluster.view
            assert older is not None
            newer = cluster.tell(0)
            await until(client, lambda: client.view == newer)
            from msgspec.structs import replace

            cluster.repeat(older)
            cluster.repeat(replace(newer, members=older.members))
            cluster.repeat(replace(older, version=99, cluster="another"))
            cluster.repeat(replace(older, version=99, members=()))
            newest = cluster.tell(0)
            await until(client, lambda: client.view == newest)
            assert [node.address for node in client.nodes()] == [f"{HOST}:{cluster.nodes[0].port}"]

    run(main())


def test_a_view_that_makes_no_sense_is_counted_and_the_last_one_stays(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(1) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0)
            view = cluster.view
            assert view is not None
            from msgspec.structs import replace

            cluster.repeat(replace(view, version=7, spread_batch="nonsense"))
            cluster.repeat(replace(view, version=8, spread_batch='{"from": 1}'))
            for shard in cluster.nodes[0].shards:
                for connection in shard.connections:
                    body = cql.encode_view(b"\xc1")
                    connection.send(0, EVENT_STREAM, Opcode.EVENT, body)
            for partition in PARTITIONS:  # one of them is answered after the events have arrived
                await client.echo("shop", "q", b"x", partition=partition)
            assert client.view == view
            assert client.statistics().violations == 4
            assert client.statistics().reconnects == 0

    run(main())


def test_a_pool_is_kept_whatever_the_address_is_called(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster:
            url = f"maitred://localhost:{cluster.nodes[0].port},{HOST}:{cluster.nodes[0].port}"
            import maitred
            from tests.client.nodes import QUICK

            async with maitred.connect(url, **QUICK) as client:
                await client.covered()
                before = list(client._router.pools.values())
                await joined(client, cluster, 0, 1)
                kept = client.nodes()[0 if cluster.member(0).name < cluster.member(1).name else 1]
                assert kept.node == str(cluster.nodes[0].identity)
                pool = client._router.nodes.find(cluster.member(0).name)
                assert pool in before
                # The other one of the two is closed when its connections have ended.
                await until(client, lambda: client.statistics().connections == 4)
                assert not client._router.nodes.retiring

    run(main())


def test_a_node_that_comes_is_used_and_one_that_left_is_not(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster() as cluster, cluster.connect() as client:
            say_who(cluster)
            await joined(client, cluster, 0, 1)
            assert {await who(client, partition) for partition in PARTITIONS} == {0, 1}
            await joined(client, cluster, 0, 1, 2)
            assert {await who(client, partition) for partition in PARTITIONS} == {0, 1, 2}
            await joined(client, cluster, 1, 2)
            assert {await who(client, partition) for partition in PARTITIONS} == {1, 2}
            await until(client, lambda: cluster.nodes[0].connections() == [0, 0])
            asked = client.statistics().requests
            assert asked == 3 * len(PARTITIONS), "what the one that left was sent still counts"

    run(main())


def test_a_draining_member_is_connected_and_gets_nothing(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            say_who(cluster)
            await joined(client, cluster, cluster.member(0, DRAINING), 1)
            assert {await who(client, partition) for partition in PARTITIONS} == {1}
            assert cluster.nodes[0].connections() == [1, 1]
            await joined(client, cluster, cluster.member(0, DRAINING), cluster.member(1, DRAINING))
            # No member owns anything: requests are tried again until one does.
            refused = asyncio.Event()
            for shard in (shard for node in cluster.nodes for shard in node.shards):
                answer_echo(shard, _noting(refused, Unavailable("The node joins the cluster.")))
            asked = asyncio.create_task(who(client, 0))
            await refused.wait()
            say_who(cluster)
            cluster.tell(0, cluster.member(1, DRAINING))
            assert await asked in {0, 1}
            assert {await who(client, partition) for partition in PARTITIONS} == {0}

    run(main())


def test_a_node_that_retires_finishes_what_it_has(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            assert cluster.view is not None
            partition = owned_by(cluster.view, cluster.member(0))
            held = Held(*cluster.nodes[0].shards)
            asked = asyncio.create_task(client.request(echo(partition, b"old")))
            await held.started.get()
            view = cluster.tell(1)
            await until(client, lambda: client.view == view)
            assert await client.request(echo(partition)) is not None
            assert not asked.done()
            held.release.set()
            assert isinstance(await asked, Echoed)
            await until(client, lambda: not client._router.nodes.retiring)

    run(main())


def test_long_polls_follow_their_partition(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            assert cluster.view is not None
            stays = owned_by(cluster.view, cluster.member(1))
            moves = owned_by(cluster.view, cluster.member(0))
            old, new = (Held(*node.shards) for node in cluster.nodes)
            polls = [client.hold(echo(partition), 20) for partition in (stays, moves)]
            given_up = client.hold(echo(moves, b"given up"), 20)
            await old.started.get()
            await old.started.get()
            await new.started.get()
            changed: list[int] = []

            def take_back() -> None:
                changed.append(len(client.nodes()))
                given_up.take_back()

            unfollow = client.follow_routes(take_back)
            view = cluster.tell(1)
            await until(client, lambda: client.view == view)
            assert changed == [1], "it is told before the long polls are moved"
            assert (await old.stopped.get()).partition == moves
            assert (await new.started.get()).partition == moves
            assert new.stopped.empty()
            assert not any(poll.is_over for poll in polls)
            new.release.set()
            assert [type(await poll.answer()) for poll in polls] == [Echoed, Echoed]
            assert (await _outcome(given_up)) == "Cancelled"
            unfollow()
            cluster.tell(1, 0)
            await until(client, lambda: len(client.nodes()) == 2)
            assert changed == [1]

    run(main())


async def _outcome(poll: Any) -> str:  # noqa: ANN401 - a long poll
    try:
        return type(await poll.answer()).__name__
    except Exception as problem:  # noqa: BLE001 - named
        return type(problem).__name__


def test_a_request_for_a_node_without_connection_goes_over_another_one(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(3) as cluster, cluster.connect() as client:
            say_who(cluster)
            await joined(client, cluster, 0, 1, 2)
            assert cluster.view is not None
            partition = owned_by(cluster.view, cluster.member(2))
            await cluster.nodes[2].stop()
            await until(client, lambda: not client._router.nodes.find(_name(cluster, 2)).by_shard)
            assert {await who(client, partition) for _ in range(4)} == {0, 1}
            assert client.statistics().fallbacks == 4

    run(main())


def _name(cluster: RunningCluster, number: int) -> str:
    return cluster.member(number).name


def test_a_request_for_a_dead_node_waits_for_the_view_that_names_the_next_owner(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(3) as cluster, cluster.connect(retries=0) as client:
            say_who(cluster)
            await joined(client, cluster, 0, 1, 2)
            before = cluster.view
            assert before is not None
            partition = owned_by(before, cluster.member(2))
            after = cluster.make_view(0, 1)
            heir = int(owner(after, partition)[0], 16)
            refused = asyncio.Event()
            # The other members cannot reach the dead one either, until they know that it is dead.
            for node in cluster.nodes[:2]:
                for shard in node.shards:
                    answer_echo(shard, _noting(refused, Unavailable("Node 2 cannot be reached.")))
            await cluster.nodes[2].stop()
            asked = asyncio.create_task(who(client, partition))
            await refused.wait()
            say_who(cluster)
            cluster.repeat(after)
            assert await asked == heir

    run(main())


def _noting(event: asyncio.Event, problem: Exception) -> Any:  # noqa: ANN401 - a handler
    def refuse(_: Echo) -> Echoed:
        event.set()
        raise problem

    return refuse


@pytest.mark.parametrize("problem", [NotOwner("Not mine."), Draining("Stopping.")])
@pytest.mark.parametrize("kind", ["request", "long poll", "told"])
def test_a_refusal_by_a_former_owner_is_not_seen(run: Run, problem: Exception, kind: str) -> None:
    async def main() -> None:
        async with (
            RunningCluster(2) as cluster,
            cluster.connect(retries=0, backoff_first_seconds=0.001) as client,
        ):
            say_who(cluster)
            await joined(client, cluster, 0, 1)
            assert cluster.view is not None
            partition = owned_by(cluster.view, cluster.member(0))
            refusals: asyncio.Queue[None] = asyncio.Queue()

            def refuse(_: Echo) -> Echoed:
                refusals.put_nowait(None)
                raise problem

            for shard in cluster.nodes[0].shards:
                answer_echo(shard, refuse)
            asked: asyncio.Future[Any]
            if kind == "request":
                asked = asyncio.ensure_future(client.request(echo(partition), 20))
            elif kind == "long poll":
                asked = asyncio.ensure_future(client.hold(echo(partition), 20).answer())
            else:
                asked = asyncio.get_running_loop().create_future()
                client.request_told(echo(partition), asked.set_result, 20)
            for _ in range(3):  # no newer view yet: asked again, with pauses
                await refusals.get()
            assert not asked.done()
            cluster.tell(1)
            assert (await asked).payload == b"1"

    run(main())


def test_a_request_that_may_have_been_done_is_an_error_as_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Echo, "repeatable", False)

    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            assert cluster.view is not None
            held = Held(*cluster.nodes[0].shards)
            partition = owned_by(cluster.view, cluster.member(0))
            asked = asyncio.create_task(client.request(echo(partition)))
            await held.started.get()
            await cluster.nodes[0].stop()
            with pytest.raises(ConnectionLost):
                await asked

    run(main())


def test_a_node_that_is_started_again_is_another_member_at_the_same_address(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            say_who(cluster)
            await joined(client, cluster, 0, 1)
            pool = client._router.nodes.find(_name(cluster, 1))
            await cluster.nodes[1].stop()
            await until(client, lambda: not pool.by_shard)
            await cluster.nodes[1].start()
            say_who(cluster)
            await joined(client, cluster, 0, cluster.member(1, start=1))
            assert client._router.nodes.find(_name(cluster, 1)) is pool
            assert pool.member == cluster.member(1, start=1).id
            assert {await who(client, partition) for partition in PARTITIONS} == {0, 1}

    run(main())


def test_an_address_that_leads_to_another_node_than_the_view_says_is_used_once(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            from msgspec.structs import replace

            stranger = replace(cluster.member(1), node="somebody else")
            await joined(client, cluster, 0, stranger)
            await joined(client, cluster, 0, stranger)
            assert cluster.nodes[1].connections() == [1, 1], "no pool after the other"

    run(main())


def test_an_older_node_refuses_the_event_and_serves_as_ever(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Handshake._register

    def refuse(connection: Handshake, stream: int, body: bytes) -> None:
        if cql.VIEW in cql.decode_register(body):
            raise ProtocolViolation(f"There is no event called {cql.VIEW!r}.")
        register(connection, stream, body)

    table = {key: refuse if say is register else say for key, say in Handshake._TABLE.items()}
    monkeypatch.setattr(Handshake, "_TABLE", table)

    async def main() -> None:
        async with RunningCluster(1) as cluster, cluster.connect() as client:
            await client.covered()
            await until(client, lambda: client._router.nodes.settled)
            assert client.view is None
            assert cluster.registered(0) == 0
            for partition in PARTITIONS:
                await client.echo("shop", "q", b"x", partition=partition)
            statistics = client.statistics()
            assert statistics.misroutes == statistics.fallbacks == statistics.violations == 0
            assert statistics.connections == 2
            (pool,) = client._router.pools.values()
            first = next(iter(pool.by_shard.values()))
            assert first.calls_max == min(client.settings.in_flight, first.description.in_flight)

    run(main())


def test_requests_that_any_node_can_answer_need_no_name(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster:
            for node in cluster.nodes:
                for shard in node.shards:
                    shard.handlers[Opcode.LIST_TOKENS] = lambda _: TokensFound([])
            async with cluster.connect(0, 1) as client:
                await joined(client, cluster, 0, 1)
                assert isinstance(await client.request(ListTokens(0, 0)), TokensFound)
                with pytest.raises(InvalidArgument, match="several nodes"):
                    await client.status(0)
                statuses = await client.statuses()
                assert [type(one) for one in statuses] == [ShardStatus] * 4
            async with cluster.connect(1) as client:
                await joined(client, cluster, 0, 1)
                # The address names one node, so that is meant.
                status = await client.status(0)
                assert status.node == str(cluster.nodes[1].identity)
                assert client.watched_nodes() == (f"{HOST}:{cluster.nodes[1].port}",)
                view = cluster.tell(0)
                await until(client, lambda: client.view == view)
                await client.covered()
                assert client.watched_nodes() == (f"{HOST}:{cluster.nodes[0].port}",)

    run(main())


def test_a_request_to_a_node_that_leaves_fails_with_a_reason(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            await cluster.nodes[1].stop()
            await until(client, lambda: not client._router.nodes.find(_name(cluster, 1)).by_shard)
            asked = asyncio.create_task(client.status(0, _name(cluster, 1)))
            await until(client, lambda: client.statistics().waiting == 1)
            cluster.tell(0)
            with pytest.raises(NodeUnreachable, match="has left the cluster"):
                await asked

    run(main())


def test_calls_that_wait_for_a_node_take_the_way_over_the_first_that_is_back(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(2) as cluster, cluster.connect() as client:
            await joined(client, cluster, 0, 1)
            assert cluster.view is not None
            partition = owned_by(cluster.view, cluster.member(1))
            for node in cluster.nodes:
                await node.stop()
            await until(client, lambda: not client._router.nodes.connected)
            asked = asyncio.create_task(client.request(echo(partition), 20))
            await asyncio.sleep(0)  # its first turn
            assert client.statistics().waiting == 1
            await cluster.nodes[0].start()
            assert isinstance(await asked, Echoed)

    run(main())


def test_a_connection_that_ends_while_it_registers_does_no_harm(run: Run) -> None:
    async def main() -> None:
        async with RunningCluster(1) as cluster, cluster.connect() as client:
            await client.covered()
            (pool,) = client._router.pools.values()
            connection = next(iter(pool.by_shard.values()))
            assert isinstance(connection, Connection)
            connection.follow_views()
            connection.transport.abort()
            await until(client, lambda: client.statistics().reconnects == 1)
            await client.covered()
            assert (await client.echo("shop", "q", b"x")).payload == b"x"

    run(main())
