"""What every algorithm has in common with which a gateway picks a worker for a query.

The gateway tells a policy what it sees: workers that join, leave and report, queries that are sent
and that end. The policy answers one question: who gets one more query? A worker's name, or nobody,
which means that none has room.

A query is in flight from the moment it is sent to the end of its answer, on every path: done,
failed, refused, lost. `sent` therefore gives a `Dispatch`, and `ended` takes it back exactly once;
a second time does nothing. The dispatch points to the worker as it was known when the query left,
so an answer that comes after the worker left, or joined anew, is not counted against the new one.

Policies are pure: `now` and randomness come in. They are not thread-safe; a gateway has one loop.
What they remember is bounded by the workers, and a gateway holds a connection to each of those.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection


class Outcome(Enum):
    """How a query ended, as the gateway sees it."""

    DONE = "done"
    FAILED = "failed"
    """The worker answered with an error."""
    REFUSED = "refused"
    """The worker had no room; it did nothing, so the query can go elsewhere."""
    LOST = "lost"
    """No answer: a timeout, or the connection broke."""
    CANCELLED = "cancelled"
    """Whoever asked has left, or it was never sent: says nothing of the worker."""


class Report(NamedTuple):
    """What a worker says about itself, with each answer and about every 100 ms. It may lie."""

    number: int
    """Counts up with every report of a worker to a gateway; an older one comes too late."""
    limit: int
    """How many queries may be in flight to it, from all gateways together."""
    serving: int
    waiting: int
    """Accepted, but waiting for something inside the worker: a thread, a permit, the loop."""
    mean_service_seconds: float
    """From the start of the real work to its end; 0 if it is not known."""
    yours: int | None = None
    """How many of those serving and waiting came from the gateway that is told this."""
    senders: int = 1
    """How many gateways sent it something lately."""


class Worker:
    """A worker as a policy knows it; policies derive from it what else they remember."""

    __slots__ = ("in_flight", "name", "slots")

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.in_flight = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.in_flight} of {self.slots} in flight>"


class Dispatch:
    """One query on its way: to whom, since when, and whether it has ended."""

    __slots__ = ("open", "sent_at", "worker")

    def __init__(self, worker: Worker, sent_at: float) -> None:
        self.worker = worker
        self.sent_at = sent_at
        self.open = True

    def __repr__(self) -> str:
        return f"<Dispatch to {self.worker.name!r}, {'open' if self.open else 'ended'}>"


class WorkerPolicy(Protocol):
    """Picks a worker for each query of one queue at one gateway."""

    def joined(self, worker: str, slots: int, now: float) -> None:
        """A worker is there, with as many slots as it says; again if that number changed."""
        ...

    def left(self, worker: str, now: float) -> None:
        """A worker is gone. What it still has in flight ends as always."""
        ...

    def reported(self, worker: str, report: Report, now: float) -> None:
        """A worker said how it is doing."""
        ...

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        """Who gets one more query, or None if none has room; never one of `without`."""
        ...

    def sent(self, worker: str, now: float) -> Dispatch:
        """A query left for the worker."""
        ...

    def ended(
        self, dispatch: Dispatch, outcome: Outcome, now: float, limit: int | None = None
    ) -> None:
        """The query's answer ended; a refusal may say what the worker's limit is."""
        ...

    def in_flight(self, worker: str) -> int:
        """What is on its way to a worker; 0 for one that is not known."""
        ...

    @property
    def workers(self) -> tuple[str, ...]:
        """Who is known, in the order of joining."""
        ...
