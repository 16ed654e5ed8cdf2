from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.errors import InvalidPartition, InvalidShards, NoHosts, UnknownAlgorithm
from maitred.routing import (
    PLACEMENTS,
    GradualChange,
    HashRing,
    QueueId,
    flips,
    own_key,
    place,
    place_all,
    routes,
    routing_key,
    shard_of,
    token,
)
from tests.routing.strategies import host_lists, queues

QUEUE = QueueId("ns", "queue", 1)
HOSTS = [f"10.0.0.{i}:7233" for i in range(8)]
batch_sizes = st.integers(0, 20)
placements = st.sampled_from(sorted(PLACEMENTS))


@given(host_lists, queues, st.integers(0, 60), batch_sizes)
def test_wrap_is_temporals_rule(
    hosts: list[str], queue: QueueId, partition: int, batch_size: int
) -> None:
    ring = HashRing(hosts)
    key, index = routing_key(queue, partition, batch_size)
    found = ring.lookup_n(key, index + 1)
    assert place(ring, queue, partition, batch_size) == (key, index, found[index % len(found)])


@given(host_lists, queues, st.integers(1, 60), batch_sizes, placements)
@settings(max_examples=50)
def test_place_and_place_all_agree_and_can_be_checked_on_the_ring(
    hosts: list[str], queue: QueueId, partitions: int, batch_size: int, placement: str
) -> None:
    ring = HashRing(hosts)
    placed = place_all(ring, queue, partitions, batch_size, placement)
    assert placed == [place(ring, queue, p, batch_size, placement) for p in range(partitions)]
    for one in placed:
        found = ring.lookup_n(one.key, one.index + 1)
        assert found[one.index % len(found)] == one.node


@given(host_lists, queues, st.integers(1, 40), st.integers(0, 3), placements, st.integers(1, 100))
@settings(max_examples=50)
def test_loads_within_a_batch_differ_by_at_most_one(
    hosts: list[str], queue: QueueId, batch_size: int, batch: int, placement: str, points: int
) -> None:
    ring = HashRing(hosts, replica_points=points)
    placed = PLACEMENTS[placement](ring, queue, batch, batch_size)
    loads = Counter(one.node for one in placed)
    assert max(loads.values()) == math.ceil(batch_size / len(hosts))
    assert min(loads[host] for host in hosts) == batch_size // len(hosts)


@given(host_lists, queues, batch_sizes, placements)
def test_the_root_stands_where_basic_routing_puts_it(
    hosts: list[str], queue: QueueId, batch_size: int, placement: str
) -> None:
    ring = HashRing(hosts)
    assert place(ring, queue, 0, batch_size, placement).node == ring.lookup(own_key(queue, 0))


@given(st.integers(1, 40), st.integers(1, 40), batch_sizes, placements)
@settings(max_examples=50)
def test_changing_the_partition_count_moves_nobody(
    few: int, more: int, batch_size: int, placement: str
) -> None:
    ring = HashRing(HOSTS)
    one = place_all(ring, QUEUE, few, batch_size, placement)
    other = place_all(ring, QUEUE, more, batch_size, placement)
    assert all(a == b for a, b in zip(one, other, strict=False))


@given(st.permutations(HOSTS), batch_sizes, placements)
@settings(max_examples=30)
def test_the_order_of_hosts_changes_nothing(
    hosts: list[str], batch_size: int, placement: str
) -> None:
    assert place_all(HashRing(hosts), QUEUE, 30, batch_size, placement) == place_all(
        HashRing(HOSTS), QUEUE, 30, batch_size, placement
    )


def share_moved(batch_size: int, placement: str) -> float:
    """Facts file's own experiment: 8 hosts, 384 partitions, one host lost; mean over the hosts."""
    ring = HashRing(HOSTS)
    names = [QueueId("ns", f"queue{n}", 1) for n in range(6)]
    before = [place_all(ring, name, 64, batch_size, placement) for name in names]
    moved = 0
    for host in HOSTS:
        ring.remove(host)
        for name, old in zip(names, before, strict=True):
            new = place_all(ring, name, 64, batch_size, placement)
            moved += sum(a.node != b.node for a, b in zip(old, new, strict=True))
        ring.add(host)
    return moved / (384 * len(HOSTS))


