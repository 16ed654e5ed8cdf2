"""Whose secret is verified next: networks take turns, and within a network the names do.

Verifying costs some 40 ms, so whoever sends many attempts could make everybody else wait. Here a
flood from one network costs another network one turn at most. Behind one address (a translator, a
proxy) a flood in one name costs the other names one turn.

Networks that failed too often (`login_limits.py`) get one turn in `SUSPECT_TURN` while others wait:
an attacker with a thousand networks, each of which has had its failures, does not slow down the
users who come from elsewhere, and users behind an address of his are still served.

The queue is bounded, in total and for each network. What is over the limit displaces the last
attempt of the network (within one network: of the name) that has the most, if that has more than
the newcomer's own; otherwise the newcomer is refused. So a flood displaces itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, Protocol, TypeVar

from maitred.errors import Overloaded

SUSPECT_TURN: Final = 4
"""While both kinds wait, every fourth turn is a suspect network's."""

RETRY_SECONDS: Final = 1.0
"""After which a refused attempt may try again: by then as many were verified as one network may
have in the queue."""


class Queued(Protocol):
    """An attempt that waits."""

    @property
    def network(self) -> str: ...
    @property
    def user(self) -> str: ...


_Attempt = TypeVar("_Attempt", bound=Queued)


class _Lane(Generic[_Attempt]):
    """The attempts of one network, by name."""

    __slots__ = ("names", "size")

    def __init__(self) -> None:
        self.names: OrderedDict[str, deque[_Attempt]] = OrderedDict()
        self.size = 0

    def add(self, attempt: _Attempt) -> None:
        self.names.setdefault(attempt.user, deque()).append(attempt)
        self.size += 1

    def count(self, name: str) -> int:
        return len(self.names.get(name, ()))

    def take(self) -> _Attempt:
        name, attempts = self.names.popitem(last=False)
        taken = attempts.popleft()
        self.size -= 1
        if attempts:
            self.names[name] = attempts
        return taken

    def remove(self, attempt: _Attempt) -> bool:
        attempts = self.names.get(attempt.user)
        if attempts is None or attempt not in attempts:
            return False
        attempts.remove(attempt)
        self.size -= 1
        if not attempts:
            del self.names[attempt.user]
        return True

    def last_of_longest(self) -> tuple[_Attempt, int]:
        """The newest attempt of the name that has the most, and how many that name has."""
        longest = max(self.names.values(), key=len)
        return longest[-1], len(longest)


class LoginQueue(Generic[_Attempt]):
    """Attempts that wait to be verified in one process."""

    def __init__(self, most: int, most_per_network: int) -> None:
        self._most = most
        self._most_per_network = most_per_network
        self._lanes: tuple[OrderedDict[str, _Lane[_Attempt]], OrderedDict[str, _Lane[_Attempt]]] = (
            OrderedDict(),
            OrderedDict(),
        )
        """By network: those in good standing, and those that are suspect."""
        self._size = 0
        self._turns = 0
        """Turns of networks in good standing since a suspect one had its turn."""

    def __len__(self) -> int:
        return self._size

    def add(self, attempt: _Attempt, *, suspect: bool) -> _Attempt | None:
        """Let it wait. Returns an attempt that was displaced, which has to be told; raises
        `Overloaded` if there is no room for this one."""
        lane = self._lane(attempt.network, suspect)
        displaced: _Attempt | None = None
        if lane.size >= self._most_per_network:
            last, longest = lane.last_of_longest()
            if longest <= lane.count(attempt.user) + 1:
                raise no_room("from your address")
            displaced = last
        elif self._size >= self._most:
            displaced = self._last_of_longest_lane(lane.size, suspect)
            if displaced is None:
                if not lane.size:
                    del self._lanes[suspect][attempt.network]
                raise no_room("here")
        if displaced is not None:
            self.remove(displaced)
            lane = self._lane(attempt.network, suspect)
        lane.add(attempt)
        self._size += 1
        return displaced

    def take(self) -> _Attempt | None:
        """The next attempt to verify."""
        good, suspect = self._lanes
        if not good and not suspect:
            return None
        if good and (not suspect or self._turns < SUSPECT_TURN - 1):
            self._turns += 1
            lanes = good
        else:
            self._turns = 0
            lanes = suspect
        network, lane = lanes.popitem(last=False)
        taken = lane.take()
        self._size -= 1
        if lane.size:
            lanes[network] = lane
        return taken

    def remove(self, attempt: _Attempt) -> None:
        """Forget an attempt whose caller has left; nothing happens if it was taken already."""
        for lanes in self._lanes:
            lane = lanes.get(attempt.network)
            if lane is not None and lane.remove(attempt):
                self._size -= 1
                if not lane.size:
                    del lanes[attempt.network]

    def _lane(self, network: str, suspect: bool) -> _Lane[_Attempt]:
        """The network's lane; its standing is that of its newest attempt."""
        there, elsewhere = self._lanes[suspect], self._lanes[not suspect]
        if network in elsewhere:
            there[network] = elsewhere.pop(network)
        elif network not in there:
            there[network] = _Lane()
        return there[network]

    def _last_of_longest_lane(self, size: int, suspect: bool) -> _Attempt | None:
        """What a newcomer whose network has so many attempts may displace; None: nothing."""
        good, suspects = ([lane for lane in lanes.values() if lane.size] for lanes in self._lanes)
        if suspects and not suspect:
            return max(suspects, key=_size).last_of_longest()[0]
        rivals = suspects if suspect else good
        longest = max(rivals, key=_size, default=None)
        if longest is None or longest.size <= size + 1:
            return None
        return longest.last_of_longest()[0]


def no_room(where: str) -> Overloaded:
    """For an attempt that was refused, or displaced by another one."""
    return Overloaded(
        f"Too many logins wait {where} to be verified.",
        remedy="Try again later.",
        retry_after=RETRY_SECONDS,
    )


def _size(lane: _Lane[_Attempt]) -> int:
    return lane.size
