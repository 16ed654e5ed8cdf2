from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from studies.placement import PlacementSettings, PlacementStudy, draw, placement_study
from studies.placement.study import GRADUAL_STEPS, Cluster, _hosts, _queues

from maitred.errors import InvalidArgument, InvalidPartition, UnknownAlgorithm
from maitred.routing import HashRing, place_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

SMALL = PlacementSettings(clusters=(Cluster(10, 320, changes=2), Cluster(4, 100, changes=4)))


@pytest.fixture(scope="module")
def study() -> PlacementStudy:
    return placement_study(SMALL, lambda _done, _total, _what: None)


def test_every_placement_batch_and_cluster_is_measured_once(study: PlacementStudy) -> None:
    seen = [(one.cluster, one.batch_size, one.placement) for one in study.measured]
    assert len(seen) == len(set(seen)) == 2 * (1 + 3 * 2)
    assert len(study.gradual) == 2 * 2


def test_measures_against_a_count_by_hand(study: PlacementStudy) -> None:
    """Place everything again, the plain way, and count."""
    cluster = SMALL.clusters[1]
    for one in (m for m in study.measured if m.cluster == cluster):
        queues = list(_queues(SMALL, cluster))
        assert [count for _, count in queues] == [64, 36]
        whole = HashRing(_hosts(4))
        before = [
            place.node
            for queue, count in queues
            for place in place_all(whole, queue, count, one.batch_size, one.placement)
        ]
        fullest = max(before.count(host) for host in whole.hosts)
        assert one.max_over_mean == pytest.approx(fullest / 25)
        moved = 0
        for host in whole.hosts:
            whole.remove(host)
            after = [
                place.node
                for queue, count in queues
                for place in place_all(whole, queue, count, one.batch_size, one.placement)
            ]
            moved += sum(old != new for old, new in zip(before, after, strict=True))
            whole.add(host)
        # All four hosts were lost once, so the order in which they were picked does not matter.
        assert one.moved_by_loss == pytest.approx(moved / 400)


def test_what_must_hold(study: PlacementStudy) -> None:
    for one in study.measured:
        assert one.roots_moved_by_spread == 0
        assert one.max_over_mean >= one.p99_over_mean >= 1 or one.cluster.hosts > 100
        assert one.queue_on_core <= one.queue_on_host
        assert 0 <= one.moved_by_loss <= 1
    for gradual in study.gradual:
        assert len(gradual.moved) == GRADUAL_STEPS + 1
        assert gradual.moved == sorted(gradual.moved)
        assert gradual.moved[0] == 0


def test_steady_moves_less_and_spreads_as_well(study: PlacementStudy) -> None:
    found = {(m.cluster, m.batch_size, m.placement): m for m in study.measured}
    for cluster in SMALL.clusters:
        for batch_size in (8, 64):
            wrap = found[cluster, batch_size, "wrap"]
            steady = found[cluster, batch_size, "steady"]
            assert steady.moved_by_loss < 0.75 * wrap.moved_by_loss
            if cluster.partitions % batch_size == 0:  # only full batches are even with `steady`
                assert steady.queue_on_host <= wrap.queue_on_host + 0.5


def test_the_same_settings_give_the_same_study() -> None:
    small = replace(SMALL, clusters=SMALL.clusters[1:])
    once, again = (placement_study(small, lambda _done, _total, _what: None) for _ in range(2))
    assert json.dumps(again.as_json()) == json.dumps(once.as_json())


def test_progress_reaches_the_end() -> None:
    told: list[tuple[int, int]] = []
    placement_study(
        replace(SMALL, clusters=(Cluster(3, 10, 1),), partitions_per_queue=64),
        lambda done, total, _: told.append((done, total)),
    )
    assert [done for done, _ in told] == list(range(len(told)))
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"partitions_per_queue": 0}, InvalidPartition, "not 0"),
        ({"batch_sizes": (65,)}, InvalidPartition, "65 is more than the 64"),
        ({"gradual_batch_size": 65}, InvalidPartition, "65 is more than the 64"),
        ({"batch_sizes": ()}, InvalidArgument, "needs clusters, batch sizes"),
        ({"placements": ("wrong",)}, UnknownAlgorithm, "no placement called 'wrong'"),
        ({"shards": 0}, InvalidArgument, "not 0"),
    ],
)
def test_bad_settings(
    settings: dict[str, object], error: type[InvalidArgument], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        PlacementSettings(**settings)  # type: ignore[arg-type]


def test_the_picture_is_drawn(
    study: PlacementStudy, sketched: Callable[[str], list[Figure]]
) -> None:
    figures = sketched("studies.placement.picture")
    draw(study, Path("one.svg"))
    assert figures[0].axes
    assert all(axes.has_data() for axes in figures[0].axes)
