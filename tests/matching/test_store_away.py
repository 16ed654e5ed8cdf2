"""While the store cannot be written, a producer hears the truth: done, unknown, or nothing done.

A task that a free worker takes goes to the worker before it is written. What the producer hears
then depends on whether an attempt may have begun, and never takes longer than `UNSAFE_SECONDS`.
"""

from __future__ import annotations

import pytest

from maitred.errors import MaitredError, NotOwner, OutcomeUnknown, StoreUnavailable
from maitred.matching.records import Terms
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.matching.task import AWAY, Ticket
from tests.matching.driver import DONE, FAILED, RETURNED, TERMS, TIMED_OUT, Asked, Driver

ONCE = Terms(retries=0)
KEPT = Terms(retries=0, retention=3_600.0)


def away(**settings: object) -> tuple[Driver, MaitredError]:
    """A partition whose store has just failed."""
    driver = Driver(**settings)  # type: ignore[arg-type]
    driver.auto_commit = False
    return driver, driver.fail_commit()


def nothing_is_left(driver: Driver) -> bool:
    """Whether neither the partition nor, once it is back, the store has any task."""
    partition = driver.partition
    assert partition.own_tasks.open_tasks == 0
    assert not partition.own_tasks.tasks
    assert not partition.ledger.fresh
    assert not partition.ledger.held
    driver.commit()
    return driver.store.empty and not driver.store.dead


def is_unknown(asked: Asked) -> bool:
    return isinstance(asked.value, OutcomeUnknown)


@pytest.mark.parametrize("how", [FAILED, TIMED_OUT])
@pytest.mark.parametrize("terms", [TERMS, ONCE, KEPT])
def test_an_attempt_that_failed_is_unknown_at_once(how: int, terms: Terms) -> None:
    driver, _ = away()
    driver.offer()
    added = driver.add(terms=terms)
    finished = driver.finish(driver.given[0], how=how)
    assert is_unknown(added)
    assert finished.safe
    assert nothing_is_left(driver)


@pytest.mark.parametrize("terms", [TERMS, ONCE, KEPT])
def test_a_task_that_is_done_is_acknowledged_at_once(terms: Terms) -> None:
    driver, _ = away()
    driver.offer()
    added = driver.add(terms=terms)
    driver.finish(driver.given[0])
    assert added.safe
    assert nothing_is_left(driver)


def test_a_task_that_its_worker_gives_back_was_not_added() -> None:
    driver, problem = away()
    driver.offer()
    added = driver.add()
    driver.finish(driver.given[0], how=RETURNED)
    assert added.value is problem
    assert nothing_is_left(driver)


def test_an_offer_that_is_withdrawn_began_nothing() -> None:
    driver, problem = away()
    offer = driver.offer()
    added = driver.add(turn=False)
    driver.withdraw(offer)
    assert added.value is problem
    assert nothing_is_left(driver)


@pytest.mark.parametrize("how", [DONE, FAILED, RETURNED])
def test_nobody_waits_longer_for_a_worker_than_the_bound(how: int) -> None:
    driver, _ = away(lease_seconds=60.0)
    driver.offer()
    added = driver.add()
    driver.pass_time(UNSAFE_SECONDS - 0.01)
    assert not added.answered
    driver.pass_time(0.01)
    assert is_unknown(added)
    driver.finish(driver.given[0], how=how)
    assert nothing_is_left(driver)


def test_a_task_that_is_unknown_is_kept_if_the_store_is_back_in_time() -> None:
    driver, _ = away(lease_seconds=60.0)
    driver.offer()
    added = driver.add()
    driver.pass_time(UNSAFE_SECONDS)
    assert is_unknown(added)
    driver.commit()
    assert driver.store.unfinished() == set(added.sequences)
    driver.finish(driver.given[0], how=FAILED)
    driver.commit()
    assert list(driver.store.later) == added.sequences


def test_a_lost_worker_is_unknown() -> None:
    driver, _ = away(lease_seconds=1.0)
    driver.offer()
    added = driver.add()
    driver.pass_time(1.1)
    assert is_unknown(added)
    assert nothing_is_left(driver)


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_the_store_goes_while_a_worker_has_the_task(how: int) -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer()
    added = driver.add()
    driver.fail_commit()
    driver.finish(driver.given[0], how=how)
    assert added.safe if how == DONE else is_unknown(added)
    assert nothing_is_left(driver)


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_the_store_goes_while_the_task_is_being_written(how: int) -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer()
    added = driver.add()
    driver.begin_commit()
    driver.finish(driver.given[0], how=how)
    driver.end_commit(StoreUnavailable("It is away."))
    driver.turn()
    assert added.safe if how == DONE else is_unknown(added)
    assert nothing_is_left(driver)


def test_the_store_goes_when_the_attempt_has_failed() -> None:
    driver = Driver()
    driver.auto_commit = False
    driver.offer()
    added = driver.add()
    driver.finish(driver.given[0], how=FAILED)
    assert not added.answered
    driver.fail_commit()
    assert is_unknown(added)
    assert nothing_is_left(driver)


