"""Queries that pass through the node, because their gateway cannot reach the worker.

Gateway and worker both come to the shard of the partition where the reservation was made, and are
brought together by its token. The gateway leaves the query and asks for one piece of the answer
after the other; the worker takes the query and leaves one piece after the other. Whoever is first
waits, so no more than one piece of an answer is ever here, in a request that the shard's own limit
for requests under way counts.

| who is lost | what becomes of it |
|---|---|
| the gateway, before the worker has the query | nothing is run; the reservation ends by itself |
| the gateway, later | the worker is told to stop, with whatever it waits for or says next |
| the worker, before it has the query | `InvalidReservation`: nothing was run, so ask again |
| the worker, later | `WorkerLost`, when it has not been back for `RETURN_SECONDS` |
| the shard | the gateway asks for a piece of what nobody knows: `WorkerLost`; the worker: stop |
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import (
    Cancelled,
    InvalidArgument,
    InvalidReservation,
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
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.partitions import Partitions

RELAYS_MAX: Final = 10_000
"""At a time; their bodies are counted with all requests under way."""

NAMESPACE_SHARE: Final = 0.5
"""Largest share of the relays that one namespace may have. A user who relays with made-up tokens
fills the share of that namespace alone."""

RETURN_SECONDS: Final = 2.0
"""How long a worker that has a query may be out of touch: between two requests, or while it
connects again."""

IDLE_SECONDS: Final = 60.0
"""How long a gateway may take a piece and not ask for the next: its own caller does not read."""

LOOK_SECONDS: Final = 0.1
"""How often it is looked who has waited long enough, while there is anything to look at."""

Key = tuple[str, str, bytes]


class _Relaying:
    """One query on its way."""

    __slots__ = (
        "asked",
        "fetched",
        "fetching",
        "fetching_until",
        "gateway_by",
        "key",
        "ordinal",
        "piece",
        "query",
        "stopped",
        "unclaimed_until",
        "watching",
        "watching_until",
        "worker_by",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.query = b""
        """The query, until the worker has it."""
        self.fetched = False
        """Whether the worker has it."""
        self.stopped = False
        """Whether nobody wants the answer any more."""
        self.ordinal = 0
        """Of the next piece."""
        self.asked: DeferredReply | None = None
        """The gateway, waiting for that piece."""
        self.piece: tuple[Deliver, DeferredReply] | None = None
        """That piece, and the worker who has brought it."""
        self.fetching: DeferredReply | None = None
        """The worker, waiting for the query."""
        self.fetching_until = inf
        self.watching: DeferredReply | None = None
        """The worker, waiting to hear that nobody wants the answer."""
        self.watching_until = inf
        self.unclaimed_until = inf
        """When the query that nobody fetches is given back."""
        self.worker_by = inf
        """When the worker counts as lost."""
        self.gateway_by = inf
        """When the gateway does."""


class Relays:
    """The relayed queries of one shard, by the tokens of their reservations."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._table: dict[Key, _Relaying] = {}
        self._namespaces: Counter[str] = Counter()
        """How many of them each namespace has."""
        self._looking = False
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

    # The gateway

    def _relay(self, message: Relay, held: DeferredReply) -> None:
        key = _key(message)
        one = self._table.get(key)
        if message.stop:
            if one is not None and one.asked is None:
                self._stop(one)
            raise Cancelled("The query was taken back.")
        if message.ordinal:
            self._ask_for_piece(one, message, held)
            return
        if one is None:
            one = self._new(key)
        elif one.query or one.fetched or one.stopped:
            raise InvalidReservation("The reservation was used already.")
        now = self._loop.time()
        one.query = message.query
        queue = PartitionKey(*key[:2], message.queue_type, message.partition)
        limits = self._partitions.settings_of(queue).queries
        one.unclaimed_until = now + limits.reservation_seconds
        self._gateway_waits(one, held)
        if one.fetching is not None:
            self._hand_over(one, one.fetching, now)

    def _ask_for_piece(self, one: _Relaying | None, message: Relay, held: DeferredReply) -> None:
        if one is None or one.stopped:
            raise WorkerLost("The node does not know this query any more.")
        if one.asked is not None or message.ordinal != one.ordinal:
            raise InvalidArgument(f"The next piece is {one.ordinal}, for whoever asks first.")
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
        """Tell the worker, now or with its next message, that the answer is not wanted any more."""
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
            one = self._new(key)
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
            held.answer(Delivered())  # it was taken; only the word of it was lost
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
        """Give the next piece to the gateway, if there is one and the gateway has asked for it."""
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

    # All of them

    def _new(self, key: Key) -> _Relaying:
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
        one = self._table[key] = _Relaying(key)
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
        """Answer the workers that wait for queries which never came: the node stops. What is under
        way goes on."""
        for one in list(self._table.values()):
            if one.fetching is not None and not one.query:
                one.fetching.answer(Fetched())
                self._fetcher_left(one, one.fetching)


def _key(message: Relay | Fetch | Deliver) -> Key:
    return message.namespace, message.queue, message.token
