"""Group commit: what is written, what never has to be, and what happens when it cannot."""

from __future__ import annotations

import gc
from weakref import ref

from maitred.errors import OutcomeUnknown
from maitred.matching.records import Terms
from maitred.matching.slots import WaitingOffer
from tests.matching.driver import FAILED, Driver

SOON = Terms(retries=5, backoff_first=1.0, backoff_longest=1.0)


def test_nobody_is_told_before_it_is_on_disk() -> None:
    driver = Driver()
    driver.auto_commit = False
    added = driver.add(3)
    assert not added.answered
    driver.begin_commit()
    driver.write()
    driver.turn()
    assert not added.answered
    driver.heard_of_commit()
    driver.turn()
    assert added.safe


def test_a_task_that_is_done_before_its_group_is_written_never_reaches_a_batch() -> None:
    driver = Driver(hold_seconds=0.02)
    for _ in range(50):
        driver.offer()
        added = driver.add()
        assert not added.answered
        driver.pass_time(0.01)
        finished = driver.finish(driver.given[-1])
        assert added.safe
        assert finished.safe
    driver.pass_time(1.0)
    assert driver.store.rows_written == 0
    assert driver.partition.own_tasks.never_written == 50


def test_a_caller_hears_at_once_of_a_task_that_was_never_written() -> None:
    driver = Driver(hold_seconds=0.02)
    driver.offer()
    driver.add()
    run = driver.given[-1]
    early = driver.wait_for(run.sequence)
    driver.auto_commit = False
    # Something else waits to be written, which is none of this caller's business.
    driver.add(delay=5.0)
    driver.finish(run)
    assert early.value.status == "done"
    assert driver.wait_for(run.sequence).value.status == "done"


def test_a_caller_hears_that_a_stored_task_is_done_when_that_is_on_disk() -> None:
    """If shard and worker were lost before, the task would run again, and might expire instead."""
    driver = Driver(finish_seconds=0.2)
    driver.add()
    run = driver.take_one()
    early = driver.wait_for(run.sequence)
    driver.auto_commit = False
    driver.finish(run)
    late = driver.wait_for(run.sequence)
    assert not early.answered
    assert not late.answered
    # The callers wait, so the end is not held back for `finish_seconds`.
    assert driver.begin_commit()
    later = driver.wait_for(run.sequence)
    driver.write()
    driver.turn()
    assert not any(one.answered for one in (early, late, later))
    driver.heard_of_commit()
    driver.turn()
    assert [one.value.status for one in (early, late, later)] == ["done"] * 3
    assert driver.wait_for(run.sequence).value.status == "done"


def test_a_caller_hears_that_a_task_is_done_that_was_being_written_when_that_is_on_disk() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.add()
    driver.begin_commit()
    run = driver.take_one()
    waiting = driver.wait_for(run.sequence)
    driver.finish(run)
    driver.write()
    driver.heard_of_commit()
    driver.turn()
    assert not waiting.answered  # The store has the task, and not its end.
    assert driver.begin_commit()
    driver.write()
    driver.heard_of_commit()
    driver.turn()
    assert waiting.value.status == "done"


def test_a_caller_is_not_told_of_an_end_while_commits_fail_but_why() -> None:
    driver = Driver()
    driver.add()
    run = driver.take_one()
    waiting = driver.wait_for(run.sequence)
    driver.auto_commit = False
    driver.finish(run)
    problem = driver.fail_commit()
    assert waiting.value is problem
    driver.auto_commit = True
    driver.pass_time(10.0)
    assert driver.wait_for(run.sequence).value.status == "done"


def test_a_task_that_takes_longer_is_written_when_the_hold_ends() -> None:
    driver = Driver(hold_seconds=0.02)
    driver.offer()
    added = driver.add()
    driver.pass_time(0.019)
    assert not added.answered
    driver.pass_time(0.002)
    assert added.safe


