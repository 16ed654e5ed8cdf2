"""An owner that was replaced, or may have been: what it may still say and hand out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import NotOwner, TaskForgotten, Unavailable
from maitred.matching.records import SEQUENCES_PER_RANGE
from tests.matching.driver import FAILED, RETURNED, STOPPED, Driver, Run, session_of

BEYOND = SEQUENCES_PER_RANGE


# Rules 1 and 2: nothing of the store is handed out without a lease


def test_rule_2_stored_tasks_are_withheld_until_the_lease_is_renewed() -> None:
    driver = Driver()
    driver.add(2)
    driver.commit()
    driver.is_trusted = False
    waiting = driver.offer(slots=2)
    driver.pass_time(5.0)
    assert not waiting.answered
    driver.is_trusted = True
    driver.turn()
    assert len(waiting.value) == 2


def test_rule_2_a_new_task_goes_to_a_worker_that_waits() -> None:
    driver = Driver(hold_seconds=5.0)
    driver.is_trusted = False
    waiting = driver.offer()
    added = driver.add()
    (run,) = waiting.value
    assert run.sequence == added.sequences[0]
    driver.finish(run)
    assert added.safe
    assert driver.store.rows_written == 0


def test_rule_2_a_new_task_does_not_overtake_those_that_are_withheld() -> None:
    driver = Driver(hold_seconds=5.0)
    driver.add()
    driver.commit()
    driver.is_trusted = False
    waiting = driver.offer()
    driver.auto_commit = False
    driver.add()
    assert not waiting.answered


def test_rule_2_stored_tasks_do_not_go_to_the_parent_either() -> None:
    driver = Driver(partition=1)
    driver.add()
    driver.pass_time(0.1)
    driver.is_trusted = False
    driver.answer_task(None)
    driver.commit()
    driver.pass_time(5.0)
    assert driver.passed_tasks == []
    driver.is_trusted = True
    driver.pass_time(0.1)
    assert len(driver.passed_tasks) == 1


def test_rule_2_a_stored_task_whose_attempt_failed_is_withheld_as_well() -> None:
    """Its row of its own cannot be written, and its segment is still in the store."""
    driver = Driver(lease_seconds=5.0)
    driver.add()
    driver.commit()
    (run,) = driver.take()
    driver.auto_commit = False
    driver.is_trusted = False
    driver.finish(run, how=FAILED)
    driver.fail_commit()
    waiting = driver.offer(2)
    driver.pass_time(30.0)
    assert not waiting.answered
    driver.is_trusted = True
    driver.turn()
    assert [run.attempt for run in waiting.value] == [2]


def test_rule_2_a_task_whose_commit_failed_is_withheld_since_it_may_be_stored() -> None:
    driver = Driver(hold_seconds=0.0)
    waiting = driver.offer()
    driver.auto_commit = False
    driver.add()
    (run,) = waiting.value
    driver.fail_commit()
    driver.is_trusted = False
    driver.finish(run, how=RETURNED)
    waiting = driver.offer(2)
    driver.pass_time(30.0)
    assert not waiting.answered


def test_rule_2_no_slot_is_reserved_without_a_lease() -> None:
    driver = Driver()
    driver.is_trusted = False
    driver.offer()
    wanting = driver.want()
    driver.pass_time(1.0)
    assert not wanting.answered
    with pytest.raises(Unavailable, match="lease"):
        driver.want(do_not_queue=True)
    driver.is_trusted = True
    driver.turn()
    assert len(wanting.value) == 1


def test_rule_2_a_rate_limit_does_not_keep_a_partition_busy_that_withholds_tasks() -> None:
    driver = Driver(rate_per_second=100.0)
    driver.add(5)
    driver.commit()
    driver.is_trusted = False
    driver.offer()
    driver.pass_time(10.0)  # the driver of the tests fails if a partition never rests


def test_rule_2_what_a_child_sends_is_handed_out_since_the_child_owns_it() -> None:
    driver = Driver()
    driver.is_trusted = False
    waiting = driver.offer()
    driver.visit(7)
    assert len(waiting.value) == 1


def test_without_a_lease_a_partition_does_not_say_that_a_task_does_not_exist() -> None:
    driver = Driver()
    driver.add()
    driver.is_trusted = False
    asked = driver.wait_for(driver.partition.own_tasks.next_sequence + BEYOND)
    assert isinstance(asked.value, Unavailable)


# Rule 3: over is over


def test_rule_3_the_end_of_a_task_that_was_never_written_needs_no_lease() -> None:
    driver = Driver(hold_seconds=5.0)
    waiting = driver.offer()
    added = driver.add()
    driver.is_trusted = False
    assert driver.finish(*waiting.value).safe
    assert added.safe


# Rule 4: sequence numbers are those of one owner


def test_rule_4_an_end_for_an_unknown_old_task_is_success() -> None:
    driver = Driver()
    driver.add()
    (run,) = driver.take()
    driver.finish(run)
    driver.commit()
    driver.crash()
    asked = driver.finish(run)
    driver.commit()
    assert asked.safe
    assert asked.late == [run.sequence]


def test_rule_4_an_old_end_never_ends_a_task_of_the_next_owner() -> None:
    driver = Driver()
    driver.add()
    (old,) = driver.take()
    driver.crash()  # the first task was written when the worker had it
    added = driver.add()
    new = added.sequences[0]
    assert new != old.sequence
    assert new // SEQUENCES_PER_RANGE == old.sequence // SEQUENCES_PER_RANGE + 1
    driver.finish(old)
    assert new in driver.partition.own_tasks.tasks


def test_rules_4_and_5_an_end_of_a_later_owners_task_is_refused_with_not_owner() -> None:
    driver = Driver()
    driver.add()
    later = Run(driver.partition.own_tasks.next_sequence + BEYOND, 1, session_of(1))
    asked = driver.finish(later)
    assert isinstance(asked.value, NotOwner)
    assert asked.late == asked.refused == []


def test_rule_5_a_heartbeat_of_a_later_owners_task_is_refused_with_not_owner() -> None:
    driver = Driver()
    driver.add()
    later = Run(driver.partition.own_tasks.next_sequence + BEYOND, 1, session_of(1))
    with pytest.raises(NotOwner):
        driver.beat(1, [later])


# Rule 8: results


def test_rule_8_a_result_that_only_the_dead_owner_had_is_told_to_be_lost_at_once() -> None:
    driver = Driver(memory_seconds=100.0)
    added = driver.add()
    driver.finish(*driver.take(), body=b"result")
    driver.commit()
    driver.crash()
    asked = driver.wait_for(added.sequences[0])
    assert isinstance(asked.value, TaskForgotten)


def test_rule_8_a_handover_takes_results_along() -> None:
    driver = Driver(memory_seconds=100.0)
    added = driver.add()
    driver.finish(*driver.take(), body=b"result")
    driver.commit()
    driver.hand_over()
    assert driver.wait_for(added.sequences[0]).value.body == b"result"


# Handing over


def test_a_handover_keeps_leases_and_needs_no_recovery() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(3)
    (run,) = driver.take("first")
    driver.pass_time(4.0)
    (told,) = driver.hand_over()
    assert (told.sequence, told.attempt, told.worker) == (run.sequence, 1, "worker first")
    assert told.lease_seconds == pytest.approx(6.0)
    assert not driver.partition.own_tasks.recovering
    assert {one.sequence for one in driver.take("other", 3)} == {
        run.sequence + 1,
        run.sequence + 2,
    }
    driver.pass_time(5.0)
    asked = driver.finish(run)
    driver.commit()
    assert asked.safe
    assert driver.ended[run.sequence] == "done"


def test_a_lease_that_was_handed_over_ends_when_it_would_have_ended() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add()
    driver.take("first")
    driver.pass_time(4.0)
    driver.hand_over(seconds=0.0)
    waiting = driver.offer("other", seconds=60.0)
    driver.pass_time(5.9)
    assert not waiting.answered
    driver.pass_time(5.0)  # and the pause before the next attempt
    assert [one.attempt for one in waiting.value] == [2]


def test_a_cancellation_is_handed_over_with_the_attempt() -> None:
    driver = Driver()
    driver.add()
    (run,) = driver.take("first")
    assert driver.revoke(run.sequence) == "cancelling"
    driver.hand_over()
    beat = driver.beat("first", [run])
    assert beat.value == ([], [run.sequence])
    driver.finish(run, how=STOPPED)
    assert driver.ended[run.sequence] == "cancelled"


def test_a_task_at_the_parent_stays_with_an_unknown_worker() -> None:
    driver = Driver(partition=1, lease_seconds=10.0)
    driver.add()
    driver.pass_time(0.5)
    (away,) = driver.passed_tasks
    (told,) = driver.hand_over()
    assert (told.sequence, told.holder) == (away.sequence, b"")
    waiting = driver.offer("other", seconds=60.0)
    assert not waiting.answered
    run = Run(away.sequence, 1, session_of("first"))
    beat = driver.beat("first", [run])
    assert not beat.answered
    asked = driver.finish(run)
    driver.commit()
    assert asked.safe
    assert driver.ended[away.sequence] == "done"


def test_claims_of_tasks_that_are_not_read_are_handed_over_again() -> None:
    driver = Driver(buffer_tasks=2, lease_seconds=10.0)
    driver.add(40)
    runs = driver.take("first", 3)
    for _ in range(3):
        driver.slow_reads = True
        assert {one.sequence for one in driver.hand_over()} == {one.sequence for one in runs}
    driver.reads_arrive()
    assert not {one.sequence for one in driver.take("other", 40)} & {one.sequence for one in runs}


def test_after_a_complete_handover_a_worker_hears_at_once_that_it_lost_its_task() -> None:
    driver = Driver(buffer_tasks=2, lease_seconds=10.0)
    driver.add(40)
    (run,) = driver.take("first")
    driver.pass_time(11.0)
    driver.slow_reads = True
    driver.hand_over()
    assert driver.beat("first", [run]).value == ([run.sequence], [])


def test_an_owner_that_recovers_does_not_say_that_it_knows_all() -> None:
    driver = Driver(lease_seconds=10.0)
    driver.add(2)
    (run,) = driver.take("first")
    driver.crash()
    driver.hand_over()
    assert driver.partition.own_tasks.recovering
    assert not driver.beat("first", [run]).answered
    driver.pass_time(4.0)
    assert len(driver.take("other", 5)) == 1


def test_an_end_that_is_being_looked_up_keeps_its_task_for_the_worker() -> None:
    driver = Driver(buffer_tasks=2)
    driver.add(40)
    runs = driver.take("first", 3)
    driver.slow_reads = driver.slow_lookups = True
    driver.crash()
    asked = driver.finish(runs[2], how=FAILED)
    told = driver.hand_over()
    assert isinstance(asked.value, NotOwner)
    assert (runs[2].sequence, 1) in {(one.sequence, one.attempt) for one in told}


@given(
    adds=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    committed=st.integers(0, 6),
    taken=st.integers(0, 5),
    after=st.integers(0, 4),
)
def test_two_owners_never_hand_out_the_same_stored_task(
    adds: list[int], committed: int, taken: int, after: int
) -> None:
    """The first owner is paused, replaced, and goes on with tasks in memory and without a lease."""
    first = Driver(hold_seconds=0.0)
    first.auto_commit = False
    for at, count in enumerate(adds):
        first.add(count)
        if at < committed:
            first.commit()
    ours = first.take("a", taken) if taken else []
    first.is_trusted = first.checking = False
    second = Driver(store=first.store, hold_seconds=0.0, recovery_seconds=0.0)
    for run in ours:
        second.beat("a", [run])
    theirs = second.take("b", 100)
    second.add(after or 1)
    theirs += second.take("b", 100)
    late = first.take("a", 100)
    first.add(after or 1)
    late += first.take("a", 100)
    numbers = [run.sequence for run in [*late, *theirs]]
    assert len(numbers) == len(set(numbers))
