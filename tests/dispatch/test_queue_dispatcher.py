"""A queue dispatcher under everything that may happen, in any order.

No query is lost, no attempt counts twice, a worker that refused a query is not asked again, retries
stay within their budget, and nothing is sent to a worker that is away.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.balancing.workers import WORKER_POLICIES, QueryOutcome
from maitred.dispatch.dispatch_attempt import DispatchTotals
from maitred.dispatch.known_workers import KnownWorkers
from maitred.dispatch.queue_dispatcher import QueueDispatcher
from maitred.errors import AtCapacity, InvalidReservation
from maitred.protocol.queries import Allocation, Member, Roster, SheddingTerms
from maitred.protocol.query_link import Load, QueryEnd, encode_query_end
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.workers import Dispatch
    from maitred.dispatch.dispatch_attempt import DispatchAttempt

WORKERS = [bytes([number]) * 16 for number in range(1, 4)]
RETRIES_PER_SECOND = 2.0


class FakeClock:
    """The effects of a queue dispatcher: time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Any] = []

    def wake_at(self, moment: float, act: Callable[[float], None]) -> Any:  # noqa: ANN401
        timer = SimpleNamespace(at=moment, act=act, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.timers if one.at <= end and not one.cancelled]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.act(self.now)
        self.now = end


class FakeQuery:
    """A query as a queue dispatcher sees it."""

    def __init__(self, house: House, deadline: float, priority: int, *, now_only: bool) -> None:
        self.house = house
        self.deadline = deadline
        self.priority = priority
        self.do_not_queue = now_only
        self.attempt: DispatchAttempt | None = None
        self.where = "new"

    def allocated(self, allocation: Allocation, now: float) -> None:
        assert now == self.house.clock.now
        assert self.where in ("new", "line", "again"), self.where
        assert allocation.session in self.house.listed
        assert self.attempt is not None
        name = allocation.session.hex()
        assert name not in self.attempt.refused_by, "it had no room for this query"
        assert self.house.away.get(name, 0.0) <= now, "its link broke a moment ago"
        self.where = "sent"
        self.attempt.sent = True
        self.house.sends += 1

    def ask_node(self, now: float) -> None:
        assert now == self.house.clock.now
        assert self.where in ("new", "line", "again")
        self.where = "node"
        self.attempt = None

    def ask_node_at_once(self, now: float) -> None:
        """The node has no slot either, and says so at once."""
        assert self.where in ("new", "line", "again")
        assert self.attempt is not None
        self.house.queue.queue(self.attempt, now)

    def refused_by_node(self, problem: Any, now: float) -> None:  # noqa: ANN401, ARG002
        assert problem.retry_after is not None
        assert problem.retry_after > 0
        self._over("refused")

    def expired(self, now: float) -> None:  # noqa: ARG002
        if self.where == "sent":
            self.left(QueryOutcome.LOST)
        else:
            self._over("late")

    def left(self, outcome: QueryOutcome) -> None:
        """The caller left, and the worker has the query still."""
        assert self.attempt is not None
        self.attempt.abandon(outcome, self.house.clock.now)
        self.house.leaving.append(self.attempt)
        self._over("left")

    def _over(self, where: str) -> None:
        assert self.where in ("new", "line", "again", "sent"), f"{self.where} is an end already"
        self.where = where
        if self.attempt is not None:
            self.attempt.queue.leave(self.attempt, self.house.clock.now)


