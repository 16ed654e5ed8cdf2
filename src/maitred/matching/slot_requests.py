"""Requests of gateways for free slots, and the order in which they are served.

Queries go before tasks, whatever the store or the rate limit say: a caller waits for the answer.
Among queries the priority counts and then the age, over all gateways together.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from maitred.matching.records import PRIORITIES

if TYPE_CHECKING:
    from maitred.matching.slots import AllocatedSlot, SlotRequest

SWEPT_AT = 1_000
"""Requests that no longer wait and stay in a line before it is swept."""


class SlotRequestLines:
    """The requests that wait at a partition, in one line per priority."""

    def __init__(self) -> None:
        self._lines: tuple[list[tuple[float, int, SlotRequest]], ...] = tuple(
            [] for _ in range(PRIORITIES)
        )
        self._count = 0
        self._gone = 0
        self._answerable: list[SlotRequest] = []
        self.slots = 0
        """Slots that the requests in the lines want."""
        self.users: dict[str, int] = {}
        """Slots that each user's requests want, here and at the parent."""
        self.away: dict[SlotRequest, None] = {}
        """Requests that wait at the parent, in the order in which they went."""
        self.slots_away = 0

    @property
    def total(self) -> int:
        """Slots that all requests want, here and at the parent."""
        return self.slots + self.slots_away

    def add(self, request: SlotRequest) -> None:
        """Queue a request."""
        self._count += 1
        heappush(self._lines[request.priority], (request.since, self._count, request))
        self.slots += request.slots
        users = self.users
        users[request.user] = users.get(request.user, 0) + request.slots

    def first(self) -> SlotRequest | None:
        """Return the next request, if any."""
        if self.slots:
            for line in self._lines:
                while line:
                    request = line[0][2]
                    if request.is_open and request.slots and not request.away:
                        return request
                    heappop(line)
        return None

    def take(self, reservation: AllocatedSlot) -> None:
        """Give the slot to the request that `first` returned."""
        request = reservation.request
        if not request.given:
            self._answerable.append(request)
        request.given.append(reservation)
        request.slots -= 1
        self.slots -= 1
        self._user_waits_less(request.user, 1)
        if not self.slots:
            self._lines[request.priority].clear()

    def put_back(self, reservation: AllocatedSlot) -> None:
        """Take a slot back that a request was given in this turn; its query waits again, at its
        place."""
        request = reservation.request
        request.given.remove(reservation)
        if not request.slots:  # it may have left its line
            self._count += 1
            heappush(self._lines[request.priority], (request.since, self._count, request))
        request.slots += 1
        self.slots += 1
        self.users[request.user] = self.users.get(request.user, 0) + 1

    def goes_away(self, request: SlotRequest) -> None:
        """Move a request out of its line: it waits at the parent from now on."""
        request.away = True
        self.slots -= request.slots
        self.slots_away += request.slots
        self.away[request] = None
        self._left_its_line()

    def close(self, request: SlotRequest) -> bool:
        """Close a request that is answered or withdrawn; return False if it was closed before."""
        if not request.is_open:
            return False
        request.is_open = False
        if request.away:
            self.slots_away -= request.slots
            del self.away[request]
        else:
            self.slots -= request.slots
            if request.slots:
                self._left_its_line()
        self._user_waits_less(request.user, request.slots)
        return True

    def answerable(self) -> list[SlotRequest]:
        """Return the requests that were given slots since the last call."""
        found, self._answerable = self._answerable, []
        return found

    def waiting(self) -> list[SlotRequest]:
        """Return the requests in the lines, in the order in which they are served."""
        if not self.slots:
            return []
        found: dict[SlotRequest, None] = {}
        for line in self._lines:
            for _, _, request in sorted(line):
                if request.is_open and request.slots and not request.away:
                    found[request] = None
        return list(found)

    def unanswered(self) -> list[SlotRequest]:
        """Return all open requests, here and at the parent."""
        found = dict.fromkeys(self.waiting())
        found.update(dict.fromkeys(one for one in self._answerable if one.is_open))
        return [*found, *self.away]

    def _user_waits_less(self, user: str, slots: int) -> None:
        if not slots:
            return
        left = self.users[user] - slots
        if left:
            self.users[user] = left
        else:
            del self.users[user]

    def _left_its_line(self) -> None:
        """Count a request that left its line. It stays in the heap, where `first` skips it, until
        many are removed together."""
        if not self.slots:
            self._gone = 0
            for line in self._lines:
                line.clear()
            return
        self._gone += 1
        if self._gone >= SWEPT_AT and self._gone > sum(map(len, self._lines)) // 2:
            self._gone = 0
            for line in self._lines:
                line[:] = [
                    one for one in line if one[2].is_open and one[2].slots and not one[2].away
                ]
                heapify(line)
