"""A model of `idle`: one line in the middle that knows every free slot of every worker.

The real thing is a partition at which workers offer their free slots. Here a worker has as many
slots as it says its limit is; a query takes one of the free slots, each as likely as any other, and
holds it to the end of its answer. The hop to the partition is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.balancing.workers.counting import Counting
from maitred.balancing.workers.interface import Report, Worker

if TYPE_CHECKING:
    from collections.abc import Collection

    from maitred.balancing.interface import RandomSource


class CentralLine(Counting[Worker]):
    """Slots as reported; who has one free may be given a query."""

    def __init__(self, random: RandomSource) -> None:
        super().__init__()
        self._random = random

    def _new(self, name: str, slots: int, now: float) -> Worker:  # noqa: ARG002
        return Worker(name, slots)

    def reported(self, worker: str, report: Report, now: float) -> None:  # noqa: ARG002
        known = self._known.get(worker)
        if known is not None:
            known.slots = report.limit

    def pick(self, now: float, without: Collection[str] = ()) -> str | None:  # noqa: ARG002
        total = 0
        chosen: Worker | None = None
        for worker in self._candidates(without):
            free = worker.slots - worker.in_flight
            if free > 0:
                total += free
                if self._random.random() * total < free:
                    chosen = worker
        return None if chosen is None else chosen.name
