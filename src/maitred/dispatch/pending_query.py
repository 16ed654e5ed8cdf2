"""One query on its way: it waits, gets a slot, is sent, and comes to exactly one end.

Whatever happens to it is looked up in `query_states.py`; every way out goes through `_finish`,
once, and takes the query out of everything that knew it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, msgpack

from maitred.balancing.workers import QueryOutcome
from maitred.dispatch.query_states import LOST, Accident, Stage, Verdict, after
from maitred.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArguments,
    MaitredError,
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
from maitred.protocol.query_link import LOST_MAX, RunQuery, decode_query_end, encode_run
from maitred.protocol.requests import TIMEOUT_MAX_MILLISECONDS
from maitred.protocol.tasks import DONE, STOPPED, TIMED_OUT, Failure

if TYPE_CHECKING:
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.dispatch_attempt import DispatchAttempt
    from maitred.dispatch.dispatcher import Dispatcher
    from maitred.dispatch.effects import Carrier, WorkerConnection
    from maitred.dispatch.hung_workers import Place
    from maitred.dispatch.query_states import Status
    from maitred.dispatch.query_table import QueryEntry
    from maitred.dispatch.slot_requests import SlotLine

_read_failure: Final = msgpack.Decoder(Failure).decode

RUN_OVERHEAD_BYTES: Final = 256
"""The most bytes that a query's frame has besides its payload."""

TAKEN_MAX: Final = 8
"""So often a query asks again at once because its slot was taken by something else. An honest
worker refuses one for this reason now and then; another one is not asked in haste for ever."""

_WAITING: Final = Stage.WAITING
_CONNECTING: Final = Stage.CONNECTING
_SENT: Final = Stage.SENT
_STREAMING: Final = Stage.STREAMING
_OVER: Final = Stage.OVER
"""Looked up once: in `Stage` each look takes as long as the call of a function."""

_NONE: Final = Allocation(0, b"", b"", "", "")


