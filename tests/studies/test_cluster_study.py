"""The cluster study with three nodes: what it counts, and what must hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from studies.cluster import QUICK, ClusterStudy, ClusterStudySettings, cluster_study, draw
from studies.cluster.membership import TableLoad
from studies.cluster.settings import CHANGES
from studies.cluster.spread import owners, study_keys, study_view, without

from maitred.errors import InvalidArgument, UnknownAlgorithm
from maitred.node.partition_loader import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

SMALL = replace(QUICK, partitions=400, shards=2, runs=6, steady_seconds=4.0)


@pytest.fixture(scope="module")
def told() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def study(told: list[tuple[int, int]]) -> ClusterStudy:
    return cluster_study(SMALL, lambda done, total, _what: told.append((done, total)))


def test_progress_reaches_the_end(study: ClusterStudy, told: list[tuple[int, int]]) -> None:
    assert study.membership
    assert [done for done, _ in told] == list(range(len(told)))
    assert told[-1][0] == told[-1][1]


def test_membership_costs_a_heartbeat_a_second_and_node(study: ClusterStudy) -> None:
    assert [run.seed for run in study.membership] == [1, 2]
    for run in study.membership:
        assert run.statements == run.commits == run.rows_written == 3
        assert run.rows_read == 9
        assert run.links == 2
        # Each of six links carries a probe and its answer a second.
        assert run.messages == 12


def test_a_view_is_everywhere_soon_after_a_change(study: ClusterStudy) -> None:
    for run in study.membership:
        assert {change.kind for change in run.changes} == set(CHANGES)
        for change in run.changes:
            assert 0 < change.decided_seconds < change.everywhere_seconds
            assert change.spread_seconds < 0.5
            lease = 5.0 if change.kind == "frozen" else 0.0
            assert lease * 0.7 < change.everywhere_seconds < lease + 1.5
            assert (change.votes >= 2) == (change.kind in {"killed", "frozen"})


def test_a_loss_moves_what_the_node_had(study: ClusterStudy) -> None:
    keys = study_keys(SMALL)
    view = study_view(3, SMALL.shards)
    lost = view.members[0].id
    before = owners(view, keys)
    after = owners(without(view, lost), keys)
    for old, new in zip(before, after, strict=True):
        assert old == new or old.member == lost != new.member
    assert [(one.placement, one.batch_size) for one in study.spreads] == list(SMALL.placements)
    basic, wrap, steady = study.spreads
    assert 0 < basic.moved_by_loss < steady.moved_by_loss < wrap.moved_by_loss < SMALL.partitions
    for one in study.spreads:
        assert one.min_over_mean <= 1 <= one.max_over_mean
        assert one.most_to_one_node <= one.moved_by_loss
        assert 300 < one.view_bytes < 600


def test_a_takeover_is_groups_one_after_another(study: ClusterStudy) -> None:
    assert len(study.takeovers) == len(SMALL.acquire_ms) * len(SMALL.with_work)
    for one in study.takeovers:
        groups = -(-one.most_of_a_shard // GROUP)
        group_seconds = (one.acquire_ms + SMALL.read_ms) / 1_000
        assert one.slowest_seconds == pytest.approx(groups * group_seconds)
        assert one.median_seconds <= one.slowest_seconds
        assert one.lost < SMALL.partitions * one.with_work
        assert one.listed_rows == 2 * SMALL.shards * SMALL.partitions * one.with_work


def test_results_are_shown(study: ClusterStudy) -> None:
    shown = study.markdown()
    assert "| 3 | killed | 2 |" in shown
    assert "- 3 nodes: membership is 3.0 statements a second" in shown
    assert study.as_json()["findings"] == study.findings()
    assert len(study.table()) == 1


def test_loads_are_subtracted() -> None:
    load = TableLoad(beats=5, reads=2, rows_read=9)
    assert load.since(TableLoad(beats=3, rows_read=4)) == TableLoad(beats=2, reads=2, rows_read=5)
    assert load.copy() == load
    assert load.statements == 7


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"sizes": (2,)}, InvalidArgument, "3 to 1,000 nodes"),
        ({"sizes": ()}, InvalidArgument, "3 to 1,000 nodes"),
        ({"partitions": 0}, InvalidArgument, "partitions are 0"),
        ({"shards": 0}, InvalidArgument, "are positive"),
        ({"acquire_ms": (0.0,)}, InvalidArgument, "more than 0 ms"),
        ({"with_work": (1.5,)}, InvalidArgument, "at most 1"),
        ({"changes": ("joined",)}, InvalidArgument, "joins after another"),
        ({"parts": ("wrong",)}, InvalidArgument, "parts of this study are membership"),
        ({"placements": (("wrong", 8),)}, UnknownAlgorithm, "no placement called 'wrong'"),
    ],
)
def test_bad_settings(
    settings: dict[str, object], error: type[InvalidArgument], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        ClusterStudySettings(**settings)  # type: ignore[arg-type]


def test_the_picture_is_drawn(
    study: ClusterStudy, sketched: Callable[[str], list[Figure]], tmp_path: Path
) -> None:
    figures = sketched("studies.cluster.picture")
    draw(study, tmp_path / "one.svg")
    assert all(axes.has_data() for axes in figures[0].axes)
