"""Offers of workers that refuse what they offered: nobody gets their slots for a while."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from maitred.balancing.workers.doubt import GOOD_SECONDS
from maitred.errors import Overloaded
from tests.matching.driver import Driver, session_of

if TYPE_CHECKING:
    from tests.matching.driver import Asked

LONG = 1000.0
LIAR, HONEST = 1, 2


def refuse(driver: Driver, *tokens: bytes) -> None:
    driver.partition.allocator.slots_refused(tokens, driver.now)
    driver.turn()


def whose(driver: Driver, query: Asked) -> bytes:
    """The worker whose slot it got."""
    (token,) = query.value
    return dict(driver.allocated)[token]


def refuse_many(driver: Driver, times: int = 18) -> None:
    """The liar offers slots, and refuses them."""
    for _ in range(times):
        driver.offer(LIAR, 1_000)
        query = driver.want()
        assert whose(driver, query) == session_of(LIAR)
        refuse(driver, *query.value)


def where_the_liar_was_found_out() -> Driver:
    """A root with two workers."""
    driver = Driver()
    for worker in (LIAR, HONEST):
        driver.attend(worker, LONG)
    refuse_many(driver)
    return driver


@pytest.fixture(params=[0, 1], ids=["root", "leaf"])
def driver(request: pytest.FixtureRequest) -> Driver:
    """Two workers are known here."""
    made = Driver(partition=request.param)
    for worker in (LIAR, HONEST):
        if not request.param:
            made.attend(worker, LONG)
        made.withdraw(made.offer(worker))
    return made


def test_nobody_gets_its_slots_while_others_have_some(driver: Driver) -> None:
    refuse_many(driver)
    liar, honest = driver.offer(LIAR, 1_000), driver.offer(HONEST, 2)
    query = driver.want(3)
    assert [session for token, session in driver.allocated if token in query.value] == [
        session_of(HONEST)
    ] * 2
    assert honest.answered
    assert not liar.answered


def test_it_is_tried_with_one_slot_when_its_pause_is_over() -> None:
    driver = where_the_liar_was_found_out()
    driver.offer(LIAR, 1_000)
    first, second = driver.want(), driver.want()
    driver.pass_time(0.9 * GOOD_SECONDS)
    assert first.answers == []
    driver.pass_time(0.2 * GOOD_SECONDS)
    assert whose(driver, first) == session_of(LIAR)
    offers = [driver.offer(LIAR, 1), driver.offer(LIAR, 1_000)]
    assert second.answers == [], "nobody knows yet whether that slot was good"
    driver.pass_time(GOOD_SECONDS)
    assert second.answered
    queries = [driver.want() for _ in range(3)]
    assert [one.answered for one in queries] == [True, False, False], "two, and one was given"
    assert any(one.answered for one in offers)
    driver.pass_time(GOOD_SECONDS)
    driver.offer(LIAR, 1_000)
    driver.turn()
    assert all(one.answered for one in queries)


def test_one_that_does_not_wait_may_try_it() -> None:
    driver = where_the_liar_was_found_out()
    driver.offer(LIAR, 1_000)
    with pytest.raises(Overloaded):
        driver.want(do_not_queue=True)
    driver.pass_time(GOOD_SECONDS)
    assert whose(driver, driver.want(do_not_queue=True)) == session_of(LIAR)


def test_tasks_wait_for_it_as_well_but_not_for_ever() -> None:
    driver = where_the_liar_was_found_out()
    driver.offer(LIAR, 1)
    driver.want_no_more(driver.want())  # it is looked at, and set aside
    driver.add(1)
    assert not driver.given
    driver.pass_time(GOOD_SECONDS)
    assert [run.session for run in driver.given] == [session_of(LIAR)]


def test_alone_it_is_believed() -> None:
    driver = Driver()
    driver.attend(LIAR, LONG)
    refuse_many(driver, 100)


@pytest.mark.parametrize("how", ["withdrawn", "suspected", "time is up", "the end"])
def test_an_offer_that_was_set_aside_ends_like_others(how: str) -> None:
    driver = where_the_liar_was_found_out()
    offer = driver.offer(LIAR, 1_000, seconds=0.5 * GOOD_SECONDS)
    driver.want_no_more(driver.want())
    assert driver.partition.offers.aside
    assert not driver.partition.idle
    if how == "withdrawn":
        driver.withdraw(offer)
    elif how == "suspected":
        assert driver.partition.suspect(session_of(LIAR), driver.now) == 1
        driver.turn()
    elif how == "time is up":
        driver.pass_time(0.6 * GOOD_SECONDS)
    else:
        driver.partition.stop_waiting()
        driver.turn()
    assert offer.answered or offer.over
    assert not driver.partition.offers.aside
    assert driver.partition.offers.slots == 0


def test_a_slot_that_comes_back_in_the_same_turn_is_on_offer_again() -> None:
    driver = where_the_liar_was_found_out()
    driver.pass_time(GOOD_SECONDS)
    offer = driver.offer(LIAR, 3)
    first = driver.want(turn=False)
    second = driver.want(turn=False)
    assert driver.partition.offers.aside, "one of three slots was given, and no more may be"
    driver.want_no_more(first, turn=False)
    assert not driver.partition.offers.aside
    assert driver.partition.offers.slots == 3
    driver.want_no_more(second)
    assert not offer.answered


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_everybody_is_served_in_the_end(seed: int) -> None:
    driver, random = Driver(), Random(seed)
    driver.attend(LIAR, LONG)
    driver.attend(HONEST, LONG)
    queries: list[Asked] = []
    offers: list[Asked] = []
    for _ in range(400):
        happens = random.random()
        if happens < 0.3:
            offers.append(driver.offer(random.choice([LIAR, LIAR, HONEST]), random.choice([1, 5])))
        elif happens < 0.7:
            queries.append(driver.want(random.choice([1, 3]), seconds=LONG))
        elif happens < 0.75:
            waiting = [one for one in queries if not (one.answered or one.over)]
            if waiting:
                driver.want_no_more(random.choice(waiting))
        elif happens < 0.8:
            waiting = [one for one in offers if not (one.answered or one.over)]
            if waiting:
                driver.withdraw(random.choice(waiting))
        else:
            driver.pass_time(random.choice([0.0, 0.01, 0.1]))
        for token, session in driver.allocated:
            if session == session_of(LIAR):
                refuse(driver, token)
        driver.allocated.clear()
    while any(not (one.answered or one.over) for one in queries):
        driver.offer(HONEST)
    driver.pass_time(LONG)
    assert not driver.partition.offers.aside
    assert all(one.answered or one.over for one in offers)
