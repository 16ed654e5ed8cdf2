"""A query at a queue whose worker the gateway picks, from the pick to the worker's last word.

An attempt ends exactly once, on every path, and the policy is told how: with the answer, a refusal,
or the loss of the link. If the caller leaves before, the attempt continues without the query: the
worker is busy until it says that it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from maitred.balancing.workers import QueryOutcome
from maitred.errors import (
    AtCapacity,
    DeadlineExceeded,
    InvalidReservation,
    MaitredError,
    Overloaded,
    SlotTaken,
    Unavailable,
)
from maitred.protocol.messages import UNREADABLE
from maitred.protocol.query_link import decode_query_end
from maitred.protocol.tasks import DONE, FAILED, STOPPED

if TYPE_CHECKING:
    from maitred.balancing.workers import Dispatch, SheddingLine, WorkerPolicy
    from maitred.dispatch.known_workers import KnownWorker
    from maitred.dispatch.roster_subscription import RosterSubscription
    from maitred.protocol.queries import Allocation
    from maitred.protocol.query_link import Load, QueryEnd

_OUTCOMES: Final = {
    DONE: QueryOutcome.DONE,
    FAILED: QueryOutcome.FAILED,
    STOPPED: QueryOutcome.CANCELLED,
}


@dataclass(slots=True)
class DispatchTotals:
    """Counts over all queue dispatchers of a gateway, including closed ones."""

    refused_by_workers: int = 0
    """How often a worker had no room for a query."""
    shed: int = 0
    """Queries that the gateway refused because no worker had room."""


class AttemptQueue(Protocol):
    """The queue of an attempt, which picked its worker."""

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the name of the queue."""

    @property
    def policy(self) -> WorkerPolicy:
        """The policy that picks a worker for each query."""

    @property
    def line(self) -> SheddingLine[DispatchAttempt]:
        """The attempts that wait for room at a worker."""

    @property
    def totals(self) -> DispatchTotals:
        """The counts over all queues of the gateway."""

    def leave(self, attempt: DispatchAttempt, now: float) -> None:
        """Drop a query that is over."""

    def ended(
        self,
        attempt: DispatchAttempt,
        dispatch: Dispatch,
        outcome: QueryOutcome,
        now: float,
        limit: int | None,
        load: Load | None = None,
    ) -> None:
        """Count an attempt that ended; the worker may have reported its load with the answer."""

    def away(self, name: str, now: float) -> None:
        """Avoid the worker for a while."""


class DispatchedQuery(Protocol):
    """A query as the dispatcher of its queue sees it."""

    deadline: float
    attempt: DispatchAttempt | None
    """Set while a queue dispatcher has the query."""

    @property
    def priority(self) -> int: ...
    @property
    def do_not_queue(self) -> bool: ...

    def allocated(self, allocation: Allocation, now: float) -> None:
        """Send the query to this worker."""

    def refused_by_node(self, problem: MaitredError, now: float) -> None:
        """Answer with the refusal: the query gets no worker."""

    def expired(self, now: float) -> None:
        """Answer that the deadline passed."""

    def ask_node(self, now: float) -> None:
        """Ask the node for a slot instead."""

    def ask_node_at_once(self, now: float) -> None:
        """Ask the node for a slot that is free now; the attempt continues if there is none."""