def test_tasks_that_usually_take_long_are_not_held() -> None:
    driver = Driver(hold_seconds=0.02)
    for _ in range(20):
        driver.offer()
        driver.add()
        driver.pass_time(1.0)
        driver.finish(driver.given[-1])
    driver.offer()
    assert driver.add().safe


def test_producers_hear_of_a_failure_and_nothing_of_it_stays() -> None:
    driver = Driver()
    driver.auto_commit = False
    added = [driver.add(2), driver.add(delay=5.0)]
    problem = driver.fail_commit()
    assert [one.value for one in added] == [problem, problem]
    assert driver.partition.own_tasks.open_tasks == 0
    assert driver.partition.own_tasks.tasks == {}


def test_while_the_store_is_away_producers_hear_so_at_once() -> None:
    driver = Driver()
    driver.auto_commit = False
    problem = driver.fail_commit()
    assert driver.add().value is problem
    driver.offer()
    taken = driver.add()
    assert not taken.answered
    driver.finish(driver.given[0])
    assert taken.safe
    driver.commit()
    driver.auto_commit = True
    assert driver.add().safe


def test_running_tasks_stay_when_a_group_fails_and_are_written_later() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer(slots=1)
    added = driver.add(1)
    driver.fail_commit()
    assert not added.answered
    driver.auto_commit = True
    driver.pass_time(1.0)
    assert added.safe
    driver.finish(driver.given[0])
    driver.pass_time(1.0)
    assert driver.store.empty


def test_a_batch_of_which_a_part_was_taken_is_unknown() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer(slots=1)
    added = driver.add(2)
    driver.fail_commit()
    driver.finish(driver.given[0])
    assert isinstance(added.value, OutcomeUnknown)


def test_ends_are_written_again_until_it_works() -> None:
    driver = Driver()
    driver.add(3, terms=SOON)
    done, failed, _ = driver.take(slots=3)
    driver.auto_commit = False
    finished = [driver.finish(done), driver.finish(failed, how=FAILED)]
    for _ in range(3):
        driver.fail_commit()
        assert not any(one.answered for one in finished)
    driver.commit()
    assert all(one.safe for one in finished)
    assert len(driver.store.unfinished()) == 2
    assert list(driver.store.later) == [failed.sequence]


def test_what_happens_to_tasks_while_they_are_being_written() -> None:
    driver = Driver(hold_seconds=0.0)
    driver.auto_commit = False
    driver.offer(slots=3)
    added = driver.add(4, terms=SOON)
    driver.begin_commit()
    done, failed, _ = driver.given
    driver.finish(done)
    driver.finish(failed, how=FAILED)
    assert driver.revoke(added.sequences[3]) == "cancelled"
    driver.end_commit()
    driver.turn()
    assert added.safe
    driver.commit()
    assert driver.store.unfinished() == set(added.sequences[1:3])
    assert list(driver.store.later) == [failed.sequence]


class Held:
    """Knows how to withdraw the offer, which knows it."""

    def withdraws(self, offer: WaitingOffer) -> None:
        self.offer = offer


def test_an_offer_that_is_over_can_be_collected() -> None:
    held = Held()
    held.withdraws(WaitingOffer((held, 0), b"", "", 1, 0.0))
    gone = ref(held)
    del held
    gc.collect()
    assert gone() is None


def test_a_task_that_is_held_is_not_written_along_with_others() -> None:
    driver = Driver(hold_seconds=0.02)
    driver.offer()
    held, written = driver.add(), driver.add()
    assert written.safe
    assert not held.answered
    driver.finish(driver.given[0])
    assert held.safe
    assert driver.store.unfinished() == set(written.sequences)


def test_a_delayed_task_is_refused_at_once_while_the_store_is_away() -> None:
    driver = Driver()
    driver.auto_commit = False
    driver.add()
    problem = driver.fail_commit()
    asked = driver.add(delay=60.0)
    assert asked.value is problem
    assert driver.partition.own_tasks.open_tasks == 0
