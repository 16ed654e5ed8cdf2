"""What operators purge: which tasks are dropped, and what their callers are told."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.purge import PURGED
from maitred.matching.records import Terms
from maitred.matching.task import Ticket
from tests.matching.driver import FAILED, Driver

ALL = 2**62


def ticket() -> Ticket:
    return Ticket(lambda *_: None, 1)


def purged(driver: Driver, *, until: int = ALL, older_than: float = 0.0, most: int = 7) -> int:
    """Purge the waiting tasks as a shard does, and return how many were dropped."""
    purge = driver.partition.purge
    dropped = 0
    for _ in range(10_000):
        if purge.must_wait:
            driver.pass_time(0.1)
            continue
        found = purge.drop_waiting(most, until, older_than, ticket(), driver.now)
        driver.turn()
        dropped += found
        if found:
            continue
        if driver.partition.purge.is_over(until, older_than, driver.now):
            return dropped
    raise AssertionError("the purge never ends")


def test_waiting_tasks_are_dropped_and_running_ones_are_not() -> None:
    driver = Driver()
    driver.add(10)
    running = driver.take(slots=3)
    assert purged(driver) == 7
    assert len(driver.partition.own_tasks.leases) == 3
    driver.finish(*running)
    driver.commit()
    assert driver.partition.own_tasks.open_tasks == len(driver.store) == 0


def test_tasks_that_are_in_the_store_alone_are_dropped_within_the_memory() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(500)
    driver.commit()
    assert purged(driver) == 500
    driver.commit()
    assert len(driver.store) == 0
    assert driver.take(slots=5) == []


def test_tasks_that_were_added_later_stay() -> None:
    driver = Driver(buffer_tasks=10)
    old = driver.add(50).sequences
    new = driver.add(50).sequences
    driver.commit()
    assert purged(driver, until=old[-1]) == 50
    assert driver.partition.waiting == 50
    found = []
    while runs := driver.take(slots=20):
        found += [run.sequence for run in runs]
        driver.finish(*runs)
    assert found == new


def test_only_tasks_of_that_age_are_dropped() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(50)
    driver.pass_time(100.0)
    driver.add(50)
    assert purged(driver, older_than=60.0) == 50
    assert driver.partition.waiting == 50
    assert purged(driver, older_than=60.0) == 0


def test_callers_are_told_and_no_result_is_written() -> None:
    driver = Driver(buffer_tasks=10, memory_seconds=60.0)
    added = driver.add(30, terms=Terms(retention=86_400.0))
    waiting = [driver.wait_for(sequence) for sequence in added.sequences]
    assert purged(driver) == 30
    driver.commit()
    for asked in waiting:
        assert (asked.value.status, asked.value.body) == ("cancelled", PURGED)
    assert not driver.store.results


def test_delayed_tasks_and_retries_are_dropped() -> None:
    driver = Driver(buffer_tasks=10)
    driver.add(40, delay=500.0)
    driver.add(1)
    driver.finish(driver.take_one(), how=FAILED)
    driver.commit()
    purge = driver.partition.purge
    assert purge.delayed(len(driver.store.later)) == 41
    dropped = 0
    while rows := sorted(driver.store.later.values(), key=lambda one: one.due)[:7]:
        dropped += purge.drop_delayed(rows, 7, ticket(), driver.now)
        driver.commit()
    assert dropped == 41
    assert driver.partition.own_tasks.open_tasks == 0
    driver.pass_time(1_000.0)
    assert driver.take() == []


def test_a_retry_that_ends_while_its_row_is_read_is_not_dropped() -> None:
    driver = Driver()
    driver.add(1)
    driver.finish(driver.take_one(), how=FAILED)
    driver.commit()
    driver.pass_time(1_000.0)
    running = driver.take_one()
    purge = driver.partition.purge
    with purge.reading():
        rows = list(driver.store.later.values())
        assert len(rows) == 1
        driver.finish(running)
        driver.commit()
        assert purge.drop_delayed(rows, 7, ticket(), driver.now) == 0
    driver.commit()
    assert driver.partition.own_tasks.open_tasks == len(driver.store) == 0


@given(seed=st.integers(0, 10**6))
def test_every_task_is_run_or_purged_and_none_is_both(seed: int) -> None:
    random = Random(seed)
    driver = Driver(buffer_tasks=10)
    added, ran = set(), set()
    dropped = 0
    for _ in range(random.randint(1, 25)):
        act = random.choice(("add", "take", "purge", "crash", "pause", "resume"))
        if act == "add":
            added |= set(driver.add(random.randint(1, 30), priority=random.randint(1, 3)).sequences)
            driver.commit()
        elif act == "take":
            runs = driver.take(slots=random.randint(1, 10))
            ran |= {run.sequence for run in runs}
            driver.finish(*runs)
            driver.commit()
        elif act == "purge":
            dropped += purged(driver, until=driver.partition.read_level)
            driver.commit()
        elif act == "crash":
            driver.commit()
            driver.crash()
            driver.pass_time(5.0)
        elif act == "pause":
            driver.pause()
        else:
            driver.resume()
    driver.resume()
    driver.commit()
    dropped += purged(driver)
    driver.commit()
    cancelled = {one for one, status in driver.ended.items() if status == "cancelled"}
    assert len(cancelled) == dropped
    assert not cancelled & ran
    assert cancelled | ran == added
    assert len(driver.store) == 0
