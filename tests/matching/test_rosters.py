"""Who serves a queue, told to gateways that pick workers themselves; and the passes they show."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.errors import Cancelled, Draining, NoWorker, Overloaded
from maitred.matching import rosters as limits
from maitred.matching.presence import RETURN_SECONDS
from maitred.matching.rosters import (
    GATHER_SECONDS,
    SETTLE_SECONDS,
    TELL_AGAIN_SECONDS,
)
from maitred.matching.subscribers import AWAY_SECONDS
from maitred.settings import QuerySettings
from tests.matching.driver import Driver, session_of

if TYPE_CHECKING:
    from tests.matching.driver import Asked

LONG = 1000.0
PASS_SECONDS = QuerySettings().pass_seconds
RENEW_SECONDS = PASS_SECONDS / limits.RENEWALS
HELD_SECONDS = PASS_SECONDS / limits.HOLDS


def tokens_of(roster: Asked) -> dict[bytes, bytes]:
    """By worker, what to show to it."""
    return {worker.session: token for worker, token in roster.value.members}


def told_of(attending: Asked) -> list[bytes]:
    assert attending.answered
    return [one.token for one in attending.passes]


def stays(driver: Driver, worker: int = 1) -> list[list[bytes]]:
    """A worker that attends again and again: what it was told each time."""
    whole_turn = driver.turn
    attending = driver.attend(worker, LONG)
    told: list[list[bytes]] = []

    def turn() -> None:
        nonlocal attending
        whole_turn()
        while attending.answered:
            told.append(told_of(attending))
            attending = driver.attend(worker, LONG, turn=False)
            whole_turn()

    driver.turn = turn  # type: ignore[method-assign]
    return told


# Rosters


def test_who_has_none_is_answered_at_once_even_if_nobody_is_there() -> None:
    driver = Driver()
    roster = driver.subscribe()
    assert roster.value.members == []
    assert roster.value.version > 0


def test_all_that_are_online_and_answer_are_in_it() -> None:
    driver = Driver()
    for worker, state in ((1, "online"), (2, "draining"), (3, "offline"), (4, "online")):
        driver.attend(worker, LONG, state=state)
    driver.attend(5, LONG)
    driver.partition.suspect(session_of(5), driver.now)
    roster = driver.subscribe()
    assert tokens_of(roster).keys() == {session_of(1), session_of(4)}
    assert len(set(tokens_of(roster).values())) == 2
    assert all(len(token) == 16 for token in tokens_of(roster).values())


def test_who_has_it_hears_when_it_changes() -> None:
    driver = Driver()
    stays(driver)
    first = driver.subscribe()
    second = driver.subscribe(version=first.value.version)
    driver.pass_time(3.0)
    assert not second.answered
    driver.attend(2, LONG)
    assert second.value.version > first.value.version
    assert tokens_of(first).items() < tokens_of(second).items()


def _leaves(driver: Driver, attending: Asked) -> None:
    driver.attend_no_more(attending)
    driver.pass_time(RETURN_SECONDS + 0.1)


def _moves(driver: Driver, attending: Asked) -> None:
    attending.over = True
    driver.partition.presence.workers[attending.session].token = None
    told = driver.partition.presence.workers[attending.session]
    again = type(told)(told.session, told.worker, "host:2", 8, 0, "online", driver.now)
    again.token = driver.ask("attend", session=told.session)
    again.deadline = driver.now + LONG
    driver.partition.subscriptions.attend(again, driver.now)
    driver.turn()


CHANGES = {
    "leaves": _leaves,
    "moves": _moves,
    "drains": lambda driver, _: driver.attend(1, LONG, state="draining"),
    "hangs": lambda driver, _: driver.partition.suspect(session_of(1), driver.now),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_change_is_news(change: Any) -> None:  # noqa: ANN401
    driver = Driver()
    attending = driver.attend(1, LONG)
    first = driver.subscribe()
    if attending.answered:  # with the pass
        attending = driver.attend(1, LONG)
    second = driver.subscribe(version=first.value.version)
    driver.pass_time(GATHER_SECONDS)
    change(driver, attending)
    driver.turn()
    assert second.value.version > first.value.version


def test_one_that_hung_and_speaks_again_is_back() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    first = driver.subscribe()
    driver.partition.suspect(session_of(1), driver.now)
    driver.pass_time(GATHER_SECONDS)
    second = driver.subscribe(version=first.value.version)
    assert tokens_of(second) == {}
    third = driver.subscribe(version=second.value.version)
    driver.pass_time(GATHER_SECONDS)
    assert not third.answered
    driver.offer(1)
    assert tokens_of(third) == tokens_of(first)


def test_busy_or_asked_again_is_no_news() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    first = driver.subscribe()
    second = driver.subscribe(version=first.value.version)
    for _ in range(5):
        driver.pass_time(1.5)
        driver.attend(1, LONG)
    assert not second.answered


def test_its_time_is_up() -> None:
    driver = Driver()
    stays(driver)
    first = driver.subscribe()
    second = driver.subscribe(version=first.value.version, seconds=4.0)
    driver.pass_time(3.9)
    assert not second.answered
    driver.pass_time(0.2)
    assert second.value.version == first.value.version
    assert tokens_of(second) == tokens_of(first)
    third = driver.subscribe(version=first.value.version, seconds=LONG)
    driver.pass_time(HELD_SECONDS - 0.1)
    assert not third.answered
    driver.pass_time(0.2)
    assert third.answered


def test_many_that_come_one_by_one_are_told_of_together() -> None:
    driver = Driver()
    roster = driver.subscribe()
    answers = 0
    for worker in range(100):
        driver.attend(worker, LONG)
        driver.pass_time(0.001)
        if roster.answered:
            answers += 1
            roster = driver.subscribe(version=roster.value.version)
    driver.pass_time(GATHER_SECONDS)
    assert len(roster.value.members) == 100
    assert answers <= 4


@pytest.mark.parametrize("wrong", [1, 2**62])
def test_a_version_that_is_none_of_ours_is_news(wrong: int) -> None:
    driver = Driver()
    driver.pass_time(SETTLE_SECONDS)
    first = driver.subscribe()
    driver.pass_time(GATHER_SECONDS)
    assert driver.subscribe(version=wrong).value.version == first.value.version


def test_after_a_crash_who_has_a_roster_keeps_it_until_the_workers_are_back() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    driver.attend(2, LONG)
    old = driver.subscribe()
    driver.crash()
    again = driver.subscribe(version=old.value.version)
    new = driver.subscribe("another")
    assert new.value.members == []
    driver.attend(1, LONG)
    assert not again.answered
    driver.pass_time(1.0)
    driver.attend(2, LONG)
    driver.pass_time(SETTLE_SECONDS - 1.0)
    assert len(tokens_of(again)) == 2
    assert again.value.version > old.value.version
    assert not set(tokens_of(again).values()) & set(tokens_of(old).values())


def test_the_same_gateway_once_more() -> None:
    driver = Driver()
    first = driver.subscribe()
    second = driver.subscribe(version=first.value.version)
    third = driver.subscribe(version=first.value.version)
    assert isinstance(second.value, Cancelled)
    driver.partition.subscriptions.subscribe_no_more(second.session, "", second, driver.now)
    driver.pass_time(GATHER_SECONDS)
    driver.attend(1, LONG)
    assert third.answered


# Passes


def test_a_worker_hears_of_a_pass_at_once() -> None:
    driver = Driver()
    attending = driver.attend(1, LONG)
    roster = driver.subscribe(user="alice")
    assert told_of(attending) == list(tokens_of(roster).values())
    (told,) = attending.passes
    assert (told.subscriber.session, told.subscriber.user) == (session_of("gateway"), "alice")


def test_a_worker_that_does_not_listen_just_then_hears_when_it_does() -> None:
    driver = Driver()
    driver.attend_no_more(driver.attend(1, LONG))
    roster = driver.subscribe()
    assert told_of(driver.attend(1, LONG)) == list(tokens_of(roster).values())


def test_what_two_gateways_got_comes_in_one_answer() -> None:
    driver = Driver()
    attending = driver.attend(1, LONG)
    first = driver.subscribe("one", turn=False)
    second = driver.subscribe("two", turn=False)
    driver.turn()
    assert told_of(attending) == [*tokens_of(first).values(), *tokens_of(second).values()]


def test_a_new_pass_is_told_again_soon_and_then_renewed() -> None:
    driver = Driver()
    told = stays(driver)
    roster = driver.subscribe()
    held = driver.subscribe(version=roster.value.version)
    for seconds in (TELL_AGAIN_SECONDS, RENEW_SECONDS):
        times = len(told)
        driver.pass_time(seconds - 0.1)
        assert len(told) == times
        driver.pass_time(0.11)
        assert len(told) == times + 1
    assert told == [list(tokens_of(roster).values())] * 3
    assert not held.answered


def _stays(driver: Driver, seconds: float) -> list[tuple[float, list[bytes]]]:
    """A gateway that subscribes and a worker that attends, for so long: when the worker was told
    what."""
    roster = driver.subscribe()
    attending = driver.attend(1, 5.0)
    told: list[tuple[float, list[bytes]]] = []
    until = driver.now + seconds
    while driver.now < until:
        if roster.answered:
            roster = driver.subscribe(version=roster.value.version)
        if attending.answered:
            if attending.passes:
                told.append((driver.now, told_of(attending)))
            attending = driver.attend(1, 5.0)
        driver.pass_time(0.5)
    return told


def test_a_pass_stays_good_as_long_as_the_gateway_subscribes() -> None:
    driver = Driver()
    told = _stays(driver, 200.0)
    assert {tuple(tokens) for _, tokens in told} == {(told[0][1][0],)}
    times = [at for at, _ in told]
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= RENEW_SECONDS + 0.5
    assert len(told) <= 200 / (RENEW_SECONDS / 2) + 2


def test_it_is_not_renewed_when_the_gateway_has_left_and_then_forgotten() -> None:
    driver = Driver()
    told = stays(driver)
    first = driver.subscribe()
    driver.pass_time(TELL_AGAIN_SECONDS)
    driver.subscribe_no_more(driver.subscribe(version=first.value.version))
    assert len(told) == 2
    driver.pass_time(PASS_SECONDS - 0.1)
    rosters = driver.partition.presence.rosters
    assert rosters.passes == 1
    driver.pass_time(0.2)
    assert len(told) == 2
    assert not rosters.subscribers
    assert not rosters.passes
    assert not driver.partition.presence.workers[session_of(1)].passes


def test_who_comes_back_in_time_has_the_same_pass_and_the_worker_hears_of_it_again() -> None:
    driver = Driver()
    told = stays(driver)
    first = driver.subscribe()
    driver.pass_time(RENEW_SECONDS + 5.0)
    assert len(told) == 2
    again = driver.subscribe(version=first.value.version)
    assert told == [list(tokens_of(first).values())] * 3
    driver.pass_time(RENEW_SECONDS + 0.1)
    assert len(told) == 4
    assert not again.answered


def test_who_comes_back_too_late_gets_another_pass_and_another_version() -> None:
    driver = Driver()
    told = stays(driver)
    first = driver.subscribe()
    driver.pass_time(PASS_SECONDS + 0.1)
    again = driver.subscribe(version=first.value.version)
    assert again.value.version > first.value.version
    assert tokens_of(again).keys() == tokens_of(first).keys()
    assert tokens_of(again) != tokens_of(first)
    assert told[-1] == list(tokens_of(again).values())


def test_somebody_new_is_no_news_for_the_others() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    first = driver.subscribe("one")
    held = driver.subscribe("one", first.value.version)
    other = driver.subscribe("two")
    assert not held.answered
    assert tokens_of(other) != tokens_of(first)


def test_who_says_that_he_has_none_has_the_workers_told_again() -> None:
    driver = Driver()
    told = stays(driver)
    first = driver.subscribe()
    driver.pass_time(2 * TELL_AGAIN_SECONDS + 0.1)
    assert len(told) == 2
    again = driver.subscribe()
    assert tokens_of(again) == tokens_of(first)
    assert len(told) == 3


def test_but_not_as_often_as_he_likes() -> None:
    driver = Driver()
    told = stays(driver)
    for _ in range(100):
        driver.subscribe()
        driver.pass_time(0.1)
    assert len(told) <= 10 / TELL_AGAIN_SECONDS + 2


def test_nobody_gets_anothers_pass_by_naming_his_session() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    mine = driver.subscribe("one", user="alice")
    theirs = driver.subscribe("one", user="eve")
    assert not set(tokens_of(mine).values()) & set(tokens_of(theirs).values())


def test_a_worker_that_is_forgotten_gets_another_pass() -> None:
    driver = Driver()
    attending = driver.attend(1, LONG)
    first = driver.subscribe()
    assert attending.answered
    driver.pass_time(RETURN_SECONDS + 0.1)
    assert not driver.partition.presence.workers
    assert not driver.partition.presence.rosters.passes
    attending = driver.attend(1, LONG)
    second = driver.subscribe(version=first.value.version)
    assert tokens_of(second).keys() == tokens_of(first).keys()
    assert told_of(attending) == list(tokens_of(second).values())
    assert tokens_of(second) != tokens_of(first)


def test_one_that_is_offline_hears_of_no_pass_until_it_is_back() -> None:
    driver = Driver()
    attending = driver.attend(1, LONG, state="offline")
    first = driver.subscribe()
    assert not attending.answered
    held = driver.subscribe(version=first.value.version)
    driver.pass_time(GATHER_SECONDS)
    attending = driver.attend(1, LONG)
    assert told_of(attending) == list(tokens_of(held).values())


def test_an_order_comes_with_what_is_to_be_heard_anyhow() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    roster = driver.subscribe()
    attending = driver.attend(1, LONG)
    driver.partition.subscriptions.order("worker 1", "offline", driver.now)
    driver.turn()
    assert attending.value == "offline"
    assert told_of(attending) == list(tokens_of(roster).values())


# Bounds and the end


def test_there_are_only_so_many() -> None:
    driver = Driver(queries=QuerySettings(subscribers=2, passes=3))
    driver.attend(1, LONG)
    driver.attend(2, LONG)
    assert len(tokens_of(driver.subscribe("one"))) == 2
    assert len(tokens_of(driver.subscribe("two"))) == 1
    with pytest.raises(Overloaded):
        driver.subscribe("three")


def test_a_partition_that_stops_or_is_left_tells_those_who_subscribe() -> None:
    driver = Driver()
    first = driver.subscribe()
    held = driver.subscribe(version=first.value.version)
    assert not driver.partition.idle
    assert driver.partition.leave()[0] == [held]
    driver.partition.stop_waiting()
    driver.turn()
    assert isinstance(held.value, Draining)
    assert driver.partition.idle


def test_a_partition_is_not_looked_at_for_nothing() -> None:
    driver = Driver()
    stays(driver)
    first = driver.subscribe()
    driver.subscribe(version=first.value.version)
    driver.pass_time(5.0)
    assert driver.next_look >= driver.now + 15.0


class Model:
    """Whatever happens: rosters are right, and whoever is in one is known to its workers soon."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.known: dict[bytes, set[bytes]] = {}
        """What each worker was told."""
        self.attending: dict[int, Asked] = {}
        self.gateways: dict[int, Asked] = {}
        self.versions: dict[int, int] = {}
        self.rosters: dict[int, dict[bytes, bytes]] = {}

    def attend(self, number: int) -> None:
        state = "draining" if number % 7 == 6 else "online"
        worker = number % 4
        self.attending[worker] = self.driver.attend(worker, 5.0, state=state)

    def lose(self, number: int) -> None:
        asked = self.attending.pop(number % 4, None)
        if asked is not None and not asked.answered:
            self.driver.attend_no_more(asked)

    def suspect(self, number: int) -> None:
        self.driver.partition.suspect(session_of(number % 4), self.driver.now)
        self.driver.turn()

    def subscribe(self, number: int) -> None:
        gateway = number % 3
        version = 0 if number % 5 == 4 else self.versions.get(gateway, 0)
        self.gateways[gateway] = self.driver.subscribe(str(gateway), version)

    def unsubscribe(self, number: int) -> None:
        asked = self.gateways.pop(number % 3, None)
        if asked is not None and not asked.answered:
            self.driver.subscribe_no_more(asked)

    def wait(self, number: int) -> None:
        self.driver.pass_time(0.02 * number**2)

    def settle(self) -> None:
        """Whoever was answered asks again."""
        for _ in range(50):
            self.hear()
            answered = [one for one, asked in self.attending.items() if asked.answered]
            for worker in answered:
                self.attending[worker] = self.driver.attend(worker, 5.0)
            for gateway in [one for one, asked in self.gateways.items() if asked.answered]:
                self.gateways[gateway] = self.driver.subscribe(
                    str(gateway), self.versions.get(gateway, 0)
                )
            self.driver.pass_time(GATHER_SECONDS)
            if not answered and not any(asked.answered for asked in self.gateways.values()):
                return

    def hear(self) -> None:
        for asked in self.driver.asked:
            if asked.what == "attend" and asked.answered:
                self.known.setdefault(asked.session, set()).update(
                    one.token for one in asked.passes
                )
            if asked.what == "subscribe" and asked.answered:
                value = asked.value
                if not isinstance(value, Cancelled):
                    gateway = int(asked.session.rstrip(b"."))
                    if value.version >= self.versions.get(gateway, 0):
                        self.versions[gateway] = value.version
                        self.rosters[gateway] = tokens_of(asked)

    def check(self) -> None:
        presence = self.driver.partition.presence
        rosters = presence.rosters
        workers = presence.workers
        assert rosters.passes == sum(len(one.passes) for one in workers.values())
        assert rosters.passes == sum(len(one.passes) for one in rosters.subscribers.values())
        assert all(
            workers[session].passes[one.key] is made
            for one in rosters.subscribers.values()
            for session, made in one.passes.items()
        )