def test_the_store_goes_when_the_end_is_to_be_written() -> None:
    driver = Driver()
    driver.auto_commit = False
    driver.offer()
    driver.offer()
    done, dead = driver.add(terms=KEPT), driver.add(terms=ONCE)
    driver.finish(driver.given[0])
    driver.finish(driver.given[1], how=FAILED)
    assert not done.answered
    assert not dead.answered
    driver.fail_commit()
    assert done.safe
    assert is_unknown(dead)
    driver.commit()
    assert list(driver.store.dead) == dead.sequences  # an operator sees it all the same
    assert list(driver.store.results) == done.sequences


def test_a_batch_is_unknown_if_one_of_its_tasks_was_begun() -> None:
    driver, _ = away()
    driver.offer()
    added = driver.add(3)
    assert not added.answered
    driver.finish(driver.given[0], how=FAILED)
    assert is_unknown(added)
    assert nothing_is_left(driver)


def test_a_batch_of_which_nothing_was_begun_was_not_added() -> None:
    driver, problem = away()
    driver.offer()
    added = driver.add(3)
    driver.finish(driver.given[0], how=RETURNED)
    assert added.value is problem
    assert nothing_is_left(driver)


# The tree


def at_the_parent() -> tuple[Driver, Asked, MaitredError]:
    """A task of a child is at the parent, and the child's store fails."""
    driver = Driver(partition=1)
    driver.auto_commit = False
    driver.offer(1)
    driver.add()
    driver.finish(driver.given[0])
    added = driver.add()
    driver.pass_time(0.01)
    assert driver.partition.own_tasks.tasks[added.sequences[0]].state is AWAY
    problem = driver.fail_commit()
    assert not added.answered
    return driver, added, problem


def test_a_task_that_nobody_wanted_at_the_parent_was_not_added() -> None:
    driver, added, problem = at_the_parent()
    driver.answer_task(None)
    assert added.value is problem
    assert nothing_is_left(driver)


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_a_task_that_was_taken_at_the_parent(how: int) -> None:
    driver, added, _ = at_the_parent()
    driver.answer_task(1)
    driver.finish(driver.given[-1], how=how)
    assert added.safe if how == DONE else is_unknown(added)
    assert nothing_is_left(driver)


def test_a_task_that_was_lost_sight_of_is_unknown() -> None:
    driver, added, _ = at_the_parent()
    driver.lose_task()
    assert not added.answered
    driver.pass_time(UNSAFE_SECONDS)
    assert is_unknown(added)


def test_a_parent_that_does_not_answer_is_not_waited_for() -> None:
    driver, added, _ = at_the_parent()
    driver.pass_time(UNSAFE_SECONDS)
    assert is_unknown(added)


# A store that says nothing


def silent() -> tuple[Driver, Asked, MaitredError]:
    """A commit with a task in it that is not answered."""
    driver = Driver()
    driver.auto_commit = False
    added = driver.add(terms=Terms(retries=5))
    driver.begin_commit()
    driver.now += UNSAFE_SECONDS
    problem = StoreUnavailable("The store does not answer.")
    driver.partition.store_replies.store_silent(problem, driver.now)
    driver.turn()
    return driver, added, problem


def test_what_a_silent_store_was_asked_to_write_is_unknown() -> None:
    driver, added, problem = silent()
    assert is_unknown(added)
    assert driver.add().value is problem
    assert driver.add(delay=5.0).value is problem


def test_a_silent_store_that_answers_after_all() -> None:
    driver, added, _ = silent()
    driver.end_commit()
    driver.auto_commit = True
    driver.turn()
    assert driver.add().safe
    assert [run.sequence for run in driver.take()] == added.sequences


def test_a_silent_store_that_fails_after_all() -> None:
    driver, _, problem = silent()
    driver.end_commit(problem)
    driver.turn()
    assert nothing_is_left(driver)


def test_a_worker_still_gets_tasks_while_the_store_is_silent() -> None:
    driver, _, _ = silent()
    for _ in range(3):  # the first gets the task that is being written
        driver.offer()
    done, failed = driver.add(), driver.add(terms=ONCE)
    driver.finish(driver.given[-2])
    driver.finish(driver.given[-1], how=FAILED)
    assert done.safe
    assert is_unknown(failed)


def test_the_end_of_a_task_that_a_silent_store_has_is_told() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer()
    driver.offer()
    done, dead = driver.add(terms=KEPT), driver.add(terms=ONCE)
    driver.begin_commit()
    driver.partition.store_replies.store_silent(StoreUnavailable("It does not answer."), driver.now)
    driver.finish(driver.given[0])
    driver.finish(driver.given[1], how=FAILED)
    assert done.safe
    assert is_unknown(dead)


# A partition that is let go


