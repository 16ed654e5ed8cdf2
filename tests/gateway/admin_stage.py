"""A real node in this process, and a gateway with the HTTP API in front of it.

    async with admin_stage(tmp_path) as here:
        status, said = await here.call("GET", "/v1/me", user="reader")

Tasks are added, taken and finished by messages, as clients and workers send them.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from msgspec import msgpack

import maitred
from maitred.gateway.gateway import Gateway
from maitred.gateway.http.listener import HttpListener
from maitred.matching.records import Terms
from maitred.metrics.points import STEP_SECONDS
from maitred.metrics.series import BACK_STEPS
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.queries import Attend
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    End,
    Failure,
    Finish,
    Finished,
    Offer,
    Offered,
)
from maitred.security.audit_log import audit_log
from maitred.security.users import GATEWAY
from maitred.settings import Audit, GatewaySettings, Node, User
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from maitred.surroundings import Surroundings
from tests.gateway.fakes import Caller, _Log
from tests.node.in_process import GATEWAY_SECRET, node
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll
    from maitred.logs import Logger
    from maitred.protocol.tasks import Given
    from tests.node.in_process import NodeUnderTest

SECONDS = 20.0
HASHED = cheaply("s")
USERS = {
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
    "reader": User(secret=HASHED, permissions={"shop": ["read"]}),
    "auditor": User(secret=HASHED, permissions={"shop": ["read", "reveal"]}),
    "operator": User(secret=HASHED, permissions={"shop": ["operate"]}),
    "stranger": User(secret=HASHED, permissions={"other": ["admin"]}),
    "customer": User(secret=HASHED, permissions={"shop": ["query", "produce"]}),
}
SESSION_SECRET = b"secret of worker"
SESSION = session_of_secret(SESSION_SECRET)
SHAPE = HandlerShape("pay", [("order", "int", True), ("card", "str", False)], ["card"])
"""Of the handler that serves the queue: it hides the card."""


class AdminStage:
    """A node and its gateway, and whoever talks to them."""

    def __init__(
        self,
        running: NodeUnderTest,
        gateway: Gateway,
        port: int,
        clients: AsyncExitStack,
        boss: str,
    ) -> None:
        self.node = running
        self.gateway = gateway
        self.port = port
        self.clients = clients
        self._boss = boss
        self._attending: list[LongPoll] = []
        self._step = int(time.time()) // STEP_SECONDS + BACK_STEPS - 1
        """The step that is sampled next. It is ahead of the clock, so that what the shards sample
        by themselves within the next minute is left out."""

    async def client(self) -> AsyncClient:
        url = f"maitred://{self._boss}127.0.0.1:{self.node.port}"
        return await self.clients.enter_async_context(maitred.connect(url, close_seconds=0.1))

    # HTTP

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = "boss",
        headers: Sequence[str] = (),
    ) -> tuple[int, Any]:
        """The status and the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        caller = Caller(reader, writer)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        if self._boss and user:
            lines.append(f"Authorization: Basic {b64encode(f'{user}:s'.encode()).decode()}")
        data = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        caller.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        try:
            answer = await caller.answer()
        finally:
            caller.close()
        return answer.status, json.loads(answer.body)

    async def get(self, path: str, *, user: str = "boss", **params: Any) -> Any:  # noqa: ANN401
        """The answer to a GET that works."""
        query = "&".join(f"{name}={quote(str(one))}" for name, one in params.items())
        status, said = await self.call("GET", f"{path}?{query}" if query else path, user=user)
        assert status == 200, said
        return said

    async def post(
        self, path: str, body: object, *, user: str = "boss", method: str = "POST"
    ) -> Any:  # noqa: ANN401
        """The answer to a POST that works."""
        status, said = await self.call(method, path, body, user=user)
        assert status == 200, said
        return said

    async def sample(self) -> None:
        """Have all shards sample the next step."""
        for shard in self.node.shards:
            series: Any = shard._parts["series"]
            await series.sample(self._step)
        self._step += 1

    # What producers and workers do

    def at(self, queue: str, namespace: str = "shop") -> tuple[str, str, int, int, int]:
        return namespace, queue, 1, 0, 0

    async def add(
        self,
        client: AsyncClient,
        queue: str,
        arguments: Sequence[object],
        *,
        delay: float = 0.0,
        retries: int = 0,
        namespace: str = "shop",
    ) -> list[int]:
        """Add tasks, each with one of these arguments; return their numbers."""
        payloads = [msgpack.encode(one) for one in arguments]
        message = Add(*self.at(queue, namespace), 1, payloads, delay=delay)
        message.terms = Terms(retries=retries, retention=3600.0)
        added = await client.request(message, SECONDS)
        assert isinstance(added, Added)
        return list(range(added.first, added.first + len(payloads)))

    async def take(self, client: AsyncClient, queue: str, slots: int = 1) -> list[Given]:
        """Take tasks as a worker does."""
        message = Offer(*self.at(queue), 0, SESSION, "ant", slots, address="127.0.0.1:4000")
        offered = await client.request(message, SECONDS)
        assert isinstance(offered, Offered)
        return offered.tasks

    async def finish(
        self, client: AsyncClient, queue: str, task: Given, outcome: Failure | object
    ) -> None:
        how = FAILED if isinstance(outcome, Failure) else DONE
        end = End(task.sequence, task.attempt, task.proof, how, msgpack.encode(outcome))
        answer = await client.request(Finish(*self.at(queue), SESSION, [end]), SECONDS)
        assert isinstance(answer, Finished)
        assert not answer.refused

    async def attend(
        self,
        client: AsyncClient,
        queue: str,
        namespace: str = "shop",
        shape: HandlerShape = SHAPE,
    ) -> None:
        """Be a worker of the queue, from now on until its order."""
        message = Attend(*self.at(queue, namespace), SESSION_SECRET, "ant", "127.0.0.1:4000", 8, 2)
        message.signature = encode_shape(shape)
        await client.hold(message, SECONDS).answer()  # the first is answered at once
        self._attending.append(client.hold(message, SECONDS))

    async def serve_dead(
        self, client: AsyncClient, queue: str, arguments: Sequence[object], failure: Failure
    ) -> list[int]:
        """Make dead letters of tasks with these arguments."""
        numbers = await self.add(client, queue, arguments)
        left = len(numbers)
        while left:
            for task in await self.take(client, queue, left):
                await self.finish(client, queue, task, failure)
                left -= 1
        return numbers


