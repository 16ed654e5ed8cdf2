"""Quotas of what is stored: what they count, what they refuse, and what they never refuse."""

from __future__ import annotations

from math import inf

import pytest
from msgspec import msgpack

from maitred.errors import StorageQuotaExceeded, StoreFull, TaskForgotten
from maitred.matching.failures import FAILURE_BYTES, cut_failure
from maitred.matching.ledger import Ledger
from maitred.matching.quotas import OVERDRAFT_LEAST, Quotas, size_text
from maitred.matching.records import (
    ROW_BYTES,
    TASK_BYTES,
    PartitionKey,
    StoredUse,
    Terms,
    decode_record,
)
from maitred.settings import Namespace, Queue
from tests.matching.driver import FAILED, Driver

KEY = PartitionKey("shop", "mails", 1, 0)
OTHER = PartitionKey("shop", "bills", 1, 0)
LONG = Terms(retries=0, retention=1_000_000.0)


def test_a_full_queue_refuses_new_tasks_and_takes_them_again_when_there_is_room() -> None:
    driver = Driver(quota=(3, inf))
    driver.add(2)
    with pytest.raises(StorageQuotaExceeded):
        driver.add(2)
    assert driver.add(1).safe
    with pytest.raises(StorageQuotaExceeded):
        driver.add(1, delay=60.0)
    driver.finish(driver.take_one())
    driver.pass_time(1.0)
    driver.look_at_store()
    assert driver.add(1).safe


def test_a_batch_is_taken_in_as_a_whole_or_not_at_all() -> None:
    driver = Driver(quota=(3, inf))
    with pytest.raises(StorageQuotaExceeded):
        driver.add(4)
    assert not driver.partition.own_tasks.open_tasks
    assert driver.add(3).safe


def test_bytes_are_counted_with_what_surrounds_them() -> None:
    driver = Driver(quota=(inf, 2 * (1000 + TASK_BYTES)))
    assert driver.add([bytes(1000)]).safe
    with pytest.raises(StorageQuotaExceeded):
        driver.add([bytes(1001 + TASK_BYTES)])
    assert driver.add([bytes(1000)]).safe
    driver.look_at_store()
    with pytest.raises(StorageQuotaExceeded):
        driver.add([bytes(1000)])


@pytest.mark.parametrize("traces", [bytes(500), [bytes(500), bytes(500)]])
def test_the_traces_of_tasks_count(traces: bytes | list[bytes]) -> None:
    driver = Driver(quota=(inf, 2 * (1000 + TASK_BYTES)))
    with pytest.raises(StorageQuotaExceeded):
        driver.add([bytes(501), bytes(500)], traces=traces)
    assert driver.add([bytes(500), bytes(500)], traces=traces).safe


def test_many_tasks_that_end_before_they_are_written_fill_nothing() -> None:
    """Between two looks the estimate only grows; it is made anew before anything is refused."""
    driver = Driver(quota=(10, inf), hold_seconds=5.0)
    for _ in range(100):
        driver.offer(slots=1)
        driver.add(1)
        driver.finish(driver.given[-1])
        driver.now += 0.02
    assert driver.partition.own_tasks.never_written == 100
    assert driver.quota.refused == 0


def test_a_task_that_a_worker_waits_for_is_taken_beyond_the_quota_but_not_without_end() -> None:
    driver = Driver(quota=(5, inf))
    driver.add(5, delay=600.0)
    with pytest.raises(StorageQuotaExceeded):
        driver.add(1)
    driver.offer(slots=2)
    assert driver.add(1, turn=False).sequences
    driver.turn()
    with pytest.raises(StorageQuotaExceeded):
        driver.add(2)  # one slot is left, so one of them would have to be stored
    # Who fails everything at once leaves it in the store: at some point that ends, too.
    driver.quota.tasks = 5 + OVERDRAFT_LEAST.tasks
    driver.quota.stored = StoredUse(driver.quota.tasks, 0)
    with pytest.raises(StorageQuotaExceeded):
        driver.add(1)


