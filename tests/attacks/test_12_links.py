"""What is taken from a peer that has proved nothing yet, and what is told of those who fail."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
import trustme

from maitred import App
from maitred.client.connection import Connection
from maitred.client.worker_link import WorkerLink
from maitred.errors import FrameTooLarge, TlsFailed, Unavailable
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.protocol.frames import ANSWER, HEADER, REQUEST, RESPONSE, Opcode
from maitred.security.tls import server_context
from maitred.settings import (
    ClientSettings,
    GatewaySettings,
    Limits,
    Node,
    Querying,
    Tls,
    WorkerSettings,
)
from maitred.surroundings import Surroundings
from maitred.worker.worker import Worker
from tests.client.nodes import HOST, refusal
from tests.node.in_process import LOOPS, RecordedLog, in_a_loop, node, until
from tests.queries_real.house import scene
from tests.worker.querying import ReservingNode, a_gateway
from tests.worker.running import a_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HUGE: int = 250 * 2**20
PATIENCE_SECONDS = 30


def header(version: int, opcode: int, size: int = HUGE) -> bytes:
    """The beginning of a frame that announces a quarter of a gigabyte, or another size."""
    return HEADER.pack(version, 0, 0, opcode, size)


# Before anything is proved


@asynccontextmanager
async def a_server(answer: bytes, port: int = 0) -> AsyncIterator[int]:
    """Whatever it is asked, it says this."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65_536):
                writer.write(answer)
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(meet, HOST, port, reuse_port=True)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@in_a_loop
async def test_a_client_takes_no_large_frame_before_ready() -> None:
    async with a_server(header(RESPONSE, Opcode.SUPPORTED) + bytes(1_000)) as port:
        found = await refusal(f"maitred://{HOST}:{port}")
        assert "262,144,000 bytes is more than the 65,536" in found.sentence
        assert found.remedy


def test_the_limit_of_a_clients_connection_is_raised_by_ready_only() -> None:
    async def main() -> None:
        connection = Connection(asyncio.get_running_loop(), ClientSettings())
        assert connection.decoder.max_body_bytes == 64 * 1024

    asyncio.run(main())


@in_a_loop
async def test_a_workers_listener_takes_no_large_frame_before_the_proof() -> None:
    app = an_app()
    async with (
        ReservingNode() as fake,
        a_worker(fake, app) as worker,
        a_gateway(worker, hello=False) as gateway,
    ):
        # A frame that a gateway may send once it has proved that the node sent it.
        gateway.transport.write(header(REQUEST, Opcode.HELLO, WorkerSettings().link_frame_bytes))
        assert isinstance(await gateway.error(0), FrameTooLarge)
        await gateway.gone()


def test_a_gateway_takes_no_large_frame_from_a_worker_before_the_proof() -> None:
    async def main() -> None:
        owner = MagicMock()
        link = WorkerLink(
            asyncio.get_running_loop(),
            bytes(16),
            owner,
            settings=Querying(),
            frame_bytes=2**28,
            name="gateway",
            challenge=bytes(32),
        )
        link.connection_made(MagicMock())
        link.data_received(header(RESPONSE, Opcode.HELLO + ANSWER))
        assert isinstance(link.greeted.exception(), FrameTooLarge)
        owner.link_ended.assert_called_once()

    asyncio.run(main())


# TLS


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory: an authority, and a certificate of a node."""
    directory = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    made = authority.issue_cert(HOST)
    made.private_key_and_cert_chain_pem.write_to_path(directory / "node.pem")
    return directory


def tls_of(papers: Path) -> Tls:
    return Tls(certificate=str(papers / "node.pem"), key=str(papers / "node.pem"))


async def speak_plainly(port: int) -> None:
    """To a listener with TLS."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_a_failed_handshake_at_a_nodes_port_is_told(
    papers: Path,
    tmp_path: Path,
    loop: str,  # noqa: ARG001 - which loop
) -> None:
    async with node(tmp_path, tls=server_context(tls_of(papers))) as one:
        for _ in range(3):
            await speak_plainly(one.port)
        await until(lambda: one.shard.errors[TlsFailed.code] == 3)
        # Once, however many come at a time.
        ((_, event, fields),) = [line for line in one.log.lines if line[0] == "warning"]
        assert event == "a TLS handshake failed"
        assert fields["peer"].startswith(f"{HOST}:")
        assert fields["error"].code == "tls-failed"