@asynccontextmanager
async def admin_stage(
    directory: Path,
    *,
    shards: int = 2,
    users: dict[str, User] | None = None,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[AdminStage]:
    """A node with users, unless there are none, and its own gateway."""
    users = USERS if users is None else users
    audit = Audit(directory=str(directory / "audit"))
    disk = SimulatedDisk(Random(1))
    async with (
        node(directory, shards=shards, users=users, audit=audit, **settings) as running,
        AsyncExitStack() as clients,
    ):
        for shard in running.shards:
            shard.keep_tasks(SimulatedStore(disk))
        whole = Node(gateway=GatewaySettings(port=0), users=users, audit=audit)
        log = cast("Logger", _Log([]))
        login = f"{GATEWAY}:{GATEWAY_SECRET}@" if users else ""
        gateway = Gateway(
            f"maitred://{login}127.0.0.1:{running.port}",
            whole,
            Surroundings.real(),
            log,
            audit=audit_log(whole, "gateway", log, time.time),
        )
        address = await gateway.open(HttpListener(port=0))
        gateway.connect()
        await gateway.reaches_shards.wait()
        port = int(address.rpartition(":")[2])
        boss = "boss:s@" if users else ""
        try:
            yield AdminStage(running, gateway, port, clients, boss)
        finally:
            await gateway.close()