def test_retries_dead_letters_and_results_are_never_refused_and_count() -> None:
    driver = Driver(quota=(2, inf), memory_seconds=1.0)
    driver.add(1, terms=Terms(retries=1, backoff_first=1.0))
    driver.add(1, terms=LONG)
    first, second = driver.take(1, 2)
    driver.finish(first, how=FAILED)  # comes back later
    driver.finish(second, how=FAILED)  # a dead letter, with a result
    driver.pass_time(0.5)
    driver.look_at_store()
    assert driver.quota.stored.tasks == 2
    assert len(driver.store.dead) == len(driver.store.results) == len(driver.store.later) == 1
    with pytest.raises(StorageQuotaExceeded):
        driver.add(1)
    driver.retry_dead(second.sequence)
    driver.commit()
    assert driver.quota.stored.bytes >= 3 * ROW_BYTES


def test_results_beyond_the_quota_stay_in_memory_and_their_tasks_are_over_all_the_same() -> None:
    driver = Driver(quota=(inf, 1000), memory_seconds=1.0, results_bytes=8 * 2**20)
    most = 1000 + OVERDRAFT_LEAST.bytes
    sequences = []
    for _ in range(40):
        driver.offer(slots=1)
        sequences += driver.add(1, terms=LONG).sequences
        driver.finish(driver.given[-1], body=bytes(2**20))
        driver.pass_time(0.5)
        driver.look_at_store()
        assert driver.store.use().bytes <= most
    assert len(driver.store.results) == 15
    assert driver.partition.results.not_kept == len(driver.not_kept) == 25
    assert not driver.partition.own_tasks.open_tasks
    assert driver.wait_for(sequences[-1]).value.status == "done"  # from memory
    told = driver.wait_for(sequences[20]).value  # neither in memory nor in the store
    assert isinstance(told, TaskForgotten)
    driver.store.results.clear()  # they expire
    driver.look_at_store()
    driver.offer(slots=1)
    driver.add(1, terms=LONG)
    driver.finish(driver.given[-1], body=bytes(2**20))
    driver.pass_time(0.5)
    assert len(driver.store.results) == 1


def test_a_stop_writes_no_more_results_than_the_quota_has_room_for() -> None:
    driver = Driver(quota=(inf, 1000))
    for _ in range(20):
        driver.offer(slots=1)
        driver.add(1)
        driver.finish(driver.given[-1], body=bytes(2**20))
    driver.pass_time(0.5)
    kept = 0
    while taken := driver.partition.results.keep_in_store(driver.now, 4, 2**30):
        kept += taken
        driver.commit()
    assert kept == len(driver.store.results) == 15
    assert driver.partition.results.unwritten(driver.now) == 5


@pytest.mark.parametrize("retries", [0, 100])
def test_failures_beyond_the_quota_are_cut_and_no_task_is_lost(retries: int) -> None:
    """As dead letters and as tasks that wait for their next attempt."""
    driver = Driver(quota=(inf, 100_000))
    text = msgpack.encode(("ValueError", "x" * 2**20, "y" * 2**20))
    driver.add(40, terms=Terms(retries=retries, backoff_first=1e6, backoff_longest=1e6))
    for number in range(40):
        driver.finish(driver.take_one(), how=FAILED, body=text)
        if number % 3 == 0:
            driver.pass_time(0.5)
            driver.look_at_store()
    driver.pass_time(0.5)
    assert driver.store.use().bytes <= 100_000 + OVERDRAFT_LEAST.bytes + 40 * FAILURE_BYTES
    rows = driver.store.later if retries else driver.store.dead
    assert len(rows) == 40
    last = decode_record(rows[max(rows)].body, max(rows))
    kind, message, trace = msgpack.decode(last.failure)
    assert (kind, message[:3], trace) == ("ValueError", "xxx", "")
    assert len(last.failure) <= FAILURE_BYTES
    assert driver.partition.results.not_kept == len(driver.not_kept) > 30


@pytest.mark.parametrize("told", [b"\x93", b"\xff" * 9, msgpack.encode(("é" * 900, "é" * 900, ""))])
def test_a_failure_is_cut_whatever_its_worker_sent(told: bytes) -> None:
    cut = cut_failure(told)
    assert len(cut) <= FAILURE_BYTES
    assert [type(part) for part in msgpack.decode(cut)] == [str, str, str]


def test_after_a_crash_the_count_is_what_the_store_holds() -> None:
    driver = Driver(quota=(100, inf))
    driver.add(60)
    driver.add(30, delay=1000.0)
    driver.crash()
    assert driver.quota.tasks == 90
    with pytest.raises(StorageQuotaExceeded):
        driver.add(11)
    assert driver.add(10).safe


def quotas(**namespace: int) -> Quotas:
    return Quotas({"shop": Namespace(**namespace)}, 1000)


