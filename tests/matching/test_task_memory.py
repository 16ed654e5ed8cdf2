"""The memory that waiting tasks of all partitions of a shard share."""

from __future__ import annotations

from maitred.matching.task_memory import FLOOR_BYTES, TaskMemory
from tests.matching.driver import Driver

SIZE = 10_000


def test_while_the_budget_is_used_up_a_line_has_its_floor_and_no_more() -> None:
    memory = TaskMemory(100)
    assert memory.share(50, 0) == 50
    memory.used = 100
    assert memory.share(10**6, 50) == FLOOR_BYTES
    assert memory.share(5, 50) == 5
    memory = TaskMemory(10**6)
    memory.used = 700_000
    assert memory.share(10**9, 200_000) == 500_000  # what it has, and what is left


def test_a_backlog_beyond_the_budget_is_in_the_store_and_runs_in_order() -> None:
    driver = Driver(memory_bytes=20 * SIZE)
    for number in range(60):
        assert driver.add([bytes([number]) * SIZE]).safe
    most = 21 * SIZE
    assert driver.memory.used <= most
    ran = []
    while driver.partition.own_tasks.open_tasks:
        run = driver.take_one()
        ran.append(run.payload[0])
        driver.finish(run)
        driver.pass_time(0.1)
        assert driver.memory.used <= most
    assert ran == list(range(60))
    assert driver.memory.used == 0


def test_a_queue_whose_neighbours_use_up_everything_has_its_floor() -> None:
    driver = Driver(memory_bytes=1)
    driver.memory.used = others = 10**9
    driver.checking = False
    for _ in range(20):
        assert driver.add([bytes(SIZE)]).safe
    mine = driver.memory.used - others
    assert FLOOR_BYTES <= mine < FLOOR_BYTES + 2 * SIZE
    for _ in range(20):
        driver.finish(driver.take_one())
        driver.pass_time(0.1)
    assert not driver.partition.own_tasks.open_tasks
    assert driver.memory.used == others


def test_delayed_tasks_count_and_are_left_to_the_store() -> None:
    driver = Driver(memory_bytes=SIZE)
    for number in range(60):
        assert driver.add([bytes([number]) * SIZE], delay=30.0 + number).safe
    assert driver.memory.used <= 2 * FLOOR_BYTES + SIZE
    ran = []
    for _ in range(200):
        driver.pass_time(1.0)
        for run in driver.take(1, 5) if driver.partition.backlog.ready else ():
            ran.append(run.payload[0])
            driver.finish(run)
    assert ran == list(range(60))
    assert driver.memory.used == 0


def test_a_partition_that_is_let_go_gives_its_memory_back() -> None:
    driver = Driver()
    driver.add([bytes(SIZE)] * 3)
    driver.add([bytes(SIZE)], delay=5.0)
    assert driver.memory.used == 4 * SIZE
    driver.partition.leave()
    assert driver.memory.used == 0
