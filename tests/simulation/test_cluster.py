"""Whole clusters in the simulated world: each kind of trouble under some seeds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from maitred.simulation.scenarios import SCENARIOS
from maitred.simulation.scenarios.cluster import KINDS, ClusterRun
from maitred.simulation.scenarios.cluster_queries import QUERY_KINDS, cluster_queries_of
from maitred.simulation.soak import run_seed

if TYPE_CHECKING:
    from maitred.simulation.world import World

# Seeds that once found something stand here with what they found. `make soak` has more.
SEEDS: dict[str, tuple[int, ...]] = {
    "calm": (
        4,
        5042,  # A partition was let go while it was handed over, with a task on its way up.
        900387,  # A parent's answer and the caller's cancellation came in one turn: a lost task.
    ),
    "crashes": (
        4,
        61469,  # A partition was let go as idle while its parent gave a task to its last offer.
    ),
    "frozen": (
        4,
        5000,  # A partition between child and root was let go as idle, with a task on its way up.
        904201,  # A worker that was given the next attempt stopped it with the lost one.
    ),
    "cuts": (
        4,
        906,  # The end of an attempt was taken for that of a later run of it by the same worker.
    ),
    "stranded": (
        11,  # A replaced owner gave out a stored task whose attempt had failed.
    ),
    "database": (
        5006,  # A worker that had stopped logged that the node refused the end of its tasks.
        5099,  # A late acquisition took a partition from its present owner, and results were lost.
    ),
    "failover": (
        0,
        40002,  # A task was unknown whose partition had lost its range id.
        427,  # A shard without changes noticed lost commits only when a task was added.
        100258,  # Two failovers in a row gave one range id out twice.
        553,  # Counts of partitions had a version that clients knew from before the failover.
        60214,  # Two failovers gave out one range id, so a new task replaced a restored one.
    ),
    "storm": (4,),
}
QUERY_SEEDS: dict[str, tuple[int, ...]] = {
    "calm": (
        0,
        20005,  # Before a client had a view, a node that was away was the reason for a late answer.
    ),
    "crashes": (0,),
    "frozen": (0,),
    "cuts": (0,),
    "database": (0,),
    "storm": (
        0,
        502105,  # A partition was withheld until the database answered a read, after 46 s.
    ),
    "relayed": (
        100,  # A relayed query was sent to the new owner of its partition while a worker ran it.
    ),
    "relayed-storm": (107,),
}


def test_every_kind_has_seeds() -> None:
    assert set(SEEDS) == set(KINDS)
    assert set(QUERY_SEEDS) == set(QUERY_KINDS)
    assert {"cluster", "cluster-queries"} <= set(SCENARIOS)


def runs_that_keep_their_promise(kind: str, *, replayed: bool = False) -> list[ClusterRun]:
    """Run all seeds of the kind, and fail with every broken promise."""
    runs: list[ClusterRun] = []

    async def scenario(world: World) -> None:
        runs.append(ClusterRun(world, KINDS[kind]))
        await runs[-1].run()

    outcomes = [run_seed(scenario, seed, name=kind) for seed in SEEDS[kind]]
    made = runs.copy()
    broken = [str(outcome) for outcome in outcomes if not outcome.ok]
    if replayed and run_seed(scenario, outcomes[-1].seed, name=kind) != outcomes[-1]:
        broken.append(f"{outcomes[-1]}\n  The second run of this seed was another one.")
    assert not broken, "\n".join(broken)
    return made


@pytest.mark.parametrize("kind", ["database", "failover"])
def test_a_cluster_keeps_its_promise(kind: str) -> None:
    runs_that_keep_their_promise(kind)


def test_nodes_that_come_and_go_in_order_are_not_noticed() -> None:
    for run in runs_that_keep_their_promise("calm"):
        assert {death.cause for death in run.fleet.members.deaths} == {"left"}
        assert len(run.fleet.members.deaths) > len(run.fleet.nodes), "some were restarted"


@pytest.mark.parametrize("kind", ["crashes", "frozen", "cuts", "stranded"])
def test_a_cluster_keeps_its_promise_while_members_are_declared_dead(kind: str) -> None:
    runs = runs_that_keep_their_promise(kind)
    causes = [death.cause for run in runs for death in run.fleet.members.deaths]
    assert causes.count("votes") + causes.count("replaced") > 0, causes


def test_a_storm_keeps_its_promise_and_can_be_replayed() -> None:
    runs = runs_that_keep_their_promise("storm", replayed=True)
    stories = [story for run in runs for story in run.record.stories]
    assert sum(node.crashes for run in runs for node in run.fleet.nodes) > 0
    assert sum(story.place is not None for story in stories) > 0.4 * len(stories)


@pytest.mark.parametrize("kind", QUERY_SEEDS)
def test_queries_in_a_cluster_have_one_answer(kind: str) -> None:
    outcomes = [
        run_seed(partial(cluster_queries_of, kind), seed, name=kind) for seed in QUERY_SEEDS[kind]
    ]
    broken = [str(outcome) for outcome in outcomes if not outcome.ok]
    assert not broken, "\n".join(broken)
