"""Views of a cluster: which of them place partitions alike, and what all members understand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from maitred.membership.homes import ClusterHomes
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.routing.names import QueueId


def member(number: int, state: MemberState = MemberState.ACTIVE, **more: object) -> ClusterMember:
    made = ClusterMember(
        id=f"{number:016x}",
        node=f"node-{number}",
        host="10.0.0.1",
        port=4747 + 10 * number,
        member_port=4750 + 10 * number,
        shards=2,
        shard_ports=(4748 + 10 * number, 4749 + 10 * number),
        state=state,
        versions=(1,),
    )
    return replace(made, **more)


def view(version: int, *members: ClusterMember, **terms: str) -> ClusterView:
    return ClusterView(cluster="c", version=version, members=members, **terms)


THREE = view(3, member(1), member(2), member(3))
ALIKE = [
    view(4, member(1), member(2), member(3), member(4, MemberState.JOINING)),
    view(5, member(1), member(2), member(3), member(4, MemberState.DRAINING)),
]
OTHER = [
    view(4, member(1), member(2)),
    view(4, member(1), member(2), member(3, MemberState.DRAINING)),
    view(4, member(1), member(2), member(3), member(4)),
    view(4, member(1), member(2), member(5, port=member(3).port)),  # a node was started again
    view(4, *THREE.members, spread_batch="8"),
    view(4, *THREE.members, placement="steady"),
]


@pytest.mark.parametrize("other", ALIKE)
def test_a_member_outside_of_the_ring_moves_nothing(other: ClusterView) -> None:
    assert other.places_like(THREE)
    before, after = ClusterHomes(THREE), ClusterHomes(other)
    for number in range(200):
        address = QueueId("n", f"q{number}", 1)
        assert before.home((*address, 0), 0.0)[1:] == after.home((*address, 0), 0.0)[1:]
        assert before.home((*address, 0), 0.0).member == after.home((*address, 0), 0.0).member


@pytest.mark.parametrize("other", OTHER)
def test_another_ring_or_other_terms_place_otherwise(other: ClusterView) -> None:
    assert not other.places_like(THREE)
    assert not THREE.places_like(other)


def test_what_all_members_understand() -> None:
    assert THREE.protocol == 1
    mixed = view(4, member(1, versions=(1, 2)), member(2, versions=(2, 3)), member(3, versions=()))
    assert mixed.protocol == 2
    assert view(4, member(1, versions=(1,)), member(2, versions=(2,))).protocol == 0
    assert view(4).protocol == 0
