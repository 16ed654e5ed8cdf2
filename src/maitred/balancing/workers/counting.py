"""The part that all worker policies share: who is there, and what is in flight to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from maitred.balancing.checks import is_whole
from maitred.balancing.workers.interface import Dispatch, Outcome, Report, Worker

if TYPE_CHECKING:
    from collections.abc import Collection

SLOTS_MAX = 100_000
"""No process serves more queries at once; whoever announces more is believed this much."""

AnyWorker = TypeVar("AnyWorker", bound=Worker)


def believable_slots(slots: object) -> int:
    """The announced slots, from 0 to `SLOTS_MAX`; nonsense counts as none."""
    return min(slots, SLOTS_MAX) if isinstance(slots, int) and is_whole(slots, 0) else 0


class Counting(Generic[AnyWorker]):
    """Counts; what is still missing to a policy is `pick`."""

    def __init__(self) -> None:
        self._known: dict[str, AnyWorker] = {}
        self._list: list[AnyWorker] = []
        """The same workers; picking goes through them for each query."""

    def _new(self, name: str, slots: int, now: float) -> AnyWorker:
        """The record of a worker that nobody knew."""
        raise NotImplementedError

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:
        raise NotImplementedError

    def joined(self, worker: str, slots: int, now: float) -> None:
        slots = believable_slots(slots)
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = self._new(worker, slots, now)
            self._list.append(known)
        known.slots = slots

    def left(self, worker: str, now: float) -> None:
        known = self._known.pop(worker, None)
        if known is not None:
            self._list.remove(known)

    def reported(self, worker: str, report: Report, now: float) -> None:
        """Most policies do not listen."""

    def sent(self, worker: str, now: float) -> Dispatch:
        known = self._known.get(worker)
        if known is None:
            # It left between the pick and the sending: the query still has to end somewhere.
            stranger = Worker(worker, 0)
            stranger.in_flight = 1
            return Dispatch(stranger, now)
        known.in_flight += 1
        return Dispatch(known, now)

    def ended(
        self, dispatch: Dispatch, outcome: Outcome, now: float, limit: int | None = None
    ) -> None:
        if dispatch.open:
            dispatch.open = False
            dispatch.worker.in_flight -= 1

    def in_flight(self, worker: str) -> int:
        known = self._known.get(worker)
        return 0 if known is None else known.in_flight

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self._known)

    def __repr__(self) -> str:
        flying = sum(worker.in_flight for worker in self._list)
        return f"<{type(self).__name__}, {len(self._list)} workers, {flying} in flight>"

    def _candidates(self, without: Collection[str]) -> list[AnyWorker]:
        if not without:
            return self._list
        return [worker for worker in self._list if worker.name not in without]
