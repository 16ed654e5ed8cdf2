"""Tasks that wait for their time: delays and retries, in memory and in the store."""

from __future__ import annotations

from maitred.matching.later import HORIZON_SECONDS
from maitred.matching.records import Terms, encode_record
from maitred.trace_context import TRACE_BYTES_MAX
from tests.matching.driver import FAILED, Driver

SOON = Terms(retries=10, backoff_first=1.0, backoff_longest=1.0)


def test_a_delayed_task_is_given_when_it_is_due_and_not_before() -> None:
    driver = Driver()
    assert driver.add(delay=5.0).safe
    waiting = driver.offer()
    driver.pass_time(4.999)
    assert not waiting.answered
    driver.pass_time(0.001)
    assert len(waiting.value) == 1


def test_a_delayed_task_survives_a_crash() -> None:
    driver = Driver()
    driver.add(delay=20.0)
    driver.crash()
    waiting = driver.offer()
    driver.pass_time(18.9)
    assert not waiting.answered
    driver.pass_time(0.2)
    assert len(waiting.value) == 1


def test_all_tasks_that_are_planned_are_counted_after_a_crash() -> None:
    """A scaling signal and the list of problems count the others as work that waits."""
    driver = Driver()
    driver.add(5, delay=86_400.0)
    driver.add(2)
    driver.commit()
    driver.crash(0.0)
    driver.pass_time(60.0)
    assert (driver.partition.waiting, driver.partition.delayed) == (7, 5)
    assert len(driver.take("w", 2)) == 2
    assert (driver.partition.waiting, driver.partition.delayed) == (5, 5)


def test_a_task_that_is_due_long_after_a_crash_is_read_in_time() -> None:
    driver = Driver()
    driver.add(delay=10 * HORIZON_SECONDS)
    driver.crash(0.0)
    waiting = driver.offer(seconds=1e6)
    driver.pass_time(10 * HORIZON_SECONDS - 0.1)
    assert not waiting.answered
    driver.pass_time(0.2)
    assert len(waiting.value) == 1


def test_more_delayed_tasks_than_fit_into_memory() -> None:
    driver = Driver(buffer_tasks=10)
    for number in range(100):
        driver.add(delay=1000.0 + number)
        assert len(driver.partition.own_tasks.tasks) <= 21
    driver.pass_time(999.0)
    given = []
    for _ in range(100):
        driver.pass_time(1.0)
        run = driver.take_one()
        driver.finish(run)
        given.append(run.sequence)
        assert len(driver.partition.own_tasks.tasks) <= 41
    assert given == sorted(given)
    driver.pass_time(1.0)
    assert driver.store.empty


def test_more_tasks_of_one_moment_than_fit_into_memory() -> None:
    driver = Driver(buffer_tasks=10)
    for _ in range(5):
        driver.add(20, delay=100.0)
    driver.pass_time(100.0)
    for _ in range(100):
        driver.finish(driver.take_one())
        driver.pass_time(0.1)
    assert driver.store.empty


def test_far_tasks_in_memory_do_not_keep_near_ones_in_the_store() -> None:
    driver = Driver(buffer_tasks=10)
    near = driver.add(delay=200.0)
    driver.crash(0.0)
    driver.add(15, delay=86_400.0)
    driver.pass_time(200.1)
    assert driver.take_one().sequence == near.sequences[0]


def test_running_tasks_do_not_hide_those_that_are_due_behind_them() -> None:
    driver = Driver(buffer_tasks=10, lease_seconds=1e6)
    driver.add(40, delay=50.0)
    driver.crash(0.0)
    driver.pass_time(50.0)
    runs = []
    for _ in range(40):
        runs += driver.take(slots=1)
        driver.pass_time(0.1)
    assert len(runs) == 40


def test_a_task_that_fails_again_after_a_crash_is_tried_again() -> None:
    terms = Terms(retries=10, backoff_first=1000.0, backoff_longest=1000.0)
    driver = Driver()
    driver.add(terms=terms)
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1.0)
    driver.crash()
    driver.pass_time(1000.0)
    driver.finish(driver.take_one(), how=FAILED)
    driver.pass_time(1000.0)
    assert driver.take_one().attempt == 3


def test_a_finished_task_does_not_come_back_when_its_row_is_read_before_it_is_crossed_out() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(delay=5.0)
    driver.add(delay=300.0)
    driver.crash(0.0)
    driver.pass_time(5.0)
    run = driver.take_one()
    driver.auto_commit = False
    driver.finish(run)
    driver.pass_time(HORIZON_SECONDS)
    assert driver.take() == []
    assert driver.partition.own_tasks.open_tasks == 1
    driver.auto_commit = True
    driver.pass_time(300.0)
    driver.finish(driver.take_one())
    driver.pass_time(1.0)
    assert driver.store.empty


def test_a_finished_task_does_not_come_back_with_a_read_that_was_under_way() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(delay=45.0)
    driver.add(delay=300.0)
    driver.crash(0.0)
    driver.pass_time(45.0)
    run = driver.take_one()
    driver.slow_reads = True
    driver.pass_time(10.0)
    assert driver.reads
    driver.finish(run)
    driver.pass_time(1.0)
    driver.answer_read()
    driver.turn()
    assert driver.take() == []
    assert driver.partition.own_tasks.open_tasks == 1


