"""The workers of a gateway's rosters, each with its queues.

A worker that serves several queues reports its load once for all of them, and a link that breaks
concerns all of them. The gateway finds these queues by the worker's session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from maitred.balancing.workers import WorkerPolicy
    from maitred.protocol.query_link import Load


class RosterQueue(Protocol):
    """A queue whose roster names workers."""

    @property
    def policy(self) -> WorkerPolicy:
        """The policy that picks a worker for each query."""

    def reported(self, name: str, load: Load, elsewhere: int, now: float) -> None:
        """Take in a worker's report; `elsewhere` is the number of this gateway's queries that the
        worker has of other queues."""

    def away(self, name: str, now: float, seconds: float | None = None) -> None:
        """Avoid the worker for a while."""


class KnownWorker:
    """A worker that the roster of at least one queue names with an address."""

    __slots__ = ("name", "queues", "session")

    def __init__(self, session: bytes) -> None:
        self.session = session
        self.name = session.hex()
        """Its name in the policies."""
        self.queues: list[RosterQueue] = []

    def __repr__(self) -> str:
        return f"<KnownWorker {self.name[:8]}, {len(self.queues)} queues>"

    def reported(self, load: Load, now: float) -> None:
        """Tell each queue its own part of the load that the worker reported."""
        name, queues = self.name, self.queues
        if len(queues) == 1:
            queues[0].reported(name, load, 0, now)
            return
        ours = sum(queue.policy.in_flight(name) for queue in queues)
        for queue in tuple(queues):
            queue.reported(name, load, ours - queue.policy.in_flight(name), now)

    def away(self, now: float, seconds: float | None = None) -> None:
        """Let every queue avoid the worker for a while."""
        for queue in tuple(self.queues):
            queue.away(self.name, now, seconds)


class KnownWorkers:
    """The workers of a gateway's rosters, by session."""

    def __init__(self) -> None:
        self._by_session: dict[bytes, KnownWorker] = {}

    def get(self, session: bytes) -> KnownWorker | None:
        """Return the worker of this session; None if no roster names it."""
        return self._by_session.get(session)

    def joined(self, session: bytes, queue: RosterQueue) -> KnownWorker:
        """Add the queue to a worker that its roster names."""
        worker = self._by_session.get(session)
        if worker is None:
            worker = self._by_session[session] = KnownWorker(session)
        if queue not in worker.queues:
            worker.queues.append(queue)
        return worker

    def left(self, worker: KnownWorker, queue: RosterQueue) -> None:
        """Remove the queue from a worker that its roster does not name any more."""
        worker.queues.remove(queue)
        if not worker.queues:
            del self._by_session[worker.session]
