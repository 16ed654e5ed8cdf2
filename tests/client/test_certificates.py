"""Nodes that want certificates from their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

import maitred
from maitred.errors import Unavailable
from maitred.security.tls import server_context
from maitred.settings import Tls
from tests.client.nodes import HOST, QUICK, RunningNode, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.conftest import Run


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory: ca.pem, node.pem, and certificates and keys of a client and of a stranger."""
    directory = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    node = authority.issue_cert("localhost", HOST)
    node.private_key_and_cert_chain_pem.write_to_path(directory / "node.pem")
    for name, issuer in (("client", authority), ("stranger", trustme.CA())):
        made = issuer.issue_cert(f"{name}@example.org")
        made.cert_chain_pems[0].write_to_path(directory / f"{name}.pem")
        made.private_key_pem.write_to_path(directory / f"{name}.key")
    return directory


def node_of(papers: Path, shards: int) -> RunningNode:
    """A node that asks its clients for certificates."""
    own = str(papers / "node.pem")
    files = Tls(certificate=own, key=own, client_authorities=str(papers / "ca.pem"))
    return RunningNode(shards, tls=server_context(files))


def test_a_client_with_a_certificate_is_let_in(run: Run, papers: Path) -> None:
    async def main() -> None:
        async with node_of(papers, shards=2) as node:
            url = (
                f"maitreds://{HOST}:{node.port}"
                f"?ca={papers}/ca.pem&cert={papers}/client.pem&key={papers}/client.key"
            )
            async with maitred.connect(url, **QUICK) as client:
                await client.covered()
                assert node.connections() == [1, 1]
                for partition in range(8):
                    answer = await client.echo("shop", "q", b"x", partition=partition)
                    assert answer.payload == b"x"

    run(main())


@pytest.mark.parametrize("shown", ["none", "a stranger's"])
def test_a_client_without_one_is_refused(run: Run, papers: Path, shown: str) -> None:
    own = "" if shown == "none" else f"&cert={papers}/stranger.pem&key={papers}/stranger.key"

    async def main() -> None:
        async with node_of(papers, shards=1) as node:
            url = f"maitreds://{HOST}:{node.port}?ca={papers}/ca.pem{own}"
            found = await refusal(url)
            assert isinstance(found, Unavailable)
            assert "certificate" in f"{found.sentence} {found.remedy}"
            assert node.connections() == [0]

    run(main())
