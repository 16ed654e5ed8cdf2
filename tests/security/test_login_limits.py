"""How many wrong secrets are too many, and for whom."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Overloaded, TooManyFailures
from maitred.security.login_limits import FailureTable, LoginLimits
from maitred.security.login_queue import SUSPECT_TURN, LoginQueue
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
    assert table.is_suspect(HOME, 0.0)
    table.succeeded(HOME, "alice")
    assert not refused_for(table, HOME, "alice", 0.0)
    assert table.is_suspect(HOME, 0.0)
    assert not table.is_suspect(HOME, 21.0)


def test_a_network_that_fails_in_many_names_is_suspect_and_not_refused() -> None:
    table = limits()
    for number in range(100):
        table.failed(HOME, f"user {number}", 0.0)
    assert table.is_suspect(HOME, 0.0)
    assert not refused_for(table, HOME, "alice", 0.0)
    assert not table.is_suspect(AWAY, 0.0)


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


def drained(queue: LoginQueue[Attempt]) -> list[Attempt]:
    found = []
    while (taken := queue.take()) is not None:
        found.append(taken)
    assert not len(queue)
    return found


def test_networks_take_turns_and_names_within_them() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100)
    for number in range(5):
        queue.add(Attempt(HOME, "a", number), suspect=False)
    queue.add(Attempt(HOME, "b"), suspect=False)
    queue.add(Attempt(AWAY, "c"), suspect=False)
    assert [(one.user, one.number) for one in drained(queue)] == [
        ("a", 0), ("c", 0), ("b", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4),
    ]  # fmt: skip


def test_suspect_networks_wait_and_are_not_forgotten() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 100)
    for number in range(20):
        queue.add(Attempt(f"bad {number}", "x"), suspect=True)
        queue.add(Attempt(f"good {number}", "x"), suspect=False)
    order = [one.network.startswith("bad") for one in drained(queue)]
    assert order[: 2 * SUSPECT_TURN] == ([False] * (SUSPECT_TURN - 1) + [True]) * 2
    assert sum(order) == 20


def test_a_full_lane_displaces_the_name_that_has_most() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(1_000, 4)
    for number in range(4):
        queue.add(Attempt(HOME, "flood", number), suspect=False)
    with pytest.raises(Overloaded):
        queue.add(Attempt(HOME, "flood", 4), suspect=False)
    assert queue.add(Attempt(HOME, "alice"), suspect=False) == Attempt(HOME, "flood", 3)
    assert queue.add(Attempt(HOME, "bob"), suspect=False) == Attempt(HOME, "flood", 2)
    with pytest.raises(Overloaded):
        queue.add(Attempt(HOME, "alice", 1), suspect=False)
    assert [one.user for one in drained(queue)] == ["flood", "alice", "bob", "flood"]


def test_a_full_queue_displaces_the_network_that_has_most() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(10, 8)
    for number in range(8):
        queue.add(Attempt(AWAY, "flood", number), suspect=False)
    for number in range(2):
        queue.add(Attempt("192.0.2.3", "x", number), suspect=False)
    assert queue.add(Attempt(HOME, "alice"), suspect=False) == Attempt(AWAY, "flood", 7)
    assert len(queue) == 10
    assert drained(queue)[2] == Attempt(HOME, "alice")


def test_a_full_queue_of_suspects_has_room_for_others_and_not_for_suspects() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(10, 8)
    for number in range(10):
        queue.add(Attempt(f"bad {number}", "x"), suspect=True)
    with pytest.raises(Overloaded):
        queue.add(Attempt("bad 11", "x"), suspect=True)
    assert queue.add(Attempt(HOME, "alice"), suspect=False) is not None
    assert queue.take() == Attempt(HOME, "alice")
    for number in range(1, 11):
        queue.add(Attempt(f"good {number}", "x"), suspect=False)
    with pytest.raises(Overloaded):
        queue.add(Attempt("one more", "x"), suspect=False)
    with pytest.raises(Overloaded):
        queue.add(Attempt("bad 11", "x"), suspect=True)
    assert len(drained(queue)) == 10


def test_those_who_left_make_room() -> None:
    queue: LoginQueue[Attempt] = LoginQueue(10, 8)
    here = [Attempt(HOME, "a", number) for number in range(3)]
    for one in here:
        queue.add(one, suspect=False)
    queue.remove(here[1])
    queue.remove(here[1])
    queue.remove(Attempt(AWAY, "never there"))
    queue.add(Attempt(HOME, "a", 9), suspect=True)  # the network's standing changes
    assert drained(queue) == [here[0], here[2], Attempt(HOME, "a", 9)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), st.none(), st.just(0)
        ),
        max_size=200,
    )
)
def test_whatever_happens_the_queue_is_bounded_and_loses_nothing(
    steps: list[tuple[int, int, bool] | int | None],
) -> None:
    queue: LoginQueue[Attempt] = LoginQueue(8, 4)
    held: set[Attempt] = set()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            attempt = Attempt(str(step[0]), str(step[1]), number)
            try:
                displaced = queue.add(attempt, suspect=step[2])
            except Overloaded:
                assert len(held) == 8 or sum(one.network == str(step[0]) for one in held) == 4
                continue
            held.add(attempt)
            if displaced is not None:
                held.remove(displaced)
        elif step is None:
            taken = queue.take()
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
