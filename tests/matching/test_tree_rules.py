"""The rules of the tree that the matching study found wanting: each of these failed once."""

from __future__ import annotations

from random import Random
from typing import Any

from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.effects import (
    Beat,
    Effect,
    Foreign,
    Give,
    GiveBack,
    PassOffer,
    PassTask,
    RecallTask,
    VisitorTaken,
    VisitorUnwanted,
)
from maitred.matching.partition import Partition
from maitred.matching.records import Acquired, PartitionKey, Terms
from maitred.matching.slots import WaitingOffer
from maitred.matching.task import GIVEN, READY, QueueTask
from maitred.routing.counts import PartitionCounts
from maitred.settings import Forwarding, Queue

RETURNED = 2
FAILED = 1


def partition(number: int = 1, **forwarding: Any) -> Partition:  # noqa: ANN401
    limits = {"task_wait_seconds": 0.0, "offer_wait_seconds": 0.01, **forwarding}
    return Partition(
        PartitionKey("n", "q", 1, number),
        Acquired(1, None, 0, clean=True),
        PartitionCounts(8, 8, 1),
        Queue(forwarding=Forwarding(**limits)),
        random=Random(1),
        loaded_at=0.0,
        wall=0.0,
        signing_key=bytes(32),
    )


def drive(machine: Partition, now: float) -> list[Effect]:
    machine.matcher.flush(now)
    machine.look(now)
    machine.matcher.flush(now)
    return machine.take_effects()


def add(machine: Partition, now: float) -> int:
    return machine.intake.add([b"x"], token=None, now=now, priority=2, terms=Terms())


def offer(session: bytes = b"w", since: float = 0.0, hops: int = 0) -> WaitingOffer:
    return WaitingOffer(None, session, "worker", 1, since, hops)


def visitor(sequence: int = 7) -> QueueTask:
    task = QueueTask(sequence, 2, Terms(), b"x", 0.0, READY)
    task.origin = 5
    task.attempt = 1
    return task


def passed_on(effects: list[Effect]) -> QueueTask:
    (passed,) = [one.task for one in effects if isinstance(one, PassTask)]
    return passed


def test_a_visitor_that_nobody_wanted_further_up_goes_home() -> None:
    # Its time here may have been up while it was further up: nothing would ever answer it.
    middle = partition()
    task = visitor()
    middle.tree.visit(task, 1.0, 0.0)
    assert passed_on(drive(middle, 0.0)) is task
    drive(middle, 1.0)
    middle.tree.task_answered(task, b"", "", 1.1)
    assert drive(middle, 1.1) == [VisitorUnwanted(task)]
    assert middle.tree.tasks_away == middle.backlog.ready == 0


def test_a_task_given_back_before_its_taking_was_told_is_ready_again() -> None:
    # Else it would be leased to a worker that does not have it, until the lease ends.
    home = partition()
    sequence = add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"w")
    _, unknown, refused = home.attempts.finish(
        [(sequence, 1, RETURNED, b"", proof)], None, 0.001, b"w"
    )
    assert (unknown, refused) == ([], [])
    assert home.tree.tasks_away == 1, "it is not passed on twice at a time"
    home.tree.task_answered(task, b"w", "worker", 0.002)
    assert not home.own_tasks.leases
    assert passed_on(drive(home, 0.002)) is task
    assert home.attempts.lost == 0


def test_a_failure_told_before_its_taking_counts() -> None:
    home = partition()
    sequence = add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"w")
    _, unknown, refused = home.attempts.finish(
        [(sequence, 1, FAILED, b"why", proof)], None, 0.001, b"w"
    )
    assert (unknown, refused) == ([], [])
    assert task.attempt == 1
    home.tree.task_answered(task, b"w", "worker", 0.002)
    assert not home.own_tasks.leases
    assert home.attempts.failed == 1


def test_a_heartbeat_that_comes_before_the_taking_is_told_counts() -> None:
    # Else a worker that runs the task would be told that another one has it.
    home = partition()
    sequence = add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"w")
    home.attempts.heartbeat(b"w", "worker", [(sequence, 1, proof)], "beat", 5.0, 3.0)
    assert not [one for one in drive(home, 3.0) if isinstance(one, Beat)], "it is not lost"
    assert list(home.own_tasks.leases) == [sequence]
    home.tree.task_answered(task, b"w", "worker", 3.1)
    assert (task.state, task.holder) == (GIVEN, b"w")
    assert list(home.own_tasks.leases) == [sequence]


def test_a_task_that_failed_before_its_taking_was_told_waits_for_that_word() -> None:
    # Else the late answer would count for the next attempt, which would be leased to a worker that
    # does not have it.
    home = partition()
    sequence = add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"w")
    home.attempts.finish([(sequence, 1, FAILED, b"why", proof)], None, 0.001, b"w")
    assert [one for one in drive(home, 400.0) if isinstance(one, PassTask)] == []
    assert task.state is READY, "an offer at home may have it"
    home.tree.task_answered(task, b"w", "worker", 400.0)
    assert not home.own_tasks.leases
    assert passed_on(drive(home, 400.0)) is task
    assert home.attempts.lost == 0


