"""A line in memory is bounded in bytes, too: large payloads are left to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.matching.ledger import SEGMENT_BYTES, SEGMENT_TASKS
from maitred.matching.records import Terms, decode_records
from tests.matching.driver import DONE, FAILED, Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

FORGOTTEN = Terms(retention=0.0)
LARGE = 100_000
BUFFER = 10 * LARGE
TASKS = 100
MANY_TASKS = 1_000_000
"""Of no account: the bytes are the limit."""


def payload(number: int, size: int = LARGE) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def in_memory(driver: Driver) -> int:
    return sum(len(task.payload) for task in driver.partition.own_tasks.tasks.values())


def crowded(**settings: object) -> Driver:
    return Driver(buffer_tasks=MANY_TASKS, buffer_bytes=BUFFER, **settings)  # type: ignore[arg-type]


def served(driver: Driver, slots: int = 1) -> Iterator[int]:
    """Which payloads come, one after another, until there are no more."""
    while driver.partition.own_tasks.open_tasks:
        runs = driver.take(slots=slots)
        assert runs or driver.partition.own_tasks.recovering
        for run in runs:
            yield int.from_bytes(run.payload[:4], "big")
        driver.finish(*runs)
        driver.pass_time(0.1)


def test_large_payloads_are_left_to_the_store_and_come_in_their_order() -> None:
    driver = crowded()
    for number in range(TASKS):
        assert driver.add([payload(number)], terms=FORGOTTEN).safe
        assert in_memory(driver) <= BUFFER
    assert in_memory(driver) == BUFFER
    came = []
    for number in served(driver):
        came.append(number)
        assert in_memory(driver) <= BUFFER + SEGMENT_BYTES
    assert came == list(range(TASKS))
    assert driver.store.empty


def test_a_batch_goes_beyond_by_itself_and_what_follows_waits_in_the_store() -> None:
    driver = crowded()
    driver.add([payload(number) for number in range(30)], terms=FORGOTTEN)
    for first in range(30, TASKS, 10):
        driver.add([payload(number) for number in range(first, first + 10)], terms=FORGOTTEN)
        assert in_memory(driver) == 30 * LARGE
    assert list(served(driver, slots=3)) == list(range(TASKS))


def test_after_a_crash_no_more_is_read_than_there_is_room_for() -> None:
    driver = crowded()
    driver.add([payload(number) for number in range(TASKS)], terms=FORGOTTEN)
    driver.crash()
    driver.turn()
    assert BUFFER <= in_memory(driver) <= BUFFER + SEGMENT_BYTES
    driver.pass_time(4.0)
    for place, number in enumerate(served(driver)):
        assert number == place
        assert in_memory(driver) <= BUFFER + SEGMENT_BYTES
    assert driver.store.empty


def test_tasks_larger_than_the_buffer_come_one_by_one() -> None:
    driver = crowded()
    size = 3 * BUFFER
    for number in range(5):
        driver.add([payload(number, size)], terms=FORGOTTEN)
        assert in_memory(driver) == size
    assert list(served(driver)) == list(range(5))


def test_other_priorities_have_room_of_their_own() -> None:
    driver = crowded()
    for number in range(50):
        driver.add([payload(number)], priority=3, terms=FORGOTTEN)
    driver.add([payload(50)], priority=1, terms=FORGOTTEN)
    assert next(served(driver)) == 50


def test_what_is_too_large_to_stay_is_read_when_it_is_written() -> None:
    driver = crowded()
    for number in range(11):
        driver.add([payload(number)], terms=FORGOTTEN)
    driver.auto_commit = False
    driver.add([payload(number) for number in range(11, 90)], terms=FORGOTTEN)
    given = [int.from_bytes(driver.take_one().payload[:4], "big") for _ in range(11)]
    assert driver.take() == []
    driver.commit()
    assert in_memory(driver) <= 11 * LARGE + BUFFER + SEGMENT_BYTES
    driver.auto_commit = True
    while len(given) < 90:
        run = driver.take_one()
        given.append(int.from_bytes(run.payload[:4], "big"))
        driver.finish(run)
        driver.pass_time(0.1)
    assert given == list(range(90))


def test_large_tasks_that_wait_for_their_time_are_left_to_the_store() -> None:
    driver = crowded()
    for number in range(TASKS):
        driver.add([payload(number)], delay=1000.0 + number / 10, terms=FORGOTTEN)
        assert in_memory(driver) <= 2 * BUFFER + LARGE
    driver.crash()
    driver.pass_time(1100.0)
    came = []
    for number in served(driver):
        came.append(number)
        assert in_memory(driver) <= 5 * BUFFER
    assert came == list(range(TASKS))
    assert driver.store.empty


def test_large_tasks_that_are_due_at_the_same_moment() -> None:
    driver = crowded()
    driver.add([payload(number) for number in range(TASKS)], delay=100.0, terms=FORGOTTEN)
    assert in_memory(driver) <= BUFFER
    driver.pass_time(101.0)
    came = []
    for number in served(driver, slots=3):
        came.append(number)
        assert in_memory(driver) <= 5 * BUFFER
    assert sorted(came) == list(range(TASKS))
    assert driver.store.empty


def test_rows_that_are_over_do_not_hide_those_behind_them() -> None:
    """A read begins at the first row: it may find none but those that are to be crossed out."""
    driver = crowded(finish_seconds=1e6)
    numbers = [
        driver.add([payload(number)], delay=100.0 + number, terms=FORGOTTEN).sequences[0]
        for number in range(TASKS)
    ]
    driver.auto_commit = False
    for sequence in numbers[:60]:
        assert driver.revoke(sequence) == "cancelled"
    driver.pass_time(300.0)
    came = [driver.take_one() for _ in range(40)]
    assert [run.sequence for run in came] == numbers[60:]
    driver.auto_commit = True
    driver.finish(*came)
    driver.commit()
    assert driver.store.empty


def test_retries_of_large_tasks() -> None:
    driver = crowded()
    again = Terms(retries=3, backoff_first=5.0, backoff_longest=5.0, retention=0.0)
    driver.add([payload(number) for number in range(TASKS)], terms=again)
    failed: set[int] = set()
    ended = 0
    while driver.partition.own_tasks.open_tasks:
        runs = driver.take(slots=4)
        for run in runs:
            how = DONE if run.sequence in failed else FAILED
            failed.add(run.sequence)
            driver.finish(run, how=how)
            ended += how == DONE
        driver.pass_time(0.5)
    assert ended == TASKS
    assert driver.store.empty


# Segments


def segments(driver: Driver, priority: int = 2) -> list[tuple[int, int]]:
    """Tasks and payload bytes of each, in order; the model store sees to it that none overlap."""
    found = driver.store.read(priority, -1, 10**9, 10**12)
    return [
        (one.tasks, sum(len(record.payload) for record in decode_records(one))) for one, _ in found
    ]


def test_segments_are_split_at_their_bytes() -> None:
    driver = Driver()
    driver.add([bytes(SEGMENT_BYTES // 2)] * 5)
    half = SEGMENT_BYTES // 2
    assert segments(driver) == [(2, 2 * half), (2, 2 * half), (1, half)]


def test_segments_are_split_at_their_tasks() -> None:
    driver = Driver()
    driver.checking = False
    driver.add([b"x"] * (2 * SEGMENT_TASKS + 1))
    assert [tasks for tasks, _ in segments(driver)] == [SEGMENT_TASKS, SEGMENT_TASKS, 1]


def test_a_task_larger_than_a_segment_has_one_of_its_own() -> None:
    driver = Driver()
    driver.add([b"x", bytes(2 * SEGMENT_BYTES), b"y", b"z"])
    assert segments(driver) == [(1, 1), (1, 2 * SEGMENT_BYTES), (2, 2)]


def test_a_part_of_a_group_that_is_over_when_it_is_written_stays_over() -> None:
    """Others of the same commit come after it, so a read passes it."""
    driver = Driver(buffer_tasks=10)
    numbers = driver.add(10, terms=FORGOTTEN).sequences
    driver.auto_commit = False
    large = [bytes(SEGMENT_BYTES)] * 3
    parked = driver.add(large, terms=FORGOTTEN).sequences
    driver.begin_commit()
    assert driver.revoke(parked[0]) == "cancelled"
    driver.end_commit()
    given = [driver.take_one().sequence for _ in range(12)]
    assert given == numbers + parked[1:]
    assert driver.take() == []


def test_an_offer_that_is_answered_keeps_no_task() -> None:
    """Its timer remembers it until its time is up, however long that is."""
    driver = crowded()
    driver.add([payload(number) for number in range(4)], terms=FORGOTTEN)
    asked = driver.offer(slots=4)
    assert len(asked.value) == 4
    assert asked.offer is not None
    assert asked.offer.given == []
