"""Decides which connections to a node to open: one to every shard, and never a storm. Pure.

The shards of a node share a port, where the kernel assigns a connection at random, and each shard
has a port of its own, which is the sure way to it. A shard that cannot be reached that way (a
firewall, a translated address) is found on the shared port: the client opens connections there
until every shard has one. It holds those that lead to the same shard meanwhile, so that the kernel
does not assign the next one there again.

- Without any connection, only the shared port is tried, one attempt at a time: the node may have
  changed. An attempt that hangs is joined by another one after `hedge_seconds`: its shard may be
  stuck, and the next one alive. If the node came back as another one, or with other shards or
  ports, everything known before is forgotten.
- A shard's own port that cannot be reached while the node lives is blocked for a while. A port that
  has worked before gets a few more tries: its shard is probably being restarted.
- A port that leads to another shard than it should is blocked, too: something translates it.

What always holds: the next try of a port comes, after the *n*-th in a row, at
least half of `min(longest, first * 2**(n - 1))` later, and only a port that was left alone for
twice `longest` starts from the beginning. So in any T seconds a port is tried at most
`(B + 1) * (1 + T / (2 * longest)) + 2 * T / longest` times, where `B = log2(longest / first) + 2`;
and a try of the shared port is at most `coverage_attempts * shards` connections.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from maitred.backoff import backoff_seconds

if TYPE_CHECKING:
    from random import Random

    from maitred.settings import ClientSettings

PROVEN_PORT_TRIES = 6
"""Failures in a row after which a port that worked before is blocked as well: with the default
backoff some two seconds, in which a node has started a dead shard again."""


class Dial(NamedTuple):
    """Connect to this shard's own port; without a shard, to the shared port."""

    shard: int | None = None
    port: int | None = None


class CloseExcess(NamedTuple):
    """Retire this connection, which is not needed: it finishes the requests that it has."""

    connection: int


class WaitUntil(NamedTuple):
    """Call `tick` at this moment; replaces every earlier `WaitUntil`."""

    moment: float


Decision = Dial | CloseExcess | WaitUntil


class Described(NamedTuple):
    """The identity of a node; if it changes, coverage starts anew."""

    node: str
    shards: int
    ports: tuple[int, ...]


class _Way:
    """One port, and its recent tries."""

    __slots__ = ("active_at", "dialing", "not_before", "tries")

    def __init__(self) -> None:
        self.dialing = 0
        self.tries = 0
        self.not_before = -inf
        self.active_at = -inf


