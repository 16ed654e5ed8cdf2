"""Homes: the same as the routes that everybody computes, until exactly the moment of a flip."""

from __future__ import annotations

from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import InvalidArgument, InvalidName, InvalidPartition, InvalidShards
from maitred.routing import GradualChange, HashRing, QueueId, routes
from maitred.routing import homes as homes_module
from maitred.routing.homes import Homes, PartitionAddress
from maitred.routing.keys import own_key
from tests.routing.strategies import queues

RING = HashRing(["a:1", "b:1", "c:1"])
shard_counts = st.integers(1, 64)
bits = st.integers(0, 20)
moments = st.floats(-1e12, 1e12)


def address(queue: QueueId, partition: int) -> tuple[str, str, int, int]:
    return (queue.namespace, queue.queue, queue.type, partition)


@given(queues, shard_counts, bits, st.sampled_from((0, 1, 2, 3, 8)), moments)
def test_a_home_is_where_the_route_leads(
    queue: QueueId, shards: int, ignore_msb: int, batch_size: int, now: float
) -> None:
    homes = Homes(shards, ignore_msb, GradualChange.constant(batch_size))
    for route in routes(
        RING, queue, 12, batch_size=batch_size, shards=shards, ignore_msb=ignore_msb
    ):
        for _ in ("computed", "remembered"):
            home = homes.home(address(queue, route.partition), now)
            assert (home.key, home.shard) == (route.key, route.shard)
            assert (home.queue, home.batch_size, home.until) == (queue, batch_size, inf)


@given(queues, shard_counts)
def test_without_spread_routing_each_partition_has_its_own_key(queue: QueueId, shards: int) -> None:
    homes = Homes(shards)
    found = [homes.home(PartitionAddress(*address(queue, at)), 0.0) for at in range(8)]
    assert [home.key for home in found] == [own_key(queue, at) for at in range(8)]
    assert homes.shards == shards


@given(
    queues,
    st.integers(0, 50),
    st.sampled_from(((0, 4), (4, 0), (2, 8))),
    st.floats(0, 4e9),
    st.floats(1e-3, 1e7),
    st.booleans(),
)
def test_a_home_changes_exactly_when_its_key_flips(
    queue: QueueId,
    partition: int,
    sizes: tuple[int, int],
    start: float,
    span: float,
    asked_before: bool,
) -> None:
    change = GradualChange(*sizes, start, start + span)
    flip = change.when(own_key(queue, partition))
    assert flip is not None
    before, after = (Homes(7, spread_batch=GradualChange.constant(size)) for size in sizes)
    homes = Homes(7, spread_batch=change)
    where = address(queue, partition)
    if asked_before:
        assert homes.home(where, start - 1).until == flip
    old = homes.home(where, nextafter(flip, -inf))
    assert old[:4] == before.home(where, 0.0)[:4]
    assert old.until == flip
    for now in (flip, flip + 1, change.end + 1):
        assert homes.home(where, now) == after.home(where, 0.0)


def test_what_is_remembered_is_not_computed_again() -> None:
    homes = Homes(4, spread_batch=GradualChange(0, 4, 1000.0, 2000.0))
    where = ("namespace", "queue", 1, 3)
    first = homes.home(where, 900.0)
    assert homes.home(where, 950.0) is first
    flipped = homes.home(where, 3000.0)
    assert flipped is not first
    assert homes.home(where, 4000.0) is flipped


def test_partitions_are_told_apart() -> None:
    homes = Homes(64)
    places = [
        ("namespace", "queue", 1, 3),
        ("namespace", "queue", 1, 4),
        ("namespace", "queue", 2, 3),
        ("namespace", "other", 1, 3),
        ("elsewhere", "queue", 1, 3),
    ]
    keys = {homes.home(place, 0.0).key for place in places * 2}
    assert len(keys) == len(places)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes_module, "REMEMBERED_MAX", 10)
    homes = Homes(4)
    for at in range(55):
        homes.home(("namespace", "queue", 1, at), 0.0)
        assert len(homes._remembered) <= 10
    assert len(homes._remembered) == 5
    assert homes.home(("namespace", "queue", 1, 0), 0.0) == Homes(4).home(
        ("namespace", "queue", 1, 0), 0.0
    )


def test_the_bound_is_what_it_says() -> None:
    assert homes_module.REMEMBERED_MAX == 65_536


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (("", "queue", 1, 0), InvalidName),
        (("a:b", "queue", 1, 0), InvalidName),
        (("namespace", "", 1, 0), InvalidName),
        (("namespace", "q:1", 1, 0), InvalidName),
        (("namespace", "/_sys/q/1", 1, 0), InvalidName),
        (("namespace", "x" * 256, 1, 0), InvalidName),
        (("namespace", "\ud800", 1, 0), InvalidName),
        (("namespace", "queue", -1, 0), InvalidName),
        (("namespace", "queue", 2**31, 0), InvalidName),
        (("namespace", "queue", 2**64, 0), InvalidName),
        (("namespace", "queue", 1, -1), InvalidPartition),
        (("namespace", "queue", 1, 100_000), InvalidPartition),
        (("namespace", "queue", 1, -(2**63)), InvalidPartition),
    ],
)
def test_what_can_be_nobodys_is_refused_every_time_and_not_remembered(
    where: tuple[str, str, int, int], error: type[InvalidArgument]
) -> None:
    homes = Homes(4, spread_batch=GradualChange.constant(3))
    for _ in range(2):
        with pytest.raises(error):
            homes.home(where, 0.0)
    assert not homes._remembered


@pytest.mark.parametrize("sizes", [(-1, 0), (0, -1), (100_001, 0), (0, 100_001), (0, 1.5)])
def test_a_batch_size_that_cannot_be_is_refused_at_once(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidPartition):
        Homes(4, spread_batch=GradualChange(*sizes, 0.0, 1.0))


@pytest.mark.parametrize(("shards", "ignore_msb"), [(0, 12), (-1, 12), (4, -1), (4, 64)])
def test_shards_that_cannot_be_are_refused_at_once(shards: int, ignore_msb: int) -> None:
    with pytest.raises(InvalidShards):
        Homes(shards, ignore_msb)
