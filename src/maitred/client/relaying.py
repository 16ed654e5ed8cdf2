"""A query whose worker cannot be reached directly: the node carries it there, and the answer back.

The answer comes in pieces, each asked for by us; so a caller that does not take rows stops the
worker as it would on a link. To stop it for good, the request for the next piece is taken back, or
the node is told so.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

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
    import asyncio

    from maitred.client.client import AsyncClient
    from maitred.client.held import Held
    from maitred.client.running import Running
    from maitred.client.seats import Guest
    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.queries import Allocation

LEAST_SECONDS: Final = 0.001


class Relaying:
    """One query, carried by the node."""

    __slots__ = (
        "_allocation",
        "_ask",
        "_client",
        "_gathered",
        "_held",
        "_loop",
        "_ordinal",
        "_running",
        "_stopped",
        "_untaken",
        "_window",
    )

    def __init__(
        self,
        client: AsyncClient,
        running: Running,
        allocation: Allocation,
        window_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._client = client
        self._loop = loop
        self._running = running
        self._allocation = allocation
        self._ask = running.ask
        self._window = window_bytes
        self._untaken = 0
        self._ordinal = 0
        self._gathered: list[bytes] = []
        """Pieces of a result that did not fit into one."""
        self._held: Held | None = None
        self._stopped = False

    def begin(self, seat: bytes) -> None:
        """Hand it over; raises if that cannot be done at all."""
        self._hold(seat)

    def stop(self, stream: int, guest: Guest) -> None:  # noqa: ARG002
        """Nobody waits for it any more."""
        if self._stopped:
            return
        self._stopped = True
        if self._held is not None:
            self._held.take_back()
            return
        try:
            self._hold(b"", stop=True)
        except MaitredError:
            return  # the node notices by itself, later

    def taken(self, stream: int, size: int) -> None:  # noqa: ARG002
        """So many bytes of rows were taken."""
        self._untaken -= size
        self._next()

    def _next(self) -> None:
        if self._held is None and not self._stopped and self._untaken < self._window:
            try:
                self._hold(b"")
            except MaitredError as problem:
                self._stopped = True
                self._running.lost(problem.sentence.rstrip("."), hung=False)

    def _hold(self, seat: bytes, *, stop: bool = False) -> None:
        message = Relay(
            self._ask.namespace,
            self._ask.queue,
            TASKS,
            self._allocation.partition,
            0,
            self._allocation.token,
            self._ordinal,
            seat,
            stop,
        )
        left = max(LEAST_SECONDS, self._running.deadline - self._loop.time())
        self._held = self._client.hold(message, left, patient=False)
        self._held.tell(self._told)

    def _told(self, outcome: AnyAnswer | MaitredError) -> None:
        self._held = None
        if self._stopped:
            if isinstance(outcome, Relayed) and outcome.more:
                # It came while it was taken back; the next piece would wait for us in vain.
                self._ordinal += 1
                with suppress(MaitredError):
                    self._hold(b"", stop=True)
            return
        if isinstance(outcome, Relayed):
            self._piece(outcome)
            return
        self._stopped = True
        if not isinstance(outcome, MaitredError):
            outcome = ProtocolViolation("The answer to RELAY is another one's.")
        began = self._ordinal > 0
        in_doubt = outcome.outcome is UNKNOWN and not isinstance(outcome, DeadlineExceeded)
        if in_doubt or (began and outcome.nothing_done):
            self._running.lost(outcome.sentence.rstrip("."), hung=False)
        else:
            if isinstance(outcome, InvalidReservation):  # it neither took it nor came for it
                self._running.suspect()
            self._running.refused(outcome)

    def _piece(self, piece: Relayed) -> None:
        self._ordinal += 1
        kind = piece.kind & ~ANSWER
        running = self._running
        if kind == Opcode.ROWS and piece.more:
            self._untaken += len(piece.body)
            running.rows_came(piece.body)
            self._next()
        elif kind == Opcode.SEAT:
            self._gathered.append(piece.body)
            if piece.more:
                self._next()
            else:
                self._stopped = True
                running.seated(b"".join(self._gathered))
        elif kind == Opcode.ERROR:
            self._stopped = True
            try:
                running.refused(decode_error(piece.body))
            except ProtocolViolation as problem:
                running.refused(problem)
        else:
            self._stopped = True
            running.lost("the node relayed what is no answer", hung=False)
