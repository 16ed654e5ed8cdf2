"""Relays queries through the node when their gateway cannot reach the worker.

Gateway and worker both send requests to the shard of the partition that made the reservation, and
its token brings them together. The gateway sends the query (RELAY) and asks for one piece of the
answer after the other; the worker fetches the query (FETCH) and delivers one piece after the other
(DELIVER). The first of the two waits for the other, so the shard never has more than one piece of
an answer, in a request that counts against the limit `under_way_bytes`.

| lost | outcome |
|---|---|
| the gateway, before the worker has the query | nothing runs; the reservation expires |
| the gateway, later | the answer to the worker's waiting or next request says to stop |
| the worker, before it has the query | `InvalidReservation`: nothing ran; the gateway asks again |
| the worker, later | `WorkerLost`, after `RETURN_SECONDS` without a request of the worker |
| the shard | the gateway's next request is refused with `WorkerLost`; the worker is told to stop |

A partition that gets another owner takes along the queries that no worker has fetched: both ends
are sent to the new owner. A fetched query stays at the shard that relays it until its end.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import (
    Cancelled,
    InvalidArgument,
    InvalidReservation,
    NotOwner,
    Overloaded,
    PayloadTooLarge,
    WorkerLost,
)
from maitred.matching.records import PartitionKey
from maitred.node.request_table import RequestTable, long_poll_until
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import (
    PIECE_MAX,
    Deliver,
    Delivered,
    Fetch,
    Fetched,
    Relay,
    Relayed,
)

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.membership.view import ClusterView
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.partitions import Partitions
    from maitred.protocol.messages import AnyRequest

RELAYS_MAX: Final = 10_000
"""Relayed queries of a shard at a time; their bodies count as requests in flight."""

NAMESPACE_SHARE: Final = 0.5
"""Largest share of the relays that one namespace may have. A user who relays with made-up tokens
fills the share of that namespace alone."""

RETURN_SECONDS: Final = 2.0
"""How long a worker that has a query may send no request, because it reconnects for example."""

IDLE_SECONDS: Final = 60.0
"""How long a gateway may wait before it asks for the next piece: its own caller may not read."""

LOOK_SECONDS: Final = 0.1
"""Interval at which the shard checks the time limits of relayed queries, while it has any."""

Key = tuple[str, str, bytes]


class _Relaying:
    """One relayed query."""

    __slots__ = (
        "asked",
        "fetched",
        "fetching",
        "fetching_until",
        "gateway_by",
        "key",
        "ordinal",
        "partition",
        "piece",
        "query",
        "stopped",
        "unclaimed_until",
        "watching",
        "watching_until",
        "worker_by",
    )

    def __init__(self, key: Key, partition: PartitionKey) -> None:
        self.key = key
        self.partition = partition
        self.query = b""
        """The query, until the worker fetches it."""
        self.fetched = False
        """Whether the worker has the query."""
        self.stopped = False
        """Whether the gateway has cancelled the query or was lost."""
        self.ordinal = 0
        """The number of the next piece."""
        self.asked: DeferredReply | None = None
        """The gateway's request for that piece."""
        self.piece: tuple[Deliver, DeferredReply] | None = None
        """That piece, and the worker's request that delivers it."""
        self.fetching: DeferredReply | None = None
        """The worker's request for the query."""
        self.fetching_until = inf
        self.watching: DeferredReply | None = None
        """The worker's long poll that is answered if the query is to stop."""
        self.watching_until = inf
        self.unclaimed_until = inf
        """When a query that no worker has fetched is refused."""
        self.worker_by = inf
        """When the worker counts as lost."""
        self.gateway_by = inf
        """When the gateway counts as lost."""