class House:
    """Everything around a queue dispatcher."""

    def __init__(self, policy: str, seed: int) -> None:
        self.clock = FakeClock()
        self.queries: list[FakeQuery] = []
        self.leaving: list[DispatchAttempt] = []
        self.listed: set[bytes] = set()
        self.away: dict[str, float] = {}
        self.under_way: list[Dispatch] = []
        self.sends = self.first = self.number = 0
        self.queue = QueueDispatcher(
            ("n", "q"),
            policy,
            random=Random(seed),
            effects=self.clock,
            workers=KnownWorkers(),
            totals=DispatchTotals(),
            unreachable_seconds=5.0,
            now=self.clock.now,
        )
        self._watch()
        self.book: Any = SimpleNamespace(passes={}, missing=frozenset(), used_at=0.0)
        self.book.refresh = lambda _: None
        self.policy = policy
        self.version = 0
        self.roster([True] * len(WORKERS))

    def _watch(self) -> None:
        policy: Any = self.queue.policy
        sent, ended = policy.sent, policy.ended

        def watched_sent(worker: str, now: float) -> Dispatch:
            dispatch = cast("Dispatch", sent(worker, now))
            self.under_way.append(dispatch)
            return dispatch

        def watched_ended(dispatch: Dispatch, *args: Any) -> None:  # noqa: ANN401
            assert dispatch in self.under_way, "it ends once"
            self.under_way.remove(dispatch)
            ended(dispatch, *args)

        policy.sent, policy.ended = watched_sent, watched_ended

    # What happens

    def roster(self, there: list[bool]) -> None:
        self.version += 1
        members = [
            Member(session, "w", "h:1", 2, session)
            for session, is_there in zip(WORKERS, there, strict=True)
            if is_there
        ]
        self.listed |= {one.session for one in members}
        shedding = SheddingTerms(retries_per_second=RETRIES_PER_SECOND)
        for session, is_there in zip(WORKERS, there, strict=True):
            if not is_there:  # one that joins anew is not away any more
                self.away.pop(session.hex(), None)
        self.book.passes = {
            one.session.hex(): Allocation(0, one.token, one.session, "w", one.address)
            for one in members
        }
        roster = Roster(self.version, self.policy, members, shedding)
        self.queue.subscriptions[""] = self.book
        self.queue.learn(roster, self.clock.now)

    def ask(self, seconds: float, priority: int, *, now_only: bool) -> None:
        query = FakeQuery(self, self.clock.now + seconds, priority, now_only=now_only)
        self.queries.append(query)
        if not self.queue.works:
            query.where = "node"
            return
        self.first += 1
        self.queue.enter(query, self.book, self.clock.now)
        self._settle()

    def _settle(self) -> None:
        for one in self.queries:
            if one.where in ("new", "again"):
                assert one.attempt is not None
                assert one.attempt.queued, "it is somewhere"
                one.where = "line"

    def sent(self, which: int) -> FakeQuery | None:
        found = [one for one in self.queries if one.where == "sent"]
        return found[which % len(found)] if found else None

    def query_end(self, which: int, how: int, limit: int) -> None:
        query = self.sent(which)
        if query is None:
            return
        assert query.attempt is not None
        self.number += 1
        load = Load(self.number, limit, 1, 0, 0.01, 1)
        query.where = "over"
        query.attempt.answered(QueryEnd(how, b"", load=load), self.clock.now)

    def refused(self, which: int, *, known: bool) -> None:
        query = self.sent(which)
        if query is None:
            return
        attempt, now = query.attempt, self.clock.now
        assert attempt is not None
        query.where = "again"
        if known:
            attempt.refused(AtCapacity("Full.", limit=1), now)
        else:
            assert attempt.worker is not None
            name, before = attempt.worker.name, self.queue._away.get(attempt.worker.name)
            attempt.refused(InvalidReservation("Who?"), now)
            self._now_away(name, before)
        if attempt.was_full and self.queue.works:
            self.queue.retry(attempt, now)
        elif self.queue.works:
            self.queue.enter(query, self.book, now)
        else:
            query.ask_node(now)
        self._settle()

    def _now_away(self, name: str, before: tuple[Any, float] | None) -> None:
        after = self.queue._away.get(name)
        if after is not None and after is not before:
            assert name not in self.queue.policy.workers
            self.away[name] = after[1]

    def lost(self, which: int) -> None:
        query = self.sent(which)
        if query is None:
            return
        assert query.attempt is not None
        query.attempt.end(QueryOutcome.LOST, self.clock.now)
        query.where = "over"
        name = WORKERS[which % len(WORKERS)].hex()
        before = self.queue._away.get(name)
        self.queue.away(name, self.clock.now)
        self._now_away(name, before)

    def cancel(self, which: int) -> None:
        found = [one for one in self.queries if one.where in ("sent", "line")]
        if found:
            query = found[which % len(found)]
            if query.where == "sent":
                query.left(QueryOutcome.CANCELLED)
            else:
                query._over("cancelled")

    def last_word(self, which: int, how: int) -> None:
        if self.leaving:
            attempt = self.leaving.pop(which % len(self.leaving))
            attempt.finished(encode_query_end(QueryEnd(how, b"")), self.clock.now)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for one in self.queries:
            if one.where in ("sent", "line") and one.deadline <= self.clock.now:
                one.expired(self.clock.now)

    def check(self) -> None:
        at_workers = sum(one.where == "sent" for one in self.queries) + len(self.leaving)
        assert len(self.under_way) == at_workers
        queued = [one for one in self.queries if one.where == "line"]
        assert len(self.queue.line) == len(queued)
        assert all(one.attempt is not None and one.attempt.queued for one in queued)


