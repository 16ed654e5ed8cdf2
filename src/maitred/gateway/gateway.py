"""A gateway: a client of a node that runs queries and adds tasks for the callers of its listeners.

Only listeners depend on a protocol. A `GatewayListener` accepts connections, reads the callers'
requests, and uses the gateway; it knows nothing of shards and workers, and the gateway nothing of
HTTP.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec.structs import replace

from maitred.client.enqueue_batches import EnqueueBatches
from maitred.client.pending_client import PendingClient
from maitred.client.queues import QueueView
from maitred.client.signatures import SignatureLookup
from maitred.errors import NO, DeadlineExceeded, MaitredError, Unavailable
from maitred.gateway.hooks import load_hook
from maitred.gateway.introspection import Introspection
from maitred.protocol.access import Introspect, Introspected
from maitred.protocol.tasks import Await, Describe, Outcome, PartitionDescription, Revoke, Revoked
from maitred.routing.names import TASKS, QueueId
from maitred.security.guard import Guard

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from maitred.client.client import AsyncClient
    from maitred.client.connection_attempt import MemberTerms
    from maitred.client.enqueue_batches import Conditions, EnqueuedTask
    from maitred.gateway.query_interface import QueryRunner
    from maitred.logs import Logger
    from maitred.security.audit_log import AuditLog
    from maitred.security.reload import Reloadable
    from maitred.settings import Node, Querying, QuerySettings
    from maitred.surroundings import Surroundings

QUEUES_MAX: Final = 10_000
"""How many pairs of queue and user the gateway remembers for adding tasks; it evicts the oldest."""

RETRY_SECONDS: Final = 1.0
"""The pause between two attempts to find a node; each attempt has a backoff of its own."""

TAKEOVER_LEASES: Final = 2
"""How long requests wait for the partitions of a node that does not answer, in leases of the
cluster, while other nodes are connected: these declare it dead after one lease and the votes."""

COME_BACK_SECONDS: Final = 1.0
"""The longest pause before the gateway connects again to a node that it lost."""

TOGETHER: Final = 64
"""Queries for one worker that a gateway process writes together: a thousand callers keep it busy
while the worker works."""

PEEK_SECONDS: Final = 0.1
"""How long to wait for a task's outcome if the caller does not want to wait."""


def shared_querying(settings: Querying) -> Querying:
    """Return the settings for queries of a gateway process, which many callers share: it always
    asks the node for a slot, because the partition knows whose turn it is."""
    return replace(settings, together=TOGETHER, warm=False)


