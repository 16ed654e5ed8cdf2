"""Nodes for tests of queries, and what gateways, workers and people say to them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import maitred
from maitred.matching.records import PartitionKey
from maitred.matching.reservation_proofs import ReservationProofs
from maitred.protocol.handler_shapes import HandlerShape, encode_shape
from maitred.protocol.queries import (
    Allocate,
    Attend,
    Deliver,
    Fetch,
    Queries,
    QueryFilter,
    QueryRow,
    Relay,
    Report,
    Running,
    Subscribe,
    Suspect,
    Watch,
    Workers,
)
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import Add, Counts, Describe, Offer, Resize, Resized
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.node.in_process import NodeUnderTest, node, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.long_poll import LongPoll

GATEWAY = b"gateway........."
WORKER_SECRET = b"secret of worker"
WORKER = session_of_secret(WORKER_SECRET)
SECONDS = 20.0
"""For what is going to come."""
ROW_QUEUE = "q"
"""The queue of the queries that `row` makes up."""
TURNS = 50
"""Of the loop: more than a request takes to its shard, by way of another one."""


class Stage:
    """A node, and whoever talks to it."""

    def __init__(
        self, running: NodeUnderTest, clients: AsyncExitStack, queue: str, signing_key: bytes
    ) -> None:
        self.node = running
        self.signing_key = signing_key
        self.queue = queue
        self._clients = clients

    async def loaded(self) -> None:
        """Until a partition is."""
        shards: list[Any] = [*self.node.shards]
        await until(lambda: any(shard._partitions.owned for shard in shards))

    async def client(self, user: str = "", secret: str = "") -> AsyncClient:
        who = f"{user}:{secret}@" if user else ""
        address = f"maitred://{who}127.0.0.1:{self.node.port}"
        # Most of what is held is not waited for in the end.
        connecting = maitred.connect(address, close_seconds=0.1)
        return await self._clients.enter_async_context(connecting)

    def _at(self, partition: int = 0, queue: str | None = None) -> tuple[str, str, int, int, int]:
        return "n", queue or self.queue, 1, partition, 0

    def allocate(self, slots: int = 1, partition: int = 0, **more: Any) -> Allocate:  # noqa: ANN401
        queue = more.pop("queue", None)
        return Allocate(*self._at(partition, queue), 0, GATEWAY, slots, **more)

    def offer(
        self, slots: int = 1, partition: int = 0, session: bytes = WORKER, worker: str = "ant"
    ) -> Offer:
        return Offer(*self._at(partition), 0, session, worker, slots, address="127.0.0.1:4000")

    def attend(self, state: Any = "online", partition: int = 0) -> Attend:  # noqa: ANN401
        message = Attend(*self._at(partition), WORKER_SECRET, "ant", "127.0.0.1:4000", 8, 2, state)
        message.limit, message.limit_reason, message.blocked = 5, "waiting", 3
        return message

    async def serve_plainly(self, client: AsyncClient, namespace: str) -> None:
        """Be a worker, until its order, of the queue of `row`, whose handler hides nothing."""
        at = (namespace, ROW_QUEUE, 1, 0, 0)
        message = Attend(*at, WORKER_SECRET, "ant", "127.0.0.1:4000", 8, 2)
        message.signature = encode_shape(HandlerShape("ask", [("text", "str", True)]))
        await client.request(message, SECONDS)  # the first is answered at once

    def workers(self, action: Any = "list", worker: str = "") -> Workers:  # noqa: ANN401
        return Workers(*self._at(), action, worker)

    def suspect(self, partition: int = 0) -> Suspect:
        return Suspect(*self._at(partition), WORKER)

    def subscribe(self, version: int = 0, *, user: str = "", partition: int = 0) -> Subscribe:
        return Subscribe(*self._at(partition), GATEWAY, version, user)

    def relay(self, token: bytes, ordinal: int = 0, query: bytes = b"") -> Relay:
        return Relay(*self._at(), token, ordinal, query)

    def fetch(self, token: bytes, *, running: bool = False) -> Fetch:
        return Fetch(*self._at(), token, running)

    def deliver(self, token: bytes, ordinal: int, body: bytes, *, more: bool = True) -> Deliver:
        return Deliver(*self._at(), token, ordinal, 0x55, body, more)

    def describe(self, partition: int = 0) -> Describe:
        return Describe(*self._at(partition))

    def add(self) -> Add:
        return Add(*self._at(), 0, [b"task"])

    def proven(
        self,
        token: bytes,
        user: str = "",
        session: bytes = WORKER,
        queue: str | None = None,
        seconds: float = 60.0,
    ) -> bytes:
        """A token and its proof, as a partition of this store has made it at some time."""
        proofs = ReservationProofs(self.signing_key, PartitionKey(*self._at(0, queue)[:4]))
        return token + proofs.issue(session, user, token, time.time() + seconds)

    def running(
        self,
        user: str = "",
        has: Sequence[bytes] = (),
        ended: Sequence[bytes] = (),
        *,
        session: bytes = WORKER,
        queue: str | None = None,
    ) -> Running:
        """What a worker says of a user's counted reservations, each with its proof."""
        by_user = [{user: [*some]} if some else {} for some in (has, ended)]
        return Running(*self._at(0, queue), session, *by_user)

    async def resize(self, client: AsyncClient, partitions: int) -> Counts:
        answer = await client.request(Resize(*self._at(), partitions, partitions), SECONDS)
        assert isinstance(answer, Resized)
        return answer.counts


@asynccontextmanager
async def stage(directory: Path, *, shards: int = 1, **settings: Any) -> AsyncIterator[Stage]:  # noqa: ANN401
    """A node whose shards keep tasks, and a queue whose root is at the last of them."""
    disk = SimulatedDisk(Random(1))
    async with node(directory, shards=shards, **settings) as running, AsyncExitStack() as clients:
        for shard in running.shards:
            shard.keep_tasks(SimulatedStore(disk))
        signing_key = await SimulatedStore(disk).signing_key()
        yield Stage(running, clients, running.queue_of(shards - 1), signing_key)


def watch(session: bytes = GATEWAY) -> Watch:
    return Watch(0, 0, session, "a gateway")


def report(number: int, rows: list[QueryRow], session: bytes = GATEWAY) -> Report:
    return Report(0, 0, session, number, rows)


def queries(action: Any = "list", **more: Any) -> Queries:  # noqa: ANN401
    return Queries(0, 0, action, QueryFilter(**more))


def row(sequence: int, namespace: str = "n", received_at: float = 1.0) -> QueryRow:
    return QueryRow(
        gateway=GATEWAY.hex()[:8],
        sequence=sequence,
        user="alice",
        connection="1.2.3.4:5",
        namespace=namespace,
        queue=ROW_QUEUE,
        query="select",
        priority=2,
        status="running",
        received_at=received_at,
    )


async def waits(held: LongPoll) -> None:
    """Nobody has answered it, and whatever was sent before it has been served."""
    await asyncio.sleep(0.05)
    # A machine that was busy with others all that time gave us nothing of it. But all of us are in
    # this loop, and what was sent arrives within a few turns of it.
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not held.is_over