class Coverage:
    """The connections to one node. Every method takes an event and returns decisions."""

    def __init__(self, settings: ClientSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self.described: Described | None = None
        self.covering: dict[int, int] = {}
        """The connection of each shard, by shard."""
        self._excess: dict[int, int] = {}
        """Second connections of shards, which are held while the round lasts."""
        self._own: dict[int, _Way] = {}
        self._proven: set[int] = set()
        self._blocked_until: dict[int, float] = {}
        self._shared = _Way()
        self._in_round = False
        self._round_began = 0.0
        self._round_dials = 0
        self._round_failed = False

    @property
    def missing(self) -> list[int]:
        """Shards without a connection."""
        shards = self.described.shards if self.described else 0
        return [shard for shard in range(shards) if shard not in self.covering]

    # Events

    def tick(self, now: float) -> list[Decision]:
        """Decide at the moment of a `WaitUntil`, or at the beginning."""
        return self._plan(now)

    def opened(
        self, connection: int, dial: Dial, described: Described, shard: int, now: float
    ) -> list[Decision]:
        """Decide after a dial that led to this shard of this node."""
        way = self._done(dial, now)
        decisions: list[Decision] = []
        if described != self.described:
            if dial.shard is not None and self._is_elsewhere(described):
                self._block(dial, now)
                return [CloseExcess(connection), *self._plan(now)]
            decisions += self._rebuild(described)
        if dial.shard is not None:
            if dial.shard == shard:
                self._proven.add(shard)
            else:
                self._block(dial, now)
        if shard not in self.covering:
            self.covering[shard] = connection
        elif self._in_round:
            self._excess[connection] = shard
        else:
            decisions.append(CloseExcess(connection))
        if way is self._shared and not self._in_round:
            # It was dialled before the node changed.
            self._put_off(way, now)
        return decisions + self._plan(now)

    def failed(self, dial: Dial, *, reached: bool, now: float) -> list[Decision]:
        """Decide after a dial that failed; `reached` tells whether the other end answered."""
        way = self._done(dial, now)
        if dial.shard is None:
            self._round_failed = True
            return self._plan(now)
        self._put_off(way, now)
        # Without any connection the node may be down, which says nothing about its ports.
        if not reached and self.covering:
            is_proven = dial.shard in self._proven
            if not is_proven or way.tries >= PROVEN_PORT_TRIES:
                self._block(dial, now)
        return self._plan(now)

    def closed(self, connection: int, now: float) -> list[Decision]:
        """Decide after a connection ended, or accepts no more requests."""
        self._excess.pop(connection, None)
        for shard, covering in self.covering.items():
            if covering == connection:
                del self.covering[shard]
                self._replace(shard, now)
                break
        return self._plan(now)

    # What follows

    def _replace(self, shard: int, now: float) -> None:
        for connection, its_shard in self._excess.items():
            if its_shard == shard:
                self.covering[shard] = connection
                del self._excess[connection]
                return
        # After a random pause: all clients of a node lose their connections at the same moment.
        soon = now + self._settings.backoff_first_seconds * self._random.random()
        for way in (self._own_way(shard), self._shared):
            way.not_before = max(way.not_before, soon)

    def _rebuild(self, described: Described) -> list[Decision]:
        """Forget what was known of the node, apart from the recent tries of its ports."""
        old = [*self.covering.values(), *self._excess]
        self.covering.clear()
        self._excess.clear()
        self._proven.clear()
        self._blocked_until.clear()
        self.described = described
        for shard in [shard for shard in self._own if shard >= described.shards]:
            if not self._own[shard].dialing:
                del self._own[shard]
        return [CloseExcess(connection) for connection in old]

    def _is_elsewhere(self, described: Described) -> bool:
        return self.described is not None and described.node != self.described.node

    def _block(self, dial: Dial, now: float) -> None:
        if dial.shard is not None and self._port(dial.shard) == dial.port:
            self._blocked_until[dial.shard] = now + self._settings.port_blocked_seconds
            self._proven.discard(dial.shard)

    def _port(self, shard: int) -> int | None:
        ports = self.described.ports if self.described else ()
        return ports[shard] if shard < len(ports) else None

    # Ways

    def _own_way(self, shard: int) -> _Way:
        return self._own.setdefault(shard, _Way())

    def _done(self, dial: Dial, now: float) -> _Way:
        way = self._shared if dial.shard is None else self._own_way(dial.shard)
        way.dialing -= 1
        way.active_at = now
        return way

    def _try(self, way: _Way, now: float) -> None:
        """Count another try of the port."""
        if now - way.active_at >= 2 * self._settings.backoff_longest_seconds:
            way.tries = 0
        way.tries += 1
        way.active_at = now
        self._put_off(way, now)

    def _put_off(self, way: _Way, now: float) -> None:
        settings = self._settings
        backoff = backoff_seconds(
            way.tries,
            settings.backoff_first_seconds,
            settings.backoff_longest_seconds,
            self._random,
        )
        way.not_before = max(way.not_before, now + backoff)

    # The plan

    def _plan(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        moments = [inf]
        if self.covering:
            wanted = self._plan_own(now, decisions, moments)
        else:
            wanted = self._first_wanted(now, moments)
        self._plan_shared(wanted, now, decisions, moments)
        moment = min(moments)
        if moment < inf:
            decisions.append(WaitUntil(moment))
        return decisions

    def _first_wanted(self, now: float, moments: list[float]) -> int:
        """Return how many attempts at the first connection may be under way by now."""
        if not self._in_round:
            return 1
        # A timer may fire a little early; what is due in a microsecond is due.
        joined = int((now - self._round_began) / self._settings.hedge_seconds + 1e-6)
        if self._round_dials < self._round_budget and not self._round_failed:
            moments.append(self._round_began + (joined + 1) * self._settings.hedge_seconds)
        return 1 + joined

    @property
    def _round_budget(self) -> int:
        shards = self.described.shards if self.described else 1
        return self._settings.coverage_attempts * shards

    def _plan_own(self, now: float, decisions: list[Decision], moments: list[float]) -> int:
        """Dial shards on their own ports; return how many have to be found on the shared port."""
        elsewhere = 0
        for shard in self.missing:
            port = self._port(shard)
            blocked_until = self._blocked_until.get(shard, -inf)
            way = self._own_way(shard)
            if port is None or now < blocked_until:
                elsewhere += 1
                if port is not None:
                    moments.append(blocked_until)
            elif way.dialing:
                continue
            elif now < way.not_before:
                moments.append(way.not_before)
            else:
                self._try(way, now)
                way.dialing += 1
                decisions.append(Dial(shard, port))
        return elsewhere

    def _plan_shared(
        self, wanted: int, now: float, decisions: list[Decision], moments: list[float]
    ) -> None:
        way = self._shared
        if not self._in_round and wanted and not way.dialing:
            if now < way.not_before:
                moments.append(way.not_before)
                return
            self._try(way, now)
            self._in_round, self._round_failed, self._round_dials = True, False, 0
            self._round_began = now
            if not self.covering:
                moments.append(now + self._settings.hedge_seconds)
        if not self._in_round:
            return
        budget = self._round_budget
        while way.dialing < wanted and self._round_dials < budget and not self._round_failed:
            way.dialing += 1
            self._round_dials += 1
            decisions.append(Dial())
        if not way.dialing:
            self._in_round = False
            decisions += [CloseExcess(connection) for connection in self._excess]
            self._excess.clear()
            way.active_at = now
            self._put_off(way, now)
            if wanted:
                moments.append(way.not_before)