def test_a_failure_of_an_earlier_owners_attempt_does_not_count_for_a_visit() -> None:
    # Its worker repeats the report to the next owner, which has passed the task on under the same
    # number. The worker that took the task at the parent runs it: no other may get it as well.
    home = partition()
    sequence = add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"old")
    home.attempts.finish([(sequence, 1, FAILED, b"why", proof)], None, 0.001, b"old")
    home.tree.task_answered(task, b"w", "worker", 0.002)
    assert (task.state, task.holder, task.attempt) == (GIVEN, b"w", 0)
    assert [one for one in drive(home, 5.0) if isinstance(one, PassTask)] == []
    proof = AttemptProofs(bytes(32), home.key).issue(sequence, 1, b"w")
    _, unknown, refused = home.attempts.finish([(sequence, 1, 0, b"\xc0", proof)], None, 5.0, b"w")
    assert (unknown, refused, home.own_tasks.tasks) == ([], [], {})


def test_a_visitor_matched_with_an_offer_that_is_withdrawn_waits_for_another() -> None:
    # In one turn: its owner must not hear that somebody has it.
    root = partition(0)
    child, task = offer(hops=1), visitor()
    root.matcher.offer(child, 60.0, 0.0)
    root.tree.visit(task, 1.0, 0.0)
    root.matcher.withdraw(child, 0.0)
    assert drive(root, 0.0) == []
    other = offer(b"v")
    root.matcher.offer(other, 60.0, 0.1)
    taken, given = drive(root, 0.1)
    assert taken == VisitorTaken(task, b"v", "worker")
    assert isinstance(given, Give)
    assert [one.sequence for one in given.foreign] == [7]


def test_tasks_of_the_parent_for_an_offer_that_is_withdrawn_in_the_same_turn_are_returned() -> None:
    # The answer of the parent and the caller's cancellation may be read in one turn of the loop.
    # The owners of the tasks have leased them, so dropping the answer would delay them for a lease
    # and cost them an attempt that no worker began.
    home = partition()
    waits = offer(hops=1)
    home.matcher.offer(waits, 60.0, 0.0)
    assert drive(home, 0.0) == [PassOffer(waits)]
    found = [Foreign(0, sequence, 0, b"p", 0.0, b"x", 0.0) for sequence in (7, 8)]
    home.tree.offer_answered(waits, found, 0.01)
    home.matcher.withdraw(waits, 0.01)
    assert drive(home, 0.01) == [GiveBack(task, b"w", "") for task in found]


def test_a_visitor_whose_owner_gave_up_is_given_to_nobody() -> None:
    root = partition(0)
    task = visitor()
    root.matcher.offer(offer(), 60.0, 0.0)
    root.tree.visit(task, 1.0, 0.0)
    root.tree.visit_no_more(task)
    (given,) = drive(root, 0.0)
    assert isinstance(given, Give)
    assert given.foreign == []


def test_an_offer_calls_the_tasks_of_its_partition_home_and_goes_up_if_there_are_none() -> None:
    home = partition()
    add(home, 0.0)
    task = passed_on(drive(home, 0.0))
    waits = offer(since=0.001)
    home.matcher.offer(waits, 60.0, 0.001)
    assert drive(home, 0.001) == [RecallTask(task)]
    alone, waits = partition(), offer(since=0.001)
    alone.matcher.offer(waits, 60.0, 0.001)
    assert drive(alone, 0.001) == []
    assert drive(alone, 0.011) == [PassOffer(waits)]


def test_an_offer_waits_at_its_own_partition_alone() -> None:
    middle = partition()
    passing = offer(hops=1)
    middle.matcher.offer(passing, 60.0, 0.0)
    assert drive(middle, 0.0) == [PassOffer(passing)]


def test_a_parent_that_cannot_be_asked_is_not_asked_without_a_pause() -> None:
    home = partition(offer_wait_seconds=0.0)
    waits = offer()
    home.matcher.offer(waits, 60.0, 0.0)
    assert drive(home, 0.0) == [PassOffer(waits)]
    home.tree.offer_answered(waits, [], 0.0)
    assert drive(home, 0.0) == []
    assert home.look(0.0) <= 0.1
    assert drive(home, 0.1) == [PassOffer(waits)]


def test_an_offer_answered_at_home_gives_back_what_comes_too_late() -> None:
    home = partition()
    waits = offer()
    home.matcher.offer(waits, 60.0, 0.0)
    drive(home, 0.02)
    add(home, 0.02)
    drive(home, 0.02)
    late = Foreign(5, 7, 1, bytes(16), 0.0, b"x", 0.0)
    home.tree.offer_answered(waits, [late], 0.03)
    assert drive(home, 0.03) == [GiveBack(late, b"w", "")]
    assert home.tree.offers_away == 0
