"""A whole node in the test's own loop: real shards, on real sockets."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID, uuid4

import pytest

import maitred
from maitred.errors import MaitredError
from maitred.logs import silent
from maitred.node.shard import Shard
from maitred.node.shard_place import ShardPlace
from maitred.node.vitals import Vitals
from maitred.protocol.description import VERSIONS
from maitred.settings import Node
from maitred.surroundings import Surroundings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from maitred.client.client import AsyncClient

HOST = "127.0.0.1"
QUICK: dict[str, Any] = {
    "backoff_first_seconds": 0.01,
    "backoff_longest_seconds": 0.1,
    "connect_seconds": 20.0,
    "heartbeat_seconds": 30.0,
    "away_seconds": 60.0,
}
"""Settings with which nothing takes long, and a node that is started again is waited for."""

TRIED_SECONDS = 0.3
"""For a client that is to find out why it does not get in, and then gives up."""


class RunningNode:
    """Use it in `async with`. Ports stay reserved while it is stopped and started again."""

    def __init__(
        self,
        shards: int = 2,
        *,
        versions: tuple[int, ...] = VERSIONS,
        tls: ssl.SSLContext | None = None,
        advertised: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None,
        **settings: Any,  # noqa: ANN401 - whatever a node can be set to
    ) -> None:
        self.count = shards
        self.identity: UUID = uuid4()
        self.settings = Node(**settings)
        self.shards: list[Shard] = []
        self.versions = versions
        self.tls = tls
        self.advertised = advertised
        """What the node says of its shards' ports, if it is not the truth."""
        self._reserved: list[socket.socket] = []
        self.port = self._reserve()
        self.own_ports = tuple(self._reserve() for _ in range(8))
        self._directory = tempfile.TemporaryDirectory(prefix="maitred-")

    @property
    def url(self) -> str:
        return f"maitred://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for held in self._reserved:
            held.close()
        self._directory.cleanup()

    async def start(self, *numbers: int) -> None:
        """All shards, or these."""
        if not numbers:
            self.shards = []
        for number in numbers or range(self.count):
            shard = Shard(
                self._place(number),
                self.settings,
                Surroundings.real(),
                silent(),
                vitals=Vitals.none(),
                tls=self.tls,
                versions=self.versions,
            )
            if self.advertised is not None:
                self._advertise(shard, self.advertised(self.own_ports[: self.count]))
            self.shards[number : number + 1] = [shard]
            self.prepare(shard)
            await shard.start()

    def prepare(self, shard: Shard) -> None:
        """What a shard needs before it listens; for those who inherit."""

    async def stop(self, *numbers: int) -> None:
        """As a kill would: connections are reset, ports are free."""
        for number in numbers or range(len(self.shards)):
            shard = self.shards[number]
            shard.close()
            await asyncio.gather(*(server.wait_closed() for server in shard._servers))

    def connections(self) -> list[int]:
        """How many client connections each shard has."""
        return [shard.client_connections for shard in self.shards]

    def connect(self, **settings: Any) -> maitred.connect:  # noqa: ANN401 - whatever connect takes
        return maitred.connect(self.url, **{**QUICK, **settings})

    def _place(self, number: int) -> ShardPlace:
        paths = tuple(f"{self._directory.name}/{shard}" for shard in range(self.count))
        return ShardPlace(
            node=self.identity,
            number=number,
            shards=self.count,
            host=HOST,
            port=self.port,
            own_ports=self.own_ports[: self.count],
            peer_paths=paths if self.count > 1 else (),
        )

    def _advertise(self, shard: Shard, ports: tuple[int, ...]) -> None:
        from msgspec.structs import replace

        from maitred.protocol import cql

        shard.description = replace(shard.description, shard_ports=ports)
        shard.supported_body = cql.encode_supported(shard.description.supported())

    def _reserve(self) -> int:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((HOST, 0))
        self._reserved.append(held)
        return int(held.getsockname()[1])


async def refusal(url: str, **settings: Any) -> MaitredError:  # noqa: ANN401 - of a client
    """Return why a client does not get in: it tries for a while, and tells what it heard.

    On a machine that stands still it hears nothing, and then it tries for longer.
    """
    seconds = TRIED_SECONDS
    while True:
        with pytest.raises(MaitredError) as caught:
            await maitred.connect(url, **{**QUICK, **settings, "connect_seconds": seconds})
        if f"within {seconds:g} s." not in caught.value.sentence:
            return caught.value
        seconds *= 2
        assert seconds < 60, caught.value


async def until(client: AsyncClient, condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for news of the client's connections until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await client._news()


def covered(client: AsyncClient) -> tuple[int, ...]:
    """The shards of the only node to which there is a connection."""
    (node,) = client.nodes()
    return node.covered
