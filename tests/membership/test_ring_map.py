"""The map of the ring agrees with the ring, and with where partitions really are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from maitred.errors import UnknownNode
from maitred.membership.homes import ClusterHomes
from maitred.membership.ring_map import RingMap, arcs_of, shares_of
from maitred.membership.view import ClusterView, MemberState
from maitred.routing.fingerprint import fingerprint32
from maitred.routing.ring import CIRCLE, HashRing
from tests.membership.observing import member, view


def cluster(count: int) -> ClusterView:
    return view(7, [member(number) for number in range(count)])


@given(st.integers(1, 5), st.text(max_size=20))
def test_a_key_belongs_to_the_arc_that_it_falls_into(count: int, key: str) -> None:
    found = cluster(count)
    ring = HashRing(one.name for one in found.active)
    arcs = arcs_of(found)
    try:
        place = fingerprint32(key) / CIRCLE
    except UnicodeEncodeError:
        return
    assert next(one.member for one in arcs if place <= one.end) == ring.lookup(key)
    assert arcs[-1].end == 1.0
    assert all(one.member != following.member for one, following in pairwise(arcs))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_what_a_member_leaves_is_what_the_others_gain(count: int) -> None:
    found = cluster(count)
    shares = shares_of(arcs_of(found))
    assert sum(one.share for one in shares.values()) == pytest.approx(1)
    for gone in found.active:
        rest = replace(found, members=tuple(one for one in found.members if one != gone))
        after = shares_of(arcs_of(rest))
        for name, one in after.items():
            gained = shares[gone.name].heirs.get(name, 0.0)
            assert one.share == pytest.approx(shares[name].share + gained)


@pytest.mark.parametrize("batch", ["0", "8"])
def test_partitions_move_to_where_they_are_after_a_member_has_left(batch: str) -> None:
    found = replace(cluster(3), spread_batch=batch)
    gone = found.active[1]
    after = ClusterHomes(replace(found, members=(found.members[0], found.members[2])))
    homes = ClusterHomes(found)
    moves = list(RingMap(found, gone.id).moves("shop", "mails", 1, 20, 0.0))
    assert [one.partition for one in moves] == list(range(20))
    for one in moves:
        address = ("shop", "mails", 1, one.partition)
        assert (one.member, one.shard) == homes.home(address, 0.0)[:2]
        assert (one.heir, one.heir_shard) == after.home(address, 0.0)[:2]
        assert one.heir != gone
    assert any(one.member == gone for one in moves)


def test_the_last_member_leaves_to_nobody() -> None:
    found = cluster(1)
    assert shares_of(arcs_of(found))[found.active[0].name].heirs == {}
    (move,) = RingMap(found, found.active[0].name).moves("shop", "mails", 1, 1, 0.0)
    assert move.heir is None
    empty = view(8, [member(1, MemberState.DRAINING)])
    assert arcs_of(empty) == []
    assert list(RingMap(empty).moves("shop", "mails", 1, 4, 0.0)) == []
    with pytest.raises(UnknownNode):
        RingMap(empty, member(1).id)
