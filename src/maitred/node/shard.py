"""One shard: an event loop, its listeners, its connections, and the partitions it owns.

A shard shares no memory with the other shards of its node. It forwards a request that belongs to
another shard (`request_placement.py`).

Time and the network come from the running loop, and everything else as arguments, so that the same
shard runs as a process of a machine and in the simulated world.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import json

from maitred import __version__
from maitred.errors import (
    CutOff,
    TlsFailed,
)
from maitred.node.announced import Announced
from maitred.node.bearers import Bearers, Jwts
from maitred.node.caretaker import Caretaker
from maitred.node.cluster_requests import ClusterRequests
from maitred.node.connection import NodeConnection
from maitred.node.damaged_requests import DamagedRequests
from maitred.node.deletion import Deletion
from maitred.node.inspection_requests import InspectionRequests
from maitred.node.operator_admission import operator_admissions
from maitred.node.partitions import Partitions
from maitred.node.purge_requests import PurgeRequests
from maitred.node.query_requests import QueryRequests
from maitred.node.query_tables import QueryTables
from maitred.node.queue_requests import QueueRequests
from maitred.node.queue_state_requests import QueueStateRequests
from maitred.node.refusal_log import RefusalLog
from maitred.node.relays import Relays
from maitred.node.request_placement import RequestPlacement
from maitred.node.request_table import RequestTable
from maitred.node.shard_gauges import ShardGauges
from maitred.node.shard_requests import ShardRequests
from maitred.node.shard_series import ShardSeries
from maitred.node.shared_offer_requests import SharedOfferRequests
from maitred.node.signature_requests import SignatureRequests
from maitred.node.standstill import StandstillWatch
from maitred.node.system_tables import SystemTables
from maitred.node.task_lookups import TaskLookups
from maitred.node.task_requests import TaskRequests
from maitred.node.token_requests import TokenRequests
from maitred.node.vitals import Vitals
from maitred.node.worker_overview import WorkerOverview
from maitred.node.worker_series import WorkerSeries
from maitred.protocol import cql
from maitred.protocol.description import VERSIONS, Description
from maitred.protocol.refusals import counted_code
from maitred.security.audit_records import user_changes
from maitred.security.authenticator import no_longer
from maitred.security.guard import Guard
from maitred.security.jwt_keys import JWT_KEYS, KeySource
from maitred.security.jwt_verifier import JwtVerifier
from maitred.security.reload import USERS
from maitred.wire.tls_handshakes import TlsHandshakes

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Iterable

    from maitred.logs import Logger
    from maitred.node.cluster_requests import OperatorsTable
    from maitred.node.shard_place import ShardPlace
    from maitred.protocol.access import NodeReloaded
    from maitred.protocol.messages import AnyRequest
    from maitred.security.audit_log import AuditLog
    from maitred.security.directory import Identity
    from maitred.security.reload import Reloadable
    from maitred.settings import Node
    from maitred.store.interface import Store
    from maitred.surroundings import Surroundings

ACCEPT_BACKLOG: Final = 4_096
"""Connections that may wait to be accepted; the kernel caps the number at net.core.somaxconn."""

SWEEP_SECONDS: Final = 1.0
"""Longest interval at which the time limits of connections are checked; it is a quarter of the
shortest limit if that is less."""

SWEEP_PORTION: Final = 256
"""Connections that are checked in one loop turn, before requests are served again."""


class ShardPart(Protocol):
    """A part of a shard that operators get numbers of."""

    def statistics(self) -> dict[str, int]:
        """Return the part's numbers by name."""


