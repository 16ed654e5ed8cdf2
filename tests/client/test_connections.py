"""Connections on real sockets: found, lost, repaired, drained, silent, refused."""

from __future__ import annotations

import asyncio
import re
import socket
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import trustme

import maitred
from maitred.client.address import parse_address, settings_of
from maitred.client.client import AsyncClient
from maitred.client.connection import Connection
from maitred.errors import (
    Closed,
    PermissionDenied,
    TooManyConnections,
    Unauthenticated,
    Unavailable,
    UnsupportedVersion,
)
from maitred.protocol import cql
from maitred.protocol.frames import EVENT_STREAM, Opcode
from maitred.protocol.messages import Echoed
from maitred.security.tls import server_context
from maitred.settings import Limits, Tls, User
from maitred.surroundings import Surroundings
from tests.client.handlers import Held
from tests.client.nodes import HOST, QUICK, TRIED_SECONDS, RunningNode, covered, refusal, until
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.conftest import Run


def test_every_shard_is_reached_by_its_own_port(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(4) as node, node.connect() as client:
            await client.covered()
            assert node.connections() == [1, 1, 1, 1]
            own = [
                connection.transport.get_extra_info("sockname")[1] in node.own_ports
                for shard in node.shards
                for connection in shard.connections
            ]
            assert sorted(own) == [False, True, True, True]
            for partition in range(16):
                answer = await client.echo("shop", "q", b"x", partition=partition)
                assert answer.payload == b"x"
            statistics = client.statistics()
            assert statistics.requests == 16
            assert statistics.misroutes == statistics.fallbacks == 0
            assert sum(shard.forwarded for shard in node.shards) == 0

    run(main())


@pytest.mark.parametrize("ports", ["none", "unreachable", "swapped"])
def test_without_usable_own_ports_every_shard_is_found_on_the_shared_one(
    run: Run, ports: str
) -> None:
    def advertised(own: tuple[int, ...]) -> tuple[int, ...]:
        if ports == "none":
            return ()
        return own[::-1] if ports == "swapped" else (1, 2, 3, 4)

    async def main() -> None:
        async with (
            RunningNode(4, advertised=advertised) as node,
            node.connect() as client,
        ):
            await client.covered()
            # The excess ones are closed; when the nodes have noticed, one is left for each.
            await until(client, lambda: client.statistics().connections == 4)
            for partition in range(16):
                await client.echo("shop", "q", b"x", partition=partition)
            assert client.statistics().fallbacks == client.statistics().misroutes == 0

    run(main())


def test_a_cut_connection_is_repaired_and_requests_take_another_way_meanwhile(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            await client.covered()
            place = client._router.route(("shop", "q", 1, 0))
            (connection,) = node.shards[place.shard].connections
            connection.transport.abort()
            await until(client, lambda: place.shard not in covered(client))
            answer = await client.echo("shop", "q", b"x")
            assert answer == Echoed(b"x", place.shard)
            await client.covered()
            statistics = client.statistics()
            assert (statistics.fallbacks, statistics.reconnects) == (1, 1)
            assert statistics.nodes[0].shards[place.shard].reconnects == 1
            assert statistics.misroutes == 0, "it was sent there on purpose"
            await client.echo("shop", "q", b"x")
            assert client.statistics().fallbacks == 1

    run(main())


@pytest.mark.parametrize("change", ["more", "fewer", "identity", "ports"])
def test_a_node_that_comes_back_different_is_learned_anew(run: Run, change: str) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            await client.covered()
            for partition in range(16):
                await client.echo("shop", "q", b"x", partition=partition)
            await node.stop()
            node.count = {"more": 4, "fewer": 1}.get(change, 2)
            if change == "identity":
                node.identity = uuid4()
            if change == "ports":
                node.own_ports = node.own_ports[4:] + node.own_ports[:4]
            await node.start()
            await until(
                client,
                lambda: (
                    client.nodes()[0].shards == node.count
                    and client.nodes()[0].node == str(node.identity)
                    and client.nodes()[0].shard_ports == node.own_ports[: node.count]
                ),
            )
            await client.covered()
            for partition in range(16):
                await client.echo("shop", "q", b"x", partition=partition)
            assert client.statistics().misroutes == 0
            assert sum(shard.forwarded for shard in node.shards) == 0

    run(main())


def test_a_draining_shard_finishes_what_it_has_and_gets_nothing_new(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            await client.covered()
            shard = client._router.route(("shop", "q", 1, 0)).shard
            held = Held(*node.shards)
            asked = asyncio.create_task(client.echo("shop", "q", b"old"))
            await held.started.get()
            draining = asyncio.create_task(node.shards[shard].drain())
            await until(client, lambda: shard not in covered(client))
            assert client.statistics().nodes[0].shards[shard].connections == 1
            held.release.set()
            assert (await asked).payload == b"old"
            assert await draining
            await node.start(shard)
            await client.covered()
            assert (await client.echo("shop", "q", b"new")).shard == shard

    run(main())


def test_a_connection_that_is_told_to_drain_is_replaced_and_closed_by_the_client(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node, node.connect() as client:
            await client.covered()
            (old,) = node.shards[0].connections
            old.send(0, EVENT_STREAM, Opcode.EVENT, cql.encode_draining())
            await until(client, lambda: client.statistics().reconnects == 1)
            await until(client, lambda: client.statistics().connections == 2)
            assert covered(client) == (0, 1)

    run(main())


def test_draining_said_at_the_end_of_the_handshake_is_heard(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shake_hands = Connection.shake_hands
    numbers = count()

    async def and_drain(connection: Connection, *terms: Any) -> None:  # noqa: ANN401
        await shake_hands(connection, *terms)
        connection.draining = next(numbers) == 0

    monkeypatch.setattr(Connection, "shake_hands", and_drain)

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            assert (await client.echo("shop", "q", b"x")).payload == b"x"
            await until(client, lambda: client.statistics().connections == 1)
            assert next(numbers) == 2, "the first connection was not used"

    run(main())


def test_a_connection_that_ends_with_its_handshake_is_replaced(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shake_hands = Connection.shake_hands
    numbers = count()

    async def and_end(connection: Connection, *terms: Any) -> None:  # noqa: ANN401
        await shake_hands(connection, *terms)
        if next(numbers) == 0:
            connection.fail(ConnectionResetError())

    monkeypatch.setattr(Connection, "shake_hands", and_end)

    async def main() -> None:
        async with RunningNode(1) as node, node.connect() as client:
            assert (await client.echo("shop", "q", b"x")).payload == b"x"
            assert client.statistics().connections == 1

    run(main())


@pytest.mark.parametrize("noticed_by", ["heartbeat", "an expired request"])
def test_a_silent_connection_is_given_up(run: Run, noticed_by: str) -> None:
    async def main() -> None:
        beats = noticed_by == "heartbeat"
        async with (
            RunningNode(1) as node,
            node.connect(
                heartbeat_seconds=0.05 if beats else 1000,
                heartbeat_timeout_seconds=0.05,
                # A starved machine may answer a heartbeat late, which ends a connection, too.
                retries=10 if beats else 0,
            ) as client,
        ):
            # An answer that is still on its way would be a sign of life after the request.
            (pool,) = client._router.pools.values()
            await until(client, lambda: pool.asked_for_views)
            (connection,) = node.shards[0].connections
            connection.transport.pause_reading()
            if not beats:
                with pytest.raises(maitred.errors.DeadlineExceeded):
                    await client.echo("shop", "q", b"x", timeout=0.05)
            await until(client, lambda: client.statistics().reconnects >= 1)
            assert (await client.echo("shop", "q", b"x")).payload == b"x"

    run(main())


def test_a_slow_answer_on_a_live_connection_does_not_end_it(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1) as node, node.connect(heartbeat_timeout_seconds=5) as client:
            held = Held(*node.shards)
            with pytest.raises(maitred.errors.DeadlineExceeded):
                await client.echo("shop", "q", b"x", timeout=0.05)
            await held.stopped.get()
            held.release.set()
            assert (await client.echo("shop", "q", b"y")).payload == b"y"
            assert client.statistics().reconnects == 0

    run(main())


def test_nobody_there(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as held:
            held.bind((HOST, 0))
            port = held.getsockname()[1]
            found = await refusal(f"maitred://{HOST}:{port}")
            assert isinstance(found, Unavailable)
            assert re.search(f"{HOST}:{port} .*: connection refused", found.sentence)

    run(main())


def test_somebody_who_says_nothing(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as held:
            held.bind((HOST, 0))
            held.listen()
            url = f"maitred://{HOST}:{held.getsockname()[1]}"
            with pytest.raises(Unavailable, match=r"within 0\.1 s"):
                await maitred.connect(url, connect_seconds=0.1)

    run(main())


def test_somebody_who_speaks_something_else(run: Run) -> None:
    async def main() -> None:
        def rude(_reader: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(rude, HOST, 0)
        async with server:
            url = f"maitred://{HOST}:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(UnsupportedVersion, match="does not speak this protocol"):
                await maitred.connect(url, connect_seconds=2)

    run(main())


@pytest.mark.parametrize("newer", ["client", "node"])
def test_no_version_in_common(run: Run, newer: str) -> None:
    async def main() -> None:
        async with RunningNode(1, versions=(1,) if newer == "client" else (2, 3)) as node:
            address = parse_address(node.url)
            client = AsyncClient(
                address,
                settings_of(address, QUICK | {"connect_seconds": 1000}),  # it is said at once
                Surroundings.real(),
                versions=(2,) if newer == "client" else (1,),
            )
            older = "node" if newer == "client" else "client"
            with pytest.raises(UnsupportedVersion, match=f"Upgrade the {older}"):
                await client.open()

    run(main())


def test_users(run: Run) -> None:
    users = {"ann": User(secret=cheaply("hush"), permissions={"shop": ["query"]})}

    async def main() -> None:
        async with RunningNode(2, users=users) as node:
            for who, words in (("", "requires authentication"), ("ann:wrong@", "secret is wrong")):
                with pytest.raises(Unauthenticated, match=words):
                    await maitred.connect(
                        f"maitred://{who}{HOST}:{node.port}", connect_seconds=1000
                    )
            url = f"maitred://ann:hush@{HOST}:{node.port}"
            async with maitred.connect(url, **QUICK) as client:
                await client.covered()
                assert (await client.echo("shop", "q", b"x")).payload == b"x"
                with pytest.raises(PermissionDenied, match="'query' in the namespace 'bank'"):
                    await client.echo("bank", "q", b"x")
                assert "hush" not in repr(client)

    run(main())


def test_a_secret_that_is_no_longer_right_is_said_at_once(run: Run, tmp_path: Path) -> None:
    """Not by waiting for a connection until the time of each request is over."""
    file = tmp_path / "users.toml"

    def write(secret: str) -> None:
        file.write_text(
            f"[users.ann]\nsecret = '{cheaply(secret)}'\npermissions = {{shop = ['query']}}\n"
        )

    async def main() -> None:
        async with RunningNode(1, users_file=str(file), limits=Limits(idle_seconds=1)) as node:
            url = f"maitred://ann:hush@{HOST}:{node.port}"
            async with maitred.connect(url, timeout_seconds=1000, **QUICK) as client:
                assert (await client.echo("shop", "q", b"x")).payload == b"x"
                write("another secret, of another length")
                await until(client, lambda: not client.nodes()[0].covered)
                with pytest.raises(Unauthenticated, match="secret"):
                    await client.echo("shop", "q", b"x")
                write("hush")
                await until(client, lambda: bool(client.nodes()[0].covered))
                assert (await client.echo("shop", "q", b"x")).payload == b"x"

    write("hush")
    run(main())


def test_a_shard_that_hangs_does_not_keep_the_others_from_being_found(run: Run) -> None:
    """The kernel may give the first connection to a shard that is stuck; others follow it."""

    async def main() -> None:
        async with RunningNode(1) as node:
            with socket.socket() as stuck:  # listens, and never answers: half of the connections
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                stuck.bind((HOST, node.port))
                stuck.listen(1000)
                for _ in range(10):
                    settings = {"hedge_seconds": 0.02, "coverage_attempts": 40}
                    async with node.connect(**settings) as client:
                        assert (await client.echo("shop", "q", b"x")).payload == b"x"

    run(main())


def test_a_node_that_closes_without_a_word_may_have_tls(run: Run) -> None:
    async def main() -> None:
        closing = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0)
        port = closing.sockets[0].getsockname()[1]
        async with closing:
            found = await refusal(f"maitred://{HOST}:{port}")
        assert isinstance(found, Unavailable)
        assert "maitreds://" in (found.remedy or "")

    run(main())


def test_a_full_node_says_so(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(1, limits=Limits(connections=1)) as node, node.connect() as first:
            found = await refusal(node.url)
            assert isinstance(found, TooManyConnections)
            assert "connections" in found.sentence
            assert (await first.echo("shop", "q", b"x")).payload == b"x"

    run(main())


def test_tls(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", HOST)
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "node.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    files = Tls(certificate=str(tmp_path / "node.pem"), key=str(tmp_path / "node.pem"))

    async def main() -> None:
        async with RunningNode(2, tls=server_context(files)) as node:
            place = f"{HOST}:{node.port}"
            async with maitred.connect(
                f"maitreds://{place}?ca={tmp_path}/ca.pem", **QUICK
            ) as client:
                await client.covered()
                assert (await client.echo("shop", "q", b"x" * 300_000)).payload == b"x" * 300_000
            found = await refusal(f"maitreds://{place}")
            assert isinstance(found, Unavailable)
            assert "certificate is not accepted" in found.sentence
            with pytest.raises(maitred.MaitredError):  # some loops end it without a word
                await node.connect(connect_seconds=TRIED_SECONDS)
        async with RunningNode(1) as node:
            place = f"{HOST}:{node.port}"
            found = await refusal(f"maitreds://{place}?ca={tmp_path}/ca.pem")
            assert isinstance(found, Unavailable)
            assert "TLS failed" in found.sentence

    run(main())


def test_closing_waits_for_requests_and_then_for_nothing(run: Run) -> None:
    async def main() -> None:
        async with RunningNode(2) as node:
            client = await node.connect(close_seconds=0.05)
            held = Held(*node.shards)
            first = asyncio.create_task(client.echo("shop", "q", b"x"))
            await held.started.get()
            await client.close()
            with pytest.raises(Closed):
                await first
            with pytest.raises(Closed):
                await client.echo("shop", "q", b"x")
            with pytest.raises(Closed):
                await client.covered()
            assert "closed" in repr(client)
            await client.close()

            client = await node.connect(close_seconds=20, in_flight=1)
            held = Held(*node.shards)
            second = asyncio.create_task(client.echo("shop", "q", b"y"))
            await held.started.get()
            waiting = asyncio.create_task(client.echo("shop", "q", b"w"))
            await asyncio.sleep(0)
            closing = asyncio.create_task(client.close())
            with pytest.raises(Closed):
                await waiting  # was not sent, and will not be
            await asyncio.sleep(0)
            with pytest.raises(Closed):
                await client.echo("shop", "q", b"z")
            held.release.set()
            assert (await second).payload == b"y"
            await closing
            assert client.statistics().connections == 0

    run(main())