class GatewayListener(Protocol):
    """A listener, today that of the HTTP API; it is started with the gateway that it uses."""

    async def start(self, gateway: Gateway) -> str:
        """Listen, and return the address for people; raise `CannotStart` if that fails."""

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and finish those in progress; return False if some were cut off."""

    def close(self) -> None:
        """Close all connections at once."""


class Gateway:
    """The connection to a node that all listeners of a process use."""

    def __init__(
        self,
        url: str,
        settings: Node,
        surroundings: Surroundings,
        log: Logger,
        *,
        name: str = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
        reloadable: Iterable[Reloadable] = (),
        audit: AuditLog | None = None,
        asking: Callable[[AsyncClient], QueryRunner] | None = None,
        members: MemberTerms | None = None,
    ) -> None:
        """`members` are the terms of connections to other nodes of the cluster; by default, they
        are those of the address."""
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.surroundings = surroundings
        self.log = log
        self.name = name
        self.guard = Guard(
            settings, surroundings.wall_clock, log, reloadable=reloadable, audit=audit
        )
        self.guard.authenticator.accept_tokens(
            Introspection(self._introspect, surroundings.wall_clock)
        )
        self.hook = load_hook(settings.gateway.hook)
        self.client: AsyncClient | None = None
        self.querying: QueryRunner | None = None
        """Runs queries; None until a node was found."""
        self.connected = asyncio.Event()
        """Set when a node was found: from then on requests go to it."""
        self.reaches_shards = asyncio.Event()
        """Set when the gateway reached every shard of a node, and with them the offers of workers:
        only then it is announced."""
        self._url = url
        self._tls = tls
        self._members = members
        self._asking = asking or self._ask
        self._addings: OrderedDict[tuple[str, str, str], EnqueueBatches] = OrderedDict()
        self._signatures: SignatureLookup | None = None
        self._listeners: list[GatewayListener] = []
        self._connecting: asyncio.Task[None] | None = None
        self._problem: MaitredError | None = None

    # Begin and end

    def connect(self) -> None:
        """Start connecting to the node, without a time limit; sets `connected` and then
        `reaches_shards`."""
        self._connecting = self.loop.create_task(self._connect())

    async def _connect(self) -> None:
        told = False
        while True:
            try:
                self.client = await PendingClient(
                    self._url,
                    tls=self._tls,
                    surroundings=self.surroundings,
                    members=self._members,
                    backoff_longest_seconds=COME_BACK_SECONDS,
                    away_seconds=self.settings.gateway.away_seconds,
                    takeover_seconds=TAKEOVER_LEASES * self.settings.cluster.lease_seconds,
                )
                break
            except MaitredError as problem:
                if problem.retry is NO:
                    raise
                self._problem = problem
                if not told:
                    told = True
                    self.log.warning("no node yet; trying until there is one", error=problem)
            await asyncio.sleep(RETRY_SECONDS)
        self.querying = self._asking(self.client)
        self.connected.set()
        if told:
            self.log.info("node found", node=str(self.client.address))
        await self.client.covered(one_node=True)
        self.reaches_shards.set()

    def _ask(self, client: AsyncClient) -> QueryRunner:
        from maitred.client.query_gateway import QueryGateway

        queues = [queue.queries for queue in self.settings.queues.values()]
        limited = any(one.concurrent or one.rate_per_second for one in queues)
        return QueryGateway(
            client,
            shared_querying(self.settings.gateway.querying),
            self.surroundings,
            self.log,
            name=self.name,
            hook=self.hook,
            limits=self.guard.users.query_limits if self.guard.required or limited else None,
            queue_limits=self._queue_limits,
        )

    def _queue_limits(self, namespace: str, queue: str) -> QuerySettings | None:
        """Return the query settings of the queue; None if there are none."""
        queues = self.settings.queues
        for name in (f"{namespace}/{queue}", f"{namespace}/*", "*"):
            if name in queues:
                return queues[name].queries
        return None

    async def failed(self) -> None:
        """Wait for ever, or raise why the gateway can never connect: the node refuses its login."""
        if self._connecting is not None:
            await asyncio.shield(self._connecting)
        await self.loop.create_future()

    async def open(self, listener: GatewayListener) -> str:
        """Start a listener, and return its address."""
        address = await listener.start(self)
        self._listeners.append(listener)
        return address

    async def drain(self, seconds: float) -> bool:
        """Drain the listeners, then close; return False if requests were cut off."""
        done = await asyncio.gather(*(listener.drain(seconds) for listener in self._listeners))
        await self.close()
        return all(done)

    async def close(self) -> None:
        """Cut off the requests in progress, and disconnect from the node."""
        self.guard.authenticator.close()
        for listener in self._listeners:
            listener.close()
        if self._connecting is not None:
            self._connecting.cancel()
        if self.querying is not None:
            await self.querying.close()
        if self.client is not None:
            await self.client.close()

    # What listeners use

    @property
    def is_ready(self) -> bool:
        """Whether the gateway has a connection to every shard of some node."""
        return self.client is not None and any(node.covered for node in self.client.nodes())

    def ask(self) -> QueryRunner:
        """Return the object that runs queries; raise `Unavailable` while there is no node."""
        if self.querying is None:
            raise self._nobody()
        return self.querying

    def requester(self) -> AsyncClient:
        if self.client is None:
            raise self._nobody()
        return self.client

    def _nobody(self) -> MaitredError:
        why = f": {self._problem.sentence.rstrip('.')}" if self._problem is not None else ""
        return Unavailable(f"The gateway has found no node yet{why}.", remedy="Try again later.")

    async def _introspect(self, text: str) -> Introspected:
        return cast("Introspected", await self.requester().request(Introspect(0, 0, text)))

    async def add(
        self,
        namespace: str,
        queue: str,
        conditions: Conditions,
        payload: bytes,
        user: str = "",
        *,
        require_worker: bool = False,
        trace: bytes = b"",
    ) -> EnqueuedTask:
        """Add a task for the user, with its trace context, if a handler accepts it; return it once
        it is durable."""
        adding = self._adding(namespace, queue, user)
        await adding.check([payload], require_worker=require_worker)
        return await adding.add(conditions, payload, trace)

    def _adding(self, namespace: str, queue: str, user: str) -> EnqueueBatches:
        key = (namespace, queue, user)
        adding = self._addings.get(key)
        if adding is None:
            client = self.requester()
            view = QueueView(QueueId(namespace, queue, TASKS), "weighted", self.surroundings.random)
            if self._signatures is None:
                self._signatures = SignatureLookup(client)
            adding = self._addings[key] = EnqueueBatches(client, view, self._signatures, user)
            if len(self._addings) > QUEUES_MAX:
                self._addings.popitem(last=False)
        return adding

    async def outcome(
        self, namespace: str, queue: str, partition: int, sequence: int, seconds: float
    ) -> Outcome | None:
        """Return the outcome of a task; None if it is not over within this many seconds."""
        message = Await(namespace, queue, TASKS, partition, 0, sequence)
        try:
            answer = await self.requester().request(message, max(seconds, PEEK_SECONDS))
        except DeadlineExceeded:
            if self.is_ready:
                return None
            raise Unavailable("The node cannot be reached.", remedy="Try again later.") from None
        return cast("Outcome", answer)

    async def revoke(self, namespace: str, queue: str, partition: int, sequence: int) -> str:
        """Cancel a task; return the state that this led to."""
        message = Revoke(namespace, queue, TASKS, partition, 0, sequence)
        return cast("Revoked", await self.requester().request(message)).state

    async def describe(
        self, namespace: str, queue: str
    ) -> list[PartitionDescription | MaitredError]:
        """Describe every partition of a queue, or why one cannot be reached; raise the error of the
        root."""
        root = await self._describe(namespace, queue, 0)
        others: list[Any] = await asyncio.gather(
            *(self._describe(namespace, queue, one) for one in range(1, root.counts.read)),
            return_exceptions=True,
        )
        for one in others:
            if isinstance(one, BaseException) and not isinstance(one, MaitredError):
                raise one
        return [root, *others]

    async def _describe(self, namespace: str, queue: str, partition: int) -> PartitionDescription:
        message = Describe(namespace, queue, TASKS, partition, 0)
        return cast("PartitionDescription", await self.requester().request(message))
