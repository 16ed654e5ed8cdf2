"""Tasks that are in the store alone, and ends that meet a store which is behind."""

from __future__ import annotations

import pytest

from maitred.matching.records import Terms
from maitred.matching.stored_tasks import READING_SECONDS
from tests.matching.driver import DONE, FAILED, RETURNED, Driver, Run, session_of

FORGOTTEN = Terms(retention=0.0)


def run_of(sequence: int, attempt: int = 1, worker: int = 1) -> Run:
    return Run(sequence, attempt, session_of(worker))


def overfull() -> tuple[Driver, list[int]]:
    """A partition with room for ten, and thirty tasks in segments of ten."""
    driver = Driver(buffer_tasks=10)
    numbers: list[int] = []
    for _ in range(3):
        numbers += driver.add(10, terms=FORGOTTEN).sequences
    assert len(driver.partition.own_tasks.tasks) == 10
    return driver, numbers


def drain(driver: Driver) -> list[int]:
    """A worker that takes one at a time; the order in which they came."""
    order: list[int] = []
    for _ in range(1_000):
        runs = driver.take()
        if not runs:
            driver.pass_time(5.0)
            if not driver.partition.own_tasks.open_tasks:
                return order
            continue
        order += [run.sequence for run in runs]
        driver.finish(*runs)
    raise AssertionError("it never comes to an end")


def test_finishing_twice_counts_once_though_the_store_does_not_know_yet() -> None:
    driver = Driver()
    first, second = driver.add(2, terms=FORGOTTEN).sequences
    driver.auto_commit = False
    run = driver.take_one()
    driver.finish(run)
    again = driver.finish(run)
    assert again.late == [first]
    assert driver.partition.own_tasks.open_tasks == 1
    driver.commit()
    assert driver.store.unfinished() == {second}


def test_revoking_what_is_over_changes_nothing_though_the_store_does_not_know_yet() -> None:
    driver = Driver()
    first, second = driver.add(2, terms=FORGOTTEN).sequences
    driver.auto_commit = False
    driver.finish(driver.take_one())
    assert driver.revoke(first) in (None, "over")
    driver.commit()
    assert driver.store.unfinished() == {second}


def test_finishing_a_task_that_is_in_the_store_alone() -> None:
    driver, numbers = overfull()
    finished = driver.finish(run_of(numbers[25]))
    assert finished.late == []
    assert driver.finish(run_of(numbers[25])).late == [numbers[25]]
    driver.pass_time(1.0)
    assert finished.safe
    assert driver.store.backlog == 29
    assert drain(driver) == numbers[:25] + numbers[26:]
    assert driver.store.empty


def test_a_failure_of_a_task_in_the_store_alone_does_not_count() -> None:
    driver, numbers = overfull()
    assert driver.finish(run_of(numbers[25]), how=FAILED).late == [numbers[25]]
    assert drain(driver) == numbers


def test_revoking_tasks_that_are_in_the_store_alone() -> None:
    driver, numbers = overfull()
    for number in numbers[12:28]:
        assert driver.revoke(number) == "cancelled"
    assert drain(driver) == numbers[:12] + numbers[28:]
    assert driver.store.empty


@pytest.mark.parametrize("committed", [False, True])
def test_a_segment_that_is_over_before_it_is_read_stays_over(*, committed: bool) -> None:
    driver, numbers = overfull()
    driver.auto_commit = committed
    for number in numbers[10:20]:
        assert driver.revoke(number) == "cancelled"
        driver.pass_time(0.1)
    for _ in range(10):
        driver.finish(driver.take_one())
    assert driver.partition.own_tasks.open_tasks == 10
    driver.auto_commit = True
    assert drain(driver) == numbers[20:]


def test_a_segment_that_is_over_while_it_is_being_read_stays_over() -> None:
    driver, numbers = overfull()
    driver.slow_reads = True
    for _ in range(10):
        driver.finish(driver.take_one())
    assert driver.reads
    for number in numbers[10:20]:
        assert driver.revoke(number) == "cancelled"
    driver.pass_time(1.0)  # the store has crossed it out, and the read does not know
    driver.answer_read()
    driver.slow_reads = False
    driver.turn()
    assert driver.partition.own_tasks.open_tasks == 10
    assert drain(driver) == numbers[20:]


def test_a_read_that_sees_more_than_the_partition_has_heard_of() -> None:
    driver = Driver(buffer_tasks=10)
    numbers = driver.add(10).sequences + driver.add(3).sequences
    driver.auto_commit = False
    driver.slow_reads = True
    added = driver.add(5, terms=FORGOTTEN)
    driver.begin_commit()
    driver.write()
    for _ in range(10):
        driver.finish(driver.take_one())
    driver.slow_reads = False
    driver.answer_read()  # has the new segment in it
    driver.turn()
    driver.heard_of_commit()
    driver.turn()
    assert added.safe
    driver.auto_commit = True
    assert drain(driver) == numbers[10:] + added.sequences


def test_a_segment_that_is_gone_does_not_make_the_next_unreachable() -> None:
    driver, numbers = overfull()
    for number in numbers[20:30]:
        driver.revoke(number)
    driver.pass_time(1.0)
    driver.auto_commit = False
    driver.slow_reads = True
    driver.add(5, terms=FORGOTTEN)
    driver.begin_commit()
    driver.write()
    for _ in range(10):
        driver.finish(driver.take_one())
    driver.slow_reads = False
    driver.answer_read()
    driver.heard_of_commit()
    driver.auto_commit = True
    assert len(drain(driver)) == 15


