"""One query on its way: it waits, gets a slot, is sent, and comes to exactly one end.

Whatever happens to it is looked up in `dispatch.query_states`; every way out goes through
`_finish`, once, and takes the query out of everything that knew it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, msgpack

from maitred.balancing.workers import Outcome
from maitred.client.answers import Rows, Whole
from maitred.dispatch.query_states import LOST, Accident, Stage, Verdict, after
from maitred.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArguments,
    MaitredError,
    Overloaded,
    PayloadTooLarge,
    ProtocolViolation,
    QueryFailed,
    ResultTooLarge,
    SlotTaken,
    Unavailable,
    WorkerLost,
)
from maitred.protocol.messages import UNREADABLE
from maitred.protocol.queries import Allocation
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.protocol.seats import LOST_MAX, Seat, decode_seated, encode_seat
from maitred.protocol.tasks import DONE, STOPPED, TIMED_OUT, Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from maitred.client.allocating import Line
    from maitred.client.querying import Querying
    from maitred.client.seats import Guest, SeatLink
    from maitred.client.turns import Turn
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.hung_workers import Place
    from maitred.dispatch.query_states import Status
    from maitred.dispatch.query_table import QueryEntry

    class Carrier(Protocol):
        """Who brings the answer: a link, or the node."""

        def stop(self, stream: int, guest: Guest) -> None: ...
        def taken(self, stream: int, size: int) -> None: ...


_read_failure: Final = msgpack.Decoder(Failure).decode

SEAT_OVERHEAD_BYTES: Final = 256
"""Of a query's frame, besides its payload."""

TAKEN_MAX: Final = 8
"""So often a query asks again at once because its slot was taken by something else. A worker that
is honest refuses one for this reason now and then; another one is not asked in haste for ever."""

_WAITING: Final = Stage.WAITING
_SEATING: Final = Stage.SEATING
_SENT: Final = Stage.SENT
_STREAMING: Final = Stage.STREAMING
_OVER: Final = Stage.OVER
"""Looked up once: in `Stage` each look takes as long as the call of a function."""

_NONE: Final = Allocation(0, b"", b"", "", "")


