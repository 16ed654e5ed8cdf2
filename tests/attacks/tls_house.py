"""A node with TLS in the test's own loop, and somebody between its gateways and workers."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trustme

from maitred.protocol.worker_address import parse_worker_address
from maitred.security.tls import server_context
from maitred.settings import Tls
from maitred.worker.query_listener import QueryListener
from tests.client.nodes import HOST
from tests.queries_real.house import PATIENCE_SECONDS, House, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

    from maitred import App


class TlsHouse(House):
    """A node that speaks TLS, with a certificate of an authority of its own."""

    def __init__(self, directory: Path, shards: int = 1, **settings: Any) -> None:  # noqa: ANN401
        self.authority = trustme.CA()
        self.authority_file = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(self.authority_file)
        own = directory / "node.pem"
        self.authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(own)
        files = Tls(certificate=str(own), key=str(own))
        super().__init__(shards, tls=server_context(files), **settings)

    @property
    def url(self) -> str:
        return f"maitreds://{HOST}:{self.port}?ca={self.authority_file}"


@asynccontextmanager
async def tls_scene(app: App, directory: Path, **settings: Any) -> AsyncIterator[Scene]:  # noqa: ANN401
    async with TlsHouse(directory, **settings) as house:
        app.node = house.url
        made = Scene(house, app)
        try:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):
                yield made
        finally:
            await made.close()


class Between:
    """Listens where gateways believe a worker to be, and keeps all that they say.

    It passes everything on as it is, or, with a TLS context, pretends to be the worker.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heard = bytearray()
        """From both sides; with TLS of its own, what it could decrypt."""
        self.connections = 0
        self.port = 0
        self.target = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Between:
        self._server = await asyncio.start_server(self._meet, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._tls is not None:
            await self._pass(reader, None)
        else:
            other, onward = await asyncio.open_connection(HOST, self.target)
            for one, two in ((reader, onward), (other, writer)):
                task = asyncio.create_task(self._pass(one, two))
                self._tasks.add(task)

    async def _pass(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter | None) -> None:
        try:
            while data := await reader.read(65_536):
                self.heard += data
                if to is not None:
                    to.write(data)
        except (ConnectionError, ssl.SSLError):
            return
        finally:
            if to is not None:
                to.close()


def divert(monkeypatch: pytest.MonkeyPatch, between: Between) -> None:
    """From now on gateways that dial a worker come to the man in the middle. What the worker
    announces is the same in all but the port: he cannot change what goes by the node."""

    def to_the_middle(address: str) -> str:
        own = parse_worker_address(address)
        between.target = own.port
        return str(own._replace(port=between.port))

    announce(monkeypatch, to_the_middle)


def announce(monkeypatch: pytest.MonkeyPatch, changed: Callable[[str], str]) -> None:
    """Workers that start from now on announce what is made of their address."""
    opening = QueryListener.open

    async def opened(self: QueryListener, **options: bool) -> None:
        await opening(self, **options)
        self.address = changed(self.address)

    monkeypatch.setattr(QueryListener, "open", opened)
