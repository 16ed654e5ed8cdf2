"""The base of all worker policies: the known workers, and the queries in flight to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from maitred.balancing.checks import is_whole
from maitred.balancing.workers.interface import Dispatch, LoadReport, PolicyWorker, QueryOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource

SLOTS_MAX = 100_000
"""The most slots that a worker is believed to have, whatever it announces: no process serves more
queries at once."""

AnyWorker = TypeVar("AnyWorker", bound=PolicyWorker)


def believable_slots(slots: object) -> int:
    """Return the announced slots, clamped to `SLOTS_MAX`; 0 unless they are a whole number."""
    return min(slots, SLOTS_MAX) if isinstance(slots, int) and is_whole(slots, 0) else 0


class CountingPolicy(Generic[AnyWorker]):
    """Counts queries in flight per worker; a policy derives from it and adds `pick`."""

    def __init__(self, random: RandomSource) -> None:
        self._random = random
        self._known: dict[str, AnyWorker] = {}
        self._list: list[AnyWorker] = []
        """The same workers as a list, because `pick` iterates over them for each query."""

    def _new(self, name: str, slots: int, now: float) -> AnyWorker:
        """Create the record of a worker that the policy does not know yet."""
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

    def reported(self, worker: str, report: LoadReport, now: float) -> None:
        """Ignore the report; most policies do not use reports."""

    def sent(self, worker: str, now: float) -> Dispatch:
        known = self._known.get(worker)
        if known is None:
            # The worker left between pick and send: the query's end still has to be counted.
            stranger = PolicyWorker(worker, 0)
            stranger.in_flight = 1
            return Dispatch(stranger, now)
        known.in_flight += 1
        return Dispatch(known, now)

    def overdue(self, dispatch: Dispatch, now: float) -> None:
        """Ignore it; most policies judge a query when it ends."""

    def ended(
        self, dispatch: Dispatch, outcome: QueryOutcome, now: float, limit: int | None = None
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


class PlainPolicy(CountingPolicy[PolicyWorker]):
    """The base of policies that remember only the slots of a worker and its queries in flight."""

    def _new(self, name: str, slots: int, now: float) -> PolicyWorker:
        return PolicyWorker(name, slots)
