"""A query whose worker the gateway cannot reach: the node relays it, and the answer.

The gateway requests the answer piece by piece, so a caller that does not take rows stops the worker
as it would on a link. To stop it for good, the gateway takes the request for the next piece back,
or tells the node.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from maitred.dispatch.effects import AnswerReceiver
from maitred.errors import (
    UNKNOWN,
    DeadlineExceeded,
    InvalidReservation,
    MaitredError,
    ProtocolViolation,
)
from maitred.protocol.frames import ANSWER, Opcode
from maitred.protocol.queries import Relay, Relayed
from maitred.protocol.refusals import decode_error
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.effects import Effects, NodeRequest
    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.queries import Allocation

LEAST_SECONDS: Final = 0.001


class RelayableQuery(AnswerReceiver, Protocol):
    """A query that has a slot of a worker, and receives the answer."""

    @property
    def ask(self) -> Ask:
        """The query with its caller's wishes."""

    @property
    def allocation(self) -> Allocation:
        """The slot that it got."""

    @property
    def deadline(self) -> float:
        """The time at which the caller stops waiting."""

    def suspect(self) -> None:
        """Tell the partition that the worker does not answer at all."""


class RelayedQuery:
    """Carries one query to the worker of its allocation, through the node."""

    __slots__ = (
        "_allocation",
        "_ask",
        "_effects",
        "_first",
        "_gathered",
        "_ordinal",
        "_query",
        "_request",
        "_stopped",
        "_untaken",
        "_window",
    )

    relays = True
    frame_bytes = 2**63 - 1
    """The node checks the size of a relayed query."""

    def __init__(self, effects: Effects, query: RelayableQuery, window_bytes: int) -> None:
        self._effects = effects
        self._query = query
        self._allocation = query.allocation
        self._ask = query.ask
        self._window = window_bytes
        self._untaken = 0
        self._ordinal = 0
        self._gathered: list[bytes] = []
        """Pieces of a result that is larger than one piece."""
        self._first: Any = None
        """The request with the query: those for the answer go to the same shard."""
        self._request: NodeRequest | None = None
        self._stopped = False

    def run(self, receiver: AnswerReceiver, body: bytes, now: float) -> int:  # noqa: ARG002
        """Hand the query to the node; raises if that cannot be done at all."""
        self._hold(body, now)
        return 0

    def release(self, token: bytes) -> None:
        """Let the reservation expire: without a link the worker cannot be told."""

    def stop(
        self,
        stream: int,  # noqa: ARG002
        receiver: AnswerReceiver,  # noqa: ARG002
        now: float,
        heir: AnswerReceiver | None = None,  # noqa: ARG002
    ) -> None:
        """Have the worker stop: the caller left."""
        if self._stopped:
            return
        self._stopped = True
        if self._request is not None:
            self._request.take_back()
            return
        with suppress(MaitredError):  # the node notices by itself, later
            self._hold(b"", now, stop=True)

    def taken(self, stream: int, size: int, now: float) -> None:  # noqa: ARG002
        """The caller took this many bytes of rows."""
        self._untaken -= size
        self._next(now)

    def _next(self, now: float) -> None:
        if self._request is None and not self._stopped and self._untaken < self._window:
            try:
                self._hold(b"", now)
            except MaitredError as problem:
                self._stopped = True
                self._query.lost(problem.sentence.rstrip("."), now, hung=False)

    def _hold(self, query: bytes, now: float, *, stop: bool = False) -> None:
        message = Relay(
            self._ask.namespace,
            self._ask.queue,
            TASKS,
            self._allocation.partition,
            0,
            self._allocation.token,
            self._ordinal,
            query,
            stop,
        )
        left = max(LEAST_SECONDS, self._query.deadline - now)
        self._request = request = self._effects.ask_node(
            message, left, self._told, patient=False, first=self._first
        )
        if self._first is None:
            self._first = request

    def _told(self, outcome: AnyAnswer | MaitredError, now: float) -> None:
        self._request = None
        if self._stopped:
            if isinstance(outcome, Relayed) and outcome.more:
                # It came while it was taken back; the next piece would wait in vain.
                self._ordinal += 1
                with suppress(MaitredError):
                    self._hold(b"", now, stop=True)
            return
        if isinstance(outcome, Relayed):
            self._piece(outcome, now)
            return
        self._stopped = True
        if not isinstance(outcome, MaitredError):
            outcome = ProtocolViolation("The answer to RELAY is another one's.")
        began = self._ordinal > 0
        in_doubt = outcome.outcome is UNKNOWN and not isinstance(outcome, DeadlineExceeded)
        if in_doubt or (began and outcome.nothing_done):
            self._query.lost(outcome.sentence.rstrip("."), now, hung=False)
        else:
            if isinstance(outcome, InvalidReservation):  # the worker neither took nor fetched it
                self._query.suspect()
            self._query.refused(outcome, now)

    def _piece(self, piece: Relayed, now: float) -> None:
        self._ordinal += 1
        kind = piece.kind & ~ANSWER
        query = self._query
        if kind == Opcode.ROWS and piece.more:
            self._untaken += len(piece.body)
            query.rows_came(piece.body, now)
            self._next(now)
        elif kind == Opcode.RUN:
            self._gathered.append(piece.body)
            if piece.more:
                self._next(now)
            else:
                self._stopped = True
                query.finished(b"".join(self._gathered), now)
        elif kind == Opcode.ERROR:
            self._stopped = True
            try:
                query.refused(decode_error(piece.body), now)
            except ProtocolViolation as problem:
                query.refused(problem, now)
        else:
            self._stopped = True
            query.lost("the node relayed what is no answer", now, hung=False)