HOWS = st.sampled_from((DONE, DONE, FAILED, TIMED_OUT, STOPPED))
WHICH = st.integers(0, 50)
ACTIONS = st.one_of(
    st.tuples(
        st.just("ask"),
        st.sampled_from((0.01, 1.0, 60.0)),
        st.integers(0, 4),
        st.sampled_from((True, False, False, False)),
        st.sampled_from((1, 3, 12)),
    ),
    st.tuples(st.just("query_end"), WHICH, HOWS, st.integers(-1, 9)),
    st.tuples(st.just("refused"), WHICH, st.booleans()),
    st.tuples(st.just("lost"), WHICH),
    st.tuples(st.just("cancel"), WHICH),
    st.tuples(st.just("last_word"), WHICH, HOWS),
    st.tuples(st.just("roster"), st.lists(st.booleans(), min_size=3, max_size=3)),
    st.tuples(st.just("pass_time"), st.sampled_from((0.001, 0.05, 0.6, 6.0))),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(WORKER_POLICIES)), st.integers(0, 1_000), st.lists(ACTIONS, max_size=60)
)
def test_whatever_happens_every_query_is_somewhere_and_ends_once(
    policy: str, seed: int, actions: list[tuple[Any, ...]]
) -> None:
    house = House(policy, seed)
    for name, *given_ in actions:
        if name == "ask":
            for _ in range(given_[3]):
                house.ask(given_[0], given_[1], now_only=given_[2])
        elif name == "refused":
            house.refused(given_[0], known=given_[1])
        else:
            getattr(house, name)(*given_)
        house.check()
    # The end: everybody answers, and the rest runs out of time.
    for _ in range(500):
        if not house.under_way:
            break
        house.query_end(0, DONE, 5)
        house.last_word(0, DONE)
    house.pass_time(100.0)
    for _ in range(500):
        house.last_word(0, STOPPED)
    house.check()
    assert house.under_way == []
    assert len(house.queue.line) == 0
    assert {one.where for one in house.queries} <= {
        "over", "node", "refused", "late", "left", "cancelled",
    }  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(WORKER_POLICIES)), st.integers(0, 100), st.integers(1, 100))
def test_if_all_refuse_retries_stay_within_the_budget(policy: str, seed: int, count: int) -> None:
    house = House(policy, seed)
    for _ in range(count):
        house.ask(60.0, 0, now_only=True)
        while house.sent(0) is not None:
            house.refused(0, known=True)
            house.check()
    assert house.sends - house.first <= RETRIES_PER_SECOND + 0.2 * house.first + 1
    assert all(one.where == "refused" for one in house.queries)
    assert house.under_way == []


def test_if_all_workers_begin_to_refuse_queries_are_refused_before_their_deadlines() -> None:
    """After a quiet time it is not known how fast slots become free, and many queries are queued:
    they are told as soon as it is known, and do not wait to their deadlines."""
    house = House("adaptive", 1)
    for _ in range(200):
        house.ask(1.0, 0, now_only=False)
        house.pass_time(0.01)
        house.query_end(0, DONE, 2)
    queued = 0
    for step in range(1_500):
        if step < 300:
            house.ask(1.0, 0, now_only=False)
        while house.sent(0) is not None:
            house.refused(0, known=True)
        queued = max(queued, len(house.queue.line))
        house.pass_time(0.001)
        house.check()
    ends = [one.where for one in house.queries[200:]]
    assert queued > 100
    assert ends.count("late") + ends.count("left") <= 3
    assert ends.count("refused") >= 297