def test_the_queues_of_a_namespace_share_its_quota_and_others_do_not() -> None:
    made = quotas(stored_tasks=10)
    one = made.of(KEY, Queue(stored_tasks=8))
    two = made.of(OTHER, Queue())
    elsewhere = made.of(PartitionKey("evil", "mails", 1, 0), Queue())
    assert [quota.most_tasks for quota in one] == [inf, 8, 10]
    assert two[-1] is one[-1]
    assert elsewhere[-1] is not one[-1]
    assert made.of(KEY._replace(partition=7), Queue(stored_tasks=8))[1] is one[1]


def test_a_namespace_counts_queues_that_no_partition_of_this_shard_serves() -> None:
    made = quotas(stored_tasks=10)
    quota = made.of(KEY, Queue())[-1]
    quota.join(Ledger(KEY, 1, 0))
    made.look_begins()
    made.look_ended({("shop", "old"): StoredUse(9, 900), ("evil", "x"): StoredUse(10**9, 0)}, None)
    assert quota.tasks == 9
    assert quota.refusal(2, 0, 0.0, at_once=False) is not None
    assert quota.refusal(1, 0, 0.0, at_once=False) is None
    assert made.namespace_use("shop") == StoredUse(9, 900)
    assert made.queue_use("shop", "old") == StoredUse(9, 900)


def test_what_is_written_while_the_store_is_asked_is_not_forgotten() -> None:
    made = quotas(stored_tasks=10)
    quota = made.of(KEY, Queue())[-1]
    quota.join(Ledger(KEY, 1, 0))
    quota.wrote(StoredUse(3, 0))
    made.look_begins()
    quota.wrote(StoredUse(4, 0))
    made.look_ended({("shop", "mails"): StoredUse(3, 0)}, None)
    assert quota.tasks == 7
    made.look_begins()
    made.look_ended({("shop", "mails"): StoredUse(7, 0)}, None)
    assert quota.tasks == 7


def test_quotas_of_queues_that_are_gone_are_forgotten() -> None:
    made = quotas(stored_tasks=10)
    ledger = Ledger(KEY, 1, 0)
    for quota in (found := made.of(KEY, Queue(stored_tasks=1))):
        quota.join(ledger)
    made.look_ended({}, None)
    assert made.of(KEY, Queue(stored_tasks=1)) == found
    for quota in found:
        quota.leave(ledger)
    made.look_ended({}, None)
    assert not made._queues
    assert not made._namespaces


def test_below_the_least_room_on_the_disk_only_what_workers_wait_for_is_taken() -> None:
    made = quotas()
    (disk, *_) = made.of(KEY, Queue())
    made.look_ended({}, 5_000)
    assert disk.refusal(1, 4_000, 0.0, at_once=False) is None
    assert isinstance(disk.refusal(1, 4_001, 0.0, at_once=False), StoreFull)
    assert disk.refusal(1, 4_500, 0.0, at_once=True) is None
    made.look_ended({}, 700)
    assert isinstance(disk.refusal(1, 1, 1.0, at_once=False), StoreFull)
    assert disk.refusal(1, 1, 1.0, at_once=True) is None
    assert disk.has_room(200, 1.0)  # a result or a failure
    assert not disk.has_room(201, 1.0)
    made.look_ended({}, 400)  # what was acknowledged needs the rest
    assert not disk.has_room(1, 2.0)
    assert isinstance(disk.refusal(1, 1, 2.0, at_once=True), StoreFull)
    made.look_ended({}, None)  # an engine that cannot tell
    assert disk.refusal(1, 10**15, 3.0, at_once=False) is None


def test_a_refusal_names_the_quota_the_use_and_what_can_be_done() -> None:
    made = quotas(stored_tasks=2, stored_bytes=3 * 2**20)
    quota = made.of(KEY, Queue())[-1]
    problem = quota.refusal(3, 0, 0.0, at_once=False)
    assert isinstance(problem, StorageQuotaExceeded)
    assert problem.code == "storage-quota-exceeded"
    assert "Namespace shop holds 0 tasks and 0 B" in problem.sentence
    assert "its quota is 2 tasks and 3.0 MiB" in problem.sentence
    assert "namespaces" in (problem.remedy or "")
    assert problem.retry_after
    assert quota.refused == 3


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**44, "16.0 TiB")]
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert size_text(size) == text
