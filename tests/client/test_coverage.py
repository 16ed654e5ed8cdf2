"""Coverage in a toy landscape: ports that work or do not, placement by chance, time as a number."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from math import inf, log2
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.client.coverage import (
    PROVEN_PORT_TRIES,
    CloseExcess,
    Coverage,
    Described,
    Dial,
    WaitUntil,
)
from maitred.settings import ClientSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.client.coverage import Decision

SETTINGS = ClientSettings(
    backoff_first_seconds=0.1,
    backoff_longest_seconds=2.0,
    port_blocked_seconds=60.0,
    coverage_attempts=3,
)
SHARDS_MAX = 6


@dataclass
class Landscape:
    """A node as a client finds it, and a client that is nothing but its coverage."""

    shards: int = 4
    seed: int = 0
    identity: str = "n"
    base_port: int = 1000
    has_ports: bool = True
    up: bool = True
    shut: set[int] = field(default_factory=set)
    """Shards whose own ports cannot be reached."""
    swapped: dict[int, int] = field(default_factory=dict)
    """Own ports that lead to another shard."""
    dead: set[int] = field(default_factory=set)
    """Shards that the kernel does not choose either."""
    latency: float = 0.01

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.coverage = Coverage(SETTINGS, self.random)
        self.now = 0.0
        self.wake = inf
        self.coming: list[tuple[float, int, Dial]] = []
        self.dials: list[tuple[float, Dial]] = []
        self.open: dict[int, int] = {}
        """Connections that exist, and their shards."""
        self.most_open = 0
        self.number = 0
        self.failed_at: dict[int | None, float] = {}
        self.perform(self.coverage.tick(self.now))

    def described(self) -> Described:
        ports = tuple(range(self.base_port, self.base_port + self.shards))
        return Described(self.identity, self.shards, ports if self.has_ports else ())

    def perform(self, decisions: list[Decision]) -> None:
        self.wake = inf
        for decision in decisions:
            if isinstance(decision, Dial):
                self.check(decision)
                self.dials.append((self.now, decision))
                self.number += 1
                insort(self.coming, (self.now + self.latency, self.number, decision))
            elif isinstance(decision, WaitUntil):
                assert self.wake == inf, "one WaitUntil at most"
                assert decision.moment > self.now - 1e-9
                self.wake = decision.moment
            else:
                assert isinstance(decision, CloseExcess)
                del self.open[decision.connection]  # a KeyError here: closed twice, or never open

    def check(self, dial: Dial) -> None:
        """What holds for every dial."""
        under_way = [other.shard for _, _, other in self.coming]
        assert dial.shard is None or dial.shard not in under_way, "one at a time"
        least = SETTINGS.backoff_first_seconds / 2
        assert self.now >= self.failed_at.get(dial.shard, -inf) + least, "not at once after failing"

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        end = self.now + seconds
        while not until():
            moment = min(self.wake, self.coming[0][0] if self.coming else inf)
            if moment > end:
                self.now = end
                return until()
            self.now = max(self.now, moment)
            if self.coming and self.coming[0][0] <= self.now:
                self.arrive(*self.coming.pop(0)[1:])
            else:
                self.perform(self.coverage.tick(self.now))
        return True

    def arrive(self, number: int, dial: Dial) -> None:
        shard = self.reached_by(dial)
        if shard is None:
            self.failed_at[dial.shard] = self.now
            self.perform(self.coverage.failed(dial, reached=False, now=self.now))
            return
        self.open[number] = shard
        self.most_open = max(self.most_open, len(self.open))
        self.perform(self.coverage.opened(number, dial, self.described(), shard, self.now))

    def reached_by(self, dial: Dial) -> int | None:
        alive = [shard for shard in range(self.shards) if shard not in self.dead]
        if not self.up or not alive:
            return None
        if dial.shard is None:
            return self.random.choice(alive)
        shard = (dial.port or 0) - self.base_port
        if shard not in alive or shard in self.shut or not self.has_ports:
            return None
        return self.swapped.get(shard, shard)

    def cut(self, connection: int) -> None:
        del self.open[connection]
        self.perform(self.coverage.closed(connection, self.now))

    def covered(self) -> bool:
        """Every shard has exactly one connection, which is to that shard, and there is no other."""
        covering = self.coverage.covering
        return (
            sorted(covering) == list(range(self.shards))
            and all(self.open[connection] == shard for shard, connection in covering.items())
            and len(self.open) == self.shards
        )


def test_every_shard_is_covered_by_its_own_port() -> None:
    land = Landscape(4)
    assert land.run(1, land.covered)
    shared, *own = [dial for _, dial in land.dials]
    assert shared == Dial()
    assert len(own) == 3
    assert all(dial.port == 1000 + (dial.shard or 0) for dial in own)
    assert not land.run(3600, lambda: len(land.dials) != 4), "and then there is peace"


def test_a_first_attempt_that_hangs_gets_company() -> None:
    land = Landscape(4, latency=1000)
    assert not land.run(100, land.covered)
    began = [moment for moment, _ in land.dials]
    expected = [n * SETTINGS.hedge_seconds for n in range(SETTINGS.coverage_attempts)]
    assert began == pytest.approx(expected)
    assert all(dial == Dial() for _, dial in land.dials)


def test_without_own_ports_the_shared_one_is_enough_and_excess_is_closed() -> None:
    for seed in range(50):
        land = Landscape(4, seed=seed, has_ports=False)
        assert land.run(60, land.covered), seed
        assert land.most_open <= SETTINGS.coverage_attempts * 4 + 3


def test_excess_is_held_until_the_round_is_over() -> None:
    land = Landscape(4, has_ports=False, dead={3})
    budget = SETTINGS.coverage_attempts * 4
    assert land.run(1, lambda: len(land.dials) == budget and not land.coming)
    # It is used up, and only those that are needed are left.
    assert land.most_open == budget
    assert sorted(land.open.values()) == [0, 1, 2]


def test_a_round_that_found_not_every_shard_is_followed_by_another() -> None:
    land = Landscape(4, has_ports=False, dead={3})
    land.run(30)
    land.dead.clear()
    assert land.run(30, land.covered)


def test_a_port_that_cannot_be_reached_is_blocked_and_the_shared_port_used_instead() -> None:
    land = Landscape(3, shut={0, 1, 2})
    assert land.run(50, land.covered)
    tried = [dial.shard for _, dial in land.dials if dial.shard is not None]
    assert len(tried) == len(set(tried)), "each at most once while it is blocked"
    land.shut.clear()
    land.run(SETTINGS.port_blocked_seconds)
    land.dials.clear()
    land.cut(land.coverage.covering[1])
    assert land.run(5, land.covered)
    assert {dial.shard for _, dial in land.dials} == {1}, "and when it is not blocked, tried again"


def test_a_port_that_worked_before_is_tried_some_times_before_it_is_blocked() -> None:
    land = Landscape(3)
    assert land.run(1, land.covered)
    (missing,) = {0, 1, 2} - {dial.shard for _, dial in land.dials if dial.shard is not None}
    proven = (missing + 1) % 3
    land.dead.add(proven)  # its process died; the others live
    land.dials.clear()
    land.run(0.01)
    land.cut(land.coverage.covering[proven])
    land.run(20)
    tries = [dial for _, dial in land.dials if dial.shard == proven]
    assert len(tries) == PROVEN_PORT_TRIES - 1 or len(tries) == PROVEN_PORT_TRIES
    assert any(dial.shard is None for _, dial in land.dials), "then the shared port is used"


def test_while_the_node_is_down_only_the_shared_port_is_tried_and_nothing_gets_blocked() -> None:
    land = Landscape(4)
    assert land.run(1, land.covered)
    land.up = False
    land.dials.clear()
    for connection in list(land.open):
        land.cut(connection)
    land.run(100)
    assert len([dial for _, dial in land.dials if dial.shard is not None]) <= 4
    land.up = True
    assert land.run(3, land.covered)
    assert sum(dial.shard is None for _, dial in land.dials[-4:]) == 1


def test_an_attempt_that_fails_because_the_node_went_down_blocks_no_port() -> None:
    land = Landscape(2, latency=0.5)
    land.run(0.6)  # one shard is connected, and the other one's own port is being dialled
    assert [dial.shard is None for _, dial in land.dials] == [True, False]
    land.up = False
    for connection in list(land.open):
        land.cut(connection)
    land.run(20)
    land.up = True
    assert land.run(10, land.covered)
    assert land.dials[-1][1].shard is not None, "its own port again, and not by chance"


def test_a_node_that_is_down_is_asked_once_a_try() -> None:
    land = Landscape(up=False)
    land.run(60)
    assert 10 < len(land.dials) <= _allowed(60)


def test_an_excess_connection_takes_the_place_of_one_that_is_cut() -> None:
    double = next(
        land
        for land in (Landscape(2, seed=seed, has_ports=False) for seed in range(30))
        if _run_until_double(land)
    )
    first, second = sorted(double.open)
    shard = double.open[first]
    assert double.coverage.covering == {shard: first}
    double.cut(first)
    assert double.coverage.covering == {shard: second}
    assert double.run(60, double.covered)


def _run_until_double(land: Landscape) -> bool:
    return land.run(1, lambda: sorted(land.open.values()) in ([0, 0], [1, 1]))


def test_a_port_that_leads_to_another_shard_is_blocked() -> None:
    land = Landscape(3, swapped={0: 1, 1: 2, 2: 0})
    assert land.run(50, land.covered)
    assert all(count <= 1 for count in _tries(land).values())


def test_a_port_that_leads_to_another_node_is_blocked_and_changes_nothing() -> None:
    land = Landscape(2, seed=1)
    land.run(0.015)
    (dial,) = [dial for _, dial in land.dials if dial.shard is not None]
    known = land.coverage.described
    decisions = land.coverage.opened(99, dial, Described("other", 7, ()), 0, land.now)
    assert CloseExcess(99) in decisions
    assert land.coverage.described == known
    assert Dial() in decisions or any(isinstance(one, WaitUntil) for one in decisions)


@pytest.mark.parametrize("change", ["shards", "ports", "identity"])
def test_a_node_that_comes_back_as_another_is_covered_anew(change: str) -> None:
    land = Landscape(4)
    assert land.run(1, land.covered)
    if change == "shards":
        land.shards = 2
    elif change == "ports":
        land.base_port = 2000
    else:
        land.identity = "m"
    land.cut(land.coverage.covering[0])
    if change == "identity":  # behind its own port somebody else is a stranger
        for connection in list(land.open):
            land.cut(connection)
    assert land.run(30, land.covered)
    assert land.coverage.described == land.described()


def test_a_cut_is_repaired_soon_but_not_at_the_same_moment_by_everybody() -> None:
    delays = []
    for seed in range(50):
        land = Landscape(4, seed=seed)
        assert land.run(100, land.covered)
        land.run(100)
        land.dials.clear()
        start = land.now
        land.cut(land.coverage.covering[2])
        assert land.run(1, land.covered)
        ((moment, dial),) = land.dials
        assert dial.shard == 2
        delays.append(moment - start)
    assert max(delays) <= SETTINGS.backoff_first_seconds
    assert len(set(delays)) > 40


def _tries(land: Landscape) -> dict[int | None, int]:
    counted: dict[int | None, int] = {}
    for _, dial in land.dials:
        if dial.shard is not None:
            counted[dial.shard] = counted.get(dial.shard, 0) + 1
    return counted


def _allowed(seconds: float) -> float:
    """The bound of the module's preface."""
    first, longest = SETTINGS.backoff_first_seconds, SETTINGS.backoff_longest_seconds
    burst = log2(longest / first) + 2
    return (burst + 1) * (1 + seconds / (2 * longest)) + 2 * seconds / longest


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("cut", "cut all", "down", "up", "shut", "open", "kill", "revive", "swap"),
                *("grow", "shrink", "move", "no ports", "ports", "stranger", "nothing"),
            )
        ),
        st.floats(0.001, 30),
        st.integers(0, SHARDS_MAX - 1),
    ),
    max_size=25,
)


