"""Reports to the node about counted reservations: those of users or queues with permits.

The partition that issued them gets the list of those that hold a slot twice a second while there
are any, and at once when one ends. A report has the state, not the events, so the next one makes up
for a lost one. While a report to a partition is not answered, changes wait for the next report.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError
from maitred.protocol.queries import Running

if TYPE_CHECKING:
    from maitred.protocol.tasks import Reserved
    from maitred.worker.context import WorkerContext
    from maitred.worker.served import Served

    _Reports = list[tuple[bytes, str]]
    """Reservations, each with its proof and its user."""

AGAIN_SECONDS: Final = 0.5
"""Seconds between two reports. The node takes two seconds of silence for the end."""

PORTION: Final = 250
"""Most reservations in one message, so that it fits into a frame of any node."""

ENDED_KEPT: Final = 10_000
"""Most ended reservations that are kept for a node that does not answer."""

ANSWER_SECONDS: Final = 2.0
"""Time for the node's answer, which is empty. After that the report is out of date."""


@dataclass(slots=True, eq=False)
class _Place:
    """A partition that issued counted reservations to this worker."""

    served: Served
    partition: int
    has: dict[bytes, str] = field(default_factory=dict)
    """Users of the reservations that hold a slot, by token and proof."""
    ended: dict[bytes, str] = field(default_factory=dict)
    """The same of reservations that have ended and whose end is not confirmed yet."""
    under_way: int = 0
    """Messages that are not answered yet."""


class PermitReports:
    """Tracks which counted reservations of this worker still hold a slot, and reports them to the
    partitions that issued them."""

    def __init__(self, context: WorkerContext) -> None:
        self._client = context.client
        self._session = context.session
        self._loop = asyncio.get_running_loop()
        self._places: dict[tuple[str, int], _Place] = {}
        self._touched: dict[_Place, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def has(self, served: Served, terms: Reserved) -> None:
        """Report from now on that this reservation holds a slot."""
        self._place(served, terms).has[terms.token + terms.proof] = terms.user

    def told_again(self, served: Served, terms: Reserved) -> None:
        """Report the end of a reservation that the node tells again although it is over."""
        if terms.token + terms.proof not in self._place(served, terms).has:
            self.is_over(served, terms)

    def is_over(self, served: Served, terms: Reserved) -> None:
        """Report that this reservation holds no slot, or none any more."""
        place = self._place(served, terms)
        proven = terms.token + terms.proof
        place.has.pop(proven, None)
        place.ended[proven] = terms.user
        self._touch(place)

    def stop(self) -> None:
        """Report nothing any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _place(self, served: Served, terms: Reserved) -> _Place:
        key = (served.name, terms.partition)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = _Place(served, terms.partition)
            if self._timer is None and not self._stopped:
                self._timer = self._loop.call_later(AGAIN_SECONDS, self._say_it_again)
        return found

    def _touch(self, place: _Place) -> None:
        if not self._touched:
            self._loop.call_soon(self._say)
        self._touched[place] = None

    def _say_it_again(self) -> None:
        self._timer = None
        for key, place in list(self._places.items()):
            if place.has or place.ended:
                self._touch(place)
            elif not place.under_way:
                del self._places[key]
        if self._places:
            self._timer = self._loop.call_later(AGAIN_SECONDS, self._say_it_again)

    def _say(self) -> None:
        touched, self._touched = self._touched, {}
        for place in touched:
            if not place.under_way and not self._stopped:
                self._say_to(place)

    def _say_to(self, place: _Place) -> None:
        has = list(place.has.items())
        ended = list(islice(place.ended.items(), PORTION))
        for start in range(0, len(has) or 1, PORTION):
            self._send(place, has[start : start + PORTION], ended)
            ended = []

    def _send(self, place: _Place, has: _Reports, ended: _Reports) -> None:
        message = Running(
            *place.served.view.id, place.partition, 0, self._session, _by_user(has), _by_user(ended)
        )

        def told(outcome: object) -> None:
            place.under_way -= 1
            if isinstance(outcome, MaitredError):
                # It is reported again. Ends that are dropped here count as ended by silence.
                while len(place.ended) > ENDED_KEPT:
                    del place.ended[next(iter(place.ended))]
                return
            for proven, _ in ended:
                place.ended.pop(proven, None)
            if place.ended and not place.under_way:
                self._touch(place)

        place.under_way += 1
        try:
            self._client.hold(message, ANSWER_SECONDS, grace_seconds=0.0).tell(told)
        except MaitredError as problem:
            told(problem)


def _by_user(reports: _Reports) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for proven, user in reports:
        found.setdefault(user, []).append(proven)
    return found
