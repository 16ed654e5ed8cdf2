"""What is wrong with a queue is decided from what shards tell of it."""

from __future__ import annotations

from typing import Any

from maitred.client.dead_groups import DeadGroup
from maitred.client.queue_problems import (
    CAUSES_TOLD,
    COMPARED_QUEUES,
    WAIT_SECONDS,
    QueueProblem,
    problems_of,
)
from maitred.client.queue_states import ListedQueue
from maitred.matching.controls import Pause
from maitred.metrics.histogram import WORK_BOUNDS


def queue(name: str = "mails", **fields: Any) -> ListedQueue:  # noqa: ANN401
    return ListedQueue("shop", name, **{"workers": 1, "slots_free": 1, **fields})


def ran(count: int, seconds: float) -> tuple[int, ...]:
    """So many attempts that took up to so long, which is one of the bounds."""
    return tuple(count if bound == seconds else 0 for bound in (*WORK_BOUNDS, None))


def group(error: str, count: int, message: str = "") -> DeadGroup:
    return DeadGroup(error, message, "failed", count, 1.0, "0/1")


def one_of(*queues: ListedQueue) -> QueueProblem:
    (found,) = problems_of(queues, {})
    return found


def test_a_queue_that_works_has_no_problem() -> None:
    busy = queue(backlog=9_000, running=8, recent_runs=ran(500, 0.01), finished_per_second=900.0)
    late = queue(backlog=50, delayed=50, recent_failed=1, recent_runs=ran(100, 0.5))
    idle = queue(workers=0, slots_free=0)
    assert problems_of([busy, late, idle], {}) == []


def test_a_queue_without_a_worker_names_one_that_is_served_and_similar() -> None:
    missed = queue("mail", workers=0, backlog=30, oldest_seconds=90.0)
    found = one_of(missed, queue("mails"), queue("stock"))
    assert (found.kind, found.queue, found.tasks) == ("unserved", "mail", 30)
    assert found.what == "30 tasks wait, the oldest for 1.5 min"
    assert found.why == "no worker serves it"
    assert "--queue mail`" in found.remedy
    assert "(shop/mails, which is served, is similar)" in found.remedy
    other = queue("invoices", workers=0, backlog=1)
    assert "similar" not in one_of(other, queue("stock")).remedy


def test_a_queue_fails_while_there_are_dead_letters() -> None:
    broken = queue("payments", dead=9, recent_failed=20, recent_runs=ran(60, 0.01))
    causes = [group("LookupError", 6, "no rate for CHF"), group("TimeoutError", 3)]
    (found,) = problems_of([broken], {("shop", "payments"): causes})
    assert (found.kind, found.tasks) == ("failing", 9)
    assert found.what == "9 dead letters; 20 of the last 60 attempts failed"
    assert found.why == "LookupError: no rate for CHF (6); TimeoutError (3)"
    assert "task retry shop/payments --all" in found.remedy
    many = [group(str(number), 1) for number in range(CAUSES_TOLD + 2)]
    (found,) = problems_of([broken], {("shop", "payments"): many})
    assert found.why.endswith("; and 2 other errors")


def test_a_queue_whose_attempts_fail_and_wait_for_a_retry() -> None:
    retrying = queue(backlog=5, delayed=5, recent_failed=20, recent_runs=ran(100, 0.01))
    assert one_of(retrying).kind == "retrying"
    assert problems_of([retrying._replace(recent_failed=19)], {}) == []
    assert problems_of([retrying._replace(backlog=0, delayed=0)], {}) == []
    assert one_of(retrying._replace(recent_runs=())).kind == "retrying"  # workers are lost


def test_a_queue_that_is_too_slow_for_its_backlog() -> None:
    slow = queue(backlog=100, running=1, slots_free=0, recent_runs=ran(9, 1.0))
    found = one_of(slow)
    assert (found.kind, found.tasks) == ("behind", 100)
    assert found.what == "100 tasks wait; at this speed they take 1.2 min"
    assert "an attempt takes 750 ms (p50) to 995 ms (p99), and" in found.why
    assert "1 task runs at a time; no slot is free" in found.why
    assert "more slots" in found.remedy
    assert problems_of([slow._replace(running=8)], {}) == []
    assert problems_of([slow._replace(finished_per_second=50.0)], {}) == []
    waiting = queue(backlog=1, oldest_seconds=WAIT_SECONDS)
    assert "whether a rate limits it" in one_of(waiting).remedy


def test_a_paused_queue_says_by_whom_and_is_neither_unserved_nor_behind() -> None:
    pause = Pause(by="ana", at=1.0, reason="a bad release")
    found = one_of(queue(pause=pause, workers=0, backlog=7, oldest_seconds=900.0))
    assert (found.kind, found.why) == ("paused", "it is paused by ana: a bad release")


def test_the_most_urgent_comes_first() -> None:
    found = problems_of(
        [
            queue("a", pause=Pause()),
            queue("b", backlog=1, oldest_seconds=99.0),
            queue("c", dead=1),
            queue("d", dead=5),
            queue("e", workers=0, backlog=1, dead=1),
        ],
        {},
    )
    told = [(one.kind, one.queue) for one in found]
    assert told == [
        ("unserved", "e"),
        *(("failing", name) for name in "dce"),
        ("behind", "b"),
        ("paused", "a"),
    ]


def test_only_the_longest_backlogs_are_compared_with_the_names_of_served_queues() -> None:
    missed = [
        queue(f"mail-{number}", workers=0, backlog=1 + number)
        for number in range(COMPARED_QUEUES + 5)
    ]
    found = problems_of([*missed, queue("mail")], {})
    assert ["similar" in one.remedy for one in found] == [True] * COMPARED_QUEUES + [False] * 5
