"""One query, from the call of its handler to its end.

The answer may be sent before the handler has ended: a query that is stopped is answered at once,
and its caller does not wait for the handler to clean up. Exactly one answer is sent, whatever
happens in which order; none if the gateway is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from maitred.protocol.query_link import QueryEnd
from maitred.protocol.tasks import DONE, FAILED
from maitred.worker import outcomes
from maitred.worker.handler_call import HandlerCall, HandlerHost
from maitred.worker.streams import (
    Gathered,
    RowStream,
    StreamLimits,
    ThreadRows,
    drain,
    pump,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from maitred.errors import MaitredError
    from maitred.protocol.queries import Pass
    from maitred.protocol.query_link import RunQuery
    from maitred.protocol.tasks import Reserved
    from maitred.worker.capacity import Sender
    from maitred.worker.failure_log import FailureLog
    from maitred.worker.outcomes import Ending
    from maitred.worker.pulse import Pulse
    from maitred.worker.served import Served

    class Asker(Protocol):
        """The party that sent a query and gets its answer: a link to a gateway, or a relay."""

        @property
        def gateway(self) -> str: ...
        @property
        def body_bytes(self) -> int:
            """Largest frame with rows."""

        @property
        def answer_bytes(self) -> int:
            """Largest result."""

        @property
        def sender(self) -> Sender | None:
            """The link, as the worker's capacity knows it; None for a relay."""

        def rows(self, stream: int, parts: list[bytes], size: int) -> None: ...
        def over(self, stream: int, end: QueryEnd) -> None: ...
        def refused(self, stream: int, problem: MaitredError) -> None: ...
        def begun(self, stream: int, query: Query) -> None: ...


class QueryHost(HandlerHost, Protocol):
    """The part of a worker that runs queries, and frees their slots at the end."""

    pulse: Pulse
    """Tells the time, and how far the loop is behind."""
    failures: FailureLog
    """Logs the queries that failed."""
    chunk_bytes: int
    """Most bytes of a stream's rows that are sent together."""
    warm_seconds: float
    """How long a slot is kept warm for the gateway that has just used it."""

    @property
    def count(self) -> Callable[[int], None]:
        """Counts a query that ended in this way."""

    def judge(self, served: Served, begun_at: float, now: float, *, done: bool) -> None:
        """Note how a query ended, if its handler was the reason and not its caller."""

    def ended(self, query: Query, now: float, *, good: bool) -> None:
        """Free the slot of a query whose handler has ended."""