class PendingQuery:
    """One query, from `Dispatcher.begin` to its end.

    Those who inherit hand its caller what comes of it: `hand_rows` and `hand_answer`.
    """

    __slots__ = (
        "_carrier",
        "_dispatcher",
        "_doubt",
        "_stream",
        "_untaken",
        "allocation",
        "ask",
        "attempt",
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
        "streams",
        "tries",
        "warm",
    )

    def __init__(self, dispatcher: Dispatcher, ask: Ask, entry: QueryEntry, now: float) -> None:
        self.ask = ask
        self.entry = entry
        self.sequence = entry.sequence
        self.since = now
        """When it came; the query that has waited longest is served first."""
        self.deadline = ask.deadline
        self.stage = _WAITING
        self.line: SlotLine | None = None
        """The line in which it waits for a slot."""
        self.counted = (ask.user, ask.namespace, ask.queue)
        """What admission counts it for, whatever a hook makes of it."""
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
        """Whether the worker kept that slot for us, and no partition allocated it."""
        self.attempt: DispatchAttempt | None = None
        """Its way through a queue whose workers the gateway picks, if it goes so."""
        self.put_off: DispatchAttempt | None = None
        """The attempt that goes on if the node has no slot that is free now."""
        self.streams = False
        """Whether it is answered by a stream of rows."""
        self._dispatcher = dispatcher
        self._carrier: Carrier | None = None
        self._doubt: str | None = None
        """How a worker was lost that may have run it; it is idempotent then, and asks again."""
        self._stream = 0
        self._untaken = 0
        """Bytes of rows that the caller has not taken."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}, {self.stage.value}>"

    # For its caller

    def hand_rows(self, chunk: bytes) -> None:
        """Hand the caller rows of a stream, the first time to begin it."""
        raise NotImplementedError

    def hand_answer(
        self, body: bytes, problem: MaitredError | None, *, drop_rows: bool = False
    ) -> None:
        """Hand the caller the result, the end of a stream (`streams`), or the error; exactly once.

        With `drop_rows`, rows that the caller has not taken are not wanted either.
        """
        raise NotImplementedError

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.stage is _OVER

    @property
    def worker(self) -> str:
        """The name of the worker that runs it, or ran it last."""
        return self.entry.worker

    @property
    def priority(self) -> int:
        return self.ask.priority

    @property
    def do_not_queue(self) -> bool:
        return self.ask.do_not_queue

    def leave(self, now: float) -> None:
        """The caller left; of no effect if the query is over."""
        if self.stage is not _OVER:
            self.happen(Accident.CANCELLED, Cancelled("The query was cancelled."), now)

    def took(self, size: int, now: float) -> None:
        """The caller took this many bytes of rows."""
        self._untaken -= size
        if self.stage is _STREAMING and self._carrier is not None:
            self._carrier.taken(self._stream, size, now)

    # Towards a worker

    def ask_node(self, now: float) -> None:
        """Ask the node for a slot: no worker can be picked here."""
        self.attempt = None
        self._dispatcher.ask_node(self, now)

    def ask_node_at_once(self) -> None:
        """Ask the node for a slot that is free now. If it has none, the attempt goes on."""
        self.put_off, self.attempt = self.attempt, None
        self._dispatcher.ask_node_at_once(self)

    def allocated(self, allocation: Allocation, now: float, *, warm: bool = False) -> None:
        """Take the slot that the query got. A warm one was kept by the worker, without the node."""
        self.line = None
        self.warm = warm
        self.stage = _CONNECTING
        self.allocation = allocation
        dispatcher = self._dispatcher
        if (
            dispatcher.hung.known
            and self.attempt is None
            and dispatcher.still_hangs(self._place, allocation, now)
        ):
            self.happen(Accident.NOTHING_DONE, Unavailable("The worker hangs."), now)
            return
        dispatcher.effects.connect(allocation, self, now)

    def linked(self, link: WorkerConnection, now: float) -> None:
        """The worker can be reached: send it, or give the slot back."""
        allocation = self.allocation
        attempt = self.attempt
        if self.stage is not _CONNECTING:
            if attempt is None:
                link.release(allocation.token)
            return
        payload = self.ask.payload
        if len(payload) + RUN_OVERHEAD_BYTES > link.frame_bytes:
            if attempt is None:
                link.release(allocation.token)
            problem = PayloadTooLarge(
                f"Arguments of {len(payload):,} bytes are more than the worker "
                f"{allocation.worker} takes ({link.frame_bytes:,})."
            )
            self.happen(Accident.REFUSED, problem, now)
            return
        body = self.encode(now)
        try:
            self._stream = link.run(self, body, now)
        except MaitredError as problem:
            if attempt is None:
                link.release(allocation.token)
            else:
                attempt.end(QueryOutcome.CANCELLED, now)
            self.happen(Accident.NOTHING_DONE, problem, now)
            return
        if attempt is not None:
            attempt.link = link
        self.sent(link, now)

    def encode(self, now: float) -> bytes:
        """The message that the worker gets."""
        ask = self.ask
        left = (self.deadline - now) * 1000
        if left < 1:
            left = 1
        elif left > TIMEOUT_MAX_MILLISECONDS:
            left = TIMEOUT_MAX_MILLISECONDS
        dispatcher = self._dispatcher
        message = RunQuery(
            self.allocation.token,
            self.sequence,
            int(left),
            dispatcher.window_bytes,
            ask.payload,
            ask.rows,
        )
        attempt = self.attempt
        if attempt is not None:
            message.in_flight = attempt.in_flight
            message.pressed = bool(attempt.queue.line)
        elif not dispatcher.uses_warm_slots:
            message.pressed = True
        if self.lost_tokens is not None:
            message.lost = self.lost_tokens
        return encode_run(message)

    def sent(self, carrier: Carrier, now: float, *, relayed: bool = False) -> None:
        """The query is on its way to the worker."""
        self.stage = _SENT
        self._carrier = carrier
        dispatcher, entry = self._dispatcher, self.entry
        entry.worker = self.allocation.worker
        entry.attempts += 1
        entry.relayed = relayed
        if relayed:
            dispatcher.table.relayed += 1
        entry.sent_at = wall = entry.received_at + (now - self.since)
        dispatcher.table.move(entry, "running", wall)
        if dispatcher.admission is not None:
            dispatcher.admission.sent(*self.counted)

    def unreachable(self, now: float) -> None:
        """The worker cannot be reached directly."""
        if self.stage is not _CONNECTING:
            return
        if self.attempt is None:
            self._dispatcher.relay(self, now)
        else:  # other workers can, perhaps; and if none can, the node relays
            self.attempt.end(QueryOutcome.CANCELLED, now)
            self._dispatcher.cannot_reach(self.allocation, now, for_long=True)
            problem = Unavailable("The worker cannot be reached.")
            self.happen(Accident.NOTHING_DONE, problem, now)

    def gone(self, why: str, now: float) -> None:
        """The worker does not exist any more, and never got the query."""
        if self.stage is _CONNECTING:
            if self.attempt is not None:
                self.attempt.end(QueryOutcome.CANCELLED, now)
                self._dispatcher.cannot_reach(self.allocation, now, for_long=False)
            problem = Unavailable(f"The worker is gone: {why}.")
            self.happen(Accident.NOTHING_DONE, problem, now)

    # What the worker says

    def rows_came(self, chunk: bytes, now: float) -> None:
        """Rows of its stream arrived."""
        dispatcher, entry = self._dispatcher, self.entry
        size = len(chunk)
        entry.bytes_out += size
        self._untaken += size
        if not self.streams:
            self.streams = True
            self.stage = _STREAMING
            dispatcher.table.move(entry, "streaming", entry.received_at + (now - self.since))
            self.hand_rows(chunk)
            return
        self.hand_rows(chunk)
        if self._untaken > dispatcher.window_bytes + dispatcher.frame_bytes:
            problem = ProtocolViolation("The worker sent more rows than it was allowed to.")
            self._stop_carrier(QueryOutcome.LOST, now)
            self._finish("lost", problem, now, drop_rows=True)

    def finished(self, body: bytes, now: float) -> None:
        """The worker says that the query has ended."""
        self._carrier = None
        try:
            end = decode_query_end(body)
        except UNREADABLE as problem:
            if self.attempt is not None:
                self.attempt.end(QueryOutcome.LOST, now)
            unreadable = ProtocolViolation(f"The worker's answer cannot be read: {problem}.")
            self._finish("lost", unreadable, now)
            return
        if self.attempt is not None:
            self.attempt.answered(end, now)
        if end.again:
            self._dispatcher.keep_warm(self, end.again, end.again_seconds, now)
        if end.how == DONE:
            if end.streamed:
                self.streams = True
            elif not self.streams:
                self.entry.bytes_out = len(end.body)
            self._finish("done", None, now, end.body)
        elif end.how == TIMED_OUT:
            self._finish("late", self._too_late(by_worker=True), now)
        elif end.how == STOPPED:
            self._finish("cancelled", Cancelled("The query was stopped at its worker."), now)
        else:
            self._failed(end.body, now)

    def _failed(self, body: bytes, now: float) -> None:
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
        self._finish("failed", problem, now, error=f"{failure.kind}: {failure.message}")

    def refused(self, problem: MaitredError, now: float) -> None:
        """The worker, or the node, says that the query was not begun."""
        self._carrier = None
        if self.attempt is not None:
            self.attempt.refused(problem, now)
        elif (
            self.stage is _SENT
            and not self.warm  # of which no partition knows
            and problem.nothing_done
        ):
            self._dispatcher.slot_refused(self._place, self.allocation)
        if isinstance(problem, SlotTaken) and self.stage is _SENT:
            # It waits again as if it had never got the slot.
            self.entry.attempts -= 1
            self.slots_taken += 1
            if self.slots_taken <= TAKEN_MAX:
                self.tries -= 1
        if isinstance(problem, WorkerLost):
            self.happen(Accident.LINK_LOST, problem, now)
        elif isinstance(problem, DeadlineExceeded):
            self.happen(Accident.DEADLINE, self._too_late(), now)
        elif problem.nothing_done:
            self.happen(Accident.NOTHING_DONE, problem, now)
        else:
            self.happen(Accident.REFUSED, problem, now)

    def refused_by_node(self, problem: MaitredError, now: float) -> None:
        """The node gives it no slot, and says why; or the node cannot be asked."""
        attempt, self.put_off = self.put_off, None
        if attempt is not None:
            self._dispatcher.queues.resume(self, attempt, now)
        elif self._doubt is None:
            self.happen(Accident.REFUSED, problem, now)
        else:
            sentence = f"{self._doubt} No other worker could be asked: {problem.sentence}"
            self._finish("lost", WorkerLost(sentence, remedy=problem.remedy), now)

    def lost(self, why: str, now: float, *, hung: bool) -> None:
        """The link to the worker ended, or the node lost the worker."""
        self._carrier = None
        if self.attempt is not None:
            self.attempt.end(QueryOutcome.LOST, now)
        worker = self.entry.worker or "the worker"
        problem = WorkerLost(
            f"The worker {worker} was lost while it ran {self._name}: {why}. Whether it was "
            "done is not known.",
            remedy=None
            if self.streams
            else "Ask again; a query marked idempotent is run elsewhere by itself.",
        )
        self.happen(Accident.HUNG if hung else Accident.LINK_LOST, problem, now)

    def suspect(self) -> None:
        """Its worker does not answer at all: have the node give that worker's slots to no query."""
        self._dispatcher.suspect(self._place, self.allocation.session)

    def expired(self, now: float) -> None:
        """Its deadline passed; if it waited for a node that is away, that is the reason."""
        line = self.line
        away = None if line is None else self._dispatcher.effects.why_away(line.view.id)
        if away is not None:
            self.refused_by_node(away, now)
        else:
            self.happen(Accident.DEADLINE, self._too_late(), now)

    # How it ends

    def happen(self, accident: Accident, problem: MaitredError, now: float) -> None:
        """Do what an accident means at this stage."""
        verdict = after(accident, self.stage, idempotent=self.ask.idempotent)
        if verdict is Verdict.NOTHING:
            return
        if verdict is Verdict.AGAIN:
            if accident in LOST and self.stage is _SENT:
                self.lost_tokens = [*(self.lost_tokens or ()), self.allocation.token][-LOST_MAX:]
                self._doubt = problem.sentence
            self._again(now)
            return
        self._stop_carrier(
            QueryOutcome.LOST if verdict is Verdict.LATE else QueryOutcome.CANCELLED, now
        )
        if verdict is Verdict.LATE:
            self._finish("late", problem, now, drop_rows=True)
        elif verdict is Verdict.CANCEL:
            self._finish("cancelled", problem, now, drop_rows=True)
        elif verdict is Verdict.LOST:
            self._finish("lost", problem, now)
        else:
            self._finish("refused" if self.stage is not _STREAMING else "lost", problem, now)

    def _again(self, now: float) -> None:
        dispatcher, entry = self._dispatcher, self.entry
        was_sent = self.stage is _SENT
        self._carrier = None
        self.put_off = None
        self.stage = _WAITING
        self.tries += 1
        if was_sent:
            dispatcher.table.move(entry, "waiting", entry.received_at + (now - self.since))
            if dispatcher.admission is not None:
                dispatcher.admission.waits_again(*self.counted)
        dispatcher.ask_again(self, now)

    def _stop_carrier(self, outcome: QueryOutcome, now: float) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is None:
            return
        if self.attempt is None:
            carrier.stop(self._stream, self, now)
        else:
            self.attempt.abandon(outcome, now)
            self.attempt.stop(self._stream, self)

    def _finish(
        self,
        status: Status,
        problem: MaitredError | None,
        now: float,
        body: bytes = b"",
        *,
        drop_rows: bool = False,
        error: str = "",
    ) -> None:
        stage = self.stage
        if stage is _OVER:
            return
        self.stage = _OVER
        dispatcher, entry = self._dispatcher, self.entry
        dispatcher.left(self, now, waited=stage is _WAITING or stage is _CONNECTING)
        wall = entry.received_at + (now - self.since)
        if problem is None:
            dispatcher.table.move(entry, status, wall)
        else:
            text = error or f"{problem.code}: {problem.sentence}"
            dispatcher.table.fail(entry, status, text, wall)
        self.hand_answer(body, problem, drop_rows=drop_rows)

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
            _CONNECTING: "its worker could not be reached",
        }.get(self.stage, "it was not finished, and its worker is told to stop")
        return DeadlineExceeded(f"{self._name} did not answer within {seconds:.3g} s: {doing}.")
