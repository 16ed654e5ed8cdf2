"""What is wrong with a queue is decided from what shards tell of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from maitred.client.dead_groups import DeadGroup
from maitred.client.queue_problems import (
    CAUSES_TOLD,
    COMPARED_QUEUES,
    WAIT_SECONDS,
    ProblemFinder,
    QueueDelay,
    QueueProblem,
    SlotHolder,
    problems_of,
    seconds_to_empty,
    slot_holder,
)
from maitred.client.queue_states import ListedQueue, QueueStatesPage
from maitred.client.statistics import ShardAnswer
from maitred.errors import Unavailable
from maitred.matching.controls import Pause
from maitred.metrics.histogram import WORK_BOUNDS
from maitred.protocol.queries import WorkerRow
from maitred.protocol.tasks import Describe
from maitred.protocol.worker_overview import (
    AttendingWorker,
    ListWorkers,
    WorkersListed,
    WorkerTask,
    WorkerTasksShown,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_tasks_that_are_planned_for_later_need_no_worker_yet() -> None:
    assert not problems_of([queue(workers=0, backlog=30, delayed=30)], {})
    assert one_of(queue(workers=0, backlog=31, delayed=30)).kind == "unserved"


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
    assert found.why.endswith("; and 2 other errors; of the first 5")
    (found,) = problems_of([broken._replace(dead=5)], {("shop", "payments"): many})
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
    assert "1 slot is free" in one_of(waiting).why
    assert "queue describe shop/mails`" in one_of(waiting).remedy


def test_a_queue_whose_workers_are_busy_with_another_names_it() -> None:
    """A handler that hangs keeps the slots of its worker, so that its other queues wait."""
    stuck = queue(backlog=600, oldest_seconds=70.0, slots_free=0, recent_runs=ran(9, 0.005))
    assert one_of(stuck).remedy.startswith("more slots")
    holder = SlotHolder(("shop", "films"), 20, 312.0, 24)
    (found,) = problems_of([stuck], {}, {("shop", "mails"): QueueDelay(holder=holder)})
    said = "no slot is free: 20 of the 24 slots of its workers run shop/films, the longest for"
    assert f"{said} 5.2 min" in found.why
    assert "task list shop/films --state running`" in found.remedy
    assert "--queue mails`" in found.remedy
    # Its attempts are short, but none runs: how long the tasks will take is not known.
    assert found.what == "600 tasks wait, the oldest for 1.2 min"
    assert seconds_to_empty(stuck) == 0
    assert seconds_to_empty(stuck._replace(oldest_seconds=1.0)) > 0


def test_the_queue_that_has_most_slots_holds_up_the_others() -> None:
    films = [(("shop", "films"), 100.0 + number) for number in range(12)]
    mails = [(("shop", "mails"), 50.0)] * 11
    found = slot_holder(("shop", "mails"), 24, [*films, *mails], 160.0)
    assert found == SlotHolder(("shop", "films"), 12, 60.0, 24)
    assert slot_holder(("shop", "films"), 24, [*films, *mails], 160.0) is None
    assert slot_holder(("shop", "mails"), 25, [*films, *mails], 160.0) is None
    assert slot_holder(("shop", "mails"), 24, [], 160.0) is None


def test_a_queue_that_its_rate_slows_down_tells_the_rate() -> None:
    limited = queue(
        backlog=5_200,
        oldest_seconds=140.0,
        added_per_second=36.4,
        finished_per_second=20.0,
        recent_runs=ran(900, 0.01),
    )
    delays = {("shop", "mails"): QueueDelay(rate=20.0)}
    (found,) = problems_of([limited], {}, delays)
    assert found.what.endswith("at this speed they take 4.3 min")
    assert found.why == "its rate_per_second lets 20 tasks through per second, and 36 are added"
    assert "queue set shop/mails rate_per_second=NUMBER`" in found.remedy
    (found,) = problems_of([limited._replace(slots_free=0)], {}, delays)
    assert "rate_per_second" in found.why
    # Far below its rate it is slow for another reason.
    slow = limited._replace(slots_free=0, finished_per_second=2.0)
    (found,) = problems_of([slow], {}, delays)
    assert "no slot is free" in found.why


def test_a_paused_queue_says_by_whom_and_is_neither_unserved_nor_behind() -> None:
    pause = Pause(by="ana", at=1.0, reason="a bad release")
    found = one_of(queue(pause=pause, workers=0, backlog=7, oldest_seconds=900.0))
    assert (found.kind, found.why) == ("paused", "it is paused by ana: a bad release")


def test_the_reason_of_a_pause_cannot_command_the_terminal() -> None:
    found = one_of(queue(pause=Pause(by="a\x1b[2J", reason="wait\x1b]0;title\x07"), workers=0))
    assert found.why == r"it is paused by a\x1b[2J: wait\x1b]0;title\x07"


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


class BusyShop:
    """A client of a node with one worker of four slots, three of which run films."""

    def __init__(self, state: ListedQueue) -> None:
        self.state = state
        self.rate: float | None = None
        self.away = False
        self.within: list[Any] = []
        self.asked = 0

    async def page(self, **_: object) -> QueueStatesPage:
        return QueueStatesPage([self.state], None, 1, [])

    async def request(self, message: object, *_: object) -> Any:  # noqa: ANN401
        assert isinstance(message, Describe)
        if self.away:
            raise Unavailable("The root is away.")
        self.asked += 1
        return SimpleNamespace(rate_limit_per_second=self.rate)

    async def ask_shards(self, message: Callable[[str, int], Any], *_: object) -> list[ShardAnswer]:
        asked = message("a", 0)
        self.within.append(asked.within)
        answer: Any
        if isinstance(asked, ListWorkers):
            assert (asked.namespace, asked.queue) == ("shop", "mails")
            row = WorkerRow(
                session=b"1" * 16,
                worker="ant",
                address="",
                slots=4,
                busy=4,
                state="online",
                heard_seconds=0.0,
            )
            answer = WorkersListed([AttendingWorker(row, [], 0)], more=False)
        else:
            assert asked.sessions == [b"1" * 16]
            films = [WorkerTask("shop", "films", 0, at, 1, 1.0) for at in range(3)]
            answer = WorkerTasksShown({b"1" * 16: films})
        return [ShardAnswer(address="a", shard=0, answer=answer)]


def test_a_finder_asks_the_workers_of_a_queue_that_is_behind() -> None:
    shop = BusyShop(queue(backlog=5, oldest_seconds=90.0, slots_free=0))
    finder = ProblemFinder(cast("Any", shop), cast("Any", shop))

    async def why(**options: Any) -> str:  # noqa: ANN401
        found = await finder.find(**options)
        (one,) = found.problems
        return one.why

    async def ask() -> None:
        assert "3 of the 4 slots of its workers run shop/films" in await why()
        assert "shop/films" in await why()
        assert shop.asked == 1, "what holds it up is remembered"
        # Another caller may not see the same queues.
        await why(within=["shop"])
        assert shop.asked == 2
        assert shop.within == [None, None, ["shop"], ["shop"]]
        # A paused queue, and one without a worker, has another problem.
        for other in (shop.state._replace(pause=Pause()), shop.state._replace(workers=0)):
            shop.state, before = other, shop.state
            await why(within=["park"])
            shop.state = before
        assert shop.asked == 2

    asyncio.run(ask())


def test_a_root_that_is_away_leaves_what_the_states_tell() -> None:
    shop = BusyShop(queue(backlog=5, oldest_seconds=90.0, slots_free=0))
    shop.away = True
    finder = ProblemFinder(cast("Any", shop), cast("Any", shop))
    (found,) = asyncio.run(finder.find()).problems
    assert found.why == "0 tasks run at a time; no slot is free"
    assert found.remedy.startswith("more slots")


def test_only_the_longest_backlogs_are_compared_with_the_names_of_served_queues() -> None:
    missed = [
        queue(f"mail-{number}", workers=0, backlog=1 + number)
        for number in range(COMPARED_QUEUES + 5)
    ]
    found = problems_of([*missed, queue("mail")], {})
    assert ["similar" in one.remedy for one in found] == [True] * COMPARED_QUEUES + [False] * 5
