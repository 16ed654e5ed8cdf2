"""Look-ups of tasks that are not in memory, and what happens to the tasks meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import (
    NotOwner,
    StoreUnavailable,
    TaskDamaged,
    TaskForgotten,
    Unavailable,
    UnknownTask,
)
from maitred.matching.records import SEQUENCES_PER_RANGE, Terms
from maitred.matching.stored_tasks import READING_SECONDS
from tests.matching.driver import DONE, FAILED, Driver, Run

if TYPE_CHECKING:
    from tests.matching.driver import Asked

FORGOTTEN = Terms(retries=0, retention=0.0)
KEPT = Terms(retries=0, retention=3_600.0)
"""The store has the result, too."""
IN_MEMORY = Terms(retries=0, retention=60.0)
BUFFER = 10


def crashed(tasks: int = 1, *, terms: Terms = IN_MEMORY, delay: float = 0.0) -> Driver:
    """A partition that was loaded after a crash; its reads and look-ups take long."""
    driver = Driver()
    driver.add(tasks, terms=terms, delay=delay)
    driver.pass_time(delay + 1.0)
    driver.take(slots=tasks)
    driver.pass_time(1.0)
    driver.slow_reads = driver.slow_lookups = True
    driver.crash()
    driver.turn()
    return driver


def overfull(*, terms: Terms = IN_MEMORY) -> tuple[Driver, list[int]]:
    """A partition with ten tasks in memory, and ten in the store alone; its look-ups take long."""
    driver = Driver(buffer_tasks=BUFFER)
    driver.add(BUFFER, terms=terms)
    alone = driver.add(BUFFER, terms=terms).sequences
    assert not driver.partition.own_tasks.tasks.keys() & set(alone)
    driver.slow_lookups = True
    return driver, alone


def read_all(driver: Driver) -> list[Run]:
    """A worker takes everything, so that all of it is read into memory."""
    runs: list[Run] = []
    while taken := driver.take(slots=BUFFER):
        runs += taken
    return runs


def answer_lookups(driver: Driver) -> None:
    while driver.lookups:
        driver.answer_lookup()
        driver.turn()


def the_run(driver: Driver) -> Run:
    return driver.given[-1]


def damage(driver: Driver, sequence: int) -> None:
    """Change a byte of the checksum of each row that has the task."""
    store = driver.store
    for which, segment in store.segments.items():
        if segment.first <= sequence <= segment.last:
            store.segments[which] = segment._replace(body=flipped(segment.body))
    tables: tuple[dict[int, Any], ...] = store.later, store.dead, store.results
    for rows in tables:
        if sequence in rows:
            rows[sequence] = rows[sequence]._replace(body=flipped(rows[sequence].body))


def flipped(body: bytes) -> bytes:
    return body[:1] + bytes([body[1] ^ 1]) + body[2:]


# Ends of attempts


def test_ends_wait_for_what_is_being_read_and_are_not_looked_up_then() -> None:
    driver = crashed()
    asked = driver.finish(the_run(driver))
    driver.pass_time(READING_SECONDS / 2)
    assert not driver.lookups
    driver.reads_arrive()
    assert not driver.lookups
    driver.commit()
    assert asked.safe
    assert asked.late == []
    assert driver.store.unfinished() == set()


def test_ends_do_not_wait_for_a_read_that_takes_long() -> None:
    driver = crashed()
    asked = driver.finish(the_run(driver))
    driver.pass_time(READING_SECONDS)
    assert len(driver.lookups) == 1
    answer_lookups(driver)
    driver.commit()
    assert asked.safe
    assert driver.store.unfinished() == set()


def test_ends_of_one_worker_are_looked_up_one_by_one() -> None:
    driver = crashed(3)
    asked = driver.finish(*driver.given)
    driver.pass_time(READING_SECONDS)
    for left in (3, 2, 1):
        assert len(driver.lookups) == 1
        assert driver.partition.own_tasks.open_tasks == left
        driver.answer_lookup()
        driver.turn()
    driver.commit()
    assert asked.safe
    assert asked.late == []


def test_an_end_of_a_task_that_the_store_does_not_have_is_late() -> None:
    driver = crashed()
    run = the_run(driver)
    driver.finish(run)
    driver.reads_arrive()
    driver.commit()
    again = driver.finish(run)
    driver.pass_time(READING_SECONDS)
    answer_lookups(driver)
    assert again.late == [run.sequence]


def test_a_failure_of_a_task_that_is_still_to_be_read_is_reported_again() -> None:
    """Its next attempt needs the task; until it is read, the worker that had it keeps it."""
    driver = crashed(terms=Terms(retries=1))
    run = the_run(driver)
    asked = driver.finish(run, how=FAILED)
    driver.pass_time(READING_SECONDS)
    answer_lookups(driver)
    assert isinstance(asked.value, Unavailable)
    assert run.sequence in driver.partition.attempts.claims


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_an_end_that_could_not_be_looked_up_is_refused_and_its_task_kept(how: int) -> None:
    driver = crashed()
    run = the_run(driver)
    asked = driver.finish(run, how=how)
    driver.pass_time(READING_SECONDS)
    problem = StoreUnavailable("The disk is away.")
    driver.answer_lookup(problem)
    driver.turn()
    assert asked.value is problem
    driver.reads_arrive()
    driver.pass_time(4.0)
    assert driver.partition.own_tasks.leases[run.sequence].holder == run.session


def test_an_end_counts_once_if_its_task_is_read_during_the_look_up() -> None:
    driver = crashed()
    asked = driver.finish(the_run(driver))
    driver.pass_time(READING_SECONDS)
    driver.reads_arrive()
    assert not driver.partition.own_tasks.open_tasks
    answer_lookups(driver)
    driver.commit()
    assert asked.safe
    assert asked.late == []
    assert driver.store.unfinished() == set()


@pytest.mark.parametrize("begun", [False, True])
def test_a_worker_is_told_when_the_partition_is_let_go_during_the_look_up(*, begun: bool) -> None:
    driver = crashed()
    asked = driver.finish(the_run(driver))
    if begun:
        driver.pass_time(READING_SECONDS)
    assert len(driver.lookups) == begun
    assert not driver.partition.idle
    _, tickets = driver.partition.leave()
    (ticket,) = tickets
    assert ticket.token is asked
    problem = NotOwner("for the test")
    assert ticket.last_word(problem) is problem


def test_a_delayed_task_that_moved_during_the_look_up_is_found_in_the_second() -> None:
    """It leaves its segment for a row of its own, and memory for the store, between two reads."""
    driver = Driver(buffer_tasks=BUFFER, lease_seconds=5.0)
    driver.add(BUFFER)
    (alone,) = driver.add(terms=Terms(retries=1, backoff_first=300.0)).sequences
    driver.slow_lookups = True
    asked = driver.wait_for(alone)
    ((search, rows),) = driver.lookups
    assert rows.segment is not None
    runs = read_all(driver)
    driver.finish(*[run for run in runs if run.sequence != alone])
    driver.finish(*[run for run in runs if run.sequence == alone], how=FAILED)
    driver.add(3 * BUFFER, delay=100.0)
    driver.pass_time(1.0)
    assert alone in driver.store.later
    assert alone not in driver.partition.own_tasks.tasks
    driver.answer_lookup()
    driver.turn()
    assert not asked.answered
    ((again, rows),) = driver.lookups
    assert again is search
    assert rows.later is not None
    driver.answer_lookup()
    driver.turn()
    assert not driver.lookups
    assert not asked.answered
    driver.slow_lookups = False
    assert driver.revoke(alone) == "cancelled"
    driver.commit()
    assert asked.value.status == "cancelled"


# Waiting for the end of a task


def test_a_task_that_is_read_during_the_look_up_is_waited_for() -> None:
    driver, alone = overfull()
    asked = driver.wait_for(alone[0])
    runs = read_all(driver)
    answer_lookups(driver)
    assert not asked.answered
    driver.finish(*runs)
    driver.commit()
    assert asked.value.status == "done"


@pytest.mark.parametrize("terms", [FORGOTTEN, IN_MEMORY, KEPT])
@pytest.mark.parametrize("commits", [0, 1])
def test_a_task_that_is_done_during_the_look_up_is_told_once(terms: Terms, commits: int) -> None:
    """Even if nothing is kept of it: the caller asked before."""
    driver, alone = overfull(terms=terms)
    driver.auto_commit = False
    asked = driver.wait_for(alone[0])
    driver.finish(*read_all(driver), body=b"42")
    for _ in range(commits):
        driver.commit()
    assert asked.answered == bool(commits)
    answer_lookups(driver)
    driver.commit()
    assert (asked.value.status, asked.value.body) == ("done", b"42")
    assert not driver.partition.results.waiters


def test_a_task_that_is_cancelled_in_its_segment_during_the_look_up_is_told() -> None:
    driver, alone = overfull(terms=FORGOTTEN)
    asked = driver.wait_for(alone[0])
    cancel = driver.cancel(alone[0])
    driver.lookups.reverse()
    answer_lookups(driver)
    driver.commit()
    assert cancel.value == "cancelled"
    assert asked.value.status == "cancelled"


def test_a_delayed_task_that_ends_during_the_look_up_is_told() -> None:
    """Its row is found though it is over, and crossed out."""
    driver = Driver(buffer_tasks=BUFFER)
    delayed = driver.add(5 * BUFFER, delay=30.0, terms=FORGOTTEN).sequences
    driver.pass_time(1.0)
    alone = delayed[-1]
    assert alone not in driver.partition.own_tasks.tasks
    driver.slow_lookups = True
    asked = driver.wait_for(alone)
    driver.pass_time(31.0)
    driver.finish(*read_all(driver))
    driver.pass_time(1.0)
    assert driver.store.empty
    answer_lookups(driver)
    assert asked.value.status == "done"
    late = driver.wait_for(alone)
    answer_lookups(driver)
    assert isinstance(late.value, TaskForgotten)


def test_a_caller_that_leaves_during_the_look_up_is_not_answered_and_not_waited_for() -> None:
    driver, alone = overfull()
    unknown = driver.partition.own_tasks.next_sequence + 5
    for sequence in (alone[0], unknown):
        asked = driver.wait_for(sequence)
        driver.partition.results.wait_no_more(sequence, asked)
        asked.over = True
    answer_lookups(driver)
    assert not driver.partition.results.waiters
    assert not driver.partition.stored_tasks.is_searching


def test_callers_that_wait_for_the_same_task_share_a_look_up() -> None:
    driver, alone = overfull()
    known = [driver.wait_for(alone[0]) for _ in range(3)]
    unknown = [driver.wait_for(2**40) for _ in range(3)]
    assert len(driver.lookups) == 2
    answer_lookups(driver)
    assert all(isinstance(one.value, UnknownTask) for one in unknown)
    known.append(driver.wait_for(alone[0]))
    assert not driver.lookups
    driver.finish(*read_all(driver))
    driver.commit()
    assert {one.value.status for one in known} == {"done"}


def test_callers_hear_why_a_task_could_not_be_looked_up() -> None:
    driver, alone = overfull()
    asked = [driver.wait_for(alone[0]), driver.wait_for(alone[0]), driver.cancel(alone[1])]
    problem = StoreUnavailable("The disk is away.")
    driver.answer_lookup(problem)
    driver.answer_lookup(problem)
    driver.turn()
    assert all(one.value is problem for one in asked)
    assert not driver.partition.results.waiters
    assert driver.partition.own_tasks.open_tasks == 2 * BUFFER


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_an_end_that_left_memory_before_it_was_written_is_known_and_told_when_it_is(
    how: int,
) -> None:
    driver = Driver(results_kept=1)
    driver.auto_commit = False
    first = driver.add(terms=KEPT if how == DONE else FORGOTTEN).sequences[0]
    driver.commit()
    driver.finish(driver.take_one(), how=how, body=b"42")
    driver.add(terms=KEPT)
    driver.finish(driver.take_one())
    assert driver.outcome(first) is None
    asked, cancel = driver.wait_for(first), driver.cancel(first)
    assert not asked.answered
    assert not cancel.answered
    driver.commit()
    assert (asked.value.status, asked.value.body) == ("done" if how == DONE else "failed", b"42")
    assert cancel.value == "over"


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_an_end_that_was_written_during_the_look_up_is_found_in_the_second(how: int) -> None:
    driver = Driver(results_kept=1)
    driver.auto_commit = False
    first = driver.add(terms=KEPT if how == DONE else FORGOTTEN).sequences[0]
    driver.commit()
    driver.finish(driver.take_one(), how=how)
    driver.add(terms=KEPT)
    driver.finish(driver.take_one())
    driver.slow_lookups = True
    asked = driver.wait_for(first)
    driver.commit()
    driver.answer_lookup()
    driver.turn()
    assert not asked.answered
    driver.answer_lookup()
    driver.turn()
    assert asked.value.status == ("done" if how == DONE else "failed")


def test_an_absence_is_told_when_everything_before_it_is_on_disk() -> None:
    """After a crash the task might go on, and end otherwise."""
    driver = Driver()
    driver.auto_commit = False
    (sequence,) = driver.add(terms=FORGOTTEN).sequences
    driver.commit()
    driver.finish(driver.take_one())
    asked = [driver.wait_for(sequence), driver.cancel(sequence)]
    assert not any(one.answered for one in asked)
    driver.commit()
    assert all(isinstance(one.value, TaskForgotten) for one in asked)


def test_an_absence_is_refused_if_the_store_does_not_confirm_the_end() -> None:
    driver = Driver()
    driver.auto_commit = False
    (sequence,) = driver.add(terms=FORGOTTEN).sequences
    driver.commit()
    driver.finish(driver.take_one())
    asked = [driver.wait_for(sequence), driver.cancel(sequence)]
    problem = driver.fail_commit()
    asked += [driver.wait_for(sequence), driver.cancel(sequence)]
    assert all(one.value is problem for one in asked)


@pytest.mark.parametrize("sequence", [0, SEQUENCES_PER_RANGE - 1])
def test_a_number_that_no_owner_gives_out_is_not_looked_up(sequence: int) -> None:
    driver = Driver()
    driver.slow_lookups = True
    assert isinstance(driver.wait_for(sequence).value, UnknownTask)
    assert isinstance(driver.cancel(sequence).value, UnknownTask)
    assert not driver.partition.results.waiters


# Cancelling


def test_a_task_that_is_given_out_during_the_look_up_is_being_cancelled() -> None:
    driver, alone = overfull()
    asked = driver.cancel(alone[0])
    read_all(driver)
    answer_lookups(driver)
    assert asked.value == "cancelling"
    assert driver.partition.own_tasks.tasks[alone[0]].revoked


@pytest.mark.parametrize("terms", [FORGOTTEN, IN_MEMORY, KEPT])
def test_a_task_that_is_done_during_the_look_up_is_not_cancelled(terms: Terms) -> None:
    driver, alone = overfull(terms=terms)
    asked = driver.cancel(alone[0])
    driver.finish(*read_all(driver))
    driver.pass_time(1.0)
    answer_lookups(driver)
    if terms is FORGOTTEN:
        assert isinstance(asked.value, TaskForgotten)
    else:
        assert asked.value == "over"


@pytest.mark.parametrize("terms", [IN_MEMORY, KEPT])
@pytest.mark.parametrize("delay", [0.0, 600.0])
def test_a_task_that_is_cancelled_twice_at_once_is_cancelled_once(
    terms: Terms, delay: float
) -> None:
    driver = Driver(buffer_tasks=BUFFER)
    sequences = driver.add(BUFFER, terms=terms, delay=delay).sequences
    for _ in range(4):
        sequences += driver.add(BUFFER, terms=terms, delay=delay).sequences
    driver.pass_time(1.0)
    alone = sequences[-1]
    assert alone not in driver.partition.own_tasks.tasks
    driver.slow_lookups = True
    asked = [driver.cancel(alone), driver.cancel(alone)]
    answer_lookups(driver)
    driver.pass_time(1.0)
    assert [one.value for one in asked] == ["cancelled", "cancelled"]
    assert driver.partition.own_tasks.open_tasks == len(sequences) - 1
    assert driver.store.backlog == len(sequences) - 1


@pytest.mark.parametrize("written", [True, False])
def test_a_cancellation_in_the_store_is_told_when_it_is_on_disk(*, written: bool) -> None:
    driver, alone = overfull()
    driver.auto_commit = False
    asked: list[Asked] = [driver.cancel(alone[0]), driver.wait_for(alone[0])]
    answer_lookups(driver)
    assert not any(one.answered for one in asked)
    if written:
        driver.commit()
        assert [asked[0].value, asked[1].value.status] == ["cancelled", "cancelled"]
    else:
        problem = driver.fail_commit()
        assert asked[0].value.outcome == "unknown"
        assert asked[1].value is problem


def test_a_delayed_task_that_a_worker_claims_is_being_cancelled() -> None:
    """The worker hears of it with its next heartbeat."""
    driver = crashed(delay=5.0)
    run = the_run(driver)
    driver.beat(1, [run])
    assert run.sequence in driver.partition.attempts.claims
    asked = driver.cancel(run.sequence)
    answer_lookups(driver)
    assert asked.value == "cancelling"
    assert driver.beat(1, [run]).value == ([], [run.sequence])


def test_callers_are_told_when_the_partition_is_let_go_during_the_look_up() -> None:
    driver, alone = overfull()
    asked = [driver.cancel(alone[0]), driver.wait_for(alone[1])]
    tokens, _ = driver.partition.leave()
    assert {one for one in tokens if one in asked} == set(asked)


# Damaged rows


def test_a_task_whose_row_is_set_aside_during_the_look_up_is_damaged() -> None:
    driver, alone = overfull()
    damage(driver, alone[0])
    asked = [driver.wait_for(alone[0]), driver.cancel(alone[1])]
    read_all(driver)
    assert [row.tasks for row in driver.set_aside] == [BUFFER]
    answer_lookups(driver)
    driver.commit()
    assert all(isinstance(one.value, TaskDamaged) for one in asked)
    assert driver.partition.own_tasks.open_tasks == BUFFER


def test_callers_that_wait_for_a_task_hear_that_its_row_was_set_aside_later() -> None:
    driver, alone = overfull()
    good = dict(driver.store.segments)
    asked = driver.wait_for(alone[0])
    driver.answer_lookup()
    assert driver.store.segments == good
    damage(driver, alone[0])
    read_all(driver)
    answer_lookups(driver)
    driver.commit()
    assert isinstance(asked.value, TaskDamaged)
    assert not driver.partition.results.waiters


def test_a_delayed_task_whose_row_is_damaged_is_set_aside_when_it_is_cancelled() -> None:
    driver = crashed(delay=5.0)
    sequence = the_run(driver).sequence
    damage(driver, sequence)
    asked = driver.cancel(sequence)
    answer_lookups(driver)
    driver.commit()
    assert isinstance(asked.value, TaskDamaged)
    assert [(row.kind, row.tasks) for row in driver.set_aside] == [("later", 1)]
    driver.reads_arrive()
    driver.pass_time(1.0)
    assert len(driver.set_aside) == 1
    assert driver.store.unfinished() == set()


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_a_damaged_end_is_set_aside_once(how: int) -> None:
    driver = Driver()
    (sequence,) = driver.add(terms=KEPT).sequences
    driver.pass_time(1.0)
    driver.finish(driver.take_one(), how=how)
    driver.pass_time(1.0)
    if how == FAILED:
        del driver.store.results[sequence]
    damage(driver, sequence)
    kind = "result" if how == DONE else "dead"
    for _ in range(2):  # a dead letter leaves its table, a copy is kept of a result
        driver.crash()
        for asked in (driver.wait_for(sequence), driver.cancel(sequence)):
            assert isinstance(asked.value, TaskDamaged)
        driver.pass_time(1.0)
        assert [row.kind for row in driver.set_aside] == [kind]


def test_a_partition_and_its_parts_show_their_state() -> None:
    driver, alone = overfull()
    driver.cancel(alone[0])
    partition = driver.partition
    assert (
        repr(partition) == "<Partition shop/mails/0: writable, 20 tasks, 0 running, 0 free slots>"
    )
    assert repr(partition.stored_tasks) == "<StoredTasks: 1 looked up, 0 waiting>"
    assert repr(partition.backlog) == "<Backlog: 10 ready, 1 lines continue in the store>"
    assert repr(partition.ledger) == "<Ledger: 20 stored, 0 fresh, 0 held, none under way>"
