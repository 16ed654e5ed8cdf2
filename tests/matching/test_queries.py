"""Queries and the slots that they get: before tasks, in their order, each slot once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.errors import (
    DeadlineExceeded,
    Draining,
    NoWorker,
    Overloaded,
    Unavailable,
    UnknownWorker,
)
from maitred.matching.allocator import AWAY_FIRST_SECONDS
from maitred.matching.presence import RETURN_SECONDS
from maitred.settings import QuerySettings
from tests.matching.driver import Driver, session_of

if TYPE_CHECKING:
    from tests.matching.driver import Asked


# A query and an offer


def test_an_offer_that_is_there_is_taken_at_once() -> None:
    driver = Driver()
    offer = driver.offer(slots=4)
    query = driver.want(2)
    assert query.value == offer.reserved
    assert len(set(query.value)) == 2
    assert all(len(token) == 16 for token in query.value)


def test_a_query_waits_for_an_offer() -> None:
    driver = Driver()
    driver.attend()
    query = driver.want()
    driver.pass_time(3.0)
    assert not query.answered
    offer = driver.offer()
    assert query.value == offer.reserved


def test_who_gets_fewer_than_wanted_is_answered_with_those() -> None:
    driver = Driver()
    driver.attend()
    query = driver.want(5)
    driver.offer(slots=2)
    assert len(query.value) == 2
    assert not driver.partition.allocator.lines.total


def test_an_offer_gets_queries_and_tasks_in_one_answer() -> None:
    driver = Driver()
    driver.add(3)
    driver.want(1)
    offer = driver.offer(slots=3)
    assert len(offer.reserved) == 1
    assert len(offer.value) == 2


def test_queries_are_spread_over_workers() -> None:
    driver = Driver()
    offers = [driver.offer(worker, slots=4) for worker in range(4)]
    driver.want(4)
    assert [len(offer.reserved) for offer in offers] == [1, 1, 1, 1]


def test_queries_wait_neither_for_the_store_nor_for_a_rate_nor_for_those_who_come_back() -> None:
    driver = Driver(rate_per_second=0.001)
    driver.add(2)
    driver.crash()
    assert driver.partition.own_tasks.recovering
    driver.auto_commit = False
    query = driver.want()
    offer = driver.offer(slots=2)
    assert query.value == offer.reserved
    assert offer.value == []


# Nobody waits any more


def test_a_query_that_leaves_in_the_turn_in_which_it_was_matched_gives_its_slot_back() -> None:
    driver = Driver()
    offer = driver.offer(slots=1)
    query = driver.want(turn=False)
    driver.want_no_more(query)
    assert not offer.answered
    again = driver.want()
    assert again.value == offer.reserved


def test_an_offer_that_leaves_in_that_turn_takes_its_reservations_along() -> None:
    driver = Driver()
    driver.attend()
    offer = driver.offer(slots=2)
    query = driver.want(turn=False)
    driver.withdraw(offer)
    assert not query.answered
    other = driver.offer(2)
    assert query.value == other.reserved


def test_one_whose_slot_was_taken_along_still_hears_when_its_time_is_up() -> None:
    driver = Driver()
    driver.attend(seconds=60.0)
    offer = driver.offer()
    query = driver.want(seconds=1.0, turn=False)
    driver.withdraw(offer)
    driver.pass_time(1.1)
    assert isinstance(query.value, DeadlineExceeded)


def test_a_query_that_leaves_while_it_waits_gets_nothing() -> None:
    driver = Driver()
    first, second = driver.want(), driver.want()
    driver.want_no_more(first)
    driver.offer()
    assert second.answered
    assert not first.answered


def test_a_query_whose_time_is_up_is_told() -> None:
    driver = Driver()
    driver.attend(seconds=60.0)
    query = driver.want(seconds=2.0)
    driver.pass_time(1.9)
    assert not query.answered
    driver.pass_time(0.2)
    assert isinstance(query.value, DeadlineExceeded)
    assert not driver.offer().answered


def test_a_partition_that_stops_tells_those_who_wait() -> None:
    driver = Driver()
    query, worker = driver.want(), driver.attend()
    driver.partition.stop_waiting()
    driver.turn()
    assert isinstance(query.value, Draining)
    assert worker.value == ""


def test_a_partition_that_is_let_go_names_everybody_who_waits() -> None:
    driver = Driver()
    query, worker = driver.want(), driver.attend()
    assert not driver.partition.idle
    tokens, _ = driver.partition.leave()
    assert set(tokens) == {query, worker}


# Order


def test_the_oldest_first_wherever_it_waited() -> None:
    driver = Driver()
    driver.attend()
    late = driver.want(waited=1.0)
    early = driver.want(waited=9.0)
    middle = driver.want(waited=5.0)
    for query in (early, middle, late):
        assert not query.answered
        driver.offer()
        assert query.answered


def test_a_higher_priority_first() -> None:
    driver = Driver()
    driver.attend()
    queries = [driver.want(priority=priority) for priority in (4, 2, 0, 3, 1)]
    for query in (queries[2], queries[4], queries[1], queries[3], queries[0]):
        driver.offer()
        assert query.answered


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(1, 3)), max_size=30),
    st.lists(st.integers(1, 3), max_size=40),
)
def test_the_order_is_that_of_priority_and_age(
    wanted: list[tuple[int, int, int]], offered: list[int]
) -> None:
    driver = Driver()
    driver.attend(seconds=1000.0)
    queries = [
        (priority, -waited, index, driver.want(slots, priority=priority, waited=float(waited)))
        for index, (priority, waited, slots) in enumerate(wanted)
    ]
    for slots in offered:
        driver.offer(slots=slots)
    line = [query for *_, query in sorted(queries, key=lambda one: one[:3])]
    answered = [query.answered for query in line]
    assert answered == sorted(answered, reverse=True)


class Model:
    """Whatever happens: no slot twice, none lost, queries before tasks."""

    def __init__(self) -> None:
        self.driver = Driver(queries=QuerySettings(no_worker_seconds=1000.0))
        self.offers: list[Asked] = []
        self.wanted: list[Asked] = []
        self.worker = 0

    def do(self, what: str, number: int, *, turn: bool) -> None:
        getattr(self, what)(number, turn=turn)
        if turn:
            self.driver.turn()
            self.check()

    def offer(self, number: int, *, turn: bool) -> None:
        self.worker += 1
        self.offers.append(self.driver.offer(self.worker, 1 + number % 3, turn=turn))

    def want(self, number: int, *, turn: bool) -> None:
        user = f"user {number % 3}"
        asked = self.driver.want(1 + number % 4, user=user, priority=number % 5, turn=turn)
        self.wanted.append(asked)

    def add(self, number: int, *, turn: bool) -> None:
        self.driver.add(1 + number % 3, turn=turn)

    def leave(self, number: int, *, turn: bool) -> None:
        waiting = [one for one in self.wanted if not one.answered and not one.over]
        if waiting:
            self.driver.want_no_more(waiting[number % len(waiting)], turn=turn)

    def withdraw(self, number: int, *, turn: bool) -> None:
        waiting = [one for one in self.offers if not one.answered and not one.over]
        if waiting:
            self.driver.withdraw(waiting[number % len(waiting)], turn=turn)

    def wait(self, number: int, *, turn: bool) -> None:  # noqa: ARG002 - time passes in turns
        self.driver.pass_time(0.001 * (1 + number))

    def check(self) -> None:
        partition = self.driver.partition
        queries_wait = any(not one.answered and not one.over for one in self.wanted)
        assert not (queries_wait and partition.offers.slots)
        told = [token for one in self.offers for token in one.reserved]
        given = [token for one in self.wanted if one.answered for token in one.value]
        assert sorted(told) == sorted(given)
        assert len(set(given)) == len(given)
        free = sum(one.slots for one in self.offers if not one.answered and not one.over)
        assert partition.offers.slots == free


EVENTS = st.tuples(
    st.sampled_from(["offer", "want", "add", "leave", "withdraw", "wait"]),
    st.integers(0, 20),
    st.booleans(),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=40))
def test_no_slot_is_given_twice_or_lost(events: list[tuple[str, int, bool]]) -> None:
    model = Model()
    for what, number, turn in events:
        model.do(what, number, turn=turn)
    model.driver.turn()
    model.check()


# Too many


def test_more_than_may_wait_are_refused_and_told_when_to_come_back() -> None:
    driver = Driver(queries=QuerySettings(waiting=3))
    driver.attend()
    driver.want(2)
    cut = driver.want(5)
    with pytest.raises(Overloaded) as caught:
        driver.want()
    assert caught.value.retry_after == 60.0
    driver.offer(slots=10)
    assert len(cut.value) == 1


def test_the_faster_slots_come_the_sooner_one_may_come_back() -> None:
    driver = Driver(queries=QuerySettings(waiting=100))
    driver.attend(seconds=1000.0)
    for _ in range(20):
        driver.want(10)
        driver.offer(slots=10)
        driver.pass_time(1.0)
    driver.want(100)
    with pytest.raises(Overloaded) as caught:
        driver.want()
    assert 4.0 < (caught.value.retry_after or 0.0) < 7.0


def test_nobody_fills_the_line_alone() -> None:
    driver = Driver(queries=QuerySettings(waiting_per_user=2))
    driver.attend()
    driver.want(2, user="alice")
    with pytest.raises(Overloaded):
        driver.want(user="alice")
    driver.want(user="bob", user_waiting=1)
    with pytest.raises(Overloaded):
        driver.want(user="bob", user_waiting=1)
    driver.offer(slots=3)
    driver.want(user="alice")
    assert driver.partition.allocator.lines.users == {"alice": 1}


def test_who_finds_free_slots_is_not_refused_for_those_who_waited() -> None:
    driver = Driver(queries=QuerySettings(waiting=1, waiting_per_user=1))
    driver.offer(slots=4)
    assert len(driver.want(4).value) == 4


# Nobody is there


def test_a_queue_without_workers_refuses_after_its_grace() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    first = driver.want()
    driver.pass_time(4.0)
    second = driver.want()
    driver.pass_time(0.9)
    assert not first.answered
    driver.pass_time(0.2)
    assert isinstance(first.value, NoWorker)
    assert isinstance(second.value, NoWorker)
    assert isinstance(driver.want().value, NoWorker)


def test_a_worker_that_attends_is_waited_for_however_busy() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    query = driver.want(seconds=1000.0)
    for _ in range(10):
        attending = driver.attend(seconds=5.0)
        driver.pass_time(5.0)
        assert attending.value == ""
        driver.pass_time(RETURN_SECONDS / 2)
    assert not query.answered
    driver.pass_time(RETURN_SECONDS)
    assert not driver.partition.presence.workers
    driver.pass_time(5.0)
    assert isinstance(query.value, NoWorker)


def test_a_worker_that_is_new_hears_at_once_that_it_is_known() -> None:
    driver = Driver()
    first = driver.attend(1, turn=False)
    driver.attend(2)
    welcome, second = (one for one in driver.asked if one.session == first.session)
    assert (welcome.value, second, second.answered) == ("", first, False)
    driver.attend_no_more(first)
    driver.pass_time(RETURN_SECONDS + 0.1)
    assert first.session not in driver.partition.presence.workers
    driver.attend(1)
    assert first.session in driver.partition.presence.workers


def test_the_grace_begins_when_the_last_worker_has_left() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    attending = driver.attend(seconds=1000.0)
    query = driver.want(seconds=1000.0)
    driver.pass_time(100.0)
    driver.attend_no_more(attending)
    driver.pass_time(4.9)
    assert not query.answered
    driver.pass_time(0.2)
    assert isinstance(query.value, NoWorker)


def test_a_worker_that_comes_back_in_time_serves_those_who_wait() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    driver.attend_no_more(driver.attend())
    query = driver.want()
    driver.pass_time(4.0)
    driver.attend()
    driver.pass_time(4.0)
    assert not query.answered
    driver.offer()
    assert query.answered


@pytest.mark.parametrize("state", ["draining", "offline"])
def test_a_worker_that_is_offline_is_nobody(state: str) -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    driver.attend(seconds=60.0, state=state)
    query = driver.want()
    driver.pass_time(5.1)
    assert isinstance(query.value, NoWorker)


# Orders of people


def test_a_worker_is_told_to_go_offline_and_to_come_back() -> None:
    driver = Driver()
    attending = driver.attend()
    (found,) = driver.partition.subscriptions.order("worker 1", "offline", driver.now)
    driver.turn()
    assert attending.value == "offline"
    assert not driver.attend(state="draining").answered
    attending = driver.attend(state="offline")
    assert found.state == "offline"
    assert not attending.answered
    driver.partition.subscriptions.order(session_of(1).hex()[:8], "online", driver.now)
    driver.turn()
    assert attending.value == "online"
    assert not driver.attend(state="online").answered


def test_an_order_that_was_not_heard_is_given_again_but_not_in_a_circle() -> None:
    driver = Driver()
    driver.attend_no_more(driver.attend())
    driver.partition.subscriptions.order("worker 1", "offline", driver.now)
    assert driver.attend().value == "offline"
    again = driver.attend()
    assert not again.answered
    driver.pass_time(1.1)
    assert driver.attend().value == "offline"
    assert again.value == ""


def test_an_order_for_nobody_names_those_there_are() -> None:
    driver = Driver()
    driver.attend()
    with pytest.raises(UnknownWorker, match="worker 1"):
        driver.partition.subscriptions.order("worker 7", "offline", driver.now)


# A worker that hangs


def test_a_suspected_worker_gets_nothing_until_it_speaks() -> None:
    driver = Driver(queries=QuerySettings(no_worker_seconds=5.0))
    driver.attend(1, seconds=60.0)
    offers = [driver.offer(1), driver.offer(1), driver.offer(2)]
    assert driver.partition.suspect(session_of(1), driver.now) == 2
    driver.turn()
    assert [one.answered for one in offers] == [True, True, False]
    assert offers[0].value == []
    (one,) = driver.partition.presence.workers.values()
    assert [one.suspected] == [True]
    assert not driver.partition.presence.count
    driver.offer(1)
    assert [one.suspected] == [False]
    assert driver.partition.presence.count


# The tree


def test_a_query_that_finds_nothing_goes_up_at_once() -> None:
    driver = Driver(partition=1)
    query = driver.want(3)
    (wanted,) = driver.passed_wanted
    assert wanted.slots == 3
    driver.answer_wanted([b"above"])
    assert query.value == [b"above"]
    assert not driver.partition.allocator.lines.total


def test_an_error_of_the_parent_is_the_answer() -> None:
    driver = Driver(partition=1)
    query = driver.want()
    driver.answer_wanted(Unavailable("away"))
    assert isinstance(query.value, Unavailable)


def test_nobody_at_home_overtakes_those_who_went() -> None:
    driver = Driver(partition=1)
    first = driver.want()
    offer = driver.offer()
    assert driver.passed_offers == [offer.offer]
    second = driver.want()
    assert len(driver.passed_wanted) == 2
    driver.answer_wanted([b"above"])
    driver.answer_wanted([b"too"])
    assert (first.value, second.value) == ([b"above"], [b"too"])
    third = driver.want()
    assert third.value == offer.reserved


def test_the_answer_of_the_parent_reaches_the_offer() -> None:
    driver = Driver(partition=1)
    driver.want()
    offer = driver.offer()
    driver.answer_offer(reserved=[b"reserved"])
    assert offer.reserved == [b"reserved"]
    assert offer.value == []


def test_reservations_for_an_offer_that_was_answered_meanwhile_are_dropped() -> None:
    driver = Driver(partition=1)
    offer = driver.offer()
    driver.pass_time(0.01)
    driver.add()
    driver.answer_offer(reserved=[b"reserved"])
    assert offer.reserved == []
    assert len(offer.value) == 1


def test_tasks_at_home_let_queries_at_the_parent_go_first_but_not_for_ever() -> None:
    driver = Driver(partition=1)
    driver.want()
    driver.add(turn=False)
    offer = driver.offer()
    assert driver.passed_offers
    assert not offer.answered
    driver.pass_time(AWAY_FIRST_SECONDS + 0.001)
    assert len(offer.value) == 1


def test_as_many_offers_go_up_as_queries_wait_there() -> None:
    driver = Driver(partition=1)
    driver.want(10)
    for worker in range(20):
        driver.offer(worker)
    assert len(driver.passed_offers) == 10 + driver.settings.forwarding.offers


def test_one_that_leaves_while_it_is_away_is_called_back() -> None:
    driver = Driver(partition=1)
    query = driver.want()
    driver.want_no_more(query)
    assert not driver.passed_wanted
    offer = driver.offer()
    assert driver.want().value == offer.reserved


def test_a_child_leaves_it_to_the_root_whether_anybody_is_there() -> None:
    driver = Driver(partition=1, queries=QuerySettings(no_worker_seconds=1.0))
    query = driver.want(seconds=60.0)
    driver.pass_time(30.0)
    assert not query.answered
    driver.answer_wanted([b"above"])
    assert query.answered