async def until_ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other end of a connection has closed it."""
    with suppress(ConnectionError):
        assert not await reader.read()


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_handshakes_that_never_end_keep_nobody_out_of_a_nodes_port(
    papers: Path,
    tmp_path: Path,
    loop: str,  # noqa: ARG001 - which loop
) -> None:
    """A peer that connects and says nothing is no connection yet, but has a descriptor."""
    most = 5
    limits = Limits(connections=most, handshake_seconds=30.0)
    async with node(tmp_path, tls=server_context(tls_of(papers)), limits=limits) as one:
        handshakes = one.shard._handshakes
        assert handshakes is not None
        silent = [await asyncio.open_connection(HOST, one.port) for _ in range(3 * most)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for reader, _ in silent[: 2 * most]:  # the oldest give way
                await until_ended(reader)
        await until(lambda: len(handshakes) == most)
        assert one.shard.errors[TlsFailed.code] == 2 * most
        ((_, event, fields),) = [line for line in one.log.lines if line[0] == "warning"]
        assert event == "a TLS handshake gave way to a new one"
        assert fields["error"].code == "too-many-connections"
        trusting = ssl.create_default_context(cafile=str(papers / "ca.pem"))
        _, writer = await asyncio.open_connection(HOST, one.port, ssl=trusting)
        await until(lambda: len(one.shard.connections) == 1)
        for _, other in (*silent, (None, writer)):
            other.close()
        await until(lambda: not one.shard.connections)


@in_a_loop
async def test_handshakes_that_never_end_keep_nobody_out_of_the_http_listener(
    papers: Path,
) -> None:
    most = 5
    settings = Node(gateway=GatewaySettings(port=0, connections=most, header_seconds=30.0))
    log = RecordedLog()
    gateway = Gateway(f"maitred://{HOST}:1", settings, Surroundings.real(), log)
    door = HttpListener(tls=server_context(tls_of(papers)))
    port = int((await gateway.open(door)).rpartition(":")[2])
    silent = [await asyncio.open_connection(HOST, port) for _ in range(3 * most)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for reader, _ in silent[: 2 * most]:
            await until_ended(reader)
    trusting = ssl.create_default_context(cafile=str(papers / "ca.pem"))
    reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for _, other in (*silent, (reader, writer)):
        other.close()
    await gateway.close()


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_a_peer_that_leaves_is_told_without_an_alarm(
    papers: Path,
    tmp_path: Path,
    loop: str,  # noqa: ARG001 - which loop
) -> None:
    """It may not trust our certificate and say nothing of it, or only look whether the port is
    open."""
    async with node(tmp_path, tls=server_context(tls_of(papers))) as one:
        _, writer = await asyncio.open_connection(HOST, one.port)
        writer.close()
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(HOST, one.port, ssl=ssl.create_default_context())
        await until(lambda: one.shard.errors[TlsFailed.code] == 2)
        assert one.log.events("info") == ["a peer left during its TLS handshake"]


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_a_failed_handshake_at_the_http_listener_is_told(
    papers: Path,
    loop: str,  # noqa: ARG001 - which loop
) -> None:
    log = RecordedLog()
    settings = Node(gateway=GatewaySettings(port=0))
    gateway = Gateway(f"maitred://{HOST}:1", settings, Surroundings.real(), log)
    door = HttpListener(tls=server_context(tls_of(papers)))
    address = await gateway.open(door)
    port = int(address.rpartition(":")[2])
    for _ in range(2):
        await speak_plainly(port)
    await until(lambda: door.metrics.tls_failed == 2)
    assert "maitred_http_tls_failed_total 2" in "\n".join(door.metrics.families())
    trusting = ssl.create_default_context(cafile=str(papers / "ca.pem"))
    reader, writer = await asyncio.open_connection(HOST, port, ssl=trusting)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await gateway.close()
    ((_, event, fields),) = [line for line in log.lines if line[0] == "warning"]
    assert event == "a TLS handshake failed"
    assert fields["error"].sentence.endswith("http request.")


# A node that speaks garbage


def an_app() -> App:
    app = App("desk")

    @app.handler("echo")
    async def echo(text: str) -> str:
        return text

    return app


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak this protocol"),
        (HEADER.pack(RESPONSE, 0, 0, 0x77, 0), "0x77"),
        (header(RESPONSE, Opcode.SUPPORTED), "262,144,000"),
    ],
    ids=["http", "an unknown opcode", "a huge frame"],
)
@in_a_loop
async def test_a_worker_whose_node_becomes_something_else_says_so(
    garbage: bytes, words: str
) -> None:
    """Also if it has said before that the node is away."""
    log = RecordedLog()
    async with scene(an_app()) as one:
        client = await one.house.connect()
        settings = WorkerSettings(attend_seconds=0.2, offer_seconds=0.5, drain_seconds=0.1)
        handlers = list(one.app.handlers.values())
        worker = Worker(client, handlers, settings, "w", Surroundings.real(), log)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await worker.ready.wait()
        await one.house.stop()
        await until(
            lambda: any("refused" in str(fields.get("error")) for _, _, fields in log.lines)
        )
        async with (
            a_server(garbage, one.house.port),
            a_server(garbage, one.house.own_ports[0]),
        ):
            await until(
                lambda: any(words in str(fields.get("error")) for _, _, fields in log.lines)
            )
            assert len(log.lines) <= 4  # one for each kind of error
            worker.stop()
            await running
        (told,) = [
            fields["error"]
            for _, _, fields in log.lines
            if words in str(fields.get("error")) and fields["error"].remedy
        ][:1]
        assert "Check host and port" in told.remedy
        await client.close()


@in_a_loop
async def test_a_producer_at_garbage_gets_a_typed_error() -> None:
    async with a_server(HEADER.pack(RESPONSE, 0, 0, 0x77, 0)) as port:
        found = await refusal(f"maitred://{HOST}:{port}")
        assert isinstance(found, Unavailable)
        assert "does not answer as a node does" in found.sentence
        assert found.remedy