def _happen(land: Landscape, what: str, number: int) -> None:
    if what == "cut" and land.open:
        land.cut(sorted(land.open)[number % len(land.open)])
    elif what == "cut all":
        for connection in sorted(land.open):
            land.cut(connection)
    elif what in ("up", "down"):
        land.up = what == "up"
    elif what in ("shut", "kill"):
        (land.shut if what == "shut" else land.dead).add(number)
    elif what in ("open", "revive"):
        (land.shut if what == "open" else land.dead).discard(number)
    elif what == "swap":
        land.swapped = {number: (number + 1) % land.shards} if number < land.shards else {}
    elif what in ("grow", "shrink"):
        land.shards = max(1, min(SHARDS_MAX, land.shards + (1 if what == "grow" else -1)))
        land.swapped = {}
    elif what == "move":
        land.base_port += 100
    elif what in ("no ports", "ports"):
        land.has_ports = what == "ports"
    elif what == "stranger":
        land.identity = f"n{number}"


@given(EVENTS, st.integers(0, 2**32), st.integers(1, SHARDS_MAX), st.floats(0.0001, 3))
def test_never_a_storm_and_covered_in_the_end(
    events: list[tuple[str, float, int]], seed: int, shards: int, latency: float
) -> None:
    land = Landscape(shards, seed=seed, latency=latency)
    for what, seconds, number in events:
        _happen(land, what, number)
        land.run(seconds)
    # However bad it was, when everything works again it takes as long as the longest block.
    land.up, land.has_ports = True, True
    land.shut, land.dead, land.swapped = set(), set(), {}
    for connection in sorted(land.open):
        land.cut(connection)  # what was connected to a node that is no more
    longest = SETTINGS.port_blocked_seconds + 4 * (SETTINGS.backoff_longest_seconds + latency)
    assert land.run(2 * longest, land.covered)
    # And nobody was ever stormed.
    ports: dict[object, list[float]] = {}
    for moment, dial in land.dials:
        ports.setdefault(dial.shard, []).append(moment)
    for port, moments in ports.items():
        most = 1 if port is not None else SETTINGS.coverage_attempts * SHARDS_MAX
        for first in range(len(moments)):
            for last in range(first, len(moments)):
                count = last - first + 1
                assert count <= most * _allowed(moments[last] - moments[first])


@given(EVENTS, st.integers(0, 2**32))
def test_what_covers_is_open_and_connected_to_that_shard(
    events: list[tuple[str, float, int]], seed: int
) -> None:
    land = Landscape(3, seed=seed)
    for what, seconds, number in events:
        _happen(land, what, number)
        land.run(seconds)
        for shard, connection in land.coverage.covering.items():
            assert land.open[connection] == shard
