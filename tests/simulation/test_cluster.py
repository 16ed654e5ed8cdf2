"""Whole clusters in the simulated world: each kind of trouble under some seeds."""

from __future__ import annotations

from functools import partial

import pytest

from maitred.simulation.scenarios import SCENARIOS
from maitred.simulation.scenarios.cluster import KINDS, cluster_of
from maitred.simulation.scenarios.cluster_queries import QUERY_KINDS, cluster_queries_of
from maitred.simulation.soak import run_seed

# Seeds that once found something stand here with what they found. `make soak` has more.
SEEDS: dict[str, tuple[int, ...]] = {
    "calm": (0,),
    "crashes": (0,),
    "frozen": (0,),
    "cuts": (0,),
    "database": (0,),
    "failover": (0,),
    "storm": (0,),
}
QUERY_SEEDS: dict[str, tuple[int, ...]] = {
    "calm": (0,),
    "crashes": (0,),
    "frozen": (0,),
    "cuts": (0,),
    "database": (0,),
    "storm": (0,),
}


def test_every_kind_has_seeds() -> None:
    assert set(SEEDS) == set(KINDS)
    assert set(QUERY_SEEDS) == set(QUERY_KINDS)
    assert {"cluster", "cluster-queries"} <= set(SCENARIOS)


@pytest.mark.parametrize("kind", SEEDS)
def test_a_cluster_keeps_its_promise(kind: str) -> None:
    outcomes = [run_seed(partial(cluster_of, kind), seed, name=kind) for seed in SEEDS[kind]]
    broken = [str(outcome) for outcome in outcomes if not outcome.ok]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("kind", QUERY_SEEDS)
def test_queries_in_a_cluster_have_one_answer(kind: str) -> None:
    outcomes = [
        run_seed(partial(cluster_queries_of, kind), seed, name=kind) for seed in QUERY_SEEDS[kind]
    ]
    broken = [str(outcome) for outcome in outcomes if not outcome.ok]
    assert not broken, "\n".join(broken)
