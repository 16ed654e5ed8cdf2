"""Queries in the simulated world: each kind of trouble under some seeds, and what seeds found."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import pytest

from maitred.dispatch import pending_query
from maitred.dispatch.pending_query import PendingQuery
from maitred.dispatch.query_states import after
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.queries import KINDS, POLICIES, QueriesRun, queries_of
from maitred.simulation.scenarios.queries_record import QueryPromise, QueryRecord, QueryStory
from maitred.simulation.soak import run_seed, run_seed_proved
from maitred.worker.worker_queries import WorkerQueries

if TYPE_CHECKING:
    from maitred.dispatch.query_states import Accident, Verdict
    from maitred.protocol.queries import QueryStatus
    from maitred.simulation.world import World
    from maitred.worker.query import Query

PLANTED_SEEDS = 6
"""The most seeds that are run with a fault planted in the product."""
FINDERS = 2
"""How many of those seeds have to find the fault."""


RUNS = [
    ("calm", "adaptive"),
    ("order", "idle"),
    ("gateways", "two-phase"),
    ("workers", "adaptive"),
    ("shards", "two-phase"),
    ("relayed", "idle"),
    ("storm", "adaptive"),
    ("storm", "two-phase"),
    ("counted", "adaptive"),
    ("recounted", "idle"),
]
"""Every kind, and every policy under the storm, which has all faults at once. Two tests below run
the calm and the storm under the policy "idle"; the soak has the other pairs."""


@pytest.mark.parametrize(("kind", "policy"), RUNS)
def test_each_kind_keeps_its_promise(kind: str, policy: str) -> None:
    async def scenario(world: World) -> None:
        await queries_of(kind, world, policy)

    outcome = run_seed_proved(scenario, 5, name=kind)
    assert outcome.ok, str(outcome)


def test_every_kind_is_run_and_every_policy_under_the_storm() -> None:
    assert {kind for kind, _ in RUNS} == set(KINDS)
    assert {policy for kind, policy in RUNS if kind == "storm"} | {"idle"} == set(POLICIES)


def test_a_storm_keeps_it_and_the_same_seed_gives_the_same_run() -> None:
    async def scenario(world: World) -> None:
        await queries_of("storm", world, "idle")

    once, again = (run_seed(scenario, 3, name="storm") for _ in range(2))
    assert once.ok, str(once)
    assert once == again


def test_gateways_ask_nothing_long_once_it_is_calm() -> None:
    """Otherwise queries of ten seconds may have every slot when each gateway is expected to get an
    answer within five."""
    stories: list[QueryStory] = []
    calm_at: list[float] = []

    async def scenario(world: World) -> None:
        run = QueriesRun(world, KINDS["calm"], "idle")
        stories_of, calm = run.record.stories, run.gateways[0].calm_down

        def calm_down() -> None:
            calm_at.append(world.loop.now)
            calm()

        run.gateways[0].calm_down = calm_down  # type: ignore[method-assign]
        await run.run()
        stories.extend(stories_of)

    outcome = run_seed(scenario, 0, name="calm")
    assert outcome.ok, str(outcome)
    before = [story for story in stories if story.asked_at <= calm_at[0]]
    after = [story for story in stories if story.asked_at > calm_at[0]]
    assert max(story.runs_seconds for story in before) >= 2.0
    assert len(after) > 10
    assert max(story.runs_seconds for story in after) <= 0.05


# What the record objects to: a scenario that could not fail would prove nothing.


def record(**changes: object) -> QueryRecord:
    promise = {
        "in_order": False,
        "order_slack_seconds": 0.0,
        "overtakers": 0,
        "stop_seconds": 1.0,
        "outcomes": frozenset[str](),
    }
    return QueryRecord(QueryPromise(**(promise | changes)))  # type: ignore[arg-type]


def asked(made: QueryRecord, **changes: object) -> QueryStory:
    story = {
        "number": 0,
        "gateway": "g",
        "priority": 2,
        "idempotent": False,
        "rows": 0,
        "runs_seconds": 0.0,
        "asked_at": 0.0,
        "deadline": 9.0,
    }
    return made.asked(QueryStory(**(story | changes)))  # type: ignore[arg-type]


def test_a_query_that_is_run_twice_is_found() -> None:
    made = record()
    story = asked(made)
    run = made.begins(story.number, "one", 1, 0.0)
    made.ends(story.number, run, 0.1, completed=True)
    with pytest.raises(Violation, match="begins again"):
        made.begins(story.number, "two", 1, 0.2)


def test_more_queries_than_slots_are_found() -> None:
    made = record()
    made.begins(asked(made).number, "one", 1, 0.0)
    with pytest.raises(Violation, match="has no slot"):
        made.begins(asked(made).number, "one", 1, 0.0)


def test_more_under_way_than_allowed_are_found() -> None:
    made = record(limit=1, unheard_seconds=2.0)
    run = made.begins(asked(made).number, "one", 9, 0.0)
    made.begins(asked(made, rows=5).number, "one", 9, 0.0)
    made.troubled_at = 1.0
    other = made.begins(asked(made).number, "two", 9, 3.0)
    with pytest.raises(Violation, match="one too many"):
        made.begins(asked(made).number, "three", 9, 3.1)
    made.worker_gone("three", 3.2)
    made.ends(0, run, 4.0, completed=True)
    made.ends(2, other, 4.0, completed=True)
    made.begins(asked(made).number, "one", 9, 4.0)


def test_while_the_trouble_lasts_nobody_knows_what_is_under_way() -> None:
    """Seed 31000102: a worker hung for more than five seconds, and only its return counted."""
    made = record(limit=1, unheard_seconds=2.0)
    made.begins(asked(made).number, "one", 9, 0.0)
    made.troubled_at = inf
    made.begins(asked(made).number, "two", 9, 10.0)
    made.troubled_at = 11.0
    made.begins(asked(made).number, "two", 9, 13.0)
    with pytest.raises(Violation, match="one too many"):
        made.begins(asked(made).number, "two", 9, 13.1)


def test_two_answers_are_found_and_so_is_one_without_work() -> None:
    made = record()
    story = asked(made)
    with pytest.raises(Violation, match="no worker completed it"):
        made.answered(story, "done")
    story = asked(made)
    made.answered(story, "cancelled")
    with pytest.raises(Violation, match="answered again"):
        made.answered(story, "cancelled")


def test_a_refusal_for_no_reason_is_found() -> None:
    made = record()
    with pytest.raises(Violation, match="nothing had gone wrong"):
        made.answered(asked(made), "worker-lost")


def test_a_query_that_goes_on_for_nobody_is_found() -> None:
    made = record()
    story = asked(made)
    run = made.begins(story.number, "one", 1, 0.0)
    story.cancelled_at = 1.0
    with pytest.raises(Violation, match="after its caller had left"):
        made.ends(story.number, run, 2.5, completed=True)


def test_one_that_is_overtaken_is_found() -> None:
    made = record(in_order=True)
    late, early = asked(made, asked_at=5.0), asked(made, asked_at=1.0)
    run = made.begins(late.number, "one", 1, 6.0)
    made.ends(late.number, run, 6.0, completed=True)
    with pytest.raises(Violation, match="overtaken"):
        made.begins(early.number, "one", 1, 6.0)


# Faults planted in the product: a soak that did not find them would prove nothing.


def seeds_that_find(fault: str, kind: str) -> list[int]:
    """Run seeds of this kind until enough of them have ended with this fault; return those."""
    found: list[int] = []
    for seed in range(PLANTED_SEEDS):
        if fault in str(run_seed(partial(queries_of, kind), seed, name=kind)):
            found.append(seed)
        if len(found) == FINDERS:
            break
    return found


def test_a_gateway_that_sends_every_lost_query_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def always_idempotent(accident: Accident, status: QueryStatus, *, idempotent: bool) -> Verdict:
        del idempotent
        return after(accident, status, idempotent=True)

    monkeypatch.setattr(pending_query, "after", always_idempotent)
    found = seeds_that_find("begins again", "workers")
    assert len(found) == FINDERS, found


def test_a_gateway_that_forgets_deadlines_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingQuery, "expired", lambda _query, _now: None)
    found = seeds_that_find("was never answered", "calm")
    assert len(found) == FINDERS, found


def test_a_worker_that_loses_the_slots_of_cancelled_streams_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = WorkerQueries.ended

    def lose(self: WorkerQueries, query: Query, now: float, *, good: bool) -> None:
        if not (query.cancelled and query.served.is_stream):
            ended(self, query, now, good=good)

    monkeypatch.setattr(WorkerQueries, "ended", lose)
    found = seeds_that_find("slots are taken", "calm")
    assert len(found) == FINDERS, found