def test_a_row_that_is_being_replaced_is_not_left_to_the_store() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(terms=Terms(retries=9, backoff_first=1e5, backoff_longest=1e6), delay=1.0)
    driver.pass_time(1.0)
    run = driver.take_one()
    driver.auto_commit = False
    driver.begin_commit(anything=True)
    for _ in range(30):
        driver.add(delay=1000.0)
    driver.finish(run, how=FAILED)
    driver.end_commit()
    driver.turn()
    assert run.sequence in driver.partition.own_tasks.tasks  # its new row is not written yet
    driver.commit()
    driver.commit()
    assert run.sequence not in driver.partition.own_tasks.tasks


def test_finishing_a_delayed_task_twice_counts_once() -> None:
    driver = Driver()
    driver.add(2, delay=1.0, terms=Terms(retention=0.0))
    driver.pass_time(1.0)
    run, _ = driver.take(slots=2)
    driver.auto_commit = False
    driver.finish(run)
    assert driver.finish(run).late == [run.sequence]
    assert driver.partition.own_tasks.open_tasks == 1
    driver.commit()
    assert driver.finish(run).late == [run.sequence]
    assert driver.store.backlog == 1


def test_a_due_task_of_low_priority_without_room_does_not_hold_up_a_high_one() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(10, priority=4)
    driver.add(15, priority=4, delay=1.0)
    driver.add(priority=0, delay=2.0)
    driver.pass_time(2.0)
    assert driver.take_one().sequence == driver.partition.own_tasks.next_sequence - 1


def test_a_task_in_the_store_alone_can_be_revoked_while_it_waits() -> None:
    driver = Driver()
    added = driver.add(2, delay=500.0)
    driver.crash()
    driver.turn()
    assert driver.revoke(added.sequences[0]) == "cancelled"
    assert driver.revoke(added.sequences[0]) == "cancelled"
    driver.pass_time(1.0)
    assert driver.store.unfinished() == {added.sequences[1]}


def test_nothing_is_written_of_a_delayed_task_that_is_revoked_at_once() -> None:
    driver = Driver()
    driver.auto_commit = False
    added = driver.add(delay=50.0)
    assert driver.revoke(added.sequences[0]) == "cancelled"
    assert added.safe
    assert driver.partition.ledger.take(driver.now) is None
    assert driver.partition.ledger.wanted_at(0.02) > driver.now


def test_backoff_doubles_with_jitter_up_to_the_longest() -> None:
    driver = Driver()
    driver.add(terms=Terms(retries=6, backoff_first=1.0, backoff_longest=10.0))
    for attempt, backoff in enumerate([1.0, 2.0, 4.0, 8.0, 10.0, 10.0], 1):
        run = driver.take_one()
        assert run.attempt == attempt
        driver.finish(run, how=FAILED)
        task = driver.partition.own_tasks.tasks[run.sequence]
        assert backoff / 2 <= task.due - driver.now <= backoff
        driver.pass_time(backoff)
    assert driver.take_one().attempt == 7


def test_a_retry_joins_the_end_of_its_line() -> None:
    driver = Driver()
    driver.add(3, terms=SOON)
    first = driver.take_one()
    driver.finish(first, how=FAILED)
    driver.pass_time(1.0)
    order = [driver.take_one().sequence for _ in range(3)]
    assert order == [first.sequence + 1, first.sequence + 2, first.sequence]


def test_a_retry_of_a_task_that_was_claimed_after_a_crash_joins_the_end_of_its_line() -> None:
    driver = Driver(lease_seconds=100.0)
    driver.add(3, terms=SOON)
    run = driver.take_one()
    driver.pass_time(1.0)
    driver.crash()
    driver.turn()
    driver.beat(1, [run])
    driver.finish(run, how=FAILED)
    driver.pass_time(5.0)
    order = [driver.take_one().sequence for _ in range(3)]
    assert order == [run.sequence + 1, run.sequence + 2, run.sequence]


def test_nothing_is_left_to_the_store_while_it_is_read() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(delay=500.0)
    driver.slow_reads = True
    driver.crash(0.0)
    driver.turn()
    assert driver.reads
    for _ in range(30):
        driver.add(delay=1000.0)
    assert len(driver.partition.own_tasks.tasks) == 30
    driver.slow_reads = False
    while driver.reads:
        driver.answer_read()
    driver.add(delay=1000.0)
    assert len(driver.partition.own_tasks.tasks) <= 20


def test_a_read_reaches_past_the_rows_of_the_tasks_in_memory() -> None:
    """However long their trace contexts are: it finds these rows again, before new ones."""
    driver = Driver()
    driver.add(30, delay=20.0, traces=bytes(TRACE_BYTES_MAX))
    driver.commit()
    partition = driver.partition
    tasks = [*partition.own_tasks.tasks.values()]
    assert len(tasks) == 30
    assert all(task.later_stored for task in tasks)
    rows = sum(len(encode_record(partition.ledger.record(task))) for task in tasks)
    assert partition.later.read_bytes(tasks) - partition.later.read_bytes([]) >= rows