class Shard(RequestPlacement):
    """One shard of a node."""

    def __init__(
        self,
        place: ShardPlace,
        settings: Node,
        surroundings: Surroundings,
        log: Logger,
        *,
        vitals: Vitals | None = None,
        tls: ssl.SSLContext | None = None,
        reloadable: Iterable[Reloadable] = (),
        audit: AuditLog | None = None,
        source_port_socket: socket.socket | None = None,
        versions: tuple[int, ...] = VERSIONS,
        reload_node: Callable[[], Awaitable[NodeReloaded]] | None = None,
        peer_tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`reload_node` reloads every process of the node; without it the shard reloads alone.
        `peer_tls` returns the context for connections to other nodes of the cluster."""
        super().__init__(place, settings, surroundings, log, versions=versions, peer_tls=peer_tls)
        self.settings = settings
        self.audit = audit
        keys = None if settings.jwt is None else KeySource(settings.jwt)
        self._guard = Guard(
            settings,
            surroundings.wall_clock,
            log,
            reloadable=reloadable if keys is None else (*reloadable, keys),
            audit=audit,
            gateway_secret=place.gateway_secret,
            changed=self._reloaded,
        )
        self.users = self._guard.users
        self.authenticator = self._guard.authenticator
        self.reloading = self._guard.reloading
        self._users_before = self.users.all()
        self._jwts: Jwts | None = None
        if settings.jwt is not None and keys is not None:
            verifier = JwtVerifier(settings.jwt, keys, self.users)
            self._jwts = Jwts(verifier, keys, self.reloading)
        self.tables = SystemTables(place.node.bytes)
        self.description = Description(
            node=str(place.node),
            shard=place.number,
            shards=place.shards,
            shard_ports=place.own_ports,
            frame_bytes=settings.limits.frame_bytes,
            payload_bytes=settings.limits.payload_bytes,
            in_flight=settings.limits.in_flight,
            idle_seconds=settings.limits.idle_seconds,
            spread_batch=spread_batch_text(settings.spread_batch),
            versions=versions,
            release=__version__,
            source_port=place.source_port,
            tls=tls is not None,
        )
        self.supported_body = cql.encode_supported(self.description.supported())
        self.client_connections = 0
        self.draining = False
        self.partial_bytes = 0
        """Bytes of incomplete frames of all connections."""
        self.strangers_bytes = 0
        """Bytes of incomplete frames of connections that are not authenticated."""
        self.under_way_bytes = 0
        """Bytes of requests in flight of all connections."""
        self.unsent_bytes = 0
        """Bytes of answers that peers have not read, of all connections."""
        self.requests = 0
        self.received_forwarded = 0
        self.own_requests = ShardRequests(self, vitals or Vitals.real(), reload_node)
        self._table = RequestTable()
        self._table.include(operator_admissions())
        self._table.include(self.own_requests.requests)
        self._table.include(self.membership.requests)
        self.handlers = self._table.handlers
        self.holders = self._table.holders
        self.admissions = self._table.admissions
        self._on_drain: list[Callable[[], None]] = []
        """Called when the shard stops: each answers the requests that wait for news."""
        self.errors: Counter[str] = Counter()
        """Errors that were sent as answers, by `counted_code`."""
        self._refusals = RefusalLog(self.errors, log)
        self.told_of_credentials = False
        """Whether the log says that a caller sent credentials to this node without users."""
        self.damaged: Counter[str] = Counter()
        """`rows` of the store that could not be read and were set aside, and `tasks` in them."""
        self.tracing = surroundings.tracing
        """Records spans; None: this process does not trace."""
        self._partitions: Partitions | None = None
        self._relays: Relays | None = None
        self._standstill: StandstillWatch | None = None
        self._handshakes = (
            None
            if tls is None
            else TlsHandshakes(
                lambda: tls,
                settings.limits.handshake_seconds,
                log,
                lambda: self.count_error(TlsFailed.code),
                most=settings.limits.connections,
            )
        )
        self._source_port_socket = source_port_socket
        self._servers: list[asyncio.AbstractServer] = []
        self._parts: dict[str, ShardPart] = {}
        """The parts of a shard with a store that have statistics, by name."""
        self._cluster_requests: ClusterRequests | None = None
        self._bearers: Bearers | None = None
        """Verifies tokens; None for a shard without a store."""

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        return (
            f"<Shard {self.number}: {state}, {self.client_connections} connections, "
            f"{self.in_flight} requests in flight>"
        )

    # Start and stop

    def keeps(self, message: AnyRequest) -> bool:
        """Return whether this shard has begun to serve what the request belongs to, and so serves
        it whoever owns the partition."""
        return self._relays is not None and self._relays.has(message)

    def keep_tasks(
        self,
        store: Store,
        open_members: Callable[[], Awaitable[OperatorsTable]] | None = None,
    ) -> Partitions:
        """Serve tasks, keep them in this store, and return the partitions that hold them.
        `open_members` opens the membership table of the cluster for operators; None without a
        cluster."""
        timed = replace(self._surroundings, wall_clock=self.cluster_time)
        self._partitions = Partitions(self, store, timed)
        self._partitions.begin()
        self._standstill = StandstillWatch(self.loop, self._partitions.stood_still)
        caretaker = Caretaker(self._partitions)
        TaskLookups(self._partitions)
        signatures = SignatureRequests(self._partitions)
        queues = QueueRequests(self._partitions, caretaker, signatures)
        relays = Relays(self._partitions)
        self._relays = relays
        query_tables = QueryTables(self.loop, self._surroundings, signatures.of_queue)
        own = self.own_requests
        gauges = ShardGauges(self, own.vitals, own.lag, self._partitions.writer)
        workers = WorkerSeries(self._partitions)
        series = ShardSeries(self._partitions, [gauges, workers])
        self._cluster_requests = ClusterRequests(
            self,
            store,
            self.settings.cluster,
            self.log,
            wall_clock=self.cluster_time,
            open_members=open_members,
        )
        self._on_drain = [
            self._partitions.stop_waiting,
            relays.stop_waiting,
            query_tables.stop_waiting,
        ]
        self._parts = {
            "partitions": self._partitions,
            "writer": self._partitions.writer,
            "permits": self._partitions.permits,
            "relays": relays,
            "query_tables": query_tables,
            "series": series,
            "worker_series": workers,
        }
        self._bearers = Bearers(
            self.users,
            store,
            loop=self.loop,
            wall_clock=self._wall_clock,
            log=self.log,
            changed=self._identities_changed,
            jwts=self._jwts,
        )
        self.authenticator.accept_tokens(self._bearers)
        for part in (
            self._partitions.handovers,
            TaskRequests(self._partitions),
            SharedOfferRequests(self._partitions),
            signatures,
            queues,
            InspectionRequests(self._partitions, signatures, queues, self.audit),
            DamagedRequests(self._partitions),
            QueryRequests(self._partitions, signatures),
            self._partitions.permits,
            Deletion(self._partitions),
            PurgeRequests(self._partitions, self.audit),
            relays,
            query_tables,
            series,
            gauges,
            workers,
            QueueStateRequests(self._partitions),
            TokenRequests(
                self._bearers, self.users, self.settings.tokens, self._surroundings, self.log
            ),
            Announced(self.settings.worker_addresses),
            WorkerOverview(self._partitions),
            self._cluster_requests,
        ):
            self._table.include(part.requests)
        caretaker.begin()
        series.begin()
        self._partitions.stored.begin()
        return self._partitions

    async def start(self) -> None:
        """Listen; raise `OSError` if an address cannot be bound."""
        place = self.place
        if place.peer_paths:
            self._servers.append(
                await self.loop.create_unix_server(
                    partial(NodeConnection, self, peer=True), place.peer_paths[place.number]
                )
            )
        # The own port first: a client that connects to the shared port may use it at once.
        await self._listen(host=place.host, port=place.own_ports[place.number], reuse_port=True)
        if self._source_port_socket is not None:
            await self._listen(sock=self._source_port_socket)
        await self._listen(host=place.host, port=place.port, reuse_port=True)
        self.spawn(self._sweep())

    async def _listen(self, **where: Any) -> None:  # noqa: ANN401 - as the loop takes them
        factory: Callable[[], asyncio.Protocol] = partial(NodeConnection, self)
        if self._handshakes is not None:
            factory = self._handshakes.before(factory)
        server = await self.loop.create_server(factory, backlog=ACCEPT_BACKLOG, **where)
        self._servers.append(server)

    async def drain(self) -> bool:
        """Hand over the partitions that others own by now, refuse new requests, finish those in
        flight, and close. Return False if requests were cut off."""
        deadline = self.loop.time() + self.settings.drain_seconds
        if self._partitions is not None:
            await self._partitions.handed_over_by(deadline)
        self.draining = True
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.announce_drain()
        for stop_waiting in self._on_drain:
            stop_waiting()
        finished = await self._until(lambda: not self.in_flight, deadline - self.loop.time())
        if self._partitions is not None:
            await self._partitions.leave()
        problem = CutOff("The node has stopped before the request was finished.")
        for connection in list(self.connections):
            connection.drain(problem)
        await self._until(lambda: not self.connections, FAREWELL_SECONDS)
        self.close()
        return finished

    def close(self) -> None:
        """Close everything at once."""
        self.authenticator.close()
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        self.cancel_tasks()
        if self._standstill is not None:
            self._standstill.stop()
        if self._bearers is not None:
            self._bearers.close()
        if self._cluster_requests is not None:
            self._cluster_requests.close()
        self._peers.close()
        for connection in list(self.connections):
            connection.abort()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = self.loop.time() + seconds
        while not condition():
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        return True

    # For connections and parts

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered yet."""
        return sum(len(connection.under_way) for connection in self.connections)

    def certified(self, transport: asyncio.BaseTransport) -> Identity | None:
        """Return the user to whom the connection's client certificate is mapped."""
        shown = transport.get_extra_info("ssl_object")
        return self.authenticator.certified(shown, self._wall_clock())

    def count_error(self, code: str) -> None:
        """Count an error that was sent as an answer."""
        self.errors[counted_code(code)] += 1

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the numbers of the shard's parts, by part."""
        memory = {
            "partial_bytes": self.partial_bytes,
            "handshake_bytes": self.strangers_bytes,
            "under_way_bytes": self.under_way_bytes,
            "unsent_bytes": self.unsent_bytes,
        }
        logins = {"waiting": self.authenticator.waiting}
        parts = {name: part.statistics() for name, part in self._parts.items()}
        links = {"links": self._peers.statistics()} if self.clustered else {}
        return {"memory": memory, "logins": logins, **links, **parts}

    # Once a second

    async def _sweep(self) -> None:
        limits = self.limits
        shortest = min(limits.handshake_seconds, limits.frame_seconds, limits.idle_seconds)
        interval = min(SWEEP_SECONDS, shortest / 4)
        while True:
            due = self.loop.time() + interval
            await asyncio.sleep(interval)
            self._guarded(self.own_requests.look, self.loop.time() - due)
            self._guarded(self._refusals.look, self.loop.time())
            self._guarded(self._look_at_files)
            self._guarded(self._peers.look, self.loop.time())
            connections = list(self.connections)
            for start in range(0, len(connections), SWEEP_PORTION):
                now, moment = self.loop.time(), self._wall_clock()
                for connection in connections[start : start + SWEEP_PORTION]:
                    self._guarded(connection.look_at_clock, now)
                    self._guarded(connection.look_at_expiry, moment)
                await asyncio.sleep(0)

    def _guarded(self, look: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Run a sweep, and log a failure of it: without this, one failure would end all time
        limits."""
        try:
            look(*arguments)
        except Exception:
            self.log.exception("a look around failed")

    def _look_at_files(self) -> None:
        if self._bearers is not None and self.users.required:
            self._bearers.look()
        self._guard.look(self.spawn)

    def _reloaded(self, part: str) -> None:
        """Apply changed users and keys to open connections."""
        if part == USERS:
            self._tell_of_users()
        if part in {USERS, JWT_KEYS}:
            self._identities_changed()

    def _tell_of_users(self) -> None:
        """Record the changes in the audit log; shard 0 does so for all processes of the node."""
        before, self._users_before = self._users_before, self.users.all()
        if self.audit is not None and self.number == 0:
            for user, change in user_changes(before, self._users_before):
                self.audit.record("user change", target=user, details=change)

    def _identities_changed(self) -> None:
        """Close the connections of removed users and tokens, and give the others their current
        permissions."""
        for connection in list(self.connections):
            if connection.identity is None:
                continue
            identity = self.authenticator.refreshed(connection.identity)
            if identity is None:
                connection.say_farewell(no_longer(connection.identity))
            else:
                connection.identity = identity
                connection.permissions = identity.permissions


FAREWELL_SECONDS: Final = 3.0
"""How long a stopping shard waits for clients to close after its last frame."""

DRAIN_LOOK_SECONDS: Final = 0.02
"""Interval at which a stopping shard checks whether it has finished."""


def spread_batch_text(given: object) -> str:
    """Return the setting as SUPPORTED has it: a number, or JSON."""
    return json.encode(given).decode()
