"""How many wrong secrets are too many, and for whom."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Overloaded, TooManyFailures
from maitred.security.login_limits import FailureTable, LoginLimits
from maitred.security.login_queue import SHARES, LoginQueue, Standing
from maitred.security.source import Source
from maitred.settings import Limits

HOME, AWAY = "192.0.2.1", "192.0.2.2"


def limits(here: int = 3, network: int = 5, name: int = 7) -> LoginLimits:
    return LoginLimits(
        Limits(
            failures_per_user=here,
            failures_per_address=network,
            failures_per_name=name,
            failure_seconds=10,
            address_failure_seconds=20,
        )
    )


def refused_for(table: LoginLimits, network: str, name: str, now: float) -> float:
    """Seconds; 0 if it is verified."""
    try:
        table.check(network, name, now)
    except TooManyFailures as problem:
        return problem.retry_after or 0.0
    return 0.0


def test_one_network_in_one_name_is_refused_until_a_failure_is_forgiven() -> None:
    table = limits()
    for _ in range(3):
        assert not refused_for(table, HOME, "alice", 0.0)
        table.failed(HOME, "alice", 0.0)
    assert refused_for(table, HOME, "alice", 0.0) == pytest.approx(10)
    assert refused_for(table, HOME, "alice", 4.0) == pytest.approx(6)
    assert not refused_for(table, HOME, "alice", 10.0)
    assert not refused_for(table, HOME, "bob", 0.0), "another name from there"
    assert not refused_for(table, AWAY, "alice", 0.0), "the same name from elsewhere"


def test_a_right_secret_forgives_the_name_and_not_the_network() -> None:
    table = limits()
    for _ in range(6):
        table.failed(HOME, "alice", 0.0)
    assert table.standing(HOME, 0.0) is Standing.SUSPECT
    table.succeeded(HOME, "alice")
    assert not refused_for(table, HOME, "alice", 0.0)
    assert table.standing(HOME, 39.0) is Standing.SUSPECT
    assert table.standing(HOME, 41.0) is Standing.MIXED
    assert table.standing(HOME, 119.0) is Standing.MIXED
    assert table.standing(HOME, 121.0) is Standing.GOOD


def test_a_network_that_fails_in_many_names_is_suspect_and_not_refused() -> None:
    table = limits()
    for number in range(100):
        table.failed(HOME, f"user {number}", 0.0)
    assert table.standing(HOME, 0.0) is Standing.SUSPECT
    assert not refused_for(table, HOME, "alice", 0.0)
    assert table.standing(AWAY, 0.0) is Standing.GOOD


def test_a_guess_that_is_spread_over_networks_is_slowed_and_locks_nobody_out() -> None:
    table = limits()
    for number in range(20):
        table.failed(f"203.0.113.{number}", "alice", 0.0)
    assert refused_for(table, "203.0.113.5", "alice", 0.0), "it has failed in this name"
    assert not refused_for(table, HOME, "alice", 0.0), "it has not"
    assert not refused_for(table, "203.0.113.5", "bob", 0.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 50))), st.integers(1, 5))
def test_no_sequence_allows_more_than_the_bucket_holds(
    steps: list[tuple[int, float]], burst: int
) -> None:
    """Those who try only when they may fail at most `burst` times, and once every ten seconds."""
    table: FailureTable[int] = FailureTable(burst, 10.0)
    now, failures = 0.0, 0
    for _, pause in steps:
        now += pause
        if not table.wait_seconds(1, now):
            table.failed(1, now)
            failures += 1
    assert failures <= burst + now / 10.0 + 1e-6


def test_a_table_forgets_small_offences_first() -> None:
    table: FailureTable[str] = FailureTable(3, 10.0, most=100)
    for _ in range(50):
        table.failed("large", 0.0)
    for number in range(10_000):
        table.failed(f"{number}", 0.0)
        assert len(table) <= 100
    assert table.wait_seconds("large", 0.0) > 400
    table.failed("later", 1_000.0)
    for number in range(101):
        table.failed(f"later {number}", 1_000.0)
    assert len(table) <= 100
    assert not table.has_failed("large", 1_000.0)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "local"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_networks(host: str, network: str) -> None:
    assert Source(host, 5).network == network


def test_sources_as_transports_tell_them() -> None:
    assert str(Source.of(("::1", 80, 0, 0))) == "[::1]:80"
    assert str(Source.of(("127.0.0.1", 80))) == "127.0.0.1:80"
    assert Source.of("").network == Source.of(None).network == str(Source.of(None)) == "local"


class Attempt(NamedTuple):
    network: str
    user: str
    number: int = 0


def good(_network: str, _now: float) -> Standing:
    return Standing.GOOD


def by_name(network: str, _now: float) -> Standing:
    return Standing[network.partition(" ")[0]]


def drained(queue: LoginQueue[Attempt]) -> list[Attempt]:
    found = []
    while (taken := queue.take(0.0)) is not None:
        found.append(taken)
    assert not len(queue)
    return found


def queued(queue: LoginQueue[Attempt], *attempts: Attempt) -> list[Attempt | None]:
    return [queue.add(one, 0.0) for one in attempts]


def test_networks_take_turns_and_names_within_them() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100, good)
    queued(queue, *(Attempt(HOME, "a", number) for number in range(5)))
    queued(queue, Attempt(HOME, "b"), Attempt(AWAY, "c"), Attempt(AWAY, "c", 1))
    assert [(one.user, one.number) for one in drained(queue)] == [
        ("c", 0), ("a", 0), ("c", 1), ("b", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4),
    ]  # fmt: skip


def test_of_those_in_good_standing_the_newest_network_is_next() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100, good)
    for number in range(500):
        queued(queue, Attempt(f"{number}", "x"), Attempt(f"{number}", "x", 1))
    queued(queue, Attempt(HOME, "alice"))
    assert queue.take(0.0) == Attempt(HOME, "alice")
    assert {one.network for one in drained(queue)[:500]} == {str(n) for n in range(500)}


def test_those_who_fail_wait_behind_others_and_are_not_forgotten() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100, by_name)
    for number in range(40):
        queued(queue, *(Attempt(f"{one.name} {number}", "x") for one in Standing))
    order = [by_name(one.network, 0.0) for one in drained(queue)]
    first = order[:40]
    assert first.count(Standing.SUSPECT) == 40 // SHARES[Standing.SUSPECT]
    assert first.count(Standing.MIXED) == 40 // SHARES[Standing.MIXED] - 40 // 8
    assert first.count(Standing.GOOD) == 30
    assert len(order) == 120


def test_networks_of_mixed_standing_are_served_in_the_order_in_which_they_came() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100, by_name)
    came = [Attempt(f"MIXED {number}", "x") for number in range(10)]
    queued(queue, *came)
    assert drained(queue) == came


def test_a_network_that_fails_while_it_waits_goes_back() -> None:
    failed: set[str] = set()
    queue: LoginQueue[Attempt] = LoginQueue(
        100, 100, lambda network, _: Standing.MIXED if network in failed else Standing.GOOD
    )
    queued(queue, Attempt(HOME, "a"), Attempt(AWAY, "x"), Attempt(AWAY, "x", 1))
    failed.add(AWAY)
    assert [one.network for one in drained(queue)] == [HOME, AWAY, AWAY]


def test_a_full_lane_displaces_the_name_that_has_most() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 4, good)
    queued(queue, *(Attempt(HOME, "flood", number) for number in range(4)))
    with pytest.raises(Overloaded, match="your address"):
        queued(queue, Attempt(HOME, "flood", 4))
    assert queued(queue, Attempt(HOME, "alice"), Attempt(HOME, "bob")) == [
        Attempt(HOME, "flood", 3),
        Attempt(HOME, "flood", 2),
    ]
    with pytest.raises(Overloaded):
        queued(queue, Attempt(HOME, "alice", 1))
    assert [one.user for one in drained(queue)] == ["flood", "alice", "bob", "flood"]


def test_a_crowded_queue_has_less_room_for_each_network() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(100, 64, good)
    queued(queue, *(Attempt(AWAY, f"{number}") for number in range(50)))
    with pytest.raises(Overloaded, match="your address"):
        queued(queue, Attempt(AWAY, "one more"))
    queued(queue, *(Attempt(HOME, f"{number}") for number in range(4)))
    with pytest.raises(Overloaded, match="your address"):
        queued(queue, Attempt(HOME, "one more"))


def test_a_full_queue_has_room_for_those_of_better_standing() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(10, 8, by_name)
    queued(queue, *(Attempt(f"SUSPECT {number}", "x") for number in range(5)))
    queued(queue, *(Attempt(f"MIXED {number}", "x") for number in range(5)))
    with pytest.raises(Overloaded, match="here"):
        queued(queue, Attempt("SUSPECT 11", "x"))
    for number in range(5, 10):
        [displaced] = queued(queue, Attempt(f"MIXED {number}", "x"))
        assert displaced is not None
        assert displaced.network.startswith("SUSPECT")
    with pytest.raises(Overloaded, match="here"):
        queued(queue, Attempt("MIXED 11", "x"))
    for number in range(10):
        [displaced] = queued(queue, Attempt(f"GOOD {number}", "x"))
        assert displaced is not None
        assert displaced.network.startswith("MIXED")
    # Of those in good standing the oldest has to go, which would have been served last.
    assert queued(queue, Attempt("GOOD 10", "x")) == [Attempt("GOOD 0", "x")]
    with pytest.raises(Overloaded, match="here"):
        queued(queue, Attempt("MIXED 11", "x"))
    assert [one.network for one in drained(queue)] == [f"GOOD {n}" for n in range(10, 0, -1)]


def test_those_who_left_make_room() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(10, 8, good)
    here = [Attempt(HOME, "a", number) for number in range(3)]
    queued(queue, *here)
    queue.remove(here[1])
    queue.remove(here[1])
    queue.remove(Attempt(AWAY, "never there"))
    assert drained(queue) == [here[0], here[2]]


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(0, 6), st.integers(0, 3)), st.none(), st.just(0)),
        max_size=200,
    ),
    st.lists(st.sampled_from(Standing), min_size=7, max_size=7),
    st.data(),
)
def test_whatever_happens_the_queue_is_bounded_and_loses_nothing(
    steps: list[tuple[int, int] | int | None], standings: list[Standing], data: st.DataObject
) -> None:
    queue: LoginQueue[Attempt] = LoginQueue(8, 4, lambda network, _: standings[int(network)])
    held: set[Attempt] = set()
    for number, step in enumerate(steps):
        if number % 10 == 9:
            standings[data.draw(st.integers(0, 6))] = data.draw(st.sampled_from(Standing))
        if isinstance(step, tuple):
            attempt = Attempt(str(step[0]), str(step[1]), number)
            try:
                [displaced] = queued(queue, attempt)
            except Overloaded:
                assert len(held) == 8 or sum(one.network == str(step[0]) for one in held) == 4
                continue
            held.add(attempt)
            if displaced is not None:
                held.remove(displaced)
        elif step is None:
            taken = queue.take(0.0)
            assert (taken is None) == (not held)
            if taken is not None:
                held.remove(taken)
        elif held:
            gone = min(held)
            held.remove(gone)
            queue.remove(gone)
        assert len(queue) == len(held) <= 8
        for network in {one.network for one in held}:
            assert sum(one.network == network for one in held) <= 4
    assert set(drained(queue)) == held
