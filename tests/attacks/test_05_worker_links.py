"""The connections between gateways and workers: what can be read there, and who is believed."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from maitred import App
from maitred.client.query_gateway import QueryGateway
from maitred.client.worker_link import WorkerLink
from maitred.errors import CannotStart, Unavailable
from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.query_link import Hello, encode_hello
from maitred.protocol.worker_address import parse_worker_address
from maitred.security.tls import server_context
from maitred.security.worker_tls import worker_identity
from maitred.settings import Tls, WorkerSettings
from maitred.surroundings import Surroundings
from maitred.worker.query_listener import QueryListener
from maitred.worker.worker import Worker
from tests.attacks.tls_house import Between, announce, divert, tls_scene
from tests.client.nodes import HOST, RunningNode, refusal
from tests.node.in_process import RecordedLog, in_a_loop, until
from tests.queries_real.house import Scene, scene

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.dispatch.effects import AnswerReceiver

ARGUMENT = "the-argument-that-nobody-may-read"
RESULT = "the-result-that-nobody-may-read"


def an_app() -> App:
    app = App("desk")

    @app.handler("price")
    async def price(text: str) -> str:
        assert text == ARGUMENT
        return RESULT

    return app


async def asker(one: Scene, log: RecordedLog) -> tuple[AsyncClient, QueryGateway]:
    """A client that asks queries, with what it logs."""
    client = await one.client(log=log)
    assert isinstance(client._querying, QueryGateway)
    return client, client._querying


@in_a_loop
async def test_neither_arguments_nor_tokens_can_be_read_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    run = WorkerLink.run

    def spied(self: WorkerLink, receiver: AnswerReceiver, body: bytes, now: float) -> int:
        sent.append(body)
        return run(self, receiver, body, now)

    monkeypatch.setattr(WorkerLink, "run", spied)
    async with Between() as between, tls_scene(an_app(), tmp_path) as one:
        divert(monkeypatch, between)
        serving = await one.worker()
        client, querying = await asker(one, RecordedLog())
        assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 0
        assert between.connections == 1
        assert sent
        wire = bytes(between.heard)
        assert len(wire) > 500
        secrets = [ARGUMENT.encode(), RESULT.encode(), serving.worker._session]
        tokens = [body[3:19] for body in sent]  # after the heads of the array and of the bytes
        assert not [secret for secret in secrets + tokens if secret in wire]


@in_a_loop
async def test_a_client_without_tls_gets_nothing_and_is_logged(tmp_path: Path) -> None:
    log = RecordedLog()
    async with tls_scene(an_app(), tmp_path) as one:
        client = await one.house.connect()
        handlers = list(one.app.handlers.values())
        worker = Worker(client, handlers, WorkerSettings(), "w", Surroundings.real(), log)
        running = asyncio.create_task(worker.run())
        await until(lambda: bool(worker.address))
        address = parse_worker_address(worker.address)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(encode_frame(REQUEST, 0, 0, Opcode.HELLO, encode_hello(Hello(bytes(16)))))
        said = await reader.read()
        assert said == b"" or said[0] == 0x15  # nothing, or an alert of TLS
        writer.close()
        await until(lambda: worker.statistics.tls_failures == 1)
        worker.stop()
        await running
        await client.close()
    ((_, event, fields),) = [line for line in log.lines if line[0] == "warning"]
    assert event == "a TLS handshake failed"
    assert fields["peer"].startswith(f"{HOST}:")
    assert fields["error"].code == "tls-failed"


@pytest.mark.parametrize("shown", ["of the node's authority", "for another host", "made anew"])
@in_a_loop
async def test_another_certificate_is_refused_before_a_byte_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """However good it is: only the announced one counts. The query goes through the node instead,
    and the log says why."""
    log = RecordedLog()
    async with tls_scene(an_app(), tmp_path) as one:
        if shown == "made anew":
            context = worker_identity(None, None).context
        else:
            host = HOST if shown == "of the node's authority" else "worker.example"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            one.house.authority.issue_cert(host).configure_cert(context)  # type: ignore[attr-defined]
        async with Between(context) as between:
            divert(monkeypatch, between)
            await one.worker()
            client, querying = await asker(one, log)
            assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
            assert querying.table.relayed == 1
            assert querying.statistics().links_refused == 1
            assert between.connections == 1
            assert between.heard == b""
    ((_, event, fields),) = [line for line in log.lines if line[0] == "warning"]
    assert event == "a connection to a worker was refused"
    assert fields["error"].code == "tls-failed"


@in_a_loop
async def test_a_gateway_with_tls_dials_no_worker_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = QueryListener.open

    async def plain(self: QueryListener, **_: bool) -> None:
        await opening(self, encrypted=False)

    monkeypatch.setattr(QueryListener, "open", plain)
    log = RecordedLog()
    async with Between() as between, tls_scene(an_app(), tmp_path) as one:
        divert(monkeypatch, between)
        await one.worker()
        client, querying = await asker(one, log)
        assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 1
        assert between.connections == 0
    assert [fields["error"].code for _, _, fields in log.lines] == ["tls-failed"]


@in_a_loop
async def test_a_listener_that_speaks_no_tls_after_all_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    log = RecordedLog()
    server = await asyncio.start_server(plain, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with tls_scene(an_app(), tmp_path) as one:
        announce(
            monkeypatch, lambda address: str(parse_worker_address(address)._replace(port=port))
        )
        await one.worker()
        client, querying = await asker(one, log)
        assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 1
    server.close()
    assert heard == [b"\x16"]  # a TLS handshake, and nothing else
    assert [fields["error"].code for _, _, fields in log.lines] == ["tls-failed"]


@in_a_loop
async def test_a_worker_may_bring_its_certificate_to_a_node_without_tls(tmp_path: Path) -> None:
    own = tmp_path / "worker.pem"
    trustme.CA().issue_cert("worker.example").private_key_and_cert_chain_pem.write_to_path(own)
    async with scene(an_app()) as one:
        serving = await one.worker(certificate=str(own))
        assert parse_worker_address(serving.worker.address).fingerprint
        client, querying = await asker(one, RecordedLog())
        assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 0


@in_a_loop
async def test_listening_beyond_loopback_without_tls_is_refused_unless_told() -> None:
    everywhere = "0.0.0.0"  # noqa: S104 - that is what it is about
    async with scene(an_app()) as one:
        async with one.house.connect() as client:
            handlers = list(one.app.handlers.values())
            settings = WorkerSettings(host=everywhere)
            worker = Worker(client, handlers, settings, "w", Surroundings.real(), RecordedLog())
            with pytest.raises(CannotStart, match="without TLS") as refused:
                await worker.run()
            assert "--public-without-tls" in str(refused.value.remedy)
        await one.worker(host=everywhere, public_without_tls=True)
        querying_client, querying = await asker(one, RecordedLog())
        assert await querying_client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 0


@in_a_loop
async def test_with_tls_a_worker_may_listen_everywhere_and_is_reached_directly(
    tmp_path: Path,
) -> None:
    async with tls_scene(an_app(), tmp_path) as one:
        await one.worker(host="0.0.0.0")  # noqa: S104 - that is what it is about
        client, querying = await asker(one, RecordedLog())
        assert await client.query("price", ARGUMENT, namespace="desk") == RESULT
        assert querying.table.relayed == 0


@in_a_loop
async def test_a_node_whose_certificate_names_another_host_is_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = tmp_path / "node.pem"
    authority.issue_cert("node.example").private_key_and_cert_chain_pem.write_to_path(own)
    tls = server_context(Tls(certificate=str(own), key=str(own)))
    async with RunningNode(1, tls=tls) as node:
        url = f"maitreds://{HOST}:{node.port}?ca={tmp_path}/ca.pem"
        found = await refusal(url)
        assert isinstance(found, Unavailable)
        assert "certificate is not accepted" in found.sentence
        assert node.connections() == [0]
