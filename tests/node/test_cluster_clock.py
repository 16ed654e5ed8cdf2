"""By which clock a shard stores moments and places partitions: the cluster's, if all go by it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from maitred.protocol.description import DATABASE_CLOCK
from tests.node.clusters import cluster
from tests.node.in_process import in_a_loop, node

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.membership.view import ClusterView
    from maitred.node.shard import Shard

AHEAD = 300.0


def of_versions(view: ClusterView, *versions: tuple[int, ...]) -> ClusterView:
    members = zip(view.members, versions, strict=True)
    return replace(view, members=tuple(replace(one, versions=spoken) for one, spoken in members))


def correction(shard: Shard) -> float:
    """How far the cluster's time is behind this machine's."""
    return shard._surroundings.wall_clock() - shard.cluster_time()


@in_a_loop
async def test_the_database_s_clock_counts_once_every_member_goes_by_it(tmp_path: Path) -> None:
    both, old = (DATABASE_CLOCK - 1, DATABASE_CLOCK), (DATABASE_CLOCK - 1,)
    async with cluster(tmp_path) as there:
        shard = there.shard(0)
        shard.adopt(of_versions(there.view(2), both, old))
        shard.renew_lease(inf, AHEAD)
        assert correction(shard) == pytest.approx(0.0, abs=10.0)
        shard.adopt(of_versions(there.view(3), both, both))
        assert correction(shard) == pytest.approx(AHEAD, abs=10.0)
        shard.renew_lease(inf, -AHEAD)
        assert correction(shard) == pytest.approx(-AHEAD, abs=10.0)
        # The upgrade is undone.
        shard.adopt(of_versions(there.view(4), both, old))
        assert correction(shard) == pytest.approx(0.0, abs=10.0)


@in_a_loop
async def test_a_node_without_a_cluster_goes_by_its_own_clock(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        shard = running.shard
        assert shard.cluster_time == shard._surroundings.wall_clock