class Query(HandlerCall):
    """A query's only attempt at this worker, with its reservation and its rows."""

    __slots__ = (
        "_asker",
        "_hurried",
        "_most_bytes",
        "_rows",
        "_user",
        "_why",
        "again",
        "again_until",
        "begun_at",
        "deadline",
        "sender",
        "sequence",
        "served",
        "stream",
        "terms",
        "told",
    )

    what = "query"
    _host: QueryHost
    _why: Ending
    """The ending with which it was stopped; only set if it was (`cancelled`)."""

    def __init__(
        self,
        host: QueryHost,
        asker: Asker,
        stream: int,
        message: RunQuery,
        served: Served,
        terms: Reserved | Pass,
        now: float,
        sender: Sender | None = None,
        again_until: float = 0.0,
    ) -> None:
        self.key = (0, 1)
        self.cancelled = False
        self.meter = None  # as `unmeasured` does, without a call for each query
        self.waits = self.calls = self.queued = 0
        self.counted = False
        self.stream = stream
        self.terms = terms
        self.served = served
        self.again_until = again_until
        """Until then the gateway may get the slot again without asking the node; 0: never."""
        self.again = b""
        """The token with which the gateway may use the same slot once more; empty: it may not."""
        self.sender = sender
        """The link it came by, if it came with a pass."""
        self.told = False
        """Whether the answer was sent, or need not be: the gateway is gone."""
        seconds = terms.run_seconds
        asked = message.timeout_milliseconds / 1000
        self._hurried = 0.0 < asked < seconds
        """Whether its caller gives it less time than the queue's limit: a timeout then is no
        failure of the handler."""
        if self._hurried:
            seconds = asked
        self.deadline = now + seconds
        if now > host.pulse.in_time_until:
            self.deadline -= host.pulse.behind(now)
        self.begun_at = now
        self._host = host
        self._asker = asker
        self.sequence = message.sequence
        """The gateway's number for the query."""
        self._user = terms.user
        most, allowed = asker.answer_bytes, terms.result_bytes
        self._most_bytes = most if most < allowed else allowed  # noqa: FURB136 - a third of the time
        self._rows: RowStream | Gathered | None = None
        self._entered = False
        self._hidden = None
        self.task = None
        self.span = None
        self.trace = message.trace

    @property
    def user(self) -> str:
        """The name of the user who asked."""
        return self._user

    @property
    def query_id(self) -> str:
        """The gateway, and its number for the query."""
        return f"{self._asker.gateway}/{self.sequence}"

    @property
    def task_id(self) -> str:
        """Empty: a query is not a task."""
        return ""

    @property
    def labels(self) -> dict[str, str | int]:
        """Names it in log lines: queue, handler and query."""
        queue = self.served.view.id
        name = f"{queue.namespace}/{queue.queue}"
        labels: dict[str, str | int] = {
            "queue": name,
            "handler": self.served.handler,
            "query": self.query_id,
        }
        return self._with_trace(labels)

    def __repr__(self) -> str:
        return f"<Query {self.query_id}>"

    # Begin

    def begin(self, message: RunQuery, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Call the handler."""
        host, served = self._host, self.served
        function = served.asked
        context = None if host.tracing is None else host.tracing.outside.copy()
        if served.is_async and not served.is_stream:
            self.task = host.loop.create_task(self.run(function, args, named), context=context)
        elif served.is_stream:
            rows: RowStream | Gathered
            if message.rows:
                limits = StreamLimits(
                    message.window_bytes, host.chunk_bytes, self.terms.stream_bytes
                )
                kind = RowStream if served.is_async else ThreadRows
                rows = kind(self._asker, self.stream, limits, host.loop)
            else:
                rows = Gathered(self._most_bytes, outcomes.QUERY_TOO_LARGE)
            self._rows = rows
            if served.is_async:
                self.task = host.loop.create_task(
                    self.run(self._drain, (function, args, named, rows), {}), context=context
                )
            else:
                self._begin_in_thread(self._pump, function, args, named, rows)
        else:
            self._begin_in_thread(
                outcomes.called, function, args, named, self._most_bytes, outcomes.QUERY_TOO_LARGE
            )

    @property
    def is_late(self) -> bool:
        """Whether its deadline passed before its handler began."""
        pulse = self._host.pulse
        return self.deadline <= pulse.clock() + pulse.offset  # `Pulse.time`, without a call

    def _too_late(self) -> None:
        self._end(self._timed_out(), judged=False)

    def _timed_out(self) -> Ending:
        return outcomes.timed_out(self.deadline - self.begun_at, self.what)

    def fail(self, ending: Ending) -> None:
        """Answer with an ending, without having called the handler."""
        self._end(ending, judged=False)

    # From outside

    def credit(self, taken: int) -> None:
        """Note that the gateway has taken so many bytes of rows."""
        if self._rows is not None:
            self._rows.credit(taken)

    def cancel(self) -> None:
        """Stop the query, because its caller does not want it any more."""
        self._stop(outcomes.stopped(self.what))

    def abandon(self) -> None:
        """Stop the query without an answer, because its gateway is gone."""
        self.told = True
        self._stop(outcomes.stopped(self.what))

    def time_is_over(self) -> None:
        """Stop the query: its deadline passed."""
        ending = self._timed_out()
        if not self.cancelled and not self._hurried:
            now = self._host.loop.time()
            self._host.judge(self.served, self.begun_at, now, done=False)
            self._log_failure(ending)
        self._stop(ending)

    def _stop(self, why: Ending) -> None:
        if self.cancelled:
            return
        self.cancelled = True
        self._why = why
        if self._rows is not None:
            self._rows.close()
        if not self.told:
            self._answer(why, self._host.loop.time())
        self._cancel()

    # On the loop

    def _returned(self, result: Any) -> None:  # noqa: ANN401 - whatever the handler returned
        if self._rows is None:
            result = outcomes.returned(result, self._most_bytes, outcomes.QUERY_TOO_LARGE)
        self._end(result)

    async def _drain(
        self,
        function: Callable[..., AsyncGenerator[Any, None]],
        args: tuple[Any, ...],
        named: dict[str, Any],
        rows: RowStream | Gathered,
    ) -> Ending:
        """Put out all rows of an async generator, and return how it ended."""
        await drain(function(*args, **named), rows)
        return rows.ending()

    # In a thread

    def _pump(
        self,
        function: Callable[..., Generator[Any, None, None]],
        args: tuple[Any, ...],
        named: dict[str, Any],
        rows: RowStream | Gathered,
    ) -> Ending:
        """In a thread: put out all rows of a plain generator, and return how it ended."""
        try:
            pump(function(*args, **named), rows, self)
            return rows.ending()
        except BaseException as problem:  # noqa: BLE001 - also what would end the thread
            return outcomes.raised(problem)

    # The end

    def _end(self, ending: Ending, *, judged: bool = True) -> None:
        self.task = None  # breaks the cycle of the task, its context and this query
        host = self._host
        now = host.loop.time()
        done = ending[0] == DONE
        if ending[0] == FAILED:
            ending = (FAILED, self.redacted(ending[1]))
        if judged and not self.cancelled:
            host.judge(self.served, self.begun_at, now, done=done)
            if not done:
                self._log_failure(ending)
        host.ended(self, now, good=done)
        if self.span is not None:
            self.end_span(self.span, self._why if self.cancelled else ending)
        if not self.told:
            self._answer(ending, now)

    def _log_failure(self, ending: Ending) -> None:
        self._host.failures.query_failed(self.labels, *ending)

    def _answer(self, ending: Ending, now: float) -> None:
        self.told = True
        rows = self._rows
        count, streamed = 0, False
        if rows is not None:
            rows.flush()
            count, streamed = rows.count, isinstance(rows, RowStream)
        how, body = ending
        if how == FAILED and not self.terms.tracebacks:
            body = outcomes.without_traceback(body)
        host = self._host
        host.count(how)
        sender = self.sender
        load = host.capacity.load(sender) if sender is not None else None
        again = self.again
        kept = host.warm_seconds if again else 0.0
        self._asker.over(
            self.stream,
            QueryEnd(how, body, streamed, count, now - self.begun_at, load, again, kept),
        )
