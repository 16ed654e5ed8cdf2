"""The requests that the driver sends for a partition, and reads that fail."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

import pytest

from maitred.errors import Cancelled, ConnectionLost, StoreUnavailable, Unavailable
from maitred.matching.effects import Foreign
from maitred.node.task_effects import READ_RETRY_SECONDS
from maitred.protocol.queries import Allocate
from maitred.protocol.tasks import (
    RETURNED,
    Counts,
    End,
    Finish,
    Forward,
    Forwarded,
    Given,
    Offer,
    Offered,
)
from maitred.routing.counts import PartitionCounts
from maitred.settings import Forwarding
from tests.matching.driver import Driver, session_of

if TYPE_CHECKING:
    from tests.matching.recorded_shell import Question

COUNTS = PartitionCounts(3, 3, 7)
KEY = ("shop", "mails", 1)


def child(**settings: object) -> Driver:
    return Driver(partition=2, counts=COUNTS, **settings)  # type: ignore[arg-type]


def test_an_offer_goes_up_as_it_is_when_it_is_sent() -> None:
    driver = child()
    driver.offer(4, slots=3)
    driver.pass_time(0.01)
    (sent,) = driver.shell.asked
    driver.add(3)
    assert sent == Offer(*KEY, 0, 0, 7, session_of(4), "worker 4", 3, 1, "", "")


def test_a_task_goes_up_with_the_attempt_that_it_would_be_and_the_time_that_is_left() -> None:
    driver = child(forwarding=Forwarding(task_wait_seconds=0.5))
    (sequence,) = driver.add([b"payload"], priority=1, expires=10.0).sequences
    driver.pass_time(0.5)
    (sent,) = driver.shell.asked
    assert isinstance(sent, Forward)
    assert (sent.namespace, sent.queue, sent.queue_type, sent.partition) == (*KEY, 0)
    assert (sent.version, sent.origin, sent.sequence, sent.attempt) == (7, 2, sequence, 1)
    assert (sent.priority, sent.payload) == (1, b"payload")
    assert sent.waited == pytest.approx(0.5)
    assert sent.expires == pytest.approx(9.5)


def test_a_visitor_goes_further_up_as_the_task_of_its_own_partition() -> None:
    driver = Driver(partition=1, counts=PartitionCounts(6, 6, 1), forwarding=Forwarding(children=2))
    driver.visit(55, origin=5)
    (sent,) = driver.shell.asked
    assert isinstance(sent, Forward)
    assert (sent.partition, sent.origin, sent.sequence, sent.attempt) == (0, 5, 55, 1)
    assert sent.expires == 0.0


def test_a_slot_request_goes_up_with_its_user_and_the_time_that_it_waited() -> None:
    driver = child()
    driver.want(3, user="ann", priority=1, waited=2.0)
    (sent,) = driver.shell.asked
    assert isinstance(sent, Allocate)
    assert (sent.partition, sent.slots, sent.priority, sent.user, sent.hops) == (0, 3, 1, "ann", 1)
    assert sent.waited == pytest.approx(2.0)


def test_a_task_that_came_too_late_returns_to_its_owner() -> None:
    driver = child()
    driver.offer(4)
    driver.pass_time(0.01)
    driver.add()
    driver.answer_offer([Foreign(1, 77, 2, b"proof", 0.0, b"", 0.1)])
    end = End(77, 2, b"proof", RETURNED)
    assert driver.shell.asked[-1] == Finish(*KEY, 1, 0, session_of(4), [end])


@pytest.mark.parametrize("kind", ["offer", "task"])
def test_newer_counts_of_the_parent_are_learned(kind: str) -> None:
    driver = child()
    newer = Counts(3, 1, 8)
    if kind == "offer":
        driver.offer()
        driver.pass_time(0.01)
        driver.parent_answers(driver.passed_offers[0], Offered([], 0.0, 0, 0.0, newer))
    else:
        driver.add()
        driver.pass_time(0.01)
        driver.parent_answers(driver.passed_tasks[0], Forwarded(b"", "", newer))
    assert driver.partition.counts == PartitionCounts(3, 1, 8)


@pytest.mark.parametrize("problem", [Cancelled("back"), Unavailable("away")])
def test_a_task_that_never_reached_the_parent_is_ready_again(problem: Exception) -> None:
    driver = child()
    driver.add()
    driver.pass_time(0.01)
    driver.parent_answers(driver.passed_tasks[0], problem)  # type: ignore[arg-type]
    assert len(driver.take()) == 1


def test_a_partition_that_is_let_go_drops_its_timer_and_its_questions() -> None:
    driver = child()
    asked = driver.offer()
    driver.pass_time(0.01)
    driver.driving.lost(driver.key, Unavailable("another shard has it"))
    assert driver.owned.asked == {}
    assert driver.next_look == inf
    assert isinstance(asked.value, Unavailable)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_task_for_an_offer_of_a_partition_that_was_let_go_returns(is_answered: bool) -> None:
    """The parent's answer is on its way when the partition is let go, and must not be dropped."""
    driver = child()
    asked = driver.offer(4, seconds=1.0)
    driver.pass_time(1.0 if is_answered else 0.01)
    assert asked.answered == is_answered
    question = cast("Question", driver.owned.asked[asked.offer])
    driver.driving.lost(driver.key, Unavailable("another shard has it"))
    assert question.is_recalled
    assert not question.is_given_up
    question.done(Offered([Given(1, 77, 2, b"proof", 0.0, b"", 0.1)], 0.0, 0, 0.0))
    driver.shell.loop.run()
    assert len(asked.answers) == 1
    end = End(77, 2, b"proof", RETURNED)
    assert driver.shell.asked[1:] == [Finish(*KEY, 1, 0, session_of(4), [end])]


