"""Queries that the node relays, because their gateway cannot connect to this worker.

If no query has come `fetch_seconds` after its reservation, the worker sends FETCH, a long poll,
which the node answers with the query if it is relayed; a worker without a listener does so at once.
The query runs like any other. The answer goes back in pieces (DELIVER), each when the gateway has
taken the one before it. Meanwhile a second FETCH waits at the node, to hear when the caller
cancels.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from maitred.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidReservation,
    MaitredError,
    UnknownRequest,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import UNREADABLE, not_understood
from maitred.protocol.queries import (
    PIECE_MAX,
    Deliver,
    Delivered,
    Fetch,
    Fetched,
)
from maitred.protocol.query_link import decode_run, encode_query_end
from maitred.protocol.refusals import encode_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.long_poll import LongPoll
    from maitred.protocol.query_link import QueryEnd, RunQuery
    from maitred.worker.context import WorkerContext
    from maitred.worker.query import Asker, Query
    from maitred.worker.reservations import Reservation
    from maitred.worker.served import Served

HEAR_SECONDS: Final = 60.0
"""Seconds that one FETCH waits at the node for a cancellation."""

DELIVER_SECONDS: Final = 5.0
"""Least time for a gateway to take a piece; usually it has as long as the query may run."""

RESULT_BYTES: Final = 2**30
"""Largest result that is sent in pieces; the reservation's own limit is lower."""

AGAIN_SECONDS: Final = 0.1
"""Pause before the next FETCH, if the node answered the last one at once."""


class ReservedQueries(Protocol):
    """The queries of a worker, to which the relayed ones are added."""

    def is_known(self, token: bytes) -> bool:
        """Whether this reservation still waits for its query."""

    def run(self, asker: Asker, stream: int, message: RunQuery, now: float) -> bytes | None:
        """Run a query, or refuse it; return its token if it waits for its reservation or pass."""

    def release(self, token: bytes) -> None:
        """Give up a reservation that will not be used, whether it is known or not."""


class RelayedQueries:
    """Asks the node for the queries that reach this worker by way of the node, and runs each as if
    a gateway had sent it."""

    def __init__(
        self, context: WorkerContext, querying: ReservedQueries, ended: Callable[[], None]
    ) -> None:
        self.client = context.client
        self.querying = querying
        self._statistics = context.statistics
        self._ended = ended
        """Called when a relayed query has ended."""
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._held: dict[bytes, LongPoll] = {}
        """The FETCH of each query that has not come yet, by token."""

    def begin(self, reservation: Reservation[Served]) -> None:
        """Ask the node for the query of this reservation."""
        task = self._loop.create_task(self._fetch(reservation))
        self._tasks[task] = None
        task.add_done_callback(self._over)

    def arrived(self, token: bytes) -> None:
        """Stop asking for a query that came directly, or will not come at all."""
        held = self._held.get(token)
        if held is not None:
            held.take_back()

    @property
    def under_way(self) -> int:
        """Queries that are asked for, that run, or whose answer is not delivered yet."""
        return len(self._tasks)

    def stop(self) -> None:
        """Stop asking for queries and delivering answers."""
        for task in list(self._tasks):
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._ended()

    async def _fetch(self, reservation: Reservation[Served]) -> None:
        token = reservation.terms.token
        query, first = b"", None
        while not query:
            left = reservation.expires_at - self._loop.time()
            if left <= 0 or not self.querying.is_known(token):
                return
            query, first = await self._ask(reservation, left)
            if not query:
                await asyncio.sleep(AGAIN_SECONDS)
        relay = NodeRelay(self, reservation, first)
        self._statistics.relayed += 1
        try:
            relay.begin(decode_run(query))
        except UNREADABLE as problem:
            self.querying.release(token)
            relay.refused(0, not_understood(Opcode.RUN, problem))
        except InvalidReservation as problem:
            self.querying.release(token)
            relay.refused(0, problem)
        await relay.deliver()

    async def _ask(
        self, reservation: Reservation[Served], left: float
    ) -> tuple[bytes, LongPoll | None]:
        """Ask the node for the query of a reservation; return it with the request that fetched it,
        or an empty query and None if the node has none yet."""
        served, terms = reservation.where, reservation.terms
        message = Fetch(*served.view.id, terms.partition, 0, terms.token)
        try:
            held = self._held[terms.token] = self.client.hold(message, left)
            fetched = cast("Fetched", await held.answer())
        except UnknownRequest:  # an older node, which relays nothing
            await asyncio.sleep(left)
            return b"", None
        except (
            MaitredError
        ):  # taken back, or the node does not answer: there may be time to ask again
            return b"", None
        finally:
            self._held.pop(terms.token, None)
        return fetched.query, held


