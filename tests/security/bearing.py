"""A node with users and a gateway, for those who show tokens: real listeners, in one loop.

    async with place(tmp_path, users=USERS) as made:
        token = await made.token("bob")
        client = await made.native(token)
        answer = await made.http(f"Authorization: Bearer {token}")

The wall clock is the test's: `made.clock.now`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, cast

import maitred
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.protocol.access import CreateToken, RevokeToken, TokenCreated
from maitred.protocol.messages import Echo
from maitred.security.users import GATEWAY
from maitred.settings import GatewaySettings, Limits, User
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.surroundings import Surroundings
from tests.gateway.fakes import Answer, Caller, FakeAsking, post
from tests.node.in_process import GATEWAY_SECRET, NodeUnderTest
from tests.node.in_process import node as node_in_process
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.node.shard import Shard

USERS = {
    "alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]}),
    "bob": User(secret=cheaply("builder"), permissions={"n": ["query", "produce"], "m": ["query"]}),
    "carol": User(secret=cheaply("sing"), permissions={"n": ["admin"]}),
}

OFTEN = Limits(frame_seconds=0.04)
"""Users, tokens and clocks are looked at every hundredth of a second."""


class Clock:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Place:
    """The node, its gateway, and whoever comes."""

    def __init__(
        self,
        node: NodeUnderTest,
        clock: Clock,
        stack: AsyncExitStack,
        scheme: str,
        disk: SimulatedDisk,
    ) -> None:
        self.node = node
        self.clock = clock
        self._stack = stack
        self._scheme = scheme
        self.asking = FakeAsking()
        self.gateway: Gateway | None = None
        self.http_port = 0
        self.disk = disk
        self.tls: ssl.SSLContext | None = None
        """With which clients connect, unless they bring their own."""

    def keep(self, shard: Shard) -> None:
        """Give the shard the store and the clock of this place."""
        shard._wall_clock = self.clock
        shard._surroundings = replace(shard._surroundings, wall_clock=self.clock)
        shard.keep_tasks(SimulatedStore(self.disk))

    # Native

    async def client(self, who: str = "", **settings: Any) -> AsyncClient:  # noqa: ANN401
        """`who` as in an address: `alice:wonder@`."""
        address = f"{self._scheme}://{who}localhost:{self.node.port}"
        given = {"close_seconds": 0.1, "connect_seconds": 10.0, "tls": self.tls, **settings}
        return await self._stack.enter_async_context(maitred.connect(address, **given))

    async def admin(self) -> AsyncClient:
        return await self.client("alice:wonder@")

    async def native(self, token: str, **settings: Any) -> AsyncClient:  # noqa: ANN401
        return await self.client(token=token, **settings)

    async def token(self, user: str, seconds: float = 3_600.0, **more: Any) -> str:  # noqa: ANN401
        made = await (await self.admin()).request(CreateToken(0, 0, user, seconds, **more))
        return cast("TokenCreated", made).text

    async def revoke(self, token: str) -> None:
        await (await self.admin()).request(RevokeToken(0, 0, token.split("_")[1]))

    async def lets_in(self, client: AsyncClient, namespace: str = "n") -> None:
        """Ask something that needs `query` there; raises why not."""
        await client.request(Echo(namespace, "q", 1, 0, 0, b"hello"))

    # HTTP

    async def http(
        self,
        *headers: str,
        namespace: str = "n",
        queue: str = "echo",
        caller: Caller | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Ask a query; `echo` gives its argument back."""
        own = caller or await self.dial(tls)
        own.send(post(f"/v1/{namespace}/queues/{queue}/query", b"[1]", *headers))
        try:
            return await own.answer()
        finally:
            if caller is None:
                own.close()

    async def dial(self, tls: ssl.SSLContext | None = None) -> Caller:
        name: Any = {"ssl": tls, "server_hostname": "localhost"} if tls is not None else {}
        return Caller(*await asyncio.open_connection("127.0.0.1", self.http_port, **name))


@asynccontextmanager
async def place(
    directory: Path,
    *,
    shards: int = 1,
    gateway: bool = True,
    tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    **settings: Any,  # noqa: ANN401 - of a node
) -> AsyncIterator[Place]:
    """A running node and its gateway, whose queries a fake answers."""
    settings = {
        "users": USERS,
        "limits": OFTEN,
        "gateway": GatewaySettings(port=0, idle_seconds=60.0),
        **settings,
    }
    async with AsyncExitStack() as stack:
        clock = Clock()
        disk = SimulatedDisk(Random(1))
        running = await stack.enter_async_context(
            node_in_process(directory, shards=shards, tls=tls, client_tls=client_tls, **settings)
        )
        scheme = "maitreds" if tls is not None else "maitred"
        made = Place(running, clock, stack, scheme, disk)
        made.tls = client_tls
        for shard in running.shards:
            made.keep(shard)
        if gateway:
            made.gateway = Gateway(
                f"{scheme}://{GATEWAY}:{GATEWAY_SECRET}@localhost:{running.port}",
                running.settings,
                replace(Surroundings.real(), wall_clock=clock),
                running.log,
                tls=None if client_tls is None else lambda: client_tls,
                asking=lambda _client: made.asking,
            )
            address = await made.gateway.open(HttpListener(port=0, tls=tls))
            made.http_port = int(address.rpartition(":")[2])
            stack.push_async_callback(made.gateway.close)
            made.gateway.connect()
            await made.gateway.connected.wait()
        yield made