def test_what_the_parent_gave_in_the_turn_in_which_the_partition_is_let_go_arrives() -> None:
    driver = child()
    asked = driver.offer(4)
    driver.pass_time(0.01)
    given = Given(1, 77, 2, b"proof", 0.0, b"foreign", 0.1)
    driver.parent_answers(asked.offer, Offered([given], 0.0, 0, 0.0))
    driver.driving.lost(driver.key, Unavailable("another shard has it"))
    driver.shell.loop.run()
    (run,) = asked.value
    assert (run.origin, run.sequence, run.payload) == (1, 77, b"foreign")
    assert len(driver.shell.asked) == 1


@pytest.mark.parametrize(
    ("outcome", "told"),
    [(Forwarded(session_of(9), "worker 9"), session_of(9)), (ConnectionLost("gone"), "lost")],
)
def test_a_child_hears_of_its_task_though_the_partition_is_let_go_in_that_turn(
    outcome: Forwarded | ConnectionLost, told: object
) -> None:
    driver = Driver(partition=1, counts=PartitionCounts(6, 6, 1), forwarding=Forwarding(children=2))
    task = driver.visit(55, origin=5)
    driver.parent_answers(task, outcome)
    driver.driving.lost(driver.key, Unavailable("another shard has it"))
    assert driver.visitors[task].value == told


def test_a_partition_is_not_idle_while_the_parent_may_give_its_offer_a_task() -> None:
    driver = child()
    driver.offer(seconds=1.0)
    driver.pass_time(1.0)
    assert len(driver.passed_offers) == 1
    assert not driver.partition.idle
    driver.answer_offer()
    assert driver.partition.idle


def test_a_read_that_fails_is_repeated_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    driver.add(3)
    driver.commit()

    def away(*_: object) -> None:
        raise StoreUnavailable("The disk is away.")

    with monkeypatch.context() as patch:
        patch.setattr(driver.store, "read", away)
        driver.crash()
        driver.pass_time(3.0 + READ_RETRY_SECONDS)
        assert driver.take(slots=3) == []
    driver.pass_time(READ_RETRY_SECONDS)
    assert len(driver.take(slots=3)) == 3
