"""Which partitions are idle in the store: told by range ids, and by nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.matching.idleness import Idleness, is_as_new
from maitred.matching.records import PartitionKey
from maitred.routing.counts import PartitionCounts
from maitred.settings import Queue

KEY = PartitionKey("shop", "mails", 1, 0)


def test_a_row_is_idle_from_when_it_was_first_seen_so() -> None:
    idleness = Idleness()
    assert idleness.seen(KEY, 1, 10.0) == 0.0
    idleness.pass_ends()
    assert idleness.seen(KEY, 1, 25.0) == 15.0
    idleness.pass_ends()
    assert idleness.seen(KEY, 2, 30.0) == 0.0, "somebody has used it"
    idleness.pass_ends()
    idleness.pass_ends()  # it was in memory then
    assert idleness.seen(KEY, 2, 50.0) == 0.0


def test_rows_wait_until_a_pass_sees_none() -> None:
    idleness = Idleness()
    waits = [idleness.waiting]  # nothing is known before the first pass
    idleness.seen(KEY, 1, 10.0)
    idleness.pass_ends()
    waits.append(idleness.waiting)
    idleness.pass_ends()
    waits.append(idleness.waiting)
    idleness.waiting = True  # one was let go
    idleness.seen(KEY, 2, 20.0)
    idleness.pass_ends()
    waits.append(idleness.waiting)
    assert waits == [True, True, False, True]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30))
def test_it_is_never_longer_than_since_the_last_use(looks: list[tuple[int, bool]]) -> None:
    idleness = Idleness()
    used_at, before = 0.0, 0
    for now, (range_id, seen) in enumerate(looks):
        if range_id != before or not seen:
            used_at, before = float(now), range_id
        if seen:
            assert idleness.seen(KEY, range_id, float(now)) <= now - used_at
        idleness.pass_ends()


def test_counts_that_a_new_queue_would_have() -> None:
    one, four = Queue(), Queue(partitions=4)
    assert is_as_new(None, one)
    assert is_as_new(PartitionCounts(1, 1, 7), one)
    assert is_as_new(PartitionCounts(4, 4, 1), four)
    assert not is_as_new(PartitionCounts(4, 4, 1), one)
    assert not is_as_new(PartitionCounts(4, 1, 2), one)
    assert not is_as_new(PartitionCounts(1, 1, 7), four)
