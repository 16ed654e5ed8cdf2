"""Queries that wait for slots, of one queue, one priority and one user: how many slots to ask for,
and who gets them.

Those that come in one turn of the loop are a *group*, asked for together and as old as the oldest
of them. A group that got fewer slots than it wanted asks again, and stays as old as it is; so the
node, which serves the oldest first, serves across all gateways in the order in which queries came.
Slots that nobody of the group needs any more go to the next group, and what nobody needs is
surplus.

When many groups wait already there is no hurry: those that come within a moment of each other are
gathered into one, so that a long line costs few messages. Only a line of hundreds of groups is
gathered whatever the ages, and then the order across gateways is as coarse as that.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

GATHERED_FROM: Final = 16
"""With so many requests for slots under way, further queries are gathered for a moment: those who
wait behind sixteen groups do not wait longer for it."""

GROUPS_MAX: Final = 512
"""Requests for slots that one line has under way: half of the streams that a connection has, unless
set otherwise. At a hundredth of a second each they are more than five seconds of waiting."""

APART_SECONDS: Final = 0.01
"""Queries that came further apart than this are not asked for together: one that has to be asked
for again does not take others with it to the front."""


class Waiting(Protocol):
    """A query, as far as its line needs to know it."""

    since: float
    deadline: float


Query = TypeVar("Query", bound=Waiting)


class DemandGroup(Generic[Query]):
    """Queries that are asked for together."""

    __slots__ = ("asked", "members", "since", "tries")

    def __init__(self, since: float) -> None:
        self.since = since
        self.members: dict[Query, None] = {}
        """In the order in which they are served."""
        self.asked = False
        """Whether a request for it is under way, or about to be made again."""
        self.tries = 0
        """How often in a row asking came to nothing."""

    @property
    def deadline(self) -> float:
        """The latest of any member: until then the slots are wanted."""
        return max((one.deadline for one in self.members), default=-inf)


class SlotDemand(Generic[Query]):
    """One line."""

    __slots__ = ("_groups", "_most", "by_query")

    def __init__(self, most_slots: int) -> None:
        self._most = most_slots
        self._groups: dict[DemandGroup[Query], None] = {}
        self.by_query: dict[Query, DemandGroup[Query]] = {}
        """The queries that wait."""

    def __len__(self) -> int:
        """Queries that wait."""
        return len(self.by_query)

    @property
    def idle(self) -> bool:
        """Whether nobody waits and nothing is asked for."""
        return not self._groups

    @property
    def gathers(self) -> bool:
        """Whether the newest group waits for company."""
        newest = next(reversed(self._groups), None)
        return newest is not None and not newest.asked

    def add(self, query: Query) -> None:
        """It waits from now on. Its group is the newest one that is not asked for yet."""
        group = None
        since = query.since
        for one in reversed(self._groups):
            if one.asked:
                break
            if -APART_SECONDS <= one.since - since <= APART_SECONDS or self._is_full():
                group = one
                break
        if group is None or len(group.members) >= self._most:
            group = DemandGroup(since)
            self._groups[group] = None
        elif since < group.since:
            group.since = since
        group.members[query] = None
        self.by_query[query] = group

    def _is_full(self) -> bool:
        return len(self._groups) >= GROUPS_MAX

    def first(self) -> Query | None:
        """Who has waited longest."""
        oldest = min((one for one in self._groups if one.members), key=_age, default=None)
        return None if oldest is None else next(iter(oldest.members))

    def remove(self, query: Query) -> DemandGroup[Query] | None:
        """It does not wait any more; returns its group if that is asked for in vain now."""
        group = self.by_query.pop(query, None)
        if group is None:
            return None
        del group.members[query]
        if group.members:
            return None
        if group.asked:
            return group
        self._groups.pop(group, None)
        return None

    def to_ask(self, now: float = inf) -> list[DemandGroup[Query]]:
        """Groups to ask for now; they count as asked for from here on."""
        under_way = sum(group.asked for group in self._groups)
        found: list[DemandGroup[Query]] = []
        for group in self._groups:
            if group.asked:
                continue
            many = under_way + len(found)
            if many < GATHERED_FROM or (many < GROUPS_MAX and now - group.since >= APART_SECONDS):
                found.append(group)
        for group in found:
            group.asked = True
        return found

    def answered(self, group: DemandGroup[Query], slots: int) -> list[Query]:
        """So many slots were given to the group: who gets them; fewer, if there is surplus.

        Those of the group that got none are to be asked for again (`to_ask`).
        """
        group.asked = False
        group.tries = 0
        given = self._take(group, slots)
        if len(given) < slots:
            for other in sorted(self._groups, key=_age):
                if other is not group:
                    given += self._take(other, slots - len(given))
                    if not other.asked:
                        self._tidy(other)
                if len(given) == slots:
                    break
        self._tidy(group)
        return given

    def in_vain(self) -> list[DemandGroup[Query]]:
        """Groups that are asked for though nobody is in them any more."""
        return [group for group in self._groups if group.asked and not group.members]

    def failed(self, group: DemandGroup[Query]) -> bool:
        """Asking came to nothing, and may be tried again; False if nobody needs that any more."""
        group.tries += 1
        if not group.members:
            self._groups.pop(group, None)
            return False
        return True

    def again(self, group: DemandGroup[Query]) -> None:
        """Now is the time to ask for it again."""
        group.asked = False
        self._tidy(group)

    def refused(self, group: DemandGroup[Query]) -> Iterable[Query]:
        """The node takes none of them; returns who was in the group."""
        members = list(group.members)
        for query in members:
            self.by_query.pop(query, None)
        group.members.clear()
        self._groups.pop(group, None)
        return members

    def _take(self, group: DemandGroup[Query], most: int) -> list[Query]:
        members = group.members
        taken = list(members) if most >= len(members) else [*_first(members, most)]
        by_query = self.by_query
        for query in taken:
            del members[query]
            del by_query[query]
        return taken

    def _tidy(self, group: DemandGroup[Query]) -> None:
        if not group.members:
            self._groups.pop(group, None)


def _first(members: dict[Query, None], most: int) -> list[Query]:
    found: list[Query] = []
    for one in members:
        if len(found) == most:
            break
        found.append(one)
    return found


def _age(group: DemandGroup[Query]) -> float:
    return group.since
