"""One query on its way: it waits, gets a slot, is sent, and comes to exactly one end.

Its status is in its row of the query table, and changes only by `QueryTable.move`. What follows an
accident is looked up in `query_states.py`. Every end goes through `_finish`, once, which takes the
query out of everything that knew it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import DecodeError, msgpack

from maitred.balancing.workers import QueryOutcome
from maitred.dispatch.query_states import LOST, UNDER_WAY, WITHOUT_WORKER, Accident, Verdict, after
from maitred.dispatch.relayed_query import RelayedQuery
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
from maitred.trace_context import next_attempt

if TYPE_CHECKING:
    from maitred.dispatch.admission import Admission
    from maitred.dispatch.ask import Ask
    from maitred.dispatch.dispatch_attempt import DispatchAttempt
    from maitred.dispatch.dispatched_queues import DispatchedQueues
    from maitred.dispatch.effects import Carrier, Effects
    from maitred.dispatch.query_table import QueryTable
    from maitred.dispatch.slot_requests import SlotLine, SlotRequests
    from maitred.dispatch.worker_reports import Place, WorkerReports
    from maitred.protocol.queries import QueryStatus

_read_failure: Final = msgpack.Decoder(Failure).decode

RUN_OVERHEAD_BYTES: Final = 1_024
"""The most bytes that a query's frame has besides its payload: half of them are its trace context,
a quarter the tokens of lost attempts."""

TAKEN_MAX: Final = 8
"""How often a query asks again at once because its slot was taken by something else. An honest
worker refuses a query for this reason now and then; another one must not be asked in haste for
ever."""

_NONE: Final = Allocation(0, b"", b"", "", "")


class QueryDispatcher(Protocol):
    """The gateway's dispatcher, as its queries see it."""

    effects: Effects
    """Does the I/O that queries ask for."""
    table: QueryTable
    """The query table, with a row for each query."""
    admission: Admission | None
    """Counts the queries of users and queues; None if there are no limits."""
    window_bytes: int
    """Bytes of rows that a worker may send before the caller takes some."""
    frame_bytes: int
    """Largest frame that the gateway takes from a worker."""
    uses_warm_slots: bool
    """Whether workers may keep a slot for the gateway that has just used it."""
    reports: WorkerReports
    """Reports workers that hang or refuse slots to their partitions."""
    queues: DispatchedQueues
    """Queues whose workers the gateway picks."""
    slot_requests: SlotRequests
    """Obtains slots from the node."""

    def ask_again(self, query: PendingQuery, now: float) -> None:
        """Find another worker for the query, which keeps its age."""

    def left(self, query: PendingQuery, now: float, *, waited: bool) -> None:
        """Forget a query that has ended; `waited` tells whether it had no worker."""


