from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InternalError, InvalidPartition, UnsafePartitionChange
from maitred.routing import PartitionCounts, children, depth, parent, path_to_root
from maitred.routing.counts import COUNTS_TABLE, CountsChange, CountsState

if TYPE_CHECKING:
    from collections.abc import Callable

partitions = st.integers(0, 5_000)
degrees = st.integers(1, 50)


def test_cadences_example() -> None:
    assert [parent(p) for p in (0, 1, 20, 21, 40, 41)] == [None, 0, 0, 1, 1, 2]


@given(st.integers(1, 99_999), degrees)
def test_parent_is_the_formula(partition: int, degree: int) -> None:
    assert parent(partition, degree) == math.ceil(partition / degree) - 1


@given(st.integers(1, 600), degrees)
def test_children_and_parents_agree(count: int, degree: int) -> None:
    seen = [child for p in range(count) for child in children(p, count, degree)]
    assert seen == list(range(1, count)), "each partition but the root is one child of one parent"
    for p in range(count):
        assert all(parent(child, degree) == p for child in children(p, count, degree))
        assert len(children(p, count, degree)) <= degree


@given(partitions, degrees)
def test_the_path_leads_to_the_root(partition: int, degree: int) -> None:
    path = list(path_to_root(partition, degree))
    assert path[0] == partition
    assert path[-1] == 0
    assert all(parent(child, degree) == up for child, up in pairwise(path))
    assert depth(partition, degree) == len(path) - 1


def test_a_chain_is_a_tree_too() -> None:
    assert depth(99_999, 1) == 99_999


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: parent(-1), "there is no -1"),
        (lambda: parent(1, 0), "at least 1 child, not 0"),
        (lambda: list(path_to_root(3, -2)), "at least 1 child"),
        (lambda: children(4, 4), "Partition 4 does not exist"),
        (lambda: children(-1, 4), "Partition -1 does not exist"),
        (lambda: children(0, 0), "from 1 to 100000 partitions, not 0"),
        (lambda: PartitionCounts(0, 0), "not 0"),
        (lambda: PartitionCounts(2, 3), "would never be found"),
        (lambda: parent(5, 1.5), "not 1.5"),  # type: ignore[arg-type]
        (lambda: PartitionCounts(2, 2, -1), "version -1"),
        (lambda: PartitionCounts(2, 2, 1.5), "version 1.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_trees_and_counts(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InvalidPartition, match=sentence):
        call()


def test_growing_is_safe_at_once() -> None:
    grown = PartitionCounts(2, 2, 7).changed(read=8, write=6, drained={})
    assert grown == PartitionCounts(8, 6, 8)
    assert grown.readable(7)
    assert not grown.writable(7)
    assert not grown.readable(8)
    assert not grown.readable(-1)


def test_shrinking_takes_two_steps() -> None:
    full = PartitionCounts(4, 4, 1)
    with pytest.raises(UnsafePartitionChange, match="2 to 3 are still written") as refused:
        full.changed(read=2, write=2, drained={2: 1, 3: 1})
    assert refused.value.remedy == "First lower write to 2 and keep read at 4."
    draining = full.changed(read=4, write=2, drained={})
    with pytest.raises(UnsafePartitionChange, match=r"2 of the .* at version 2 .*: 2, 3"):
        draining.changed(read=2, write=2, drained={})
    with pytest.raises(UnsafePartitionChange, match=r"1 of the .*: 3"):
        draining.changed(read=2, write=2, drained={2: 2, 3: 1})
    assert draining.changed(read=2, write=2, drained={2: 2, 3: 2}) == PartitionCounts(2, 2, 3)
    assert draining.changed(read=3, write=2, drained={3: 2}) == PartitionCounts(3, 2, 3)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()), max_size=12))
def test_no_sequence_of_accepted_changes_hides_a_task(
    wanted: list[tuple[int, int, bool]],
) -> None:
    """Every writable partition gets a task at every version; workers drain when told to.

    Whatever changes are accepted, each task lies in a partition that is read.
    """
    counts = PartitionCounts(1, 1)
    tasks = {0}
    confirmed: dict[int, int] = {}
    for read, write, drains in wanted:
        if drains:
            tasks -= {p for p in tasks if not counts.writable(p)}
            confirmed |= dict.fromkeys(range(counts.write, counts.read), counts.version)
        try:
            counts = counts.changed(read=read, write=write, drained=confirmed)
        except (UnsafePartitionChange, InvalidPartition):
            continue
        tasks |= set(range(counts.write))
        assert all(counts.readable(p) for p in tasks), (counts, tasks)


sizes = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda pair: sorted(pair, reverse=True))


@given(sizes, sizes, st.booleans(), st.booleans())
def test_every_change_follows_the_table(
    before: list[int], wanted: list[int], drained: bool, force: bool
) -> None:
    counts = PartitionCounts(before[0], before[1], 7)
    read, write = wanted
    confirmed = dict.fromkeys(range(counts.write, counts.read), 7 if drained else 6)
    try:
        if force:
            after = counts.forced(read=read, write=write)
        else:
            after = counts.changed(read=read, write=write, drained=confirmed)
    except UnsafePartitionChange:
        assert read < counts.write or not drained
        return
    assert after == PartitionCounts(read, write, 8), "the version rises with every change"
    change = counts.change_to(after, force=force)
    assert COUNTS_TABLE.after(counts.state, change) is after.state
    removed = change not in {CountsChange.OPEN, CountsChange.CLOSE}
    assert removed == (after.read < counts.read)


def test_only_a_draining_queue_removes_partitions_without_force() -> None:
    removing = {CountsChange.REMOVE, CountsChange.REMOVE_SOME}
    assert removing.isdisjoint(COUNTS_TABLE.transitions[CountsState.STEADY])
    assert removing <= COUNTS_TABLE.transitions[CountsState.DRAINING].keys()
    with pytest.raises(InternalError, match="steady got the event remove"):
        COUNTS_TABLE.after(CountsState.STEADY, CountsChange.REMOVE)
    assert PartitionCounts(4, 4, 1).forced(read=2, write=1) == PartitionCounts(2, 1, 2)
