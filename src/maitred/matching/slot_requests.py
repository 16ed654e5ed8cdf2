"""What gateways wait for at a partition: free slots for queries, and in which order they get them.

A query is served before every task, whatever the store or the rate limit say: somebody waits for
its answer. Among queries the priority counts and then the age, over all gateways together.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from msgspec import Struct, field

from maitred.matching.records import PRIORITIES

if TYPE_CHECKING:
    from maitred.matching.offers import WaitingOffer
    from maitred.matching.task import Token

SWEPT_AT = 1_000
"""So many that do not wait any more are kept in a line before it is swept."""


class AllocatedSlot(Struct, eq=False):
    """One slot of an offer, for one query. Both ends hear of it at the end of the turn."""

    token: bytes
    """What the gateway shows and the worker knows."""
    offer: WaitingOffer
    request: SlotRequest
    proof: bytes = b""
    """Proves to the next owner that this partition made it; empty if it is not counted."""


class SlotRequest(Struct, eq=False):
    """A gateway's request for slots."""

    token: Token
    session: bytes
    """The gateway's."""
    user: str
    slots: int
    """That it still wants."""
    since: float
    """When its oldest query came, here or elsewhere."""
    until: float
    """Then nobody waits for the answer any more."""
    priority: int = 2
    hops: int = 0
    given: list[AllocatedSlot] = field(default_factory=list)
    away: bool = False
    """Whether it waits at the parent, and only there."""
    is_open: bool = True
    do_not_queue: bool = False
    """Whether it is refused at the root if nobody is free."""
    permits: list[bytes] = field(default_factory=list)
    """Under which its queries are counted, if they are: one for each, and of no interest here."""


class SlotRequestLines:
    """All that wait here, a line for each priority."""

    def __init__(self) -> None:
        self._lines: tuple[list[tuple[float, int, SlotRequest]], ...] = tuple(
            [] for _ in range(PRIORITIES)
        )
        self._count = 0
        self._gone = 0
        self._answerable: list[SlotRequest] = []
        self.slots = 0
        """That are waited for in the lines."""
        self.users: dict[str, int] = {}
        """The same by user, with those that are away."""
        self.away: dict[SlotRequest, None] = {}
        """Those that wait at the parent, in the order in which they went."""
        self.slots_away = 0

    @property
    def total(self) -> int:
        """Slots that are waited for, here or at the parent."""
        return self.slots + self.slots_away

    def add(self, request: SlotRequest) -> None:
        """It waits here."""
        self._count += 1
        heappush(self._lines[request.priority], (request.since, self._count, request))
        self.slots += request.slots
        users = self.users
        users[request.user] = users.get(request.user, 0) + request.slots

    def first(self) -> SlotRequest | None:
        """Whose turn it is."""
        if self.slots:
            for line in self._lines:
                while line:
                    request = line[0][2]
                    if request.is_open and request.slots and not request.away:
                        return request
                    heappop(line)
        return None

    def take(self, reservation: AllocatedSlot) -> None:
        """Match one query of the one whose turn it is."""
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
        """The slot is gone, before anybody heard of it: its query stands where it stood."""
        request = reservation.request
        request.given.remove(reservation)
        if not request.slots:  # it may have left its line
            self._count += 1
            heappush(self._lines[request.priority], (request.since, self._count, request))
        request.slots += 1
        self.slots += 1
        self.users[request.user] = self.users.get(request.user, 0) + 1

    def goes_away(self, request: SlotRequest) -> None:
        """From now on it waits at the parent."""
        request.away = True
        self.slots -= request.slots
        self.slots_away += request.slots
        self.away[request] = None
        self._left_its_line()

    def close(self, request: SlotRequest) -> bool:
        """It is answered, or nobody waits for the answer; False if that was so already."""
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
        """Those that got slots since the last time."""
        found, self._answerable = self._answerable, []
        return found

    def waiting(self) -> list[SlotRequest]:
        """All that wait in the lines, those first whose turn comes first."""
        if not self.slots:
            return []
        found: dict[SlotRequest, None] = {}
        for line in self._lines:
            for _, _, request in sorted(line, key=_place):
                if request.is_open and request.slots and not request.away:
                    found[request] = None
        return list(found)

    def unanswered(self) -> list[SlotRequest]:
        """All that are open, wherever they wait."""
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
        """It is still in its heap, where it is passed over; many are taken out together."""
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


def _place(entry: tuple[float, int, SlotRequest]) -> tuple[float, int]:
    return entry[:2]