MODEL_EVENTS = st.tuples(
    st.sampled_from(["attend", "lose", "suspect", "subscribe", "unsubscribe", "wait"]),
    st.integers(0, 40),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(MODEL_EVENTS, max_size=30))
def test_whoever_is_in_a_roster_knows_the_gateways_pass(events: list[tuple[str, int]]) -> None:
    model = Model()
    for what, number in events:
        getattr(model, what)(number)
        model.hear()
        model.check()
    model.driver.pass_time(SETTLE_SECONDS)
    model.settle()
    model.check()
    serving = {one.session for one in model.driver.partition.presence.serving()}
    for gateway in model.gateways:
        roster = model.rosters[gateway]
        assert roster.keys() == serving
        assert all(token in model.known[session] for session, token in roster.items())


# A slot now, or none


def test_who_does_not_wait_gets_what_is_free() -> None:
    driver = Driver()
    offer = driver.offer(slots=2)
    query = driver.want(3, do_not_queue=True)
    assert query.value == offer.reserved
    assert len(query.value) == 2


def test_who_does_not_wait_is_refused_at_once_if_nobody_is_free() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    with pytest.raises(Overloaded) as caught:
        driver.want(do_not_queue=True)
    assert (caught.value.retry_after or 0) > 0
    assert not driver.partition.allocator.lines.total
    assert not driver.offer().answered