class NodeRelay:
    """Delivers the answer of one relayed query; it is the query's `Asker`, as a link is."""

    body_bytes = PIECE_MAX
    """Largest piece with rows; a result may be cut into pieces, a row may not."""

    def __init__(
        self, fetching: RelayedQueries, reservation: Reservation[Served], first: LongPoll | None
    ) -> None:
        self._fetching = fetching
        self._reservation = reservation
        self._first = first
        """The request that fetched the query: the shard that answered it takes the answer."""
        self._query: Query | None = None
        self._pieces: deque[tuple[int, bytes, bool]] = deque()
        """What is to be delivered: kind, body, and whether more follows."""
        self._news = asyncio.Event()
        self._ordinal = 0
        self.gateway = "relayed"
        self.sender = None
        self.answer_bytes = RESULT_BYTES

    def begin(self, message: RunQuery) -> None:
        """Run it."""
        if message.token != self._reservation.terms.token:
            raise InvalidReservation("The query that was relayed is for another reservation.")
        loop = asyncio.get_running_loop()
        self._fetching.querying.run(self, 0, message, loop.time())

    async def deliver(self) -> None:
        """Send the answer to the node piece by piece, for as long as the gateway wants it."""
        hearing = None
        if self._query is not None and not self._query.told:
            hearing = asyncio.ensure_future(self._hear())
        try:
            more = True
            while more:
                while not self._pieces:
                    self._news.clear()
                    await self._news.wait()
                kind, body, more = self._next()
                if not await self._send(kind, body, more):
                    return
                if kind == Opcode.ROWS and self._query is not None:
                    self._query.credit(len(body))
        finally:
            if self._query is not None:
                self._query.abandon()  # has no effect on a query that has ended
            if hearing is not None:
                hearing.cancel()

    def _next(self) -> tuple[int, bytes, bool]:
        """Return the next piece; rows that came while the last one was on its way go together."""
        pieces = self._pieces
        kind, body, more = pieces.popleft()
        parts, size = [body], len(body)
        while (
            kind == Opcode.ROWS
            and pieces
            and pieces[0][0] == Opcode.ROWS
            and size + len(pieces[0][1]) <= PIECE_MAX
        ):
            parts.append(pieces.popleft()[1])
            size += len(parts[-1])
        return kind, b"".join(parts), more

    async def _send(self, kind: int, body: bytes, more: bool) -> bool:
        served, terms = self._reservation.where, self._reservation.terms
        message = Deliver(
            *served.view.id, terms.partition, 0, terms.token, self._ordinal, kind, body, more
        )
        self._ordinal += 1
        seconds = DELIVER_SECONDS
        if self._query is not None:
            seconds += max(0.0, self._query.deadline - asyncio.get_running_loop().time())
        try:
            delivered = await self._fetching.client.request(
                message, seconds, patient=True, first=self._first
            )
        except MaitredError:
            return False  # the node tells the gateway
        return not cast("Delivered", delivered).stop

    async def _hear(self) -> None:
        served, terms = self._reservation.where, self._reservation.terms
        while True:
            message = Fetch(*served.view.id, terms.partition, 0, terms.token, running=True)
            asked_at = asyncio.get_running_loop().time()
            try:
                held = self._fetching.client.hold(message, HEAR_SECONDS, first=self._first)
                fetched = cast("Fetched", await held.answer())
            except (Cancelled, DeadlineExceeded):
                continue
            except MaitredError:
                # The shard that relays is gone, so the answer could not be delivered.
                self._stop()
                return
            if fetched.stop:
                self._stop()
                return
            if asyncio.get_running_loop().time() - asked_at < AGAIN_SECONDS:
                await asyncio.sleep(AGAIN_SECONDS)

    def _stop(self) -> None:
        if self._query is not None:
            self._query.cancel()

    # From the query

    def begun(self, stream: int, query: Query) -> None:  # noqa: ARG002 - a relay has one stream
        """Register the query, whose handler has begun."""
        self._query = query

    def rows(self, stream: int, parts: list[bytes], size: int) -> None:  # noqa: ARG002
        """Deliver rows of a stream."""
        self._add(Opcode.ROWS, b"".join(parts), more=True)

    def over(self, stream: int, end: QueryEnd) -> None:  # noqa: ARG002
        """Deliver the end of a query that was begun."""
        body = encode_query_end(end)
        for start in range(0, len(body), PIECE_MAX):
            piece = body[start : start + PIECE_MAX]
            self._add(Opcode.RUN, piece, more=start + PIECE_MAX < len(body))

    def refused(self, stream: int, problem: MaitredError) -> None:  # noqa: ARG002
        """Deliver the error for a query that was not begun."""
        self._add(Opcode.ERROR, encode_error(problem), more=False)

    def _add(self, kind: int, body: bytes, *, more: bool) -> None:
        self._pieces.append((kind, body, more))
        self._news.set()
