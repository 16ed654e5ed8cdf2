"""The order in which secrets are verified: networks take turns, and within a network the names do.

Verifying costs some 40 ms, so a peer that sends many attempts could make all others wait. Here a
flood from one network costs another network one turn at most. Behind one address (a translator, a
proxy) a flood in one name costs the other names one turn.

An attacker may have thousands of networks, so turns alone are not enough. Networks have a
`Standing` (`login_limits.py` decides which): those that have not failed lately go first, then those
that failed a few times, then those that failed often; `SHARES` keeps the latter from waiting for
ever, since users may be behind their addresses, too. Among networks that have not failed, the
newest goes first: a thousand of them that all came a moment ago then do not delay those that come
later, and when each has failed once it is behind them.

The queue is bounded, in total and for each network. An attempt beyond a network's limit displaces
the last attempt of the name that has the most there, if that name has more than the newcomer's own.
An attempt beyond the total displaces one of a worse standing, or of the oldest network in good
standing; otherwise it is refused. So a flood displaces itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from maitred.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable


class Standing(IntEnum):
    """A network's record of failed logins, the best first."""

    GOOD = 0
    """The network has not failed lately."""
    MIXED = 1
    """The network has failed a few times, as networks with people in them do."""
    SUSPECT = 2
    """The network has failed more often than that."""


SHARES: Final = {Standing.SUSPECT: 8, Standing.MIXED: 4}
"""Every eighth turn goes to a suspect network, every fourth to one of mixed standing, if some
wait."""

CROWDED_PER_NETWORK: Final = 4
"""Most attempts of one network that may wait while the queue is half full: with the default limits
it takes a thousand networks to fill it."""

RETRY_SECONDS: Final = 1.0
"""Seconds after which a refused attempt may be repeated: by then a third of the attempts that one
network may have in the queue were verified."""


class Queued(Protocol):
    """A login attempt that waits to be verified."""

    @property
    def network(self) -> str: ...
    @property
    def user(self) -> str: ...


_Attempt = TypeVar("_Attempt", bound=Queued)


class _Lane(Generic[_Attempt]):
    """The attempts of one network, by name."""

    __slots__ = ("names", "size", "standing")

    def __init__(self, standing: Standing) -> None:
        self.names: OrderedDict[str, deque[_Attempt]] = OrderedDict()
        self.size = 0
        self.standing = standing

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
        """Return the newest attempt of the name that has the most, and how many that name has."""
        longest = max(self.names.values(), key=len)
        return longest[-1], len(longest)


class LoginQueue(Generic[_Attempt]):
    """The login attempts that wait to be verified in one process."""

    def __init__(
        self, most: int, most_per_network: int, standing: Callable[[str, float], Standing]
    ) -> None:
        self._most = most
        self._most_per_network = most_per_network
        self._standing = standing
        self._networks: dict[str, _Lane[_Attempt]] = {}
        self._turns: dict[Standing, OrderedDict[str, _Lane[_Attempt]]] = {
            standing: OrderedDict() for standing in Standing
        }
        """Networks by standing; the last one has the next turn."""
        self._size = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._size

    def add(self, attempt: _Attempt, now: float) -> _Attempt | None:
        """Queue the attempt. Returns an attempt that it displaced, which the caller has to refuse;
        raises `Overloaded` if there is no room for this one."""
        network = attempt.network
        lane = self._networks.get(network)
        standing = self._standing(network, now)
        displaced: _Attempt | None = None
        most = self._most_per_network
        if 2 * self._size >= self._most:
            most = min(most, CROWDED_PER_NETWORK)
        if lane is not None and lane.size >= most:
            last, longest = lane.last_of_longest()
            if longest <= lane.count(attempt.user) + 1:
                raise no_room("from your address")
            displaced = last
        elif self._size >= self._most:
            displaced = self._displaceable(standing)
            if displaced is None:
                raise no_room("here")
        if displaced is not None:
            self.remove(displaced)
        lane = self._networks.get(network)
        if lane is None:
            lane = self._networks[network] = _Lane(standing)
            self._line_up(network, lane)
        elif lane.standing != standing:
            self._move(network, lane, standing)
        lane.add(attempt)
        self._size += 1
        return displaced

    def take(self, now: float) -> _Attempt | None:
        """Remove and return the next attempt to verify; None if none waits."""
        while self._size:
            lanes = self._whose_turn()
            network, lane = next(reversed(lanes.items()))
            standing = self._standing(network, now)
            if standing > lane.standing:  # the network has failed meanwhile
                self._move(network, lane, standing)
                continue
            self._taken += 1
            taken = lane.take()
            self._size -= 1
            if lane.size:
                lanes.move_to_end(network, last=False)
            else:
                self._drop(network, lane)
            return taken
        return None

    def remove(self, attempt: _Attempt) -> None:
        """Remove an attempt whose caller has disconnected; without effect if it was already
        taken."""
        lane = self._networks.get(attempt.network)
        if lane is not None and lane.remove(attempt):
            self._size -= 1
            if not lane.size:
                self._drop(attempt.network, lane)

    def _whose_turn(self) -> OrderedDict[str, _Lane[_Attempt]]:
        for standing, share in SHARES.items():
            if self._turns[standing] and self._taken % share == share - 1:
                return self._turns[standing]
        return next(lanes for lanes in self._turns.values() if lanes)

    def _line_up(self, network: str, lane: _Lane[_Attempt]) -> None:
        lanes = self._turns[lane.standing]
        lanes[network] = lane
        if lane.standing is not Standing.GOOD:
            lanes.move_to_end(network, last=False)

    def _move(self, network: str, lane: _Lane[_Attempt], standing: Standing) -> None:
        del self._turns[lane.standing][network]
        lane.standing = standing
        self._line_up(network, lane)

    def _drop(self, network: str, lane: _Lane[_Attempt]) -> None:
        del self._networks[network]
        del self._turns[lane.standing][network]

    def _displaceable(self, standing: Standing) -> _Attempt | None:
        """Return an attempt that a newcomer of this standing may displace; None if there is
        none."""
        for worse in reversed(Standing):
            lanes = self._turns[worse]
            if lanes and (worse > standing or standing is Standing.GOOD):
                return next(iter(lanes.values())).last_of_longest()[0]
        return None


def no_room(where: str) -> Overloaded:
    """Return the error for an attempt that was refused, or displaced by another one."""
    return Overloaded(
        f"Too many logins wait {where} to be verified.",
        remedy="Try again later.",
        retry_after=RETRY_SECONDS,
    )
