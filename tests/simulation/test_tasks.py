"""Tasks in the simulated world: each kind of trouble under some seeds, and what seeds found."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import OutcomeUnknown, StoreUnavailable
from maitred.matching import stored_tasks, task_intake
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.attempts import Attempts
from maitred.matching.tickets import Tickets
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.tasks import KINDS, MANY_QUEUES, Tasks, tasks_of
from maitred.simulation.scenarios.tasks_forger import Forger
from maitred.simulation.scenarios.tasks_record import Promise, TasksRecord
from maitred.simulation.soak import run_seed, run_seed_proved
from maitred.worker.shared_offers import SharedOffers
from maitred.worker.slots import WorkerSlots

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.task import Ticket
    from maitred.simulation.world import World

ALL_KINDS = KINDS | MANY_QUEUES

# Seeds that once found something stand here with what they found. Since then the scenario has
# changed: they now give other runs of the same kinds. `make soak` has a thousand more.
SEEDS = {
    "calm": (0, 1),
    "order": (0, 1),
    "producers": (
        0,
        1,  # A dead letter of a partition that was removed was revived, and never given out.
    ),
    "crashes": (
        5,  # A cancellation was answered before it was on disk.
        6,  # A node that stopped while it waited for its workers called its partitions clean.
        400_966,  # A dead letter of a removed partition was revived, and then its shard died.
    ),
    "forgery": (0, 1, 2),
    "disk": (
        14,  # An end that was told twice was answered before the first telling was on disk.
        30_185,  # A task that was read while the store was asked for it was given out, though done.
        101_008,  # A row was written for a task that was over, because a commit with it failed.
        101_095,  # A task whose end was being looked for in a slow store was read, and given out.
        300_141,  # A second attempt was done, and the store had lost that the first had failed.
    ),
    "storm": (
        0,
        3,
        94,  # A row that was crossed out while the store was asked for it was taken for a task.
        1_027,  # The failure of one worker's attempt counted for another's, of the same number.
        5_281,  # A root that took too long to tell its counts was a failure of the node.
        400_036,  # A partition was lost while dead letters were read: the loop reported an error.
    ),
    "many": (0, 1, 2),
    "many-crashes": (0, 1),
    "many-storm": (
        300_000_064,  # A caller heard that a task was done before that was on disk; it expired.
    ),
}


def runs_that_keep_their_promise(kind: str, *, replayed: bool = False) -> list[Tasks]:
    """Run all seeds of the kind, and fail with every broken promise."""
    runs: list[Tasks] = []

    async def scenario(world: World) -> None:
        runs.append(Tasks(world, ALL_KINDS[kind]))
        await runs[-1].run()

    outcomes = [run_seed_proved(scenario, seed, name=kind) for seed in SEEDS[kind]]
    made = runs.copy()
    broken = [str(outcome) for outcome in outcomes if not outcome.ok]
    if replayed and run_seed(scenario, outcomes[-1].seed, name=kind) != outcomes[-1]:
        broken.append(f"{outcomes[-1]}\n  The second run of this seed was another one.")
    assert not broken, "\n".join(broken)
    return made


@pytest.mark.parametrize("kind", ["calm", "order", "producers", "crashes", "disk", "many-crashes"])
def test_each_kind_keeps_its_promise(kind: str) -> None:
    """What these kinds do the storms do too, and those are replayed."""
    runs_that_keep_their_promise(kind)


def test_a_storm_of_many_queues_keeps_its_promise() -> None:
    runs_that_keep_their_promise("many-storm", replayed=True)


def test_every_kind_has_seeds() -> None:
    assert set(SEEDS) == set(ALL_KINDS)


def test_storms_keep_their_promise_and_are_storms() -> None:
    """Else their promise would say little."""
    runs = runs_that_keep_their_promise("storm", replayed=True)
    stories = [story for run in runs for story in run.record.stories]
    assert sum(run.node.crashes for run in runs) > 10
    assert sum(worker.lives for run in runs for worker in run.workers) > 20
    assert 0.4 < sum(story.place is not None for story in stories) / len(stories) < 1.0
    assert any(story.cancelled for story in stories)
    # A few duplicates are the price of lost workers; many would be a bug.
    assert sum(run.record.duplicates for run in runs) < 0.03 * len(stories)


def test_many_queues_keep_their_promise_though_slots_are_taken_twice_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the kinds with many queues would say little about tasks that are given back."""
    shared = returned = 0
    ask, begin = SharedOffers._ask, WorkerSlots.begin

    async def asking(self: SharedOffers, *of: Any) -> Any:  # noqa: ANN401
        nonlocal shared
        shared += 1
        return await ask(self, *of)

    def beginning(self: WorkerSlots, *of: Any) -> None:  # noqa: ANN401
        nonlocal returned
        before = self._statistics.returned
        begin(self, *of)
        returned += self._statistics.returned - before

    monkeypatch.setattr(SharedOffers, "_ask", asking)
    monkeypatch.setattr(WorkerSlots, "begin", beginning)
    runs = runs_that_keep_their_promise("many")
    stories = [story for run in runs for story in run.record.stories]
    assert shared > 200
    assert returned > 5
    assert len({story.queue for story in stories if story.runs}) == MANY_QUEUES["many"].queues