class PendingQuery:
    """One query; its constructor enters it into the query table, or raises `Overloaded`.

    Subclasses hand rows and the answer to its caller: `hand_rows` and `hand_answer`.
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
        "streams",
        "trace",
        "tries",
        "warm",
    )

    def __init__(self, dispatcher: QueryDispatcher, ask: Ask, now: float, wall: float) -> None:
        self.ask = ask
        self.entry = entry = dispatcher.table.enter(ask, wall)
        self.sequence = entry.sequence
        self.since = now
        """When it came; the query that has waited longest is served first."""
        self.deadline = ask.deadline
        self.line: SlotLine | None = None
        """The line in which it waits for a slot."""
        self.counted = (ask.user, ask.namespace, ask.queue)
        """User, namespace and queue that admission counts it for; a hook does not change them."""
        self.tries = 0
        """How often it had to ask for another slot; before the second time and later it pauses."""
        self.slots_taken = 0
        """How often something else took its slot in the same moment."""
        self.allocation = _NONE
        """The last slot that it got."""
        self.lost_tokens: list[bytes] | None = None
        """The tokens of the attempts whose connection was lost: their workers may still run them.
        None if no connection was lost."""
        self.warm = False
        """Whether that slot is a warm one, which no partition allocated."""
        self.attempt: DispatchAttempt | None = None
        """Set if the gateway picks the workers of its queue."""
        self.put_off: DispatchAttempt | None = None
        """The attempt that continues if the node has no slot that is free now."""
        self.streams = False
        """Whether its answer is a stream of rows."""
        self.trace = ask.trace
        """The trace context for its worker, whose round is the attempt; empty: it is not traced."""
        self._dispatcher = dispatcher
        self._carrier: Carrier | None = None
        self._doubt: str | None = None
        """How a worker was lost that may have run it; an idempotent query then asks again."""
        self._stream = 0
        self._untaken = 0
        """Bytes of rows that the caller has not taken."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}, {self.status}>"

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
    def status(self) -> QueryStatus:
        """Its status in the query table."""
        return self.entry.status

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.entry.status not in UNDER_WAY

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

    @property
    def place(self) -> Place:
        """The partition that allocated its slot."""
        return (self.ask.namespace, self.ask.queue, self.allocation.partition)

    def leave(self, now: float) -> None:
        """Cancel the query: its caller left. Without effect if it is over."""
        self.happen(Accident.CANCELLED, Cancelled("The query was cancelled."), now)

    def took(self, size: int, now: float) -> None:
        """The caller took this many bytes of rows."""
        self._untaken -= size
        if self._carrier is not None and self.status == "streaming":
            self._carrier.taken(self._stream, size, now)

    # Towards a worker

    def ask_node(self, now: float) -> None:
        """Ask the node for a slot: the gateway can pick no worker."""
        self.attempt = None
        self._dispatcher.slot_requests.add(self, now)

    def ask_node_at_once(self, now: float) -> None:
        """Ask the node for a slot that is free now. If it has none, the attempt continues."""
        self.put_off, self.attempt = self.attempt, None
        self._dispatcher.slot_requests.add(self, now, at_once=True)

    def allocated(self, allocation: Allocation, now: float, *, warm: bool = False) -> None:
        """Use a slot: send the query to its worker, or have the worker dialled first."""
        dispatcher = self._dispatcher
        effects = dispatcher.effects
        if self.entry.status not in UNDER_WAY:  # see `happen`
            effects.give_back(allocation, now)
            return
        self.line = None
        self.warm = warm
        self.allocation = allocation
        link = effects.open_links.get((allocation.session, allocation.address))
        if link is not None:
            self._send(link, now)
            return
        self._move("connecting", now)
        reports = dispatcher.reports
        if (
            reports.hung
            and self.attempt is None
            and reports.still_hangs(self.place, allocation, now)
        ):
            self.happen(Accident.NOTHING_DONE, Unavailable("The worker hangs."), now)
        else:
            effects.connect(allocation, self, now)

    def linked(self, link: Carrier, now: float) -> None:
        """Send the query on a new link to its worker, or give the slot back if it is over."""
        if not self.over:
            self._send(link, now)
        elif self.attempt is None:
            link.release(self.allocation.token)

    def unreachable(self, now: float) -> None:
        """Have the node relay the query, or ask another worker: this one cannot be dialled."""
        if self.over:
            return
        if self.attempt is None:
            dispatcher = self._dispatcher
            self._send(RelayedQuery(dispatcher.effects, self, dispatcher.window_bytes), now)
        else:  # the gateway can reach other workers, perhaps; if it reaches none, the node relays
            self._ask_another(Unavailable("The worker cannot be reached."), now, for_long=True)

    def gone(self, why: str, now: float) -> None:
        """Ask another worker: this one does not exist any more, and never had the query."""
        if not self.over:
            self._ask_another(Unavailable(f"The worker is gone: {why}."), now, for_long=False)

    def _ask_another(self, problem: MaitredError, now: float, *, for_long: bool) -> None:
        if self.attempt is not None:
            self.attempt.end(QueryOutcome.CANCELLED, now)
            self._dispatcher.queues.unreachable(self.allocation.session, now, for_long=for_long)
        self.happen(Accident.NOTHING_DONE, problem, now)

    def _send(self, carrier: Carrier, now: float) -> None:
        """Encode the query and send it to its worker."""
        dispatcher, ask, attempt, entry = self._dispatcher, self.ask, self.attempt, self.entry
        left = (self.deadline - now) * 1000
        if left < 1:
            left = 1
        elif left > TIMEOUT_MAX_MILLISECONDS:
            left = TIMEOUT_MAX_MILLISECONDS
        message = RunQuery(
            self.allocation.token,
            self.sequence,
            int(left),
            dispatcher.window_bytes,
            ask.payload,
            ask.rows,
        )
        if attempt is not None:
            message.in_flight = attempt.in_flight
            message.pressed = bool(attempt.queue.line)
        elif not dispatcher.uses_warm_slots:
            message.pressed = True
        if self.lost_tokens is not None:
            message.lost = self.lost_tokens
        if self.trace:
            message.trace = self.trace
        try:
            if len(ask.payload) + RUN_OVERHEAD_BYTES > carrier.frame_bytes:
                raise PayloadTooLarge(
                    f"Arguments of {len(ask.payload):,} bytes are more than the worker "
                    f"{self.allocation.worker} takes ({carrier.frame_bytes:,})."
                )
            self._stream = carrier.run(self, encode_run(message), now)
        except MaitredError as problem:
            self._not_sent(carrier, problem, now)
            return
        self._carrier = carrier
        if attempt is not None:
            attempt.sent = True
        entry.worker = self.allocation.worker
        entry.attempts += 1
        entry.relayed = carrier.relays
        if carrier.relays:
            dispatcher.table.relayed += 1
        entry.sent_at = wall = entry.received_at + (now - self.since)
        dispatcher.table.move(entry, "running", wall)
        if dispatcher.admission is not None:
            dispatcher.admission.sent(*self.counted)

    def _not_sent(self, carrier: Carrier, problem: MaitredError, now: float) -> None:
        if self.attempt is None:
            carrier.release(self.allocation.token)
        else:
            self.attempt.end(QueryOutcome.CANCELLED, now)
        if self.status == "waiting":
            self._move("connecting", now)
        self.refused(problem, now)

    # Events from the worker and the node

    def rows_came(self, chunk: bytes, now: float) -> None:
        """Hand rows of the worker's stream to the caller."""
        dispatcher, entry = self._dispatcher, self.entry
        size = len(chunk)
        entry.bytes_out += size
        self._untaken += size
        if not self.streams:
            self.streams = True
            self._move("streaming", now)
            self.hand_rows(chunk)
            return
        self.hand_rows(chunk)
        if self._untaken > dispatcher.window_bytes + dispatcher.frame_bytes:
            problem = ProtocolViolation("The worker sent more rows than it was allowed to.")
            self._stop_carrier(QueryOutcome.LOST, now)
            self._finish("lost", problem, now, drop_rows=True)

    def finished(self, body: bytes, now: float) -> None:
        """End the query as the worker's last frame says."""
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
            self._dispatcher.slot_requests.keep_warm(self, end.again, end.again_seconds, now)
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
        """Ask another worker, or end the query: the worker, or the node, did not begin it."""
        self._carrier = None
        was_sent = self.status == "running"
        if self.attempt is not None:
            self.attempt.refused(problem, now)
        elif was_sent and problem.nothing_done and not self.warm:  # no partition knows warm slots
            self._dispatcher.reports.slot_refused(self.place, self.allocation)
        if was_sent and isinstance(problem, SlotTaken):
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
        """Continue the attempt that was put off, or end the query: it gets no slot."""
        attempt, self.put_off = self.put_off, None
        if attempt is not None and not self.over:
            self._dispatcher.queues.resume(self, attempt, now)
        elif self._doubt is None:
            self.happen(Accident.REFUSED, problem, now)
        else:
            sentence = f"{self._doubt} No other worker could be asked: {problem.sentence}"
            self._finish("lost", WorkerLost(sentence, remedy=problem.remedy), now)

    def lost(self, why: str, now: float, *, hung: bool) -> None:
        """Run the query elsewhere if that is allowed, or end it: the link to its worker ended, or
        the node lost the worker."""
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
        """Tell the partition that the worker does not answer at all."""
        self._dispatcher.reports.suspect(self.place, self.allocation.session)

    def expired(self, now: float) -> None:
        """End the query at its deadline; if it waited for a node that is away, say so."""
        line = self.line
        away = None if line is None else self._dispatcher.effects.why_away(line.view.id)
        if away is not None:
            self.refused_by_node(away, now)
        else:
            self.happen(Accident.DEADLINE, self._too_late(), now)

    # How it ends

    def happen(self, accident: Accident, problem: MaitredError, now: float) -> None:
        """Do what follows an accident; without effect if the query is over.

        A caller is told at once, and may cancel other queries when it hears of one. So an event
        that concerns many queries may find some of them over.
        """
        if self.over:
            return
        status = self.status
        verdict = after(accident, status, idempotent=self.ask.idempotent)
        if verdict is Verdict.AGAIN:
            if accident in LOST and status == "running":
                self.lost_tokens = [*(self.lost_tokens or ()), self.allocation.token][-LOST_MAX:]
                self._doubt = problem.sentence
                self.trace = next_attempt(self.trace)
            self._again(now)
            return
        self._stop_carrier(
            QueryOutcome.LOST if verdict is Verdict.LATE else QueryOutcome.CANCELLED, now
        )
        if verdict is Verdict.LATE:
            self._finish("late", problem, now, drop_rows=True)
        elif verdict is Verdict.CANCEL:
            self._finish("cancelled", problem, now, drop_rows=True)
        elif verdict is Verdict.LOST or status == "streaming":
            self._finish("lost", problem, now)
        else:
            self._finish("refused", problem, now)

    def _again(self, now: float) -> None:
        dispatcher = self._dispatcher
        was_sent = self.status == "running"
        self._carrier = None
        self.put_off = None
        self.tries += 1
        self._move("waiting", now)
        if was_sent and dispatcher.admission is not None:
            dispatcher.admission.waits_again(*self.counted)
        dispatcher.ask_again(self, now)

    def _stop_carrier(self, outcome: QueryOutcome, now: float) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            if self.attempt is not None:
                self.attempt.abandon(outcome, now)
            carrier.stop(self._stream, self, now, heir=self.attempt)

    def _move(self, status: QueryStatus, now: float) -> None:
        entry = self.entry
        self._dispatcher.table.move(entry, status, entry.received_at + (now - self.since))

    def _finish(
        self,
        status: QueryStatus,
        problem: MaitredError | None,
        now: float,
        body: bytes = b"",
        *,
        drop_rows: bool = False,
        error: str = "",
    ) -> None:
        dispatcher, entry = self._dispatcher, self.entry
        if entry.status not in UNDER_WAY:
            return  # see `happen`
        waited = entry.status in WITHOUT_WORKER
        if problem is not None and not error:
            error = f"{problem.code}: {problem.sentence}"
        dispatcher.table.move(entry, status, entry.received_at + (now - self.since), error)
        dispatcher.left(self, now, waited=waited)
        self.hand_answer(body, problem, drop_rows=drop_rows)

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
            "waiting": "no worker was free for it",
            "connecting": "its worker could not be reached",
        }.get(self.status, "it was not finished, and its worker is told to stop")
        return DeadlineExceeded(f"{self._name} did not answer within {seconds:.3g} s: {doing}.")