class DispatchAttempt:
    """One query at one queue dispatcher. Once its caller has left, it receives the worker's last
    word in the query's place."""

    __slots__ = (
        "asked_node",
        "dispatch",
        "leaving",
        "policy",
        "query",
        "queue",
        "queued",
        "refused_by",
        "sent",
        "subscription",
        "was_full",
        "worker",
    )

    def __init__(
        self, queue: AttemptQueue, query: DispatchedQuery, subscription: RosterSubscription
    ) -> None:
        self.queue = queue
        self.query = query
        self.subscription = subscription
        self.policy = queue.policy
        """The policy that picked its worker; a queue may get another one later."""
        self.dispatch: Dispatch | None = None
        self.worker: KnownWorker | None = None
        """The worker that it was sent to last."""
        self.sent = False
        """Whether the worker has it; set by the query."""
        self.refused_by: tuple[str, ...] = ()
        """Workers that had no room for it since it was last queued; they are not picked again."""
        self.asked_node = False
        """Whether the node was asked for a slot, because no worker on the roster had room."""
        self.queued = False
        """Whether it waits in the queue dispatcher's line."""
        self.leaving = QueryOutcome.CANCELLED
        """The outcome to report if the caller leaves."""
        self.was_full = False
        """Whether the last worker that it was sent to had no room."""

    def __repr__(self) -> str:
        return f"<DispatchAttempt of {self.query!r}, {self.dispatch!r}>"

    @property
    def in_flight(self) -> int:
        """The number of queries that are counted to its worker, including this one."""
        return 0 if self.dispatch is None else self.dispatch.worker.in_flight

    def end(self, outcome: QueryOutcome, now: float, limit: int | None = None) -> None:
        """Tell the policy the outcome; without effect after the first call."""
        dispatch, self.dispatch = self.dispatch, None
        if dispatch is not None:
            self.queue.ended(self, dispatch, outcome, now, limit)

    # Events from its worker

    def answered(self, end: QueryEnd, now: float) -> None:
        """End the attempt with the worker's answer."""
        dispatch, self.dispatch = self.dispatch, None
        if dispatch is not None:
            outcome = _OUTCOMES.get(end.how, QueryOutcome.LOST)
            self.queue.ended(self, dispatch, outcome, now, None, end.load)

    def refused(self, problem: MaitredError, now: float) -> None:
        """End the attempt: the worker did not begin the query."""
        dispatch = self.dispatch
        if dispatch is None:
            return
        name = dispatch.worker.name
        if isinstance(problem, Overloaded | SlotTaken):
            self.refused_by += (name,)
            self.was_full = True
            self.queue.totals.refused_by_workers += 1
            limit = problem.limit if isinstance(problem, AtCapacity) else None
            self.end(QueryOutcome.REFUSED, now, limit)
        elif isinstance(problem, Unavailable):  # it is leaving, or does not know the pass
            self.end(QueryOutcome.CANCELLED, now)
            self.queue.away(name, now)
            if isinstance(problem, InvalidReservation):
                self.subscription.refresh(now)
        elif isinstance(problem, DeadlineExceeded):
            self.end(QueryOutcome.CANCELLED, now)
        else:  # every other worker would refuse it as well
            self.end(QueryOutcome.FAILED, now)

    def abandon(self, outcome: QueryOutcome, now: float) -> None:
        """Record how the attempt ends if the worker stops it, now that its caller leaves. A loss is
        counted at once: a worker that hangs says nothing, perhaps for long."""
        self.leaving = outcome
        if outcome is QueryOutcome.LOST and self.dispatch is not None and self.sent:
            self.policy.overdue(self.dispatch, now)

    # Events from its worker after the caller left

    def rows_came(self, chunk: bytes, now: float) -> None:
        """Drop rows that arrive: the caller of the query has left."""

    def finished(self, body: bytes, now: float) -> None:
        """End the attempt with the worker's last word."""
        try:
            end = decode_query_end(body)
        except UNREADABLE:
            self.end(QueryOutcome.LOST, now)
            return
        if end.how == STOPPED or self.leaving is QueryOutcome.LOST:
            dispatch, self.dispatch = self.dispatch, None
            if dispatch is not None:
                self.queue.ended(self, dispatch, self.leaving, now, None, end.load)
        else:
            self.answered(end, now)

    def lost(self, why: str, now: float, *, hung: bool) -> None:  # noqa: ARG002
        """End the attempt as lost: the link to its worker ended."""
        self.end(QueryOutcome.LOST, now)