class Relays:
    """The relayed queries of one shard, by the tokens of their reservations."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._table: dict[Key, _Relaying] = {}
        self._namespaces: Counter[str] = Counter()
        """The number of relayed queries by namespace."""
        self._looking = False
        partitions.shard.view_listeners.append(self._view_changed)
        self.requests = RequestTable(
            holders={
                Opcode.RELAY: self._relay,
                Opcode.FETCH: self._fetch,
                Opcode.DELIVER: self._deliver,
            }
        )

    def statistics(self) -> dict[str, int]:
        """Return the number of relayed queries, and of those whose worker has not fetched them."""
        waiting = sum(not one.fetched for one in self._table.values())
        return {"queries": len(self._table), "not_fetched": waiting}

    def has(self, message: AnyRequest) -> bool:
        """Return whether the shard relays the query that this request is about."""
        return isinstance(message, Relay | Fetch | Deliver) and _key(message) in self._table

    def _view_changed(self, _before: ClusterView | None, _view: ClusterView) -> None:
        """Send both ends of a query that no worker has fetched to the new owner of its partition,
        where they meet. A fetched query stays: its worker runs it."""
        moves = self._partitions.moves
        if moves is None:
            return
        for one in list(self._table.values()):
            if not one.fetched and not moves.is_ours(one.partition):
                fetching, one.fetching = one.fetching, None
                if fetching is not None:
                    fetching.answer(Fetched())
                self._give_up(one, NotOwner("Another shard owns this partition now."))

    # The gateway

    def _relay(self, message: Relay, held: DeferredReply) -> None:
        key = _key(message)
        one = self._table.get(key)
        if message.stop:
            if one is not None and one.asked is None:
                self._stop(one)
            raise Cancelled("The gateway cancelled the query.")
        if message.ordinal:
            self._ask_for_piece(one, message, held)
            return
        if one is None:
            one = self._new(message)
        elif one.query or one.fetched or one.stopped:
            raise InvalidReservation("The reservation was used already.")
        now = self._loop.time()
        one.query = message.query
        limits = self._partitions.settings_of(one.partition).queries
        one.unclaimed_until = now + limits.reservation_seconds
        self._gateway_waits(one, held)
        if one.fetching is not None:
            self._hand_over(one, one.fetching, now)

    def _ask_for_piece(self, one: _Relaying | None, message: Relay, held: DeferredReply) -> None:
        if one is None or one.stopped:
            raise WorkerLost("The shard has no such query; it may have been restarted.")
        if one.asked is not None or message.ordinal != one.ordinal:
            raise InvalidArgument(f"The next piece is {one.ordinal}, for one request at a time.")
        self._gateway_waits(one, held)
        self._meet(one)

    def _gateway_waits(self, one: _Relaying, held: DeferredReply) -> None:
        one.asked = held
        one.gateway_by = inf
        held.on_stop = lambda: self._gateway_left(one, held)

    def _gateway_left(self, one: _Relaying, held: DeferredReply) -> None:
        if one.asked is held:
            one.asked = None
            self._stop(one)

    def _stop(self, one: _Relaying) -> None:
        """Tell the worker to stop, now or in the answer to its next request."""
        one.stopped = True
        one.query = b""
        watching, one.watching = one.watching, None
        if watching is not None:
            watching.answer(Fetched(stop=True))
        piece, one.piece = one.piece, None
        if piece is not None:
            piece[1].answer(Delivered(stop=True))
        self._forget(one)

    # The worker

    def _fetch(self, message: Fetch, held: DeferredReply) -> None:
        key = _key(message)
        one = self._table.get(key)
        now = self._loop.time()
        until = long_poll_until(message, now)
        if message.running:
            self._watch(one, held, until)
            return
        if one is None:
            if self._partitions.shard.draining:
                held.answer(Fetched())
                return
            one = self._new(message)
        elif one.fetched:
            raise InvalidReservation("The query was fetched already.")
        earlier, one.fetching = one.fetching, held
        if earlier is not None:
            earlier.answer(Fetched())
        one.fetching_until = until
        held.on_stop = lambda: self._fetcher_left(one, held)
        if one.query:
            self._hand_over(one, held, now)

    def _hand_over(self, one: _Relaying, held: DeferredReply, now: float) -> None:
        query, one.query, one.fetched, one.fetching = one.query, b"", True, None
        one.fetching_until = one.unclaimed_until = inf
        one.worker_by = now + RETURN_SECONDS
        held.answer(Fetched(query))

    def _fetcher_left(self, one: _Relaying, held: DeferredReply) -> None:
        if one.fetching is held:
            one.fetching = None
            one.fetching_until = inf
            if one.asked is None:
                self._forget(one)

    def _watch(self, one: _Relaying | None, held: DeferredReply, until: float) -> None:
        if one is None or one.stopped or not one.fetched:
            held.answer(Fetched(stop=True))
            return
        earlier, one.watching = one.watching, held
        if earlier is not None:
            earlier.answer(Fetched())
        one.watching_until = until
        one.worker_by = inf
        held.on_stop = lambda: self._watcher_left(one, held)

    def _watcher_left(self, one: _Relaying, held: DeferredReply) -> None:
        if one.watching is held:
            one.watching = None
            self._worker_out_of_touch(one)

    def _worker_out_of_touch(self, one: _Relaying) -> None:
        one.watching_until = inf
        if one.piece is None:
            one.worker_by = self._loop.time() + RETURN_SECONDS

    def _deliver(self, message: Deliver, held: DeferredReply) -> None:
        if len(message.body) > PIECE_MAX:
            raise PayloadTooLarge(f"A piece has at most {PIECE_MAX:,} bytes.")
        one = self._table.get(_key(message))
        if one is None or one.stopped:
            held.answer(Delivered(stop=True))
            return
        if message.ordinal < one.ordinal:
            held.answer(Delivered())  # delivered before; its answer was lost
            return
        if message.ordinal > one.ordinal or not one.fetched:
            raise InvalidArgument(f"The next piece is {one.ordinal}.")
        earlier, one.piece = one.piece, (message, held)
        if earlier is not None:
            earlier[1].answer(Delivered())
        one.worker_by = inf
        held.on_stop = lambda: self._bringer_left(one, held)
        self._meet(one)

    def _bringer_left(self, one: _Relaying, held: DeferredReply) -> None:
        if one.piece is not None and one.piece[1] is held:
            one.piece = None
            if one.watching is None:
                self._worker_out_of_touch(one)

    def _meet(self, one: _Relaying) -> None:
        """Hand the next piece to the gateway, if both have sent their requests."""
        if one.asked is None or one.piece is None:
            return
        gateway, (piece, worker) = one.asked, one.piece
        one.asked = one.piece = None
        one.ordinal += 1
        now = self._loop.time()
        one.gateway_by = now + IDLE_SECONDS
        if one.watching is None:
            one.worker_by = now + RETURN_SECONDS
        gateway.answer(Relayed(piece.kind, piece.body, piece.more))
        worker.answer(Delivered())
        if not piece.more:
            self._over(one)

    def _over(self, one: _Relaying) -> None:
        watching, one.watching = one.watching, None
        if watching is not None:
            watching.answer(Fetched())
        self._forget(one)

    # The table

    def _new(self, message: Relay | Fetch) -> _Relaying:
        key = _key(message)
        if len(self._table) >= RELAYS_MAX:
            raise Overloaded(
                f"The shard relays {RELAYS_MAX:,} queries already.", remedy="Come back later."
            )
        namespace = key[0]
        if self._namespaces[namespace] >= RELAYS_MAX * NAMESPACE_SHARE:
            raise Overloaded(
                f"The shard relays {self._namespaces[namespace]:,} queries of the namespace "
                f"{namespace!r} already.",
                remedy="Come back later.",
            )
        one = self._table[key] = _Relaying(key, _partition(message))
        self._namespaces[namespace] += 1
        if not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_SECONDS, self._look)
        return one

    def _forget(self, one: _Relaying) -> None:
        if self._table.get(one.key) is one:
            del self._table[one.key]
            namespace = one.key[0]
            self._namespaces[namespace] -= 1
            if not self._namespaces[namespace]:
                del self._namespaces[namespace]

    def _look(self) -> None:
        now = self._loop.time()
        for one in list(self._table.values()):
            self._look_at(one, now)
        self._looking = bool(self._table)
        if self._looking:
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _look_at(self, one: _Relaying, now: float) -> None:
        if one.fetching is not None and now >= one.fetching_until:
            one.fetching.answer(Fetched())
            self._fetcher_left(one, one.fetching)
        if one.watching is not None and now >= one.watching_until:
            watching, one.watching = one.watching, None
            watching.answer(Fetched())
            self._worker_out_of_touch(one)
        if now >= one.unclaimed_until:
            self._give_up(one, InvalidReservation("The worker did not fetch the query in time."))
        elif now >= one.worker_by:
            self._give_up(one, WorkerLost("The worker was lost while it had the query."))
        elif now >= one.gateway_by:
            self._stop(one)

    def _give_up(self, one: _Relaying, problem: MaitredError) -> None:
        asked, one.asked = one.asked, None
        if asked is not None:
            asked.refuse(problem)
        self._stop(one)

    def stop_waiting(self) -> None:
        """Answer the workers that wait for queries: the node stops. Fetched queries continue."""
        for one in list(self._table.values()):
            if one.fetching is not None and not one.query:
                one.fetching.answer(Fetched())
                self._fetcher_left(one, one.fetching)


def _key(message: Relay | Fetch | Deliver) -> Key:
    return message.namespace, message.queue, message.token


def _partition(message: Relay | Fetch) -> PartitionKey:
    return PartitionKey(message.namespace, message.queue, message.queue_type, message.partition)
