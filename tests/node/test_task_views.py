"""The history of a task, as operators get it: everything that happened to it, once, in its order.

The tasks are those of a real partition under virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred.matching.records import Terms
from maitred.matching.task_history import ATTEMPTS_MAX
from maitred.node.task_views import TaskView
from maitred.protocol.inspection import TaskFilter
from maitred.protocol.tasks import Failure
from maitred.settings import Forwarding
from tests.matching.driver import DONE, FAILED, RETURNED, STOPPED, TERMS, TIMED_OUT, Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.matching.sighted_task import SightedTask
    from maitred.protocol.inspection import HistoryEvent

BOOM = msgpack.encode(Failure("ValueError", "The secret is out.", "Traceback"))
PRODUCER = "alice@10.0.0.7"
PLANNED = ("retry", "due", "forgotten")


class History:
    """One task of a partition, and what an operator is told of it."""

    def __init__(self, driver: Driver | None = None, terms: Terms = TERMS, **added: float) -> None:
        self.driver = driver or Driver(hold_seconds=0.0)
        (self.sequence,) = self.driver.add(1, terms=terms, **added).sequences  # type: ignore[arg-type]
        self.driver.partition.own_tasks.tasks[self.sequence].by = PRODUCER
        self.began = self.driver.now

    def attempt(self, how: int, body: bytes = b"", worker: int = 1) -> None:
        """Have a worker take the task and end the attempt two seconds later."""
        run = self.driver.take_one(worker)
        self.driver.pass_time(2.0)
        self.driver.finish(run, how=how, body=body)

    def fail(self) -> None:
        """Have an attempt fail, and wait until the next one is due."""
        self.attempt(FAILED, BOOM)
        self.driver.pass_time(1_000.0)

    def sighting(self) -> SightedTask:
        lists, store = self.driver.partition.lists, self.driver.store
        found = lists.one(self.sequence, self.driver.now)
        if found is None:
            self.driver.commit()
            (found,) = lists.dead([store.dead[self.sequence]], self.driver.now)
        return found

    def view(self) -> TaskView:
        return TaskView(self.sighting(), 0, self.driver.wall)

    def events(self) -> list[HistoryEvent]:
        """Return the events of the task, of which some things always hold."""
        events = self.view().events(reveal=True)
        moments = [one.at for one in events]
        assert moments == sorted(moments)
        assert len({(one.at, one.what, one.attempt) for one in events}) == len(events)
        now = self.driver.now + self.driver.wall
        assert all(one.at <= now for one in events if one.what not in PLANNED)
        assert [one.what for one in events].count("added") == 1
        assert (events[0].what, events[0].by) == ("added", PRODUCER)
        # What is private is left out, and nothing else.
        for one, public in zip(events, self.view().events(reveal=False), strict=True):
            assert public.message == ""
            one_without = {**_fields(one), "message": ""}
            assert one_without == _fields(public)
        return events

    def told(self) -> list[str]:
        """Return the events in short, with the seconds from the beginning."""
        return [
            f"{one.at - self.driver.wall - self.began:.0f} {one.what}"
            + (f" {one.attempt}" if one.attempt else "")
            + (f" {one.worker}" if one.worker else "")
            + (f" {one.error}" if one.error else "")
            for one in self.events()
        ]


def _fields(event: HistoryEvent) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


# Each case: what happens to a task, and what is told of it.


def never_tried(_: History) -> None: ...


def runs(task: History) -> None:
    task.driver.pass_time(1.0)
    task.driver.take_one(1)


def done_at_once(task: History) -> None:
    task.attempt(DONE)


def failed_twice_then_done(task: History) -> None:
    task.attempt(FAILED, BOOM)
    task.driver.pass_time(8.0)
    task.attempt(FAILED, BOOM, worker=2)
    task.driver.pass_time(8.0)
    task.attempt(DONE)


def returned(task: History) -> None:
    task.attempt(RETURNED)


def returned_and_taken_again(task: History) -> None:
    task.attempt(RETURNED)
    task.driver.take_one(2)


def timed_out(task: History) -> None:
    task.attempt(TIMED_OUT, BOOM)
    task.driver.pass_time(8.0)


def cancelled_while_waiting(task: History) -> None:
    task.driver.pass_time(3.0)
    task.driver.cancel(task.sequence)


def cancelled_while_running(task: History) -> None:
    run = task.driver.take_one(1)
    task.driver.pass_time(1.0)
    task.driver.cancel(task.sequence)
    task.driver.pass_time(1.0)
    task.driver.finish(run, how=STOPPED)


def failed_while_being_cancelled(task: History) -> None:
    run = task.driver.take_one(1)
    task.driver.cancel(task.sequence)
    task.driver.pass_time(2.0)
    task.driver.finish(run, how=FAILED, body=BOOM)


def cancelled_before_its_retry(task: History) -> None:
    task.attempt(FAILED, BOOM)
    task.driver.cancel(task.sequence)


FORGOTTEN = "62 forgotten"
CASES: list[tuple[Callable[[History], None], str, list[str]]] = [
    (never_tried, "waiting", ["0 added"]),
    (runs, "running", ["0 added", "1 started 1 worker 1"]),
    (
        done_at_once,
        "done",
        ["0 added", "0 started 1 worker 1", "2 done 1 worker 1", FORGOTTEN],
    ),
    (
        failed_twice_then_done,
        "done",
        [
            *("0 added", "0 started 1 worker 1", "2 failed 1 worker 1 ValueError"),
            *("10 started 2 worker 2", "12 failed 2 worker 2 ValueError"),
            *("20 started 3 worker 1", "22 done 3 worker 1", "82 forgotten"),
        ],
    ),
    (returned, "waiting", ["0 added", "0 started 1 worker 1", "2 returned 1 worker 1"]),
    (
        returned_and_taken_again,
        "running",
        [
            *("0 added", "0 started 1 worker 1", "2 returned 1 worker 1"),
            "2 started 1 worker 2",
        ],
    ),
    (
        timed_out,
        "waiting",
        ["0 added", "0 started 1 worker 1", "2 timed-out 1 worker 1 ValueError"],
    ),
    (cancelled_while_waiting, "cancelled", ["0 added", "3 cancelled", "63 forgotten"]),
    (
        cancelled_while_running,
        "cancelled",
        ["0 added", "0 started 1 worker 1", "2 cancelled 1 worker 1", FORGOTTEN],
    ),
    (
        failed_while_being_cancelled,
        "cancelled",
        [
            *("0 added", "0 started 1 worker 1", "2 failed 1 worker 1 ValueError"),
            *("2 cancelled 1 worker 1", FORGOTTEN),
        ],
    ),
    (
        cancelled_before_its_retry,
        "cancelled",
        [
            *("0 added", "0 started 1 worker 1", "2 failed 1 worker 1 ValueError"),
            *("2 cancelled", FORGOTTEN),
        ],
    ),
]


@pytest.mark.parametrize(
    ("what", "attempts"),
    [
        (cancelled_while_waiting, 0),
        (cancelled_while_running, 1),
        (failed_while_being_cancelled, 1),
        (cancelled_before_its_retry, 1),
    ],
)
def test_a_cancelled_task_tells_how_many_attempts_began(
    what: Callable[[History], None], attempts: int
) -> None:
    task = History()
    what(task)
    assert task.view().row(reveal=False).attempts == attempts


@pytest.mark.parametrize(
    ("happens", "state", "told"), CASES, ids=[happens.__name__ for happens, *_ in CASES]
)
def test_the_history_of_a_task(
    happens: Callable[[History], None], state: str, told: list[str]
) -> None:
    task = History()
    happens(task)
    assert task.view().row(reveal=True).state == state
    assert task.told() == told


def test_a_retry_is_planned() -> None:
    task = History()
    task.attempt(FAILED, BOOM)
    *before, planned = task.events()
    assert (planned.what, planned.attempt) == ("retry", 2)
    assert planned.at > task.driver.now + task.driver.wall
    assert [one.what for one in before] == ["added", "started", "failed"]
    row = task.view().row(reveal=True)
    assert (row.state, row.attempts, row.retries, row.worker) == ("delayed", 1, 2, "worker 1")
    assert row.due_at == planned.at
    assert (row.error, row.message) == ("ValueError", "The secret is out.")
    assert task.view().row(reveal=False).message == ""


def test_a_delayed_task_is_due_later() -> None:
    task = History(delay=30.0)
    assert task.told() == ["0 added", "30 due"]
    assert task.view().row(reveal=True).state == "delayed"


def test_a_task_that_expires() -> None:
    task = History(expires=10.0)
    task.driver.pass_time(30.0)
    task.driver.take(1)
    added, expired, forgotten = task.events()
    assert [added.what, expired.what, forgotten.what] == ["added", "expired", "forgotten"]
    assert expired.attempt == 0
    assert task.view().row(reveal=True).kept_until == forgotten.at


def test_a_lost_worker() -> None:
    task = History(Driver(hold_seconds=0.0, lease_seconds=10.0))
    task.driver.take_one(1)
    task.driver.pass_time(60.0)
    started, lost = task.events()[1:3]
    assert (started.what, started.attempt, started.worker) == ("started", 1, "worker 1")
    assert (lost.what, lost.attempt, lost.worker) == ("lost", 1, "worker 1")
    assert 10.0 <= lost.at - started.at <= 20.0


def test_a_task_whose_worker_waited_at_the_parent() -> None:
    task = History(
        Driver(partition=1, hold_seconds=0.0, forwarding=Forwarding(task_wait_seconds=0.0))
    )
    task.driver.answer_task(7)
    _, started = task.events()
    assert (started.what, started.worker, started.forwarded) == ("started", "worker 7", True)
    (run,) = task.driver.given
    task.driver.pass_time(2.0)
    task.driver.finish(run, how=FAILED, body=BOOM)
    task.driver.pass_time(10.0)
    task.driver.offer(1)
    task.driver.answer_task(None)
    assert [(one.what, one.forwarded) for one in task.events()] == [
        ("added", False),
        ("started", True),
        ("failed", False),
        ("started", False),
    ]


ONE_RETRY = Terms(retries=1, backoff_first=1.0, backoff_longest=1.0, retention=60.0)


def test_a_dead_letter_and_its_second_life() -> None:
    task = History(terms=ONE_RETRY)
    task.fail()
    task.attempt(FAILED, BOOM, worker=2)
    row = task.view().row(reveal=True)
    assert (row.state, row.attempts, row.retries, row.reason) == ("dead", 2, 0, "failed")
    assert row.worker == "worker 2"
    first = ["added", "started", "failed", "started", "failed"]
    *attempts, dead = task.events()
    assert [one.what for one in attempts] == first
    assert (dead.what, dead.error, dead.message) == ("dead", "ValueError", "The secret is out.")
    assert dead.at == row.ended_at
    assert task.view().passes(TaskFilter(worker="worker 2"), reveal=False)
    assert not task.view().passes(TaskFilter(worker="worker 1"), reveal=False)
    # Its attempts are counted from 1 again.
    task.driver.retry_dead(task.sequence)
    task.driver.pass_time(5.0)
    run = task.driver.take_one(3)
    assert [one.what for one in task.events()] == [*first, "started"]
    assert task.events()[-1].worker == "worker 3"
    task.driver.pass_time(1.0)
    task.driver.finish(run, how=DONE)
    assert [one.what for one in task.events()] == [*first, "started", "done", "forgotten"]


@pytest.mark.parametrize("attempts", [ATTEMPTS_MAX, ATTEMPTS_MAX + 1, ATTEMPTS_MAX + 3])
def test_long_histories_count_what_they_omit(attempts: int) -> None:
    task = History(terms=Terms(retries=40, backoff_first=1.0, backoff_longest=1.0))
    for _ in range(attempts):
        task.fail()
    added, *rest = task.events()
    assert added.omitted == 0
    assert [one.what for one in rest] == ["started", "failed"] * ATTEMPTS_MAX
    assert rest[0].omitted == attempts - ATTEMPTS_MAX
    assert not any(one.omitted for one in rest[1:])
    assert rest[-1].attempt == attempts


def test_the_next_owner_tells_the_same() -> None:
    """Of a task that is not over: its notes are stored with it, and a handover tells the rest."""
    task = History()
    task.fail()
    task.driver.take_one(2)
    before = task.told()
    task.began += task.driver.wall
    task.driver.hand_over()
    task.began -= task.driver.wall
    task.driver.pass_time(1.0)
    assert task.told() == before


def test_a_row_of_a_task_that_has_ended_meanwhile_contradicts_nothing() -> None:
    """The row is made of a task that is still alive, after it was found."""
    task = History()
    sighting = task.sighting()
    task.attempt(DONE)
    row = TaskView(sighting, 0, task.driver.wall).row(reveal=True)
    assert (row.state, row.ended_at, row.kept_until) == ("waiting", 0.0, 0.0)
