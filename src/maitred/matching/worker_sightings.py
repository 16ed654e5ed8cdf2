"""The workers that a partition has heard of, including those that are gone."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from maitred.matching.presence import SUSPECT_SECONDS

if TYPE_CHECKING:
    from maitred.matching.presence import Presence

WORKERS_SECONDS = 300.0
"""How long a worker is remembered after it was last heard of."""

WORKERS_KEPT = 10_000
"""Most workers that are remembered, even if a client uses a new session each time."""


class WorkerSightings:
    """When each worker was last heard of, and which workers gateways suspect."""

    __slots__ = ("_presence", "suspected", "workers")

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self.workers: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Names and moments by session, in the order in which they were last heard of."""
        self.suspected: OrderedDict[bytes, float] = OrderedDict()
        """Sessions of workers that were suspected within `SUSPECT_SECONDS`, and when."""

    def heard(self, session: bytes, worker: str, now: float) -> None:
        """Note that a worker offers slots, or proves that it runs tasks."""
        self._presence.spoke(session, now)
        workers = self.workers
        workers[session] = (worker, now)
        workers.move_to_end(session)
        oldest = next(iter(workers.values()))
        if now - oldest[1] > WORKERS_SECONDS or len(workers) > WORKERS_KEPT:
            workers.popitem(last=False)

    def forget(self, now: float) -> None:
        """Forget workers that were not heard of for `WORKERS_SECONDS`."""
        workers = self.workers
        while workers and now - next(iter(workers.values()))[1] > WORKERS_SECONDS:
            workers.popitem(last=False)

    def suspect(self, session: bytes, now: float) -> bool:
        """Note that a gateway suspects the worker; False if it is not known, or was suspected
        within `SUSPECT_SECONDS`."""
        suspected = self.suspected
        while suspected and next(iter(suspected.values())) + SUSPECT_SECONDS <= now:
            suspected.popitem(last=False)
        is_known = session in self.workers or session in self._presence.workers
        if session in suspected or not is_known:
            return False
        suspected[session] = now
        return True