def told(driver: Driver) -> dict[object, MaitredError | None]:
    """What those hear who wait when another shard takes the partition over."""
    _, tickets = driver.partition.leave()
    overtaken = NotOwner("Another shard has it.")
    heard: dict[object, MaitredError | None] = {}
    for ticket in tickets:
        assert isinstance(ticket, Ticket)
        heard[ticket.token] = ticket.last_word(overtaken)
    return heard


def test_a_task_whose_attempt_failed_is_unknown_when_the_partition_is_let_go() -> None:
    driver = Driver()
    driver.auto_commit = False
    for _ in range(4):
        driver.offer()
    done, dead = driver.add(terms=KEPT), driver.add(terms=ONCE)
    failed, given, waiting = driver.add(), driver.add(), driver.add()
    driver.finish(driver.given[0])
    driver.finish(driver.given[1], how=FAILED)
    driver.finish(driver.given[2], how=FAILED)
    heard = told(driver)
    assert heard[done] is None
    assert isinstance(heard[dead], OutcomeUnknown)
    assert isinstance(heard[failed], OutcomeUnknown)
    assert isinstance(heard[given], OutcomeUnknown)
    assert isinstance(heard[waiting], NotOwner)


def test_who_was_told_that_nobody_knows_is_told_nothing_else() -> None:
    driver, _ = away(lease_seconds=60.0)
    driver.offer()
    driver.add()
    driver.pass_time(UNSAFE_SECONDS)
    assert told(driver) == {}


# Cancelling, and asking for results


def test_a_cancel_while_the_store_is_away_does_nothing() -> None:
    driver = Driver()
    (sequence,) = driver.add().sequences
    driver.pass_time(1.0)
    driver.auto_commit = False
    problem = driver.fail_commit()
    with pytest.raises(StoreUnavailable) as refused:
        driver.revoke(sequence)
    assert refused.value is problem
    driver.commit()
    assert driver.take_one().sequence == sequence


@pytest.mark.parametrize("parked", [False, True])
def test_a_task_in_the_store_alone_is_not_cancelled_while_the_store_is_away(parked: bool) -> None:
    driver = Driver(buffer_tasks=2, buffer_bytes=1000)
    sequences = [driver.add(delay=0.0 if parked else 600.0).sequences[0] for _ in range(20)]
    driver.pass_time(1.0)
    driver.auto_commit = False
    driver.fail_commit()
    with pytest.raises(StoreUnavailable):
        driver.revoke(sequences[-1])
    driver.commit()
    assert driver.partition.own_tasks.open_tasks == 20


def test_a_task_that_a_worker_has_is_cancelled_whatever_the_store_does() -> None:
    driver = Driver()
    (sequence,) = driver.add().sequences
    driver.take_one()
    driver.auto_commit = False
    driver.fail_commit()
    assert driver.revoke(sequence) == "cancelling"


@pytest.mark.parametrize("says", ["nothing", "no"])
def test_a_cancel_that_the_store_does_not_confirm_is_unknown(says: str) -> None:
    driver = Driver()
    (sequence,) = driver.add().sequences
    driver.pass_time(1.0)
    driver.auto_commit = False
    cancelled = driver.cancel(sequence)
    again = driver.cancel(sequence)
    driver.begin_commit(anything=True)
    assert not cancelled.answered
    problem = StoreUnavailable("It does not answer.")
    if says == "no":
        driver.end_commit(problem)
    else:
        driver.partition.store_replies.store_silent(problem, driver.now)
    driver.turn()
    assert is_unknown(cancelled)
    assert is_unknown(again)
    asked = driver.cancel(sequence)  # it did nothing itself
    assert asked.value is problem
    if says == "nothing":
        driver.end_commit()
    driver.commit()
    driver.turn()
    assert driver.revoke(sequence) == "cancelled"
    assert driver.cancel(sequence).value == "cancelled"
    assert not driver.partition.own_tasks.open_tasks


@pytest.mark.parametrize("how", [DONE, FAILED])
@pytest.mark.parametrize("says", ["nothing", "no"])
def test_whoever_waits_for_an_end_that_the_store_does_not_confirm_hears_why(
    says: str, how: int
) -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=ONCE).sequences
    driver.pass_time(1.0)
    run = driver.take_one()
    driver.auto_commit = False
    early = driver.wait_for(sequence)
    finished = driver.finish(run, how=how)
    driver.begin_commit(anything=True)
    late = driver.wait_for(sequence)
    assert not early.answered
    problem = StoreUnavailable("It does not answer.")
    if says == "no":
        driver.end_commit(problem)
    else:
        driver.partition.store_replies.store_silent(problem, driver.now)
    driver.turn()
    assert early.value is late.value is problem
    assert driver.wait_for(sequence).value is problem  # at once
    assert not finished.answered  # the worker need not run it again
    if says == "nothing":
        driver.end_commit()
    driver.commit()
    assert driver.wait_for(sequence).value.status == ("done" if how == DONE else "failed")
    assert finished.safe
