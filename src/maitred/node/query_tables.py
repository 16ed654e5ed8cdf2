"""The query tables of all gateways, for operators: shard 0 asks each gateway, and gathers answers.

Every gateway keeps a long poll (WATCH) here. An operator's request for queries answers it with an
order, and the gateways send the matching queries in a REPORT. Silent gateways are not waited for.

The node's own gateway gets the operator's filter. A client that asks queries by itself has a table
as well, of its own queries alone, and every user with `query` may have such a client. It must not
learn the filter (whose queries, of which queue, of which worker): it is asked only if the filter
may match its queries, and the rest of the filter is applied here to its report.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec import structs

from maitred.errors import InvalidArgument, MaitredError, TooManyGateways
from maitred.node.request_table import RequestTable, long_poll_until
from maitred.protocol.frames import Opcode
from maitred.protocol.private_data import public_query, queues_with_texts, without_hidden
from maitred.protocol.queries import (
    QUERIES_UNDER_WAY,
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
from maitred.routing.names import check_shown_name
from maitred.security.permissions import EVERY_NAMESPACE, EVERYTHING, denied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.request_origin import RequestOrigin
    from maitred.settings import Permission
    from maitred.surroundings import Surroundings

GATHER_SECONDS: Final = 1.0
"""How long the gateways have to answer."""

RETURN_SECONDS: Final = 2.0
"""How long after its last WATCH a gateway still gets orders: it is about to send another."""

GATEWAYS_MAX: Final = 10_000
"""Gateways that are watched at a time; every client that asks queries by itself is one."""

USER_GATEWAYS_MAX: Final = GATEWAYS_MAX // 10
"""Gateways that one user may have, so that no user with `query` takes all of them."""

ADDRESS_GATEWAYS_MAX: Final = GATEWAYS_MAX // 5
"""Gateways that one IPv4 address, or one /64 of IPv6 addresses, may have. Several users may share
it, so it is twice what one user may have."""

MAKE_ROOM_SECONDS: Final = 0.1
"""The least time between two searches for gateways that are gone, so that refusals stay cheap."""

GATEWAY_LETTERS: Final = 8
"""Digits of a gateway's session in hexadecimal by which people name it."""

QUERIES_MOST: Final = 10_000
"""Rows that a gateway is asked for if some of them are left out here."""

ORDERS_KEPT: Final = 100
"""Orders that are kept for a gateway that does not fetch them; the oldest is dropped first."""


QUEUES_LOOKED_UP: Final = 200
"""Most queues whose handlers are looked up for one list; the texts of others are left out."""


Key = tuple[str, bytes]
"""Identifies a gateway by its user (empty for the node's own) and its session, so that naming a
session is not enough to speak for another user's gateway."""


class _Gateway:
    """One gateway with a query table."""

    __slots__ = (
        "held",
        "left_at",
        "name",
        "network",
        "orders",
        "session",
        "timer",
        "user",
        "within",
    )

    def __init__(self, message: Watch) -> None:
        self.user = message.user
        self.session = message.session.hex()
        self.name = message.name
        self.within = message.within
        self.network = message.network
        self.held: DeferredReply | None = None
        self.left_at = 0.0
        self.orders: list[Order] = []
        self.timer: asyncio.TimerHandle | None = None

    def shown(self, wanted: QueryFilter) -> QueryFilter | None:
        """Return the part of a filter that the gateway may learn; None if it can have no match."""
        if not self.user:
            return wanted
        if (
            wanted.user not in ("", self.user)
            or (wanted.namespace and not self._may_ask(wanted.namespace))
            or not (
                not wanted.gateway
                or self.session.startswith(wanted.gateway.lower())
                or wanted.gateway == self.name
            )
        ):
            return None
        most = QUERIES_MOST if _has_more(wanted) else wanted.most
        return structs.replace(wanted, user="", gateway="", queue="", worker="", most=most)

    def _may_ask(self, namespace: str) -> bool:
        return self.within is None or namespace in self.within


class _Asked(NamedTuple):
    """An operator's request for which a gateway got an order."""

    action: str
    wanted: QueryFilter


class _Gathering:
    """The answers of all gateways to one request for queries."""

    __slots__ = ("_most", "all_heard", "missing", "rows")

    def __init__(self, most: int) -> None:
        self.missing: dict[tuple[Key, int], _Asked] = {}
        """Gateways, and the numbers of the orders that they have not answered."""
        self.rows: list[QueryRow] = []
        self.all_heard = asyncio.Event()
        self._most = most

    def add(self, rows: Iterable[QueryRow]) -> None:
        self.rows.extend(rows)
        self.rows.sort(key=_age)
        del self.rows[: -self._most]


