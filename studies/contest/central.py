"""A model of `idle`: one line in the middle that knows every free slot of every worker.

The real thing is a partition at which workers offer their free slots. Here a worker has as many
slots as it says its limit is; a query takes a free slot and holds it to the end of its answer. In
the real thing offers have their turn, however many slots are in them; here each worker that has a
free slot is as likely as any other. The hop to the partition is left out.

As in the real thing, a worker keeps slots back while it fails more than the others (`Health`), and
knows of them what they told last; and one that refuses more of its slots than the others is given
few of them, whatever it offers (`Doubts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import CountingPolicy
from maitred.balancing.workers.doubt import Doubts
from maitred.balancing.workers.health import Health
from maitred.balancing.workers.interface import Dispatch, LoadReport, PolicyWorker, QueryOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource


class Offering(PolicyWorker):
    """A worker, and how it is."""

    __slots__ = ("health",)

    def __init__(self, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self.health = Health()


class CentralLine(CountingPolicy[Offering]):
    """Slots as reported; who has one free may be given a query."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__(random)
        self._doubts: Doubts[str, Dispatch] = Doubts()

    def _new(self, name: str, slots: int, now: float) -> Offering:  # noqa: ARG002
        return Offering(name, slots)

    def reported(self, worker: str, report: LoadReport, now: float) -> None:
        known = self._known.get(worker)
        if known is not None:
            known.slots = report.limit
            self._tell(known, now)

    def sent(self, worker: str, now: float) -> Dispatch:
        dispatch = super().sent(worker, now)
        self._doubts.given(worker, dispatch, now)
        return dispatch

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
    ) -> None:
        worker = dispatch.worker
        if dispatch.open and isinstance(worker, Offering):
            # What was lost is not the worker's word, and what was refused is the gateway's.
            if outcome is QueryOutcome.DONE:
                worker.health.done(now - dispatch.sent_at, now)
                self._tell(worker, now)
            elif outcome is QueryOutcome.FAILED:
                worker.health.failed(now)
                self._tell(worker, now)
            elif outcome is QueryOutcome.REFUSED:
                self._doubts.refused(dispatch, len(self._list), now)
        super().ended(dispatch, outcome, now, limit)

    def _tell(self, worker: Offering, now: float) -> None:
        """The others hear how it is, if that is news."""
        if worker.health.tell_at > now:
            return
        worker.health.tell(now)
        self._compare(now)

    def left(self, worker: str, now: float) -> None:
        super().left(worker, now)
        self._compare(now)

    def _compare(self, now: float) -> None:
        for one in self._list:
            shares = (other.health.told for other in self._list if other is not one)
            one.health.compare(max(shares, default=0.0), now)

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        count = 0
        chosen: PolicyWorker | None = None
        for worker in self._candidates(without):
            free: float = worker.slots - worker.in_flight
            if free > 0 and worker.health.sick:
                free = min(free, worker.health.room(worker.in_flight, now))
            if free > 0 and self._doubts:
                free = min(free, self._doubts.room(worker.name, len(self._list), now))
            if free > 0:
                count += 1
                if self._random.random() * count < 1.0:
                    chosen = worker
        return None if chosen is None else chosen.name