@pytest.mark.parametrize(("batch_size", "published"), [(0, 0.12), (3, 0.26), (8, 0.56), (64, 0.84)])
def test_wrap_moves_what_was_measured_on_the_original(batch_size: int, published: float) -> None:
    assert share_moved(batch_size, "wrap") == pytest.approx(published, abs=0.02)


@pytest.mark.parametrize(("batch_size", "at_most"), [(3, 0.15), (8, 0.26), (64, 0.24)])
def test_steady_moves_far_less(batch_size: int, at_most: float) -> None:
    moved = share_moved(batch_size, "steady")
    assert moved < at_most
    assert moved < 0.65 * share_moved(batch_size, "wrap")


def test_routes() -> None:
    ring = HashRing(["a:1", "b:2", "c:3"])
    found = routes(ring, QUEUE, 30, batch_size=4, shards=8, ignore_msb=12, degree=3)
    assert [route.partition for route in found] == list(range(30))
    assert [route.name for route in found[:2]] == ["queue", "/_sys/queue/1"]
    assert found[0].parent is None
    assert [route.parent for route in found[1:5]] == [0, 0, 0, 1]
    for route in found:
        assert (route.key, route.index) == routing_key(QUEUE, route.partition, 4)
        assert route.shard == shard_of(token(route.key.encode()), 8, 12)


@given(st.floats(0, 100), placements)
def test_flips_tell_where_each_partition_is_at_any_time(now: float, placement: str) -> None:
    ring = HashRing(HOSTS)
    change = GradualChange(0, 4, 10.0, 90.0)
    for flip in flips(ring, QUEUE, 9, change, placement=placement, shards=4):
        size = change.value(own_key(QUEUE, flip.before.partition), now)
        assert flip.flips_at is not None
        route = flip.after if now >= flip.flips_at else flip.before
        assert place(ring, QUEUE, route.partition, size, placement).node == route.node


def test_without_a_change_nothing_flips() -> None:
    for flip in flips(HashRing(HOSTS), QUEUE, 5, GradualChange.constant(2)):
        assert flip.before == flip.after
        assert flip.flips_at is None


def test_gradual_movement_keeps_neighbours_apart() -> None:
    moments = sorted(
        flip.flips_at or 0.0
        for flip in flips(HashRing(HOSTS), QUEUE, 64, GradualChange(0, 8, 0.0, 3_600.0))
    )
    assert all(a < b for a, b in pairwise(moments)), "each partition flips by itself"


def test_a_batch_may_be_larger_than_the_queue() -> None:
    """The batch size is the node's, for all its queues; most have fewer partitions."""
    ring = HashRing(HOSTS)
    found = routes(ring, QUEUE, 4, batch_size=8)
    placed = [place(ring, QUEUE, partition, 8) for partition in range(4)]
    assert [(one.key, one.index, one.node) for one in found] == [
        (one.key, one.index, one.node) for one in placed
    ]
    assert len(flips(ring, QUEUE, 4, GradualChange(0, 8, 0.0, 1.0))) == 4


def test_bad_input() -> None:
    ring = HashRing(HOSTS)
    with pytest.raises(UnknownAlgorithm, match="Did you mean 'steady'") as unknown:
        routes(ring, QUEUE, 4, placement="stady")
    assert unknown.value.code == "unknown-algorithm"
    with pytest.raises(InvalidPartition, match="100,001 is more than the 100,000 partitions"):
        routes(ring, QUEUE, 4, batch_size=100_001)
    with pytest.raises(InvalidPartition, match="100,001 is more than the 100,000 partitions"):
        flips(ring, QUEUE, 4, GradualChange(0, 100_001, 0.0, 1.0))
    with pytest.raises(InvalidPartition, match="not 0"):
        routes(ring, QUEUE, 0)
    with pytest.raises(InvalidPartition, match="there is no -1"):
        place(ring, QUEUE, -1)
    with pytest.raises(InvalidPartition, match="is negative"):
        place_all(ring, QUEUE, 4, -1)
    with pytest.raises(InvalidPartition, match="at least 1 child"):
        routes(ring, QUEUE, 4, degree=0)
    with pytest.raises(InvalidShards):
        routes(ring, QUEUE, 4, shards=0)
    for placement in PLACEMENTS:
        with pytest.raises(NoHosts):
            routes(HashRing(), QUEUE, 4, batch_size=2, placement=placement)
