"""The requests that every shard serves, with or without a store: ECHO, STATUS and RELOAD."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from maitred import __version__
from maitred.errors import PayloadTooLarge
from maitred.node.request_table import RequestTable
from maitred.node.vitals import LagGauge, LoadGauge, Vitals
from maitred.protocol.access import NodeReloaded, PartState, ProcessState
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import Echo, Echoed, ShardStatus, Status
from maitred.security.reload import CERTIFICATE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from msgspec import Struct

    from maitred.node.shard_place import ShardPlace
    from maitred.protocol.access import Reload
    from maitred.protocol.description import Description
    from maitred.security.audit_log import AuditLog
    from maitred.security.authenticator import Authenticator
    from maitred.security.reload import PartReloaded, ProcessReload
    from maitred.settings import Limits


class DescribedShard(Protocol):
    """The shard as its status describes it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the shard."""

    @property
    def number(self) -> int:
        """The number of the shard."""

    @property
    def place(self) -> ShardPlace:
        """The shard's place in the node."""

    @property
    def description(self) -> Description:
        """What the shard tells clients of itself."""

    @property
    def limits(self) -> Limits:
        """The limits of the node."""

    @property
    def draining(self) -> bool:
        """Whether the shard is stopping."""

    @property
    def client_connections(self) -> int:
        """The number of open connections of clients."""

    @property
    def requests(self) -> int:
        """The number of requests that were answered."""

    @property
    def in_flight(self) -> int:
        """The number of requests that are not answered yet."""

    @property
    def forwarded(self) -> int:
        """The number of requests that were forwarded to another shard."""

    @property
    def received_forwarded(self) -> int:
        """The number of requests that other shards forwarded to this one."""

    @property
    def errors(self) -> Counter[str]:
        """Errors that were sent as answers, by code."""

    @property
    def damaged(self) -> Counter[str]:
        """`rows` of the store that could not be read and were set aside, and `tasks` in them."""

    @property
    def authenticator(self) -> Authenticator:
        """Counts the outcomes of logins."""

    @property
    def reloading(self) -> ProcessReload:
        """Reloads the files of the process."""

    @property
    def audit(self) -> AuditLog | None:
        """Records what operators do; None for a node without an audit log."""

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the numbers of the shard's parts, by part."""


class ShardRequests:
    """Serves echoes, the shard's status, and operators' requests for a reload."""

    def __init__(
        self,
        shard: DescribedShard,
        vitals: Vitals,
        reload_node: Callable[[], Awaitable[NodeReloaded]] | None,
    ) -> None:
        self._shard = shard
        self.vitals = vitals
        self._reload_node = reload_node or self._reload_here
        self._started_at = shard.loop.time()
        self._gauge = LoadGauge(vitals, self._started_at)
        self.lag = LagGauge()
        self.requests = RequestTable(
            handlers={
                Opcode.ECHO: self._echo,
                Opcode.STATUS: self._status,
                Opcode.RELOAD: self._reload,
            }
        )

    def look(self, late_seconds: float) -> None:
        """Measure the load; called about once a second, this much later than was asked for."""
        self._gauge.look(self._shard.loop.time(), self._shard.requests)
        self.lag.look(late_seconds)

    def _echo(self, message: Echo) -> Struct | Coroutine[Any, Any, Struct]:
        if len(message.payload) > self._shard.limits.payload_bytes:
            raise PayloadTooLarge(
                f"A payload of {len(message.payload):,} bytes is more than "
                f"the {self._shard.limits.payload_bytes:,} allowed.",
                remedy="Put it into a store and send a reference, or raise limits.payload_bytes.",
            )
        if message.hold_milliseconds:
            return self._echo_later(message)
        return Echoed(message.payload, self._shard.number)

    async def _echo_later(self, message: Echo) -> Echoed:
        await asyncio.sleep(message.hold_milliseconds / 1000)
        return Echoed(message.payload, self._shard.number)

    def _status(self, _message: Status) -> ShardStatus:
        shard = self._shard
        return ShardStatus(
            node=shard.description.node,
            shard=shard.number,
            pid=self.vitals.pid,
            state="draining" if shard.draining else "serving",
            release=__version__,
            address=f"{shard.place.host}:{shard.place.own_ports[shard.number]}",
            uptime_seconds=round(shard.loop.time() - self._started_at, 3),
            restarts=shard.place.restarts,
            load=round(self._gauge.load, 3),
            loop_lag_seconds=round(self.lag.seconds, 6),
            memory_bytes=self.vitals.memory_bytes(),
            connections=shard.client_connections,
            requests=shard.requests,
            requests_per_second=round(self._gauge.per_second, 1),
            in_flight=shard.in_flight,
            forwarded=shard.forwarded,
            received_forwarded=shard.received_forwarded,
            errors=dict(shard.errors),
            logins=dict(shard.authenticator.outcomes),
            reloads={" ".join(one): many for one, many in shard.reloading.outcomes.items()},
            certificate_expires_at=shard.reloading.expiries().get(CERTIFICATE, 0.0),
            damaged=dict(shard.damaged),
            parts=shard.statistics(),
            audit={} if shard.audit is None else dict(shard.audit.counts),
        )

    async def _reload(self, _message: Reload) -> NodeReloaded:
        return await self._reload_node()

    async def _reload_here(self) -> NodeReloaded:
        parts = part_states(await self._shard.reloading.reload())
        return NodeReloaded([ProcessState(f"shard {self._shard.number}", parts)])


def part_states(parts: Iterable[PartReloaded]) -> list[PartState]:
    """Return the outcome of reading files again, as other processes are told."""
    return [PartState(one.part, one.state, one.problem) for one in parts]
