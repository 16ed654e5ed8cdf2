"""The query tables of all gateways, for people: shard 0 asks each of them, and gathers answers.

Every gateway holds a WATCH here. Whoever asks for queries has it answered with an order, and the
gateways send what they find in a REPORT. One that is silent is not waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import structs

from maitred.errors import InvalidArgument, Overloaded, PermissionDenied
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import (
    Order,
    Queries,
    QueriesFound,
    QueryFilter,
    QueryRow,
    Report,
    Reported,
    Watch,
    Watched,
)
from maitred.security.permissions import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.node.accepted import Accepted
    from maitred.node.held import Held
    from maitred.node.shard import Shard
    from maitred.surroundings import Surroundings

GATHER_SECONDS: Final = 1.0
"""How long the gateways have to answer."""

RETURN_SECONDS: Final = 2.0
"""How long after its last WATCH a gateway is asked all the same: it is about to send another."""

EARLY_SECONDS: Final = 0.2
"""So long before its patience ends a gateway is answered with nothing."""

GATEWAYS_MAX: Final = 10_000
"""That are watched at a time; every client that asks queries by itself is one."""

ORDERS_KEPT: Final = 100
"""Of one gateway that does not fetch them; the oldest goes first."""


class _Gateway:
    """One that has a table."""

    __slots__ = ("held", "left_at", "orders", "timer")

    def __init__(self) -> None:
        self.held: Held | None = None
        self.left_at = 0.0
        self.orders: list[Order] = []
        self.timer: asyncio.TimerHandle | None = None


class _Gathering:
    """What somebody waits for."""

    __slots__ = ("_most", "all_heard", "missing", "rows")

    def __init__(self, missing: set[tuple[bytes, int]], most: int) -> None:
        self.missing = missing
        """Sessions of gateways, and the orders that they have not answered."""
        self.rows: list[QueryRow] = []
        self.all_heard = asyncio.Event()
        self._most = most

    def add(self, rows: Iterable[QueryRow]) -> None:
        self.rows.extend(rows)
        self.rows.sort(key=_age)
        del self.rows[: -self._most]


class Watching:
    """What shard 0 does about them."""

    def __init__(self, shard: Shard, surroundings: Surroundings) -> None:
        self._shard = shard
        self._loop = shard.loop
        self._secret = surroundings.secret
        self._gateways: dict[bytes, _Gateway] = {}
        self._gathering: dict[int, _Gathering] = {}
        """By the numbers of their orders."""
        shard.holders[Opcode.WATCH] = self._watch
        shard.handlers[Opcode.REPORT] = self._report
        shard.handlers[Opcode.QUERIES] = self._queries
        shard.admissions[Opcode.REPORT] = self._admit_report
        shard.admissions[Opcode.QUERIES] = self._admit_queries
        shard.on_drain.append(self._stop_waiting)

    # Where they come in

    def _admit_report(self, message: Report, connection: Accepted) -> None:
        """Nobody reports what he may not ask."""
        permissions = connection.permissions
        if permissions is not EVERYTHING:
            message.rows = [
                row for row in message.rows if permissions.allows(row.namespace, "query")
            ]

    def _admit_queries(self, message: Queries, connection: Accepted) -> None:
        """Nobody sees, or cancels, but where he is admin."""
        message.within = connection.permissions.namespaces("admin")
        wanted = message.filter.namespace
        if message.within is not None and wanted:
            if wanted not in message.within:
                name = connection.identity.name if connection.identity else "This connection"
                raise PermissionDenied(
                    f"{name} lacks the permission 'admin' in the namespace {wanted!r}.",
                    remedy="Whoever keeps the node's users can grant it.",
                )
            message.within = [wanted]

    # Gateways

    def _watch(self, message: Watch, held: Held) -> None:
        self._only_first(message)
        session = message.session
        gateway = self._gateways.get(session)
        if gateway is None:
            if len(self._gateways) >= GATEWAYS_MAX:
                self._forget_gone()
            if len(self._gateways) >= GATEWAYS_MAX:
                raise Overloaded("Too many gateways are watched already.")
            gateway = self._gateways[session] = _Gateway()
        earlier = gateway.held
        if earlier is not None:
            self._answer(gateway, [])
        if gateway.orders:
            gateway.left_at = self._loop.time()
            orders, gateway.orders = gateway.orders, []
            held.answer(Watched(orders))
            return
        gateway.held = held
        held.on_stop = lambda: self._left(session, gateway, held)
        patience = message.timeout_milliseconds * 0.001 - EARLY_SECONDS
        gateway.timer = self._loop.call_later(max(patience, 0.0), self._time_is_up, gateway, held)

    def _time_is_up(self, gateway: _Gateway, held: Held) -> None:
        if gateway.held is held:
            self._answer(gateway, [])

    def _left(self, session: bytes, gateway: _Gateway, held: Held) -> None:
        """Its connection is gone, and with it, most probably, its table."""
        if gateway.held is held:
            self._not_held(gateway)
            if self._gateways.get(session) is gateway:
                del self._gateways[session]

    def _not_held(self, gateway: _Gateway) -> None:
        gateway.held = None
        gateway.left_at = self._loop.time()
        if gateway.timer is not None:
            gateway.timer.cancel()
            gateway.timer = None

    def _answer(self, gateway: _Gateway, orders: list[Order]) -> None:
        held = gateway.held
        self._not_held(gateway)
        if held is not None:
            held.answer(Watched(orders))

    def _forget_gone(self) -> None:
        longest_ago = self._loop.time() - RETURN_SECONDS
        self._gateways = {
            session: gateway
            for session, gateway in self._gateways.items()
            if gateway.held is not None or gateway.left_at > longest_ago
        }

    def _report(self, message: Report) -> Reported:
        self._only_first(message)
        gathering = self._gathering.get(message.number)
        if gathering is not None and (message.session, message.number) in gathering.missing:
            gathering.missing.discard((message.session, message.number))
            gathering.add(message.rows)
            if not gathering.missing:
                gathering.all_heard.set()
        return Reported()

    # People

    async def _queries(self, message: Queries) -> QueriesFound:
        self._only_first(message)
        self._forget_gone()
        orders = [
            Order(int.from_bytes(self._secret(7), "big"), message.action, one)
            for one in _filters(message)
        ]
        gateways = list(self._gateways.items())
        missing = {(session, order.number) for session, _ in gateways for order in orders}
        gathering = _Gathering(missing, message.filter.most)
        for order in orders:
            self._gathering[order.number] = gathering
        try:
            for _, gateway in gateways:
                self._tell(gateway, orders)
            if missing:
                await self._until_heard(gathering)
        finally:
            for order in orders:
                del self._gathering[order.number]
        silent = len({session for session, _ in gathering.missing})
        return QueriesFound(gathering.rows, len(gateways), silent)

    def _tell(self, gateway: _Gateway, orders: list[Order]) -> None:
        if gateway.held is not None:
            self._answer(gateway, orders)
        else:
            gateway.orders = [*gateway.orders, *orders][-ORDERS_KEPT:]

    async def _until_heard(self, gathering: _Gathering) -> None:
        timer = self._loop.call_later(GATHER_SECONDS, gathering.all_heard.set)
        try:
            await gathering.all_heard.wait()
        finally:
            timer.cancel()

    def _only_first(self, message: Watch | Report | Queries) -> None:
        if message.shard:
            raise InvalidArgument("Shard 0 knows the gateways.")

    def _stop_waiting(self) -> None:
        for gateway in self._gateways.values():
            self._answer(gateway, [])


def _filters(message: Queries) -> list[QueryFilter]:
    """One for each namespace, if the asker may not see all of them."""
    if message.within is None:
        return [message.filter]
    return [structs.replace(message.filter, namespace=one) for one in message.within]


def _age(row: QueryRow) -> tuple[float, str, int]:
    return row.received_at, row.gateway, row.sequence
