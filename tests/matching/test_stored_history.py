"""Tasks that ended, in the store: the same after a crash, and never more than was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.matching import stored_history
from maitred.matching.controls import LiveSetting, QueueControls
from maitred.matching.records import PartitionKey, StoredHistoryRow, Terms
from maitred.matching.stored_history import HistoryReading
from maitred.matching.task import OVER, QueueTask
from maitred.matching.task_history import PAYLOAD_BYTES, TaskHistories, kept_bytes
from maitred.settings import History
from tests.matching import listing
from tests.matching.driver import DONE, FAILED, Driver

if TYPE_CHECKING:
    from maitred.matching.sighted_task import SightedTask

ANY_SIZE = 10**12
STORED = History(stored=True)


def write(driver: Driver) -> int:
    """Write what is to be written, as the node does; return the number of tasks."""
    history, tasks = driver.partition.stored_history, 0
    while (taken := history.take(driver.now)) is not None:
        driver.store.write(taken.changes)
        history.stored(taken)
        tasks += len(taken.tasks)
    return tasks


def rows(driver: Driver) -> list[StoredHistoryRow]:
    """Return the rows that have not expired, the last one first."""
    found = sorted(driver.store.results.items())
    return [
        StoredHistoryRow(number, row.body)
        for number, row in found
        if number < 0 and row.expires_at > driver.now + driver.wall
    ]


def read(driver: Driver, most_bytes: int = ANY_SIZE) -> HistoryReading:
    reading = HistoryReading()
    driver.partition.stored_history.read(rows(driver), reading, most_bytes)
    driver.partition.stored_history.read_whole(reading, driver.now)
    return reading


def end(driver: Driver, tasks: int = 1, payload: bytes = b"", **added: Any) -> None:  # noqa: ANN401
    """Have tasks done, a second after another."""
    for _ in range(tasks):
        driver.add([payload], **added)
        driver.finish(*driver.take("w", 1), how=DONE)
        driver.pass_time(1.0)


def told(found: list[SightedTask], wall: float) -> list[tuple[object, ...]]:
    """What operators can see of tasks; moments to the microsecond."""
    return [
        (
            *(one.state, task.sequence, task.priority, task.terms, task.payload, task.by),
            *(task.attempt, task.failure, task.past, task.worker, task.forwarded),
            *(task.status, task.payload_gone, round(one.at[0], 5)),
            *(at and round(at + wall, 5) for at in (task.added, task.ended, task.given_at)),
        )
        for one in found
        for task in [one.task]
    ]


def test_tasks_that_ended_are_the_same_after_a_crash() -> None:
    driver = Driver(history=STORED)
    end(driver, priority=1, terms=Terms(hidden=(1,)))
    driver.add(1, terms=Terms(retries=3, backoff_first=0.1))
    driver.finish(*driver.take("w", 1), how=FAILED, body=b"\x93\xa1a\xa1b\xa1c")
    driver.pass_time(1.0)
    driver.finish(*driver.take("x", 1), how=DONE)
    driver.cancel(driver.add(1, delay=60.0).sequences[0])
    driver.add([bytes(PAYLOAD_BYTES + 1)])
    driver.finish(*driver.take("w", 1), how=DONE)
    driver.pass_time(1.0)
    before = told(listing.ended(driver, 100), driver.wall)
    assert len(before) == 4
    assert write(driver) == 4
    driver.crash(down_seconds=100.0)
    assert not driver.partition.stored_history.is_known
    read(driver)
    assert told(listing.ended(driver, 1), driver.wall) == before
    end(driver)
    assert told(listing.ended(driver, 1), driver.wall)[1:] == before
    assert write(driver) == 1
    driver.crash()
    read(driver)
    assert len(listing.ended(driver, 100)) == 5


def test_a_queue_that_does_not_ask_for_it_writes_nothing() -> None:
    driver = Driver()
    end(driver)
    assert driver.partition.stored_history.is_known
    assert driver.partition.stored_history.take(driver.now) is None
    assert not driver.partition.stored_history.has_unstored


def test_rows_are_bounded_in_number_and_time() -> None:
    driver = Driver(history=History(tasks=5, seconds=60.0, stored=True), signatures_seconds=0.0)
    for _ in range(9):
        end(driver)
        write(driver)
    assert len(rows(driver)) == 5
    driver.crash(down_seconds=0.0)
    assert len(read(driver).tasks) == 5
    end(driver, 3)
    assert write(driver) == 3
    assert len(rows(driver)) <= 5 - 3 + 1, "those of the last owner expire too"
    assert len(listing.ended(driver, 100)) == 5
    driver.pass_time(58.5)
    assert len(listing.ended(driver, 100)) == 1
    driver.pass_time(2.0)
    driver.crash()
    assert not read(driver).tasks


def test_a_task_that_may_run_again_is_in_no_row() -> None:
    driver = Driver(history=STORED, hold_seconds=0.0)
    end(driver)
    driver.auto_commit = False
    driver.add(1)
    driver.commit()
    driver.finish(*driver.take("w", 1), how=DONE)
    assert write(driver) == 1, "that of the task whose end is written"
    driver.commit()
    assert write(driver) == 1


@pytest.mark.parametrize("retention", [60.0, 3600.0])
def test_an_end_that_may_be_undone_is_in_no_history(retention: float) -> None:
    """The commit with it is under way when the partition is given up: its outcome is unknown."""
    driver = Driver(history=STORED, hold_seconds=10.0)
    end(driver)
    driver.auto_commit = False
    driver.add(1, terms=Terms(retention=retention))
    if retention < 3600.0:
        driver.commit()
    driver.finish(*driver.take("w", 1), how=DONE)
    driver.begin_commit(anything=True)
    kept = driver.partition.ended_tasks
    assert len(kept) == len(kept.unstored) == 2
    driver.partition.leave()
    assert len(kept) == len(kept.unstored) == 1


def test_histories_leave_room_for_tasks() -> None:
    driver = Driver(history=STORED, quota=(1_000, 20_000))
    end(driver, 9)
    assert write(driver) == 9
    driver.add([bytes(9_000)])
    end(driver, 9)
    assert write(driver) == 0
    assert len(driver.partition.ended_tasks.unstored) == 9, "memory has them"
    driver.finish(*driver.take("w", 1), how=DONE)
    driver.pass_time(1.0)
    driver.look_at_store()
    assert write(driver) == 0, "the large one is among them"
    driver.quota.limit(1_000, 100_000, 1_000, 100_000)
    assert write(driver) == 10


def test_only_the_last_tasks_that_wait_are_stored() -> None:
    """Those before are beyond `history.tasks`, and so are not lost."""
    driver = Driver(history=History(tasks=5, stored=True))
    history, ended = driver.partition.stored_history, driver.partition.ended_tasks
    end(driver, 4)
    taken = history.take(driver.now)
    assert taken is not None
    history.not_stored(taken, driver.now)
    again = history.take(driver.now)
    assert again is not None
    assert [task.sequence for task in again.tasks] == [task.sequence for task in taken.tasks]
    end(driver, 4)  # while the commit is under way
    history.not_stored(again, driver.now)
    assert len(ended.unstored) == 5
    last = history.take(driver.now)
    assert last is not None
    driver.store.write(last.changes)
    end(driver, 2)
    history.stored(last)
    assert len(ended.unstored) == 2
    assert write(driver) == 2
    assert ended._memory.lost == 0


def test_tasks_for_which_memory_has_no_room_are_lost_before_they_are_stored() -> None:
    driver = Driver(history=History(tasks=1_000, stored=True))
    ended = driver.partition.ended_tasks
    end(driver, 2)
    write(driver)
    end(driver, 5)
    ended._memory.most_bytes = ended._memory.used
    end(driver, 2)
    assert (len(ended), len(ended.unstored)) == (7, 7)
    assert ended._memory.lost == 0, "those that were dropped are stored"
    end(driver, 3)
    assert ended._memory.lost == 3
    taken = driver.partition.stored_history.take(driver.now)
    assert taken is not None
    end(driver, 1)
    driver.store.write(taken.changes)
    driver.partition.stored_history.stored(taken)
    assert ended._memory.lost == 3, "the one that was dropped meanwhile is stored"
    taken = driver.partition.stored_history.take(driver.now)
    assert taken is not None
    end(driver, 7)
    driver.partition.stored_history.not_stored(taken, driver.now)
    assert ended._memory.lost == 4


@pytest.mark.parametrize("is_loaded", [True, False])
def test_what_expires_before_it_is_stored_is_lost_if_another_owner_was_asked(
    *, is_loaded: bool
) -> None:
    histories = TaskHistories(ANY_SIZE)
    key = PartitionKey("shop", "mails", 1, 0)
    ended = histories.of(key)
    ended.limit_to(10, 60.0, is_stored=True)
    for number in range(3):
        ended.add(QueueTask(number, 2, Terms(), b"", 0.0, OVER), "done", 10.0 * number)
    histories.forget_expired(75.0, [key] if is_loaded else [])
    assert (len(ended), len(ended.unstored)) == (1, 1)
    assert histories.memory.lost == (0 if is_loaded else 2)


def test_all_that_end_are_kept_where_they_are_stored() -> None:
    """In memory only, a busy partition keeps a sample."""
    driver = Driver(history=History(tasks=50))
    kept = driver.partition.ended_tasks

    def ends_now() -> int:
        """How many of a hundred tasks that end now are kept."""
        driver.pass_time(0.1)
        driver.add(100)
        driver.finish(*driver.take("w", 100))
        return sum(one.task.ended == driver.now for one in listing.ended(driver, 1_000))

    def store(*, value: bool) -> None:
        live = {"history.stored": LiveSetting(value=value)}
        driver.partition.set_controls(QueueControls(version=9, settings=live), driver.now)

    assert [ends_now() for _ in range(3)] == [50, 0, 0]
    store(value=True)
    assert [ends_now() for _ in range(3)] == [50, 50, 50]
    driver.pass_time(0.1)
    assert write(driver) == 50
    assert kept.keeps_at <= driver.now
    store(value=False)
    assert [ends_now() for _ in range(3)] == [50, 0, 0]
    assert kept.keeps_at > driver.now, "most ends cost a comparison"


def test_a_busy_partition_stores_tasks_although_all_that_it_keeps_have_just_ended() -> None:
    """Whenever a row is to be written, the ends of the last tasks are not, and the tasks before
    were pushed out by these."""
    driver = Driver(history=History(tasks=3, stored=True), hold_seconds=0.0)
    driver.auto_commit = False
    second = []
    for number in range(4):
        driver.add(5)
        driver.commit()
        runs = driver.take("w", 5)
        driver.finish(*runs)
        second.append([run.sequence for run in runs[-3:]])
        assert write(driver) == (3 if number else 0), "of the second before"
        driver.pass_time(1.0)
        assert len(driver.partition.ended_tasks.row) == 3, "no more are kept besides"
    driver.crash()
    read(driver)
    assert [one.task.sequence for one in listing.ended(driver, 9)] == second[-2][::-1]


def test_a_partition_that_is_let_go_leaves_the_row_that_it_was_to_write_to_memory() -> None:
    driver = Driver(history=STORED)
    end(driver, 3)
    kept = driver.partition.ended_tasks
    assert driver.partition.stored_history.take(driver.now) is not None
    assert (len(kept.row), len(kept.unstored)) == (3, 0)
    driver.partition.leave()
    assert (len(kept.row), len(kept.unstored)) == (0, 3)


def test_a_row_that_was_written_while_the_partition_was_lost_is_not_written_again() -> None:
    """A commit is under way when the shard lets the partition go, and loads it again later."""
    driver = Driver(history=History(tasks=10, stored=True))
    end(driver, 6)
    taken = driver.partition.stored_history.take(driver.now)
    assert taken is not None
    driver.ended_tasks = driver.partition.ended_tasks
    driver.partition.leave()
    driver.store.write(taken.changes)
    driver.crash()
    assert len(driver.partition.ended_tasks.unstored) == 6
    read(driver)
    assert write(driver) == 0
    end(driver, 4)
    assert write(driver) == 4
    assert len(rows(driver)) == 2, "ten tasks are stored, so the oldest row does not expire"


def test_a_task_that_is_in_two_rows_takes_the_place_of_no_other() -> None:
    driver = Driver(history=History(tasks=10, stored=True))
    history = driver.partition.stored_history
    end(driver, 10)
    write(driver)
    end(driver, 5)
    taken = history.take(driver.now)
    assert taken is not None
    driver.store.write(taken.changes)
    history.not_stored(taken, driver.now, maybe=True)
    end(driver, 2)
    assert write(driver) == 7
    before = [one.task.sequence for one in listing.ended(driver, 10)]
    driver.crash()
    read(driver)
    assert [one.task.sequence for one in listing.ended(driver, 10)] == before
    end(driver, 1)
    write(driver)
    driver.crash()
    read(driver)
    assert [one.task.sequence for one in listing.ended(driver, 10)][1:] == before[:-1]


def test_rows_that_cannot_be_read_are_left_out() -> None:
    driver = Driver(history=STORED)
    for _ in range(3):
        end(driver)
        write(driver)
    first, second, third = sorted(number for number in driver.store.results if number < 0)
    for number, body in ((first, b""), (second, driver.store.results[second].body[:-1] + b"\x7f")):
        driver.store.results[number] = driver.store.results[number]._replace(body=body)
    driver.crash()
    reading = read(driver)
    assert (reading.damaged, len(reading.tasks)) == (2, 1)
    assert reading.blocks[-1].number == third
    end(driver)
    assert write(driver) == 1


@pytest.mark.parametrize(
    "setting", [{"history.stored": False}, {"history.tasks": 0}, {"history.tasks": 2}]
)
def test_a_setting_that_is_changed_live_takes_effect_on_rows(
    setting: dict[str, bool | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_history, "EXPIRED_AT_ONCE", 2)
    driver = Driver(history=STORED)
    for _ in range(6):
        end(driver)
        write(driver)
    live = {name: LiveSetting(value=value) for name, value in setting.items()}
    driver.partition.set_controls(QueueControls(version=9, settings=live), driver.now)
    assert "" in {key.queue for key in driver.partition.ended_tasks._memory.unstored}
    write(driver)
    assert len(rows(driver)) == setting.get("history.tasks", 0)


def test_rows_that_one_commit_leaves_are_due_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_history, "EXPIRED_AT_ONCE", 2)
    driver = Driver(history=STORED)
    for _ in range(6):
        end(driver)
        write(driver)
    history = driver.partition.stored_history
    assert not history.is_due(driver.now)
    live = {"history.stored": LiveSetting(value=False)}
    driver.partition.set_controls(QueueControls(version=9, settings=live), driver.now)
    for left in (4, 2, 0):
        assert history.is_due(driver.now)
        taken = history.take(driver.now)
        assert taken is not None
        driver.store.write(taken.changes)
        history.stored(taken)
        assert len(rows(driver)) == left
    assert not history.is_due(driver.now)


def test_rows_of_a_longer_time_go_by_the_shorter_one() -> None:
    """Rows keep arguments: an operator who lowers the time wants them to be gone."""
    driver = Driver(history=History(seconds=86_400.0, stored=True))
    for _ in range(3):
        end(driver)
        write(driver)
        driver.pass_time(99.0)
    live = {"history.seconds": LiveSetting(value=150.0)}
    driver.partition.set_controls(QueueControls(version=9, settings=live), driver.now)
    write(driver)
    assert len(rows(driver)) == len(listing.ended(driver, 100)) == 1
    ended = driver.partition.ended_tasks
    ended._memory.unstored.clear()
    driver.pass_time(100.0)
    ended.forget_expired(driver.now)
    assert ended._memory.unstored, "the shell is to look at it without an end of a task"
    write(driver)
    assert not rows(driver)


def test_memory_bounds_what_is_read() -> None:
    driver = Driver(history=STORED)
    for _ in range(5):
        end(driver, payload=bytes(1_000))
        write(driver)
    driver.crash()
    driver.partition.ended_tasks._memory.most_bytes = 4_000
    read(driver, most_bytes=4_000)
    found = listing.ended(driver, 100)
    assert len(found) == 2
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)


def test_a_partition_that_comes_back_has_each_task_once() -> None:
    driver = Driver(history=STORED)
    end(driver, 3)
    taken = driver.partition.stored_history.take(driver.now)
    assert taken is not None
    driver.store.write(taken.changes)
    driver.partition.stored_history.not_stored(taken, driver.now)  # as when the answer is lost
    write(driver)
    assert len(rows(driver)) == 2
    kept = driver.partition.ended_tasks
    driver.crash(down_seconds=0.0)
    driver.partition.ended_tasks.restore(kept.last_first(driver.now), driver.now)
    read(driver)
    assert len(listing.ended(driver, 100)) == 3


@pytest.mark.parametrize("limit", ["tasks", "bytes"])
def test_what_an_owner_remembers_gives_way_to_what_ended_later(limit: str) -> None:
    """The partition was away, and comes back to a shard whose memory is full of what it knew."""
    driver = Driver(history=History(tasks=3 if limit == "tasks" else 1_000, stored=True))
    end(driver, 3)
    write(driver)
    before = [*driver.partition.ended_tasks.last_first(driver.now)]
    driver.crash(down_seconds=0.0)
    end(driver, 2)
    write(driver)
    last = [one.task.sequence for one in listing.ended(driver, 100)[:2]]
    driver.crash(down_seconds=0.0)
    ended = driver.partition.ended_tasks
    ended.restore(before, driver.now)
    if limit == "bytes":
        ended._memory.most_bytes = ended._memory.used
    read(driver)
    found = [one.task.sequence for one in listing.ended(driver, 100)]
    assert found == [*last, before[0].sequence]
    assert ended._memory.used == 3 * kept_bytes(before[0])