def test_who_does_not_wait_hears_if_nobody_serves_the_queue_at_all() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=1.0))
    driver.pass_time(2.0)
    with pytest.raises(NoWorker):
        driver.want(do_not_queue=True)


def test_one_whose_slot_was_taken_along_gets_another_or_none() -> None:
    driver = Driver()
    driver.attend(1, LONG)
    offer, other = driver.offer(1), None
    query = driver.want(do_not_queue=True, turn=False)
    driver.withdraw(offer)
    assert isinstance(query.value, Overloaded)
    offer, other = driver.offer(1), driver.offer(2)
    query = driver.want(do_not_queue=True, turn=False)
    driver.withdraw(offer if offer.offer is query.wanted.given[0].offer else other)  # type: ignore[union-attr]
    assert len(query.value) == 1


def test_at_a_child_it_goes_up_and_the_root_decides() -> None:
    driver = Driver(partition=1)
    query = driver.want(do_not_queue=True)
    assert [one.do_not_queue for one in driver.passed_wanted] == [True]
    driver.answer_wanted(Overloaded("No worker is free."))
    assert isinstance(query.value, Overloaded)


@pytest.mark.parametrize("seconds", [6.0, 60.0, 3600.0])
def test_the_numbers_fit_together(seconds: float) -> None:
    rosters = limits.Rosters(seconds)
    assert rosters.renew_seconds * 2 < seconds
    assert rosters.renew_seconds > TELL_AGAIN_SECONDS
    assert rosters.held_seconds + AWAY_SECONDS < seconds


def test_a_queue_says_how_long_a_pass_is_good() -> None:
    driver = Driver(queries=QuerySettings(pass_seconds=6.0))
    told = _stays(driver, 20.0)
    gaps = [after - before for before, after in pairwise(at for at, _ in told)]
    assert max(gaps) <= 2.0 + 0.5
    roster = driver.subscribe(seconds=LONG)
    driver.pass_time(3.1)
    assert roster.answered
    driver.pass_time(6.0)
    assert not driver.partition.presence.rosters.subscribers