def test_a_forger_breaks_no_promise_and_is_refused_often() -> None:
    """Else the runs with one would say little."""
    runs = runs_that_keep_their_promise("forgery", replayed=True)
    forgers = [run.forger for run in runs if run.forger is not None]
    assert sum(forger.refused for forger in forgers) > 500
    assert any(forger._given for forger in forgers), "it has proofs of its own"


def too_many_at_a_time(record: TasksRecord) -> None:
    record.takes_slot("one", 2)
    record.takes_slot("one", 2)
    record.leaves_slot("one")
    record.takes_slot("one", 2)
    record.takes_slot("one", 2)


def attempt_that_did_not_run(record: TasksRecord) -> None:
    record.begins(record.told(retries=3).number, "one", 2, (0, 7), 1.0)


def begun_twice(record: TasksRecord) -> None:
    story = record.told(retries=3)
    record.begins(story.number, "one", 1, (0, 7), 1.0)
    record.begins(story.number, "two", 2, (0, 7), 1.5)


def begun_after_it_was_done(record: TasksRecord) -> None:
    story = record.told(retries=3)
    record.begins(story.number, "one", 1, (0, 7), 1.0).ended = True
    record.completes(story.number)
    record.begins(story.number, "one", 1, (0, 7), 1.5)


def begun_after_it_was_cancelled(record: TasksRecord) -> None:
    story = record.told(retries=3)
    story.cancelled = True
    record.begins(story.number, "one", 1, (0, 7), 1.0)


def tried_too_often(record: TasksRecord) -> None:
    record.begins(record.told(retries=3).number, "one", 5, (0, 7), 1.0)


def at_two_places(record: TasksRecord) -> None:
    story = record.told(retries=3)
    story.place = (0, 6)
    record.begins(story.number, "one", 1, (0, 7), 1.0)


def begun_after_it_was_refused(record: TasksRecord) -> None:
    story = record.told(retries=3)
    record.refuses(story, StoreUnavailable("It is away."))
    record.begins(story.number, "one", 1, (0, 7), 1.0)


def refused_after_it_was_begun(record: TasksRecord) -> None:
    story = record.told(retries=3)
    record.begins(story.number, "one", 1, (0, 7), 1.0)
    record.refuses(story, OutcomeUnknown("It may have been."))
    record.refuses(story, StoreUnavailable("It is away."))


def ended_twice(record: TasksRecord) -> None:
    record.ends(record.told(retries=3), {"failed", "cancelled"}, lost=True)


def never_ended(record: TasksRecord) -> None:
    record.ends(record.told(retries=3, revoked=True), set(), lost=True)


def cancelled_by_nobody(record: TasksRecord) -> None:
    record.ends(record.told(retries=3), {"cancelled"}, lost=True)


def expired_without_a_time(record: TasksRecord) -> None:
    record.ends(record.told(retries=3), {"expired"}, lost=True)


def told_over_and_cancelled(record: TasksRecord) -> None:
    record.ends(record.told(retries=3, revoked=True, answers=["over"]), {"cancelled"}, lost=True)


def told_failed_and_done(record: TasksRecord) -> None:
    record.ends(record.told(retries=3, completed=1, answers=["failed"]), {"done"}, lost=True)


