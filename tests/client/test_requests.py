"""Requests: their deadlines, their turn, their retries, and where they go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.client import router as router_module
from maitred.client.connection import Connection
from maitred.client.statistics import Unreachable
from maitred.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidArgument,
    InvalidName,
    MaitredError,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UnknownHost,
)
from maitred.protocol import cql
from maitred.protocol.messages import Echo, Echoed, ShardStatus
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.settings import Limits
from tests.client.handlers import Held, answer_echo
from tests.client.nodes import HOST, QUICK, RunningNode, until

if TYPE_CHECKING:
    from tests.client.conftest import Run


def test_a_deadline_is_kept_and_the_server_is_told_to_stop(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect(timeout_seconds=0.05) as client:
            held = Held(*node.shards)
            with pytest.raises(DeadlineExceeded):
                await client.echo("shop", "q", b"x")
            assert (await held.stopped.get()).payload == b"x"
            with pytest.raises(TimeoutError):
                await client.echo("shop", "q", b"y", timeout=0.01)
            assert (await held.stopped.get()).payload == b"y"

    run(main())


def test_a_timeout_longer_than_the_protocol_can_say_is_cut_to_that(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = Held(*node.shards)
            held.release.set()
            assert (await client.echo("shop", "q", b"x", timeout=10.0**9)).payload == b"x"
            assert held.started.get_nowait().timeout_milliseconds == TIMEOUT_MAX_MILLISECONDS

    run(main())


def test_a_cancelled_request_is_cancelled_at_the_server(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            held = Held(*node.shards)
            asked = asyncio.create_task(client.echo("shop", "q", b"x"))
            await held.started.get()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert (await held.stopped.get()).payload == b"x"
            held.release.set()
            assert (await client.echo("shop", "q", b"y")).payload == b"y"
            assert client.statistics().in_flight == 0

    run(main())


@pytest.mark.parametrize("limited_by", ["client", "node"])
def test_in_flight_is_bounded_and_the_rest_waits_in_order(run: Run, limited_by: str) -> None:
    async def main() -> None:
        mine = limited_by == "client"
        async with (
            RunningNode(1, limits=Limits(in_flight=1024 if mine else 3)) as node,
            node.connect(in_flight=3 if mine else 1024) as client,
        ):
            held = Held(*node.shards)
            asked = [
                asyncio.create_task(client.echo("shop", "q", bytes([number])))
                for number in range(20)
            ]
            for _ in range(3):
                await held.started.get()
            assert client.statistics().waiting == 17
            assert client.statistics().in_flight == 3
            held.release.set()
            answers = await asyncio.gather(*asked)
            assert [answer.payload[0] for answer in answers] == list(range(20))
            order = [held.started.get_nowait().payload[0] for _ in range(17)]
            assert order == list(range(3, 20))
            assert held.most_under_way == 3
            assert client.statistics().waiting == 0

    run(main())


def test_a_heartbeat_gets_through_when_all_is_full(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        answered = asyncio.Event()
        probed = Connection.probed

        def probed_and_told(connection: Connection) -> None:
            probed(connection)
            answered.set()

        monkeypatch.setattr(Connection, "probed", probed_and_told)
        async with (
            RunningNode(1, limits=Limits(in_flight=1)) as node,
            node.connect(heartbeat_seconds=0.01, heartbeat_timeout_seconds=5) as client,
        ):
            held = Held(*node.shards)
            asked = asyncio.create_task(client.echo("shop", "q", b"x"))
            await held.started.get()
            answered.clear()
            await answered.wait()
            held.release.set()
            assert (await asked).payload == b"x"

    run(main())


def test_waiting_is_bounded_too(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect(in_flight=1, waiting=2) as client:
            held = Held(*node.shards)
            asked = [asyncio.create_task(client.echo("shop", "q", b"x")) for _ in range(3)]
            await held.started.get()
            with pytest.raises(Overloaded, match="2 requests wait already"):
                await client.echo("shop", "q", b"x")
            asked.pop().cancel()  # makes room
            await asyncio.sleep(0)
            with pytest.raises(DeadlineExceeded, match="before it was the request's turn"):
                await client.echo("shop", "q", b"x", timeout=0.02)
            assert client.statistics().waiting == 1
            held.release.set()
            await asyncio.gather(*asked)
            assert held.started.qsize() == 1, "what did not wait any more was never sent"

    run(main())


def test_a_payload_beyond_the_nodes_limit_is_not_even_sent(run: Run) -> None:
    async def main() -> None:
        limits = Limits(payload_bytes=1000, frame_bytes=2000)
        async with RunningNode(1, limits=limits) as node, node.connect() as client:
            assert (await client.echo("shop", "q", b"x" * 1000)).payload == b"x" * 1000
            with pytest.raises(PayloadTooLarge, match=r"1,001 bytes is more than the 1,000"):
                await client.echo("shop", "q", b"x" * 1001)
            assert client.statistics().requests == 1
            assert client.statistics().in_flight == 0

    run(main())


def _misinformed(node: RunningNode) -> None:
    """The shards place by batches of four; what they say of it is that there are none."""
    from msgspec.structs import replace

    for shard in node.shards:
        description = replace(shard.description, spread_batch="0")
        shard.supported_body = cql.encode_supported(description.supported())


def test_a_misroute_is_answered_all_the_same_and_happens_once(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(4, spread_batch=4) as node:
            _misinformed(node)
            async with node.connect() as client:
                await client.covered()
                shards = [
                    (await client.echo("shop", "q", b"x", partition=partition)).shard
                    for partition in range(8)
                ]
                assert len(set(shards[:4])) == 1, "a batch has one key, so it has one shard"
                learned = client.statistics().misroutes
                assert learned == sum(shard.forwarded for shard in node.shards) > 0
                for partition in range(8):
                    for _ in range(5):
                        answer = await client.echo("shop", "q", b"x", partition=partition)
                        assert answer.shard == shards[partition]
                assert client.statistics().misroutes == learned
                assert sum(shard.forwarded for shard in node.shards) == learned

    run(main())


def test_the_batch_size_is_taken_from_the_node(run: Run) -> None:
    async def main() -> None:
        change = {"old": 0, "new": 4, "start": 0, "end": 2_000_000_000_000}
        for spread_batch in (4, change):
            async with (
                RunningNode(4, spread_batch=spread_batch) as node,
                node.connect() as client,
            ):
                await client.covered()
                for partition in range(8):
                    await client.echo("shop", "q", b"x", partition=partition)
                assert client.statistics().misroutes == 0

    run(main())


def test_what_is_remembered_of_routes_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "ROUTES_MAX", 10)

    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            for partition in range(100):
                await client.echo("shop", "q", b"x", partition=partition)
                assert len(client._router._routes) <= 10

    run(main())


@pytest.mark.parametrize("problem", [Unavailable("no"), Draining("no"), Overloaded("no")])
def test_what_was_not_done_is_tried_again(run: Run, problem: MaitredError) -> None:
    async def main() -> None:
        async with RunningNode(1) as node:
            failures = [problem, problem]

            def answer(message: Echo) -> Echoed:
                if failures:
                    raise failures.pop()
                return Echoed(message.payload, 0)

            answer_echo(node.shards[0], answer)
            async with node.connect(retries=2) as client:
                assert (await client.echo("shop", "q", b"x")).payload == b"x"
                assert client.statistics().retries == 2
                assert client.statistics().requests == 3
            failures = [problem, problem]
            async with node.connect(retries=1) as client:
                with pytest.raises(type(problem)):
                    await client.echo("shop", "q", b"x")
                assert client.statistics().retries == 1

    run(main())


def test_other_errors_are_not_tried_again(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:

            def answer(_message: Echo) -> Echoed:
                raise InternalError("Oh.")

            answer_echo(node.shards[0], answer)
            with pytest.raises(InternalError, match="Oh"):
                await client.echo("shop", "q", b"x")
            assert client.statistics().retries == 0

    run(main())


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_request_whose_connection_broke_is_repeated_only_if_that_is_safe(
    run: Run, monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    monkeypatch.setattr(Echo, "repeatable", repeatable)

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = Held(*node.shards)
            asked = asyncio.create_task(client.echo("shop", "q", b"x"))
            await held.started.get()
            (connection,) = node.shards[0].connections
            held.release.set()
            connection.transport.abort()
            if repeatable:
                assert (await asked).payload == b"x"
                assert client.statistics().retries == 1
            else:
                with pytest.raises(ConnectionLost, match="Whether the request was done is not"):
                    await asked
                assert client.statistics().retries == 0

    run(main())


def test_what_may_have_been_done_is_never_called_not_sent(run: Run) -> None:
    """The first try was sent and lost; that the second found nobody does not undo it."""

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            held = Held(*node.shards)
            asked = asyncio.create_task(client.echo("shop", "q", b"x", timeout=0.5))
            await held.started.get()
            await node.stop()
            with pytest.raises(
                ConnectionLost, match=r"not known.* came to nothing.* no connection"
            ):
                await asked

    run(main())


@pytest.mark.parametrize("hold", [-1, 60.001, float("nan"), "long"])
def test_an_echo_is_held_for_a_minute_at_most(run: Run, hold: float) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            with pytest.raises(InvalidArgument, match="seconds"):
                await client.echo("shop", "q", b"x", hold=hold)

    run(main())


def test_without_a_connection_a_request_waits_and_says_why_it_failed(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect(waiting=1) as client:
            await node.stop()
            await until(client, lambda: not client.nodes()[0].covered)
            with pytest.raises(Unavailable, match=r"no connection .* was not sent"):
                await client.echo("shop", "q", b"x", timeout=0.05)
            await until(client, lambda: "refused" in str(client.nodes()[0].problem))
            with pytest.raises(Unavailable, match="connection refused"):
                await client.echo("shop", "q", b"x", timeout=0.05)
            waiting = asyncio.create_task(client.echo("shop", "q", b"x"))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await client.echo("shop", "q", b"x")
            await node.start()
            assert (await waiting).payload == b"x"

    run(main())


def test_who_waits_for_a_turn_on_a_connection_that_breaks_goes_elsewhere(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect(in_flight=1) as client:
            held = Held(*node.shards)
            asked = [asyncio.create_task(client.echo("shop", "q", b"x")) for _ in range(5)]
            await held.started.get()
            (connection,) = node.shards[0].connections
            connection.transport.abort()
            held.release.set()
            assert [answer.payload for answer in await asyncio.gather(*asked)] == [b"x"] * 5

    run(main())


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"namespace": "a:b"}, InvalidName),
        ({"queue": ""}, InvalidName),
        ({"partition": -1}, InvalidArgument),
        ({"partition": []}, InvalidArgument),
        ({"queue_type": "x"}, InvalidArgument),
        ({"payload": object()}, InvalidArgument),
        ({"payload": "text"}, InvalidArgument),
        ({"hold": "x"}, InvalidArgument),
        ({"hold": 1e9}, InvalidArgument),
        ({"timeout": 0}, InvalidArgument),
        ({"timeout": float("nan")}, InvalidArgument),
        ({"timeout": "x"}, InvalidArgument),
    ],
)
def test_nonsense_is_refused_with_a_type(
    run: Run, wrong: dict[str, Any], error: type[MaitredError]
) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            given = {"namespace": "shop", "queue": "q", "payload": b"x", **wrong}
            with pytest.raises(error):
                await client.echo(**given)
            assert (await client.echo("shop", "q", b"x")).payload == b"x"
            assert client.statistics().in_flight == client.statistics().waiting == 0

    run(main())


def test_statuses_of_several_nodes_and_of_one_that_is_down(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as one, RunningNode(1) as other, RunningNode(1) as down:
            await down.stop()
            ports = (one.port, other.port, down.port)
            url = "maitred://" + ",".join(f"{HOST}:{port}" for port in ports)
            async with maitred.connect(url, **QUICK) as client:
                await until(
                    client,
                    lambda: (
                        [len(node.covered) for node in client.nodes()] == [2, 1, 0]
                        and client.nodes()[2].problem
                    ),
                )
                statuses = await client.statuses()
                found = [
                    (status.node, status.shard)
                    for status in statuses
                    if isinstance(status, ShardStatus)
                ]
                assert found == [
                    (str(one.identity), 0),
                    (str(one.identity), 1),
                    (str(other.identity), 0),
                ]
                (last,) = [status for status in statuses if isinstance(status, Unreachable)]
                assert (last.address, last.shard) == (f"{HOST}:{down.port}", None)
                assert isinstance(last.error, Unavailable)
                by_identity = await client.status(1, str(one.identity))
                by_address = await client.status(1, f"{HOST}:{one.port}")
                assert (by_identity.node, by_identity.shard) == (by_address.node, 1)
                with pytest.raises(InvalidArgument, match="several nodes"):
                    await client.status(0)
                with pytest.raises(UnknownHost):
                    await client.status(0, "nobody")
                with pytest.raises(InvalidArgument, match="there is no 2"):
                    await client.status(2, f"{HOST}:{one.port}")
                with pytest.raises(InvalidArgument, match="is a number"):
                    await client.status([], f"{HOST}:{one.port}")  # type: ignore[arg-type]
                # A node that dies after it was known is an entry for each of its shards.
                await one.stop()
                await until(client, lambda: not client.nodes()[0].covered)
                gone = await client.statuses(timeout=0.1)
                assert [type(entry) for entry in gone[:2]] == [Unreachable, Unreachable]

    run(main())


def test_requests_go_to_the_node_that_the_ring_names(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as one, RunningNode(3) as other:
            hosts = [f"{HOST}:{one.port}", f"{HOST}:{other.port}"]
            async with maitred.connect("maitred://" + ",".join(hosts), **QUICK) as client:
                await client.covered()
                for partition in range(40):
                    await client.echo("shop", "q", b"x", partition=partition)
                from maitred.routing import HashRing, QueueId, place

                ring = HashRing(hosts)
                expected = [
                    place(ring, QueueId("shop", "q", 1), partition).node for partition in range(40)
                ]
                counted = {node.address: node.requests for node in client.statistics().nodes}
                assert counted == {host: expected.count(host) for host in hosts}
                assert min(counted.values()) > 0
                assert client.statistics().misroutes == 0

    run(main())


def test_what_a_client_shows_of_itself(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            await client.covered()
            await client.echo("shop", "q", b"x")
            assert repr(client) == (
                f"<AsyncClient maitred://{HOST}:{node.port}, 2 of 2 shards connected, "
                "0 requests in flight>"
            )
            assert repr(client.statistics()) == (
                "<Statistics: 2 connections, 0 in flight, 0 waiting, 1 requests, 0 misroutes, "
                "0 fallbacks, 0 retries, 0 reconnects>"
            )
            (view,) = client.nodes()
            assert view.node == str(node.identity)
            assert view.shard_ports == node.own_ports[:2]
            assert view.release == maitred.__version__

    run(main())