class Running:
    """Made by `Querying.begin`."""

    __slots__ = (
        "_carrier",
        "_doubt",
        "_outcome",
        "_querying",
        "_rows",
        "_stream",
        "_then",
        "_waiter",
        "allocation",
        "ask",
        "counted",
        "deadline",
        "entry",
        "line",
        "lost_tokens",
        "put_off",
        "sequence",
        "since",
        "slots_taken",
        "stage",
        "tries",
        "turn",
        "warm",
    )

    def __init__(self, querying: Querying, ask: Ask, entry: QueryEntry, now: float) -> None:
        self.ask = ask
        self.entry = entry
        self.sequence = entry.sequence
        self.since = now
        """When it came; whoever has waited longer is served first."""
        self.deadline = ask.deadline
        self.stage = _WAITING
        self.line: Line | None = None
        """Where it waits for a slot."""
        self.counted = (ask.user, ask.namespace, ask.queue)
        """What it counts for, whatever a hook makes of it."""
        self.tries = 0
        """How often it had to be asked for again; from the second time on, it pauses before."""
        self.slots_taken = 0
        """How often its slot was taken by something else in the same moment."""
        self.allocation = _NONE
        """The last one that it got."""
        self.lost_tokens: list[bytes] | None = None
        """The tokens of the attempts whose connection was lost: their workers may still run them.
        None if no connection was lost."""
        self.warm = False
        """Whether the worker kept that slot for us, and no partition gave it out."""
        self.turn: Turn | None = None
        """If the worker is picked here: what its queue's floor knows of it."""
        self.put_off: Turn | None = None
        """The turn that goes on if the node has no slot that is free now."""
        self._querying = querying
        self._carrier: Carrier | None = None
        self._doubt: str | None = None
        """How a worker was lost that may have run it; it is idempotent then, and asks again."""
        self._stream = 0
        self._rows: Rows | None = None
        self._outcome: Whole | Rows | MaitredError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._then: Callable[[Whole | Rows | MaitredError], None] | None = None

    def __repr__(self) -> str:
        return f"<Running {self.sequence}, {self.stage.value}>"

    # For whoever asked

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where it runs."""
        return self._querying.loop

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.stage is _OVER

    async def answer(self) -> Whole | Rows:
        """What came of it: the result, or a stream that has begun; or the error, raised."""
        if self._outcome is None:
            self._waiter = waiter = self._querying.loop.create_future()
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        outcome = self._outcome
        if outcome is None or isinstance(outcome, MaitredError):
            raise outcome or Cancelled("The query was cancelled.")
        return outcome

    def then(self, told: Callable[[Whole | Rows | MaitredError], None]) -> None:
        """Instead of `answer`, for those who have no task to wait in: call this, once, with what
        came of it."""
        if self._outcome is None:
            self._then = told
        else:
            told(self._outcome)

    @property
    def worker(self) -> str:
        """Who runs it, or did last."""
        return self.entry.worker

    def cancel(self) -> None:
        """Nobody waits for it any more; of no effect if it is over."""
        if self.stage is not _OVER:
            self.happen(Accident.CANCELLED, Cancelled("The query was cancelled."))

    def taken(self, size: int) -> None:
        """So many bytes of its rows were taken."""
        if self.stage is _STREAMING and self._carrier is not None:
            self._carrier.taken(self._stream, size)

    # What becomes of it

    def allocated(self, allocation: Allocation, *, warm: bool = False) -> None:
        """Take the slot that the query got. A warm one was kept by the worker, without the node."""
        self.line = None
        self.warm = warm
        self.stage = _SEATING
        self.allocation = allocation
        querying = self._querying
        if (
            querying.hung.known
            and self.turn is None
            and querying.still_hangs(self._place, allocation)
        ):
            self.happen(Accident.NOTHING_DONE, Unavailable("The worker hangs."))
            return
        querying.links.get(allocation, self)

    def linked(self, link: SeatLink) -> None:
        """The worker can be reached: send it, or give the slot back."""
        allocation = self.allocation
        turn = self.turn
        if self.stage is not _SEATING:
            if turn is None:
                link.release(allocation.token)
            return
        payload = self.ask.payload
        if len(payload) + SEAT_OVERHEAD_BYTES > link.frame_bytes:
            if turn is None:
                link.release(allocation.token)
            problem = PayloadTooLarge(
                f"Arguments of {len(payload):,} bytes are more than the worker "
                f"{allocation.worker} takes ({link.frame_bytes:,})."
            )
            self.happen(Accident.REFUSED, problem)
            return
        now = self._querying.loop.time()
        body = self.seat(now)
        try:
            self._stream = link.seat(self, body, now)
        except MaitredError as problem:
            if turn is None:
                link.release(allocation.token)
            else:
                turn.end(Outcome.CANCELLED)
            self.happen(Accident.NOTHING_DONE, problem)
            return
        if turn is not None:
            turn.link = link
        self.sent(link)

    def seat(self, now: float) -> bytes:
        """What the worker gets."""
        ask = self.ask
        left = (self.deadline - now) * 1000
        if left < 1:
            left = 1
        elif left > TIMEOUT_MAX_MILLISECONDS:
            left = TIMEOUT_MAX_MILLISECONDS
        seat = Seat(
            self.allocation.token,
            self.sequence,
            int(left),
            self._querying.window_bytes,
            ask.payload,
            ask.rows,
        )
        turn = self.turn
        if turn is not None:
            seat.in_flight = turn.in_flight
            seat.pressed = bool(turn.floor.line)
        elif not self._querying.settings.warm:
            seat.pressed = True
        if self.lost_tokens is not None:
            seat.lost = self.lost_tokens
        return encode_seat(seat)

    def sent(self, carrier: Carrier, *, relayed: bool = False) -> None:
        """It is on its way to the worker."""
        self.stage = _SENT
        self._carrier = carrier
        querying, entry = self._querying, self.entry
        entry.worker = self.allocation.worker
        entry.attempts += 1
        entry.relayed = relayed
        if relayed:
            querying.table.relayed += 1
        querying.table.move(entry, "running", wall := querying.wall_clock())
        entry.sent_at = wall
        if querying.admission is not None:
            querying.admission.sent(*self.counted)

    def unreachable(self) -> None:
        """The worker cannot be reached directly."""
        if self.stage is not _SEATING:
            return
        if self.turn is None:
            self._querying.relay(self)
        else:  # others can, perhaps; and if nobody can, the node relays
            self.turn.end(Outcome.CANCELLED)
            self._querying.cannot_reach(self.allocation, for_long=True)
            self.happen(Accident.NOTHING_DONE, Unavailable("The worker cannot be reached."))

    def gone(self, why: str) -> None:
        """The worker is no more, and never got the query."""
        if self.stage is _SEATING:
            if self.turn is not None:
                self.turn.end(Outcome.CANCELLED)
                self._querying.cannot_reach(self.allocation, for_long=False)
            self.happen(Accident.NOTHING_DONE, Unavailable(f"The worker is gone: {why}."))

    def rows_came(self, chunk: bytes) -> None:
        """Of its stream."""
        querying = self._querying
        self.entry.bytes_out += len(chunk)
        rows = self._rows
        if rows is None:
            self.stage = _STREAMING
            rows = self._rows = self._outcome = Rows(self, querying.window_bytes)
            querying.table.move(self.entry, "streaming", querying.wall_clock())
            rows.came(chunk)
            self._wake()
            return
        rows.came(chunk)
        if rows.waiting > querying.window_bytes + querying.frame_bytes:
            problem = ProtocolViolation("The worker sent more rows than it was allowed to.")
            self._stop_carrier(Outcome.LOST)
            self._finish("lost", problem, at_once=True)

    def seated(self, body: bytes) -> None:
        """The worker says that it is over."""
        self._carrier = None
        try:
            seated = decode_seated(body)
        except UNREADABLE as problem:
            if self.turn is not None:
                self.turn.end(Outcome.LOST)
            self._finish(
                "lost", ProtocolViolation(f"The worker's answer cannot be read: {problem}.")
            )
            return
        if self.turn is not None:
            self.turn.answered(seated)
        if seated.again:
            self._querying.keep_warm(self, seated.again, seated.again_seconds)
        if seated.how == DONE:
            if seated.streamed or self._rows is not None:
                if self._rows is None:  # a stream without rows
                    self._rows = self._outcome = Rows(self, self._querying.window_bytes)
                self._finish("done", None)
            else:
                self.entry.bytes_out = len(seated.body)
                self._outcome = Whole(seated.body)
                self._finish("done", None)
        elif seated.how == TIMED_OUT:
            self._finish("late", self._too_late(by_worker=True))
        elif seated.how == STOPPED:
            self._finish("cancelled", Cancelled("The query was stopped at its worker."))
        else:
            self._failed(seated.body)

    def _failed(self, body: bytes) -> None:
        try:
            failure = _read_failure(body)
        except (DecodeError, *UNREADABLE):
            failure = Failure("unknown", "The reason cannot be read.")
        problem: MaitredError
        if failure.kind == ResultTooLarge.code:
            problem = ResultTooLarge(failure.message)
        elif failure.kind == InvalidArguments.code:
            problem = InvalidArguments(failure.message)
        else:
            problem = QueryFailed(
                f"{self._name} failed: {failure.kind}: {failure.message}",
                kind=failure.kind,
                message=failure.message,
                remote_traceback=failure.traceback,
            )
        self._finish("failed", problem, error=f"{failure.kind}: {failure.message}")

    def refused(self, problem: MaitredError) -> None:
        """It was not begun, says the worker or the node."""
        self._carrier = None
        if self.turn is not None:
            self.turn.was_refused(problem)
        elif (
            self.stage is _SENT
            and not self.warm  # of which no partition knows
            and isinstance(problem, Unavailable | Overloaded)
        ):
            self._querying.slot_refused(self._place, self.allocation)
        if isinstance(problem, SlotTaken) and self.stage is _SENT:
            # It goes back to its place, as if it had never got the slot.
            self.entry.attempts -= 1
            self.slots_taken += 1
            if self.slots_taken <= TAKEN_MAX:
                self.tries -= 1
        if isinstance(problem, WorkerLost):
            self.happen(Accident.LINK_LOST, problem)
        elif isinstance(problem, DeadlineExceeded):
            self.happen(Accident.DEADLINE, self._too_late())
        elif isinstance(problem, Unavailable | Overloaded):
            self.happen(Accident.NOTHING_DONE, problem)
        else:
            self.happen(Accident.REFUSED, problem)

    def refused_by_node(self, problem: MaitredError) -> None:
        """The node gives it no slot, and says why; or the node cannot be asked."""
        turn, self.put_off = self.put_off, None
        if turn is not None:
            self._querying.directing.resume(turn)
        elif self._doubt is None:
            self.happen(Accident.REFUSED, problem)
        else:
            sentence = f"{self._doubt} No other worker could be asked: {problem.sentence}"
            self._finish("lost", WorkerLost(sentence, remedy=problem.remedy))

    def lost(self, why: str, *, hung: bool) -> None:
        """The way to the worker is gone."""
        self._carrier = None
        if self.turn is not None:
            self.turn.end(Outcome.LOST)
        worker = self.entry.worker or "the worker"
        self.happen(
            Accident.HUNG if hung else Accident.LINK_LOST,
            WorkerLost(
                f"The worker {worker} was lost while it ran {self._name}: {why}. Whether it was "
                "done is not known.",
                remedy=None
                if self._rows is not None
                else "Ask again; a query marked idempotent is run elsewhere by itself.",
            ),
        )

    def suspect(self) -> None:
        """Its worker does not answer at all: have the node give its slots to nobody."""
        self._querying.suspect(self._place, self.allocation.session)

    def expired(self) -> None:
        """Its time is over; if it waited for a node that is away, that is the reason."""
        line = self.line
        away = None if line is None else self._querying.client.why_away(line.view.id)
        if away is not None:
            self.refused_by_node(away)
        else:
            self.happen(Accident.DEADLINE, self._too_late())

    # How it ends

    def happen(self, accident: Accident, problem: MaitredError) -> None:
        """An accident, and what it means."""
        verdict = after(accident, self.stage, idempotent=self.ask.idempotent)
        if verdict is Verdict.NOTHING:
            return
        if verdict is Verdict.AGAIN:
            if accident in LOST and self.stage is _SENT:
                self.lost_tokens = [*(self.lost_tokens or ()), self.allocation.token][-LOST_MAX:]
                self._doubt = problem.sentence
            self._again()
            return
        self._stop_carrier(Outcome.LOST if verdict is Verdict.LATE else Outcome.CANCELLED)
        if verdict is Verdict.LATE:
            self._finish("late", problem, at_once=True)
        elif verdict is Verdict.CANCEL:
            self._finish("cancelled", problem, at_once=True)
        elif verdict is Verdict.LOST:
            self._finish("lost", problem)
        else:
            self._finish("refused" if self.stage is not _STREAMING else "lost", problem)

    def _again(self) -> None:
        querying = self._querying
        was_sent = self.stage is _SENT
        self._carrier = None
        self.put_off = None
        self.stage = _WAITING
        self.tries += 1
        if was_sent:
            querying.table.move(self.entry, "waiting", querying.wall_clock())
            if querying.admission is not None:
                querying.admission.waits_again(*self.counted)
        querying.ask_again(self)

    def _stop_carrier(self, outcome: Outcome) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is None:
            return
        if self.turn is None:
            carrier.stop(self._stream, self)
        else:
            self.turn.leaving = outcome
            self.turn.stop(self._stream, self)

    def _finish(
        self,
        status: Status,
        problem: MaitredError | None,
        *,
        at_once: bool = False,
        error: str = "",
    ) -> None:
        stage = self.stage
        if stage is _OVER:
            return
        self.stage = _OVER
        querying = self._querying
        querying.left(self, waited=stage is _WAITING or stage is _SEATING)
        if problem is None:
            querying.table.move(self.entry, status, querying.wall_clock())
        else:
            text = error or f"{problem.code}: {problem.sentence}"
            querying.table.fail(self.entry, status, text, querying.wall_clock())
        if self._rows is not None:
            self._rows.ended(problem, at_once=at_once)
        if problem is not None and self._outcome is None:
            self._outcome = problem
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        then = self._then
        if then is not None and self._outcome is not None:
            self._then = None
            then(self._outcome)

    @property
    def _place(self) -> Place:
        return (self.ask.namespace, self.ask.queue, self.allocation.partition)

    @property
    def _name(self) -> str:
        return f"{self.ask.namespace}/{self.ask.queue}"

    def _too_late(self, *, by_worker: bool = False) -> DeadlineExceeded:
        if by_worker:
            return DeadlineExceeded(
                f"{self._name} took longer than it may, and was stopped.",
                remedy="Give it more time, or have the queue's run_seconds raised.",
            )
        seconds = self.deadline - self.since
        doing = {
            _WAITING: "no worker was free for it",
            _SEATING: "its worker could not be reached",
        }.get(self.stage, "it was not finished, and its worker is told to stop")
        return DeadlineExceeded(f"{self._name} did not answer within {seconds:.3g} s: {doing}.")