def test_parked_tasks_that_are_revoked_while_they_are_written_stay_gone() -> None:
    driver, numbers = overfull()
    driver.auto_commit = False
    added = driver.add(5, terms=FORGOTTEN)
    driver.begin_commit()
    assert driver.revoke(added.sequences[0]) == "cancelled"
    assert driver.revoke(added.sequences[3]) == "cancelled"
    driver.end_commit()
    driver.auto_commit = True
    left = [added.sequences[place] for place in (1, 2, 4)]
    assert drain(driver) == numbers + left
    assert driver.store.empty


def test_parked_tasks_that_are_all_revoked_while_they_are_written_stay_gone() -> None:
    driver, numbers = overfull()
    driver.auto_commit = False
    added = driver.add(2, terms=FORGOTTEN)
    driver.begin_commit()
    for number in added.sequences:
        assert driver.revoke(number) == "cancelled"
    driver.end_commit()
    driver.auto_commit = True
    assert drain(driver) == numbers


def test_who_waits_for_a_task_in_the_store_alone_hears_of_its_end() -> None:
    driver, numbers = overfull()
    waiting = driver.wait_for(numbers[25])
    drain(driver)
    assert waiting.value.status == "done"


def test_priorities_share_numbers_but_not_segments() -> None:
    driver = Driver(buffer_tasks=10)
    numbers = []
    for number in range(60):
        numbers += driver.add(priority=number % 3, turn=number % 7 == 0).sequences
    driver.turn()
    for number in numbers[1:60:2]:
        assert driver.revoke(number) == "cancelled"
        driver.pass_time(0.05)
    driver.crash()
    driver.pass_time(4.0)
    left = numbers[0:60:2]
    assert sorted(drain(driver)) == left
    assert driver.store.empty


def test_thirty_thousand_tasks_in_a_small_memory() -> None:
    driver = Driver(buffer_tasks=100)
    driver.checking = False
    for _ in range(30):
        driver.add([b""] * 1_000, terms=FORGOTTEN)
        driver.turn()
        assert len(driver.partition.own_tasks.tasks) <= 1_100
    given = 0
    before = 0
    while driver.partition.own_tasks.open_tasks:
        runs = driver.take(slots=500)
        given += len(runs)
        for run in runs:
            assert run.sequence > before
            before = run.sequence
        driver.finish(*runs)
        driver.pass_time(0.1)
        assert len(driver.partition.own_tasks.tasks) <= 2_100
    assert given == 30_000
    assert driver.store.empty


def test_what_is_added_and_revoked_leaves_nothing_behind() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(3)
    for _ in range(200):
        driver.revoke(driver.add(2).sequences[1])
        driver.revoke(driver.partition.own_tasks.next_sequence - 2)
    line = driver.partition.backlog.lines[2]
    assert list(line) == list(driver.partition.own_tasks.tasks.values())
    driver.pass_time(1.0)
    assert driver.store.backlog == 3
    assert len(driver.partition.later) == 0


@pytest.mark.parametrize("how", [DONE, RETURNED])
def test_levels_say_exactly_when_all_is_over(how: int) -> None:
    driver, _ = overfull()
    partition = driver.partition
    assert partition.ack_level < partition.read_level
    run = driver.take_one()
    driver.finish(run, how=how)
    assert partition.ack_level == run.sequence - (how == RETURNED)
    drain(driver)
    assert partition.ack_level == partition.read_level


def test_levels_know_of_delayed_tasks_in_the_store_alone() -> None:
    driver = Driver()
    driver.add(delay=1000.0)
    driver.crash()
    driver.turn()
    partition = driver.partition
    assert not partition.own_tasks.tasks
    assert partition.ack_level < partition.read_level
    assert not partition.idle


def test_an_end_that_looked_into_the_store_before_the_task_was_over_counts_once() -> None:
    driver = Driver()
    first, second = driver.add(2, terms=FORGOTTEN).sequences
    driver.pass_time(1.0)
    driver.slow_reads = driver.slow_lookups = True
    driver.crash()
    ((segment, marks),) = driver.store.around(first)
    run = run_of(first)
    asked = driver.finish(run)
    driver.pass_time(READING_SECONDS)
    ((_, rows),) = driver.lookups
    assert rows.segment == (segment, marks)
    driver.reads_arrive()
    assert driver.finish(run).late == []
    driver.answer_lookup()
    driver.pass_time(1.0)
    assert asked.late == []
    assert driver.store.unfinished() == {second}


def test_what_follows_in_memory_waits_for_its_turn_while_it_is_written() -> None:
    driver = Driver(buffer_tasks=10)
    numbers = driver.add(10).sequences + driver.add(3).sequences
    driver.auto_commit = False
    numbers += driver.add(3).sequences
    driver.begin_commit()  # has the last three
    given = [driver.take_one() for _ in range(13)]
    assert driver.take() == []
    driver.end_commit()
    driver.turn()
    given += [driver.take_one() for _ in range(3)]
    assert [run.sequence for run in given] == numbers
    driver.auto_commit = True
    driver.finish(*given)
    driver.pass_time(1.0)
    assert driver.store.empty