def told_that_it_is_forgotten(record: TasksRecord) -> None:
    record.ends(record.told(retries=3, answers=["forgotten"]), {"failed"}, lost=True)


def out_of_order(record: TasksRecord) -> None:
    first, second = record.told(retries=3), record.told(retries=3)
    record.begins(second.number, "one", 1, (0, 8), 1.0).ended = True
    record.begins(first.number, "one", 1, (0, 7), 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        begun_twice,
        begun_after_it_was_done,
        begun_after_it_was_cancelled,
        begun_after_it_was_refused,
        refused_after_it_was_begun,
        ended_twice,
        never_ended,
        cancelled_by_nobody,
        expired_without_a_time,
        told_over_and_cancelled,
        told_failed_and_done,
        told_that_it_is_forgotten,
        tried_too_often,
        at_two_places,
        out_of_order,
        too_many_at_a_time,
        attempt_that_did_not_run,
    ],
)
def test_the_record_objects(wrong: Callable[[TasksRecord], None]) -> None:
    promise = Promise(exactly_once=True, in_order=1, overlap_after_seconds=2.0, counts_runs=True)
    record = TasksRecord(promise)
    with pytest.raises(Violation):
        wrong(record)
    with pytest.raises(Violation):  # a worker would have taken the first one for a failure
        record.check()


def test_the_record_has_nothing_against_what_was_true_when_it_was_said() -> None:
    record = TasksRecord(Promise(exactly_once=True, in_order=0, overlap_after_seconds=2.0))
    told = ["over", "failed", "cancelling", "done"]
    record.ends(
        record.told(retries=3, completed=1, revived=True, answers=told), {"done"}, lost=False
    )
    record.ends(record.told(retries=3, completed=1), set(), lost=True)
    record.check()


def test_the_record_counts_what_lost_workers_explain() -> None:
    record = TasksRecord(Promise(exactly_once=False, in_order=0, overlap_after_seconds=2.0))
    story = record.told(retries=3)
    record.begins(story.number, "one", 1, (0, 7), 1.0)
    record.begins(story.number, "two", 2, (0, 7), 5.0)
    record.completes(story.number)
    record.completes(story.number)
    assert (record.overlaps, record.duplicates) == (1, 1)
    record.worker_gone("one")
    assert [run.ended for run in story.runs] == [True, False]
    record.check()


def seeds_that_find(fault: str, kind: str, wanted: int, seeds: int) -> list[int]:
    """Run a broken node under so many seeds at most, and return those that end with this fault,
    as soon as there are as many as wanted."""
    found: list[int] = []
    for seed in range(seeds):
        if fault in str(run_seed(partial(tasks_of, kind), seed, name=kind)):
            found.append(seed)
        if len(found) == wanted:
            break
    return found


def test_a_node_that_believes_every_worker_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttemptProofs, "verify", lambda *_: True)
    monkeypatch.setattr(Forger, "expects_refusals", False)  # what it does is found all the same
    found = seeds_that_find("is done, and no worker ran it", "forgery", wanted=2, seeds=8)
    assert len(found) == 2, found


def test_a_node_that_says_over_of_what_was_cancelled_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (task_intake, stored_tasks):
        monkeypatch.setattr(module, "revocation_of", lambda _: "over")
    found = seeds_that_find(
        "ended as cancelled, and a caller was told over", "disk", wanted=2, seeds=8
    )
    assert len(found) == 2, found


def test_a_node_that_says_nothing_was_added_of_what_was_begun_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(self: Tickets, ticket: Ticket, _: str) -> None:
        ticket.problem = ticket.problem or StoreUnavailable("The store cannot be written.")
        self.release(ticket)

    monkeypatch.setattr(Tickets, "unknown", refused)
    found = seeds_that_find(
        "has begun, and its producer heard StoreUnavailable", "disk", wanted=3, seeds=30
    )
    assert len(found) == 3, found


def test_a_node_that_counts_an_attempt_for_what_is_given_back_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, failed, _, *others = Attempts._ENDS
    monkeypatch.setattr(Attempts, "_ENDS", (done, failed, failed, *others))
    found = seeds_that_find("began attempt", "many", wanted=2, seeds=8)
    assert len(found) == 2, found
