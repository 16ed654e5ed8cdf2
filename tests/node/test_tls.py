"""TLS on every port of a node; what those get who do not speak it, or have no right to."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import trustme

from maitred.protocol.frames import Opcode
from maitred.security.tls import client_context, server_context
from maitred.settings import Limits, Tls
from tests.node.in_process import LOOPS, in_a_loop, node, until
from tests.node.raw import (
    PATIENCE_SECONDS,
    RawClient,
    echo,
    echoed_in,
    error_in,
    home_in,
    options,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Papers:
    """Certificates, as files."""

    authority: str
    certificate: str
    key: str
    client: str
    """A client's certificate and key, signed by the authority."""
    strangers: str
    """One signed by somebody else."""

    def node(self, *, clients: bool = False) -> ssl.SSLContext:
        authorities = self.authority if clients else None
        return server_context(
            Tls(certificate=self.certificate, key=self.key, client_authorities=authorities)
        )


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    directory = tmp_path_factory.mktemp("papers")
    authority, other = trustme.CA(), trustme.CA()
    made = authority.issue_cert("localhost")
    paths = {name: str(directory / name) for name in ("ca", "cert", "key", "client", "strangers")}
    authority.cert_pem.write_to_path(paths["ca"])
    made.cert_chain_pems[0].write_to_path(paths["cert"])
    made.private_key_pem.write_to_path(paths["key"])
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(paths["client"])
    other.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(paths["strangers"])
    return Papers(*paths.values())


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_requests_and_forwarding(loop: str, papers: Papers, tmp_path: Path) -> None:  # noqa: ARG001
    trusting = client_context(papers.authority)
    async with node(tmp_path, shards=2, tls=papers.node(), client_tls=trusting) as running:
        client = await running.ready(0)
        payload = bytes(range(256)) * 4096
        client.write(
            b"".join(
                echo(running.queue_of(stream % 2), payload, stream=stream, hold=stream % 3)
                for stream in range(8)
            )
        )
        for stream, answer in (await client.frames(8)).items():
            assert echoed_in(answer).payload == payload
            assert echoed_in(answer).shard == stream % 2
            assert (home_in(answer) is not None) == bool(stream % 2)
        # The shared port speaks it as well.
        shared = await RawClient.open(running.port, tls=trusting)
        assert (await shared.ask(options())).opcode == Opcode.SUPPORTED
        shared.reset()


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_a_client_that_speaks_plainly(loop: str, papers: Papers, tmp_path: Path) -> None:  # noqa: ARG001
    """It gets an alert or nothing, and the end; never a hang, and nothing in the loop's log."""
    trusting = client_context(papers.authority)
    async with node(tmp_path, tls=papers.node(), client_tls=trusting) as running:
        other = await running.ready()
        for said in (options(), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", bytes(99)):
            plain = await RawClient.open(running.own_ports[0])
            plain.write(said)
            await plain.cut_off()
            plain.close()
            await other.lives()
        assert running.shard.client_connections == 1


@in_a_loop
async def test_a_tls_handshake_that_never_ends(papers: Papers, tmp_path: Path) -> None:
    limits = Limits(handshake_seconds=0.1)
    async with node(tmp_path, tls=papers.node(), limits=limits) as running:
        for said in (b"", b"\x16\x03\x01"):
            silent = await RawClient.open(running.own_ports[0])
            silent.write(said)
            await silent.cut_off()
            silent.close()


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_last_words_over_tls(loop: str, papers: Papers, tmp_path: Path) -> None:  # noqa: ARG001
    trusting = client_context(papers.authority)
    async with node(tmp_path, tls=papers.node(), client_tls=trusting) as running:
        client = await running.ready()
        client.write(b"\x05 this is no frame of ours")
        assert (await client.last_words()).code == "unsupported-version"
        client.close()
        await until(lambda: running.shard.client_connections == 0)


@in_a_loop
async def test_a_client_that_does_not_close_over_tls(papers: Papers, tmp_path: Path) -> None:
    """Its end of the shutdown never comes; it is cut off like everybody."""
    trusting = client_context(papers.authority)
    limits = Limits(frame_seconds=0.2, write_buffer_bytes=16 * 1024)
    async with node(tmp_path, tls=papers.node(), client_tls=trusting, limits=limits) as running:
        client = await running.ready(receive_buffer_bytes=4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.write(b"".join(echo("q", bytes(64 * 1024), stream=n) for n in range(200)))
        await until(lambda: running.shard.client_connections == 0)


@pytest.mark.parametrize("loop", LOOPS)
@in_a_loop
async def test_clients_show_certificates_if_asked(
    loop: str,  # noqa: ARG001
    papers: Papers,
    tmp_path: Path,
) -> None:
    async with node(tmp_path, tls=papers.node(clients=True)) as running:
        known = client_context(papers.authority, papers.client)
        client = await RawClient.open(running.own_ports[0], tls=known)
        await client.handshake()
        assert echoed_in(await client.ask(echo("q"))).payload == b"hello"
        for refused in (
            client_context(papers.authority),
            client_context(papers.authority, papers.strangers),
        ):
            # With TLS 1.3 the client learns of it when it reads, not when it connects.
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await _ask_once(running.own_ports[0], refused)
        await client.lives()
        client.reset()


async def _ask_once(port: int, context: ssl.SSLContext) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        client = await RawClient.open(port, tls=context)
        try:
            await client.ask(options())
        finally:
            client.reset()


@in_a_loop
async def test_a_node_is_not_taken_for_another(papers: Papers, tmp_path: Path) -> None:
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(tmp_path / "stranger")
    async with node(tmp_path, tls=papers.node()) as running:
        with pytest.raises(ssl.SSLCertVerificationError):
            await RawClient.open(
                running.own_ports[0], tls=client_context(str(tmp_path / "stranger"))
            )


@in_a_loop
async def test_tls_to_a_plain_port_says_why(papers: Papers, tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        hello = ssl.MemoryBIO()
        shaking = client_context(papers.authority).wrap_bio(
            ssl.MemoryBIO(), hello, server_hostname="localhost"
        )
        with pytest.raises(ssl.SSLWantReadError):
            shaking.do_handshake()
        client = await running.open()
        client.write(hello.read())
        problem = error_in(await client.frame())
        assert problem.code == "unsupported-version"
        assert "TLS" in problem.sentence
        assert problem.remedy
        await client.ended()