class QueryTables:
    """Asks the gateways of the node for their query tables, at shard 0, and gathers their
    answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        surroundings: Surroundings,
        signatures: Callable[[str, str], Awaitable[list[bytes]]],
    ) -> None:
        """`signatures` asks the root of a queue what its handlers have announced."""
        self._loop = loop
        self._signatures = signatures
        self._secret = surroundings.secret
        self._gateways: dict[Key, _Gateway] = {}
        self._of_users: Counter[str] = Counter()
        """Gateways by user; the node's own gateway and callers without a user are under an empty
        name."""
        self._of_networks: Counter[str] = Counter()
        self._made_room_at = -inf
        self._gathering: dict[int, _Gathering] = {}
        """The requests that wait for reports, by the numbers of their orders."""
        self.requests = RequestTable(
            handlers={Opcode.REPORT: self._report, Opcode.QUERIES: self._queries},
            holders={Opcode.WATCH: self._watch},
            admissions={
                Opcode.WATCH: self._admit_watch,
                Opcode.REPORT: self._admit_report,
                Opcode.QUERIES: self._admit_queries,
            },
        )

    def statistics(self) -> dict[str, int]:
        """Return the number of gateways whose query tables are known, and of the requests for
        queries that wait for their reports."""
        waiting = {id(one) for one in self._gathering.values()}
        return {"gateways": len(self._gateways), "requests": len(waiting)}

    # Admission, at the shard that receives a request

    def _admit_watch(self, message: Watch, connection: RequestOrigin) -> None:
        message.user = _user_of(connection)
        message.network = "" if connection.is_gateway else connection.source.network
        message.within = connection.permissions.namespaces("query")

    def _admit_report(self, message: Report, connection: RequestOrigin) -> None:
        """Drop reported rows of queues that the user may not query, and rows of other users."""
        permissions = connection.permissions
        message.user = _user_of(connection)
        if permissions is not EVERYTHING:
            message.rows = [
                row for row in message.rows if permissions.allows(row.namespace, "query")
            ]
        if message.user:
            for row in message.rows:
                row.user, row.gateway = message.user, message.session.hex()[:GATEWAY_LETTERS]

    def _admit_queries(self, message: Queries, connection: RequestOrigin) -> None:
        """Restrict a request to the namespaces in which its user has the permission, and private
        data to those in which the user may see them."""
        permissions = connection.permissions
        needed: Permission = "read" if message.action == "list" else "operate"
        message.within = permissions.namespaces(needed)
        message.revealed = permissions.namespaces("reveal") if message.reveal else []
        message.user = connection.user
        wanted = message.filter.namespace
        if message.within is None:
            return
        if not message.within or (wanted and wanted not in message.within):
            raise denied(connection.user or None, needed, wanted or EVERY_NAMESPACE)
        if wanted:
            message.within = [wanted]

    # Gateways

    def _watch(self, message: Watch, held: DeferredReply) -> None:
        self._only_first(message)
        check_shown_name("gateway", message.name)
        key = (message.user, message.session)
        gateway = self._gateways.get(key)
        if gateway is None:
            self._check_places(message)
            gateway = self._gateways[key] = _Gateway(message)
            self._of_users[gateway.user] += 1
            self._of_networks[gateway.network] += 1
        earlier = gateway.held
        if earlier is not None:
            self._answer(gateway, [])
        if gateway.orders:
            gateway.left_at = self._loop.time()
            orders, gateway.orders = gateway.orders, []
            held.answer(Watched(orders))
            return
        gateway.held = held
        held.on_stop = lambda: self._left(key, gateway, held)
        until = long_poll_until(message, self._loop.time())
        gateway.timer = self._loop.call_at(until, self._time_is_up, gateway, held)

    def _check_places(self, message: Watch) -> None:
        """Raise `TooManyGateways` unless another gateway is allowed."""
        now = self._loop.time()
        if self._refusal(message) and now - self._made_room_at >= MAKE_ROOM_SECONDS:
            self._made_room_at = now
            self._forget_gone()
        refusal = self._refusal(message)
        if refusal:
            raise TooManyGateways(
                refusal,
                remedy="Queries are answered all the same; operators do not see those of this "
                "client. Have fewer clients that ask queries by themselves, or ask through the "
                "node's gateway.",
                retry_after=RETURN_SECONDS,
            )

    def _refusal(self, message: Watch) -> str:
        if not message.network:
            return ""
        if message.user and self._of_users[message.user] >= USER_GATEWAYS_MAX:
            return f"The user {message.user} has {USER_GATEWAYS_MAX:,} query tables already."
        if self._of_networks[message.network] >= ADDRESS_GATEWAYS_MAX:
            return (
                f"{ADDRESS_GATEWAYS_MAX:,} query tables of clients at {message.network} are "
                "watched already."
            )
        if len(self._gateways) >= GATEWAYS_MAX:
            return f"{GATEWAYS_MAX:,} query tables are watched already."
        return ""

    def _time_is_up(self, gateway: _Gateway, held: DeferredReply) -> None:
        if gateway.held is held:
            self._answer(gateway, [])

    def _left(self, key: Key, gateway: _Gateway, held: DeferredReply) -> None:
        """Forget a gateway whose connection is lost, and most probably its query table with it."""
        if gateway.held is held:
            self._not_held(gateway)
            if self._gateways.get(key) is gateway:
                del self._gateways[key]
                self._count_gone(gateway)

    def _count_gone(self, gateway: _Gateway) -> None:
        for places, name in (
            (self._of_users, gateway.user),
            (self._of_networks, gateway.network),
        ):
            places[name] -= 1
            if not places[name]:
                del places[name]

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
        for key, gateway in list(self._gateways.items()):
            if gateway.held is None and gateway.left_at <= longest_ago:
                del self._gateways[key]
                self._count_gone(gateway)

    def _report(self, message: Report) -> Reported:
        self._only_first(message)
        gathering = self._gathering.get(message.number)
        key = (message.user, message.session)
        asked = gathering.missing.pop((key, message.number), None) if gathering else None
        if gathering is not None and asked is not None:
            gathering.add(self._found(key, message.rows, asked))
            if not gathering.missing:
                gathering.all_heard.set()
        return Reported()

    def _found(self, key: Key, rows: list[QueryRow], asked: _Asked) -> list[QueryRow]:
        """Return the rows of a gateway's report that match the filter."""
        gateway, wanted = self._gateways.get(key), asked.wanted
        if not key[0] or not _has_more(wanted):
            return rows
        rows = [
            row
            for row in rows
            if wanted.queue in ("", row.queue) and wanted.worker in ("", row.worker)
        ]
        if asked.action == "cancel" and gateway is not None:
            under_way = [row for row in rows if row.status in QUERIES_UNDER_WAY]
            rows = under_way[-ORDERS_KEPT:]
            cancel = [QueryFilter(sequence=row.sequence) for row in rows]
            self._tell(gateway, [self._order("cancel", one) for one in cancel])
        return rows

    def _order(self, action: Literal["list", "cancel"], wanted: QueryFilter) -> Order:
        return Order(int.from_bytes(self._secret(7), "big"), action, wanted)

    # Operators

    async def _queries(self, message: Queries) -> QueriesFound:
        self._only_first(message)
        self._forget_gone()
        gathering = _Gathering(message.filter.most)
        numbers: list[int] = []
        gateways = list(self._gateways.items())
        try:
            for key, gateway in gateways:
                orders = self._orders_for(gateway, message)
                for order, asked in orders:
                    numbers.append(order.number)
                    self._gathering[order.number] = gathering
                    gathering.missing[key, order.number] = asked
                if orders:
                    self._tell(gateway, [order for order, _ in orders])
            if gathering.missing:
                await self._until_heard(gathering)
        finally:
            for number in numbers:
                del self._gathering[number]
        silent = len({key for key, _ in gathering.missing})
        rows = [_shown(row, message) for row in gathering.rows]
        names = queues_with_texts(rows)[:QUEUES_LOOKED_UP]
        known = await asyncio.gather(*(self._signatures_of(*name) for name in names))
        rows = without_hidden(rows, dict(zip(names, known, strict=True)))
        return QueriesFound(rows, len(gateways), silent)

    async def _signatures_of(self, namespace: str, queue: str) -> list[bytes] | None:
        """Return what the handlers of a queue have announced; None if that cannot be found out."""
        try:
            return await self._signatures(namespace, queue)
        except MaitredError:
            return None

    def _orders_for(self, gateway: _Gateway, message: Queries) -> list[tuple[Order, _Asked]]:
        orders = []
        for wanted in _filters(message):
            shown = gateway.shown(wanted)
            if shown is not None:
                # A gateway that may not learn the filter lists its queries, and this shard selects
                # those to cancel.
                hidden = bool(gateway.user) and _has_more(wanted)
                order = self._order("list" if hidden else message.action, shown)
                orders.append((order, _Asked(message.action, wanted)))
        return orders

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
            raise InvalidArgument("Only shard 0 knows the gateways.")

    def stop_waiting(self) -> None:
        """Answer every gateway that waits for orders: the shard stops."""
        for gateway in self._gateways.values():
            self._answer(gateway, [])


def _filters(message: Queries) -> list[QueryFilter]:
    """Return one filter for each namespace that the operator may see; one filter if that is all."""
    if message.within is None:
        return [message.filter]
    return [structs.replace(message.filter, namespace=one) for one in message.within]


def _has_more(wanted: QueryFilter) -> bool:
    """Whether the filter has a part that a user's own gateway must not learn."""
    return bool(wanted.queue or wanted.worker)


def _user_of(connection: RequestOrigin) -> str:
    """Return the user whose queries this gateway's table has; empty for a gateway of many users."""
    return "" if connection.is_gateway else connection.user


def _shown(row: QueryRow, message: Queries) -> QueryRow:
    """Return the row as the user who asks may see it: own queries are shown whole."""
    revealed = message.revealed
    is_own = row.user == message.user
    if message.reveal and (is_own or revealed is None or row.namespace in revealed):
        return row
    return public_query(row)


def _age(row: QueryRow) -> tuple[float, str, int]:
    return row.received_at, row.gateway, row.sequence
