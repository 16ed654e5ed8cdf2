"""The interface of every policy with which a gateway picks a worker for a query.

The gateway tells a policy what it sees: workers that join, leave and report, queries that are sent
and that end. The policy answers one question: which worker gets one more query? The answer is a
worker's name, or None if no worker has room.

A query is in flight from the moment it is sent to the end of its answer, on every path: done,
failed, refused, lost. `sent` therefore returns a `Dispatch`, and `ended` takes it back exactly
once; a second call does nothing. The dispatch points to the worker as it was known when the query
was sent, so an answer that comes after the worker left, or joined again, does not count against the
new one.

Policies are pure: `now` and randomness are arguments. They are not thread-safe; a gateway has one
event loop. Their memory is bounded by the workers, and a gateway has a connection to each of them.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection


class QueryOutcome(Enum):
    """How a query ended, as the gateway sees it."""

    DONE = "done"
    FAILED = "failed"
    """The worker answered with an error."""
    REFUSED = "refused"
    """The worker had no room; it did nothing, so the query can go elsewhere."""
    LOST = "lost"
    """No answer came: the query timed out, or the connection broke."""
    CANCELLED = "cancelled"
    """The caller left, or the query was never sent; this says nothing about the worker."""


class LoadReport(NamedTuple):
    """The state that a worker reports with each answer and about every 100 ms; it may be false."""

    number: int
    """Counts up with every report of a worker to a gateway; a gateway ignores older reports."""
    limit: int
    """How many queries may be in flight to the worker, from all gateways together."""
    serving: int
    waiting: int
    """How many accepted queries wait inside the worker for a thread, a permit or the loop."""
    mean_service_seconds: float
    """The mean time from the start of a handler's work to its end; 0 if unknown."""
    yours: int | None = None
    """How many of those serving and waiting came from the receiving gateway; None if unknown."""
    senders: int = 1
    """How many gateways sent queries to the worker recently."""


class PolicyWorker:
    """The record of a worker in a policy; policies derive from it to remember more."""

    __slots__ = ("in_flight", "name", "slots")

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.in_flight = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.in_flight} of {self.slots} in flight>"


class Dispatch:
    """One query in flight: its worker, when it was sent, and whether it is still open."""

    __slots__ = ("held_until", "open", "sent_at", "worker")

    def __init__(self, worker: PolicyWorker, sent_at: float) -> None:
        self.worker = worker
        self.sent_at = sent_at
        self.open = True
        self.held_until: float | None = None
        """Until when a policy keeps the slot taken whenever the query ends; None unless the query
        is overdue."""

    def __repr__(self) -> str:
        return f"<Dispatch to {self.worker.name!r}, {'open' if self.open else 'ended'}>"


class WorkerPolicy(Protocol):
    """Picks a worker for each query of one queue at one gateway."""

    def joined(self, worker: str, slots: int, now: float) -> None:
        """Add a worker with the slots it announces; called again when that number changes."""
        ...

    def left(self, worker: str, now: float) -> None:
        """Remove a worker. Its queries in flight still end through `ended`."""
        ...

    def reported(self, worker: str, report: LoadReport, now: float) -> None:
        """Take in a worker's report."""
        ...

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        """Return the worker for one more query, not in `without`; None if none has room."""
        ...

    def sent(self, worker: str, now: float) -> Dispatch:
        """Count a query that is sent to the worker; give the result to `ended` once it ends."""
        ...

    def overdue(self, dispatch: Dispatch, now: float) -> None:
        """Count a loss: the query's deadline passed. The worker has the query until it ends, which
        is not counted as a second loss."""
        ...

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
    ) -> None:
        """Count the end of a query; `limit` is the worker's limit if a refusal stated it."""
        ...

    def in_flight(self, worker: str) -> int:
        """Return how many queries are in flight to a worker; 0 for an unknown one."""
        ...

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the known workers, in the order in which they joined."""
        ...
