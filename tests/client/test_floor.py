"""A floor under everything that may happen, in any order: nothing is lost, nothing counts twice."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.balancing.workers import WORKER_POLICIES, Outcome
from maitred.client.floor import Floor
from maitred.errors import AtCapacity, InvalidReservation, Overloaded
from maitred.protocol.queries import Allocation, Member, Roster, Shedding
from maitred.protocol.seats import Load, Seated, encode_seated
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.workers import Dispatch
    from maitred.client.turns import Turn

WORKERS = [bytes([number]) * 16 for number in range(1, 4)]
RETRIES_PER_SECOND = 2.0


class FakeLoop:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *args: object) -> object:
        timer = SimpleNamespace(at=self.now + seconds, call=call, args=args, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.timers if one.at <= end and not one.cancelled]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call(*first.args)
        self.now = end


class FakeRunning:
    """A query as a floor sees it."""

    def __init__(self, house: House, deadline: float, priority: int, *, now_only: bool) -> None:
        self.house = house
        self.deadline = deadline
        self.ask = SimpleNamespace(priority=priority, do_not_queue=now_only)
        self.turn: Turn | None = None
        self.where = "new"

    def allocated(self, allocation: Allocation) -> None:
        assert self.where in ("new", "line", "again"), self.where
        assert allocation.session in self.house.listed
        self.where = "sent"
        assert self.turn is not None
        self.turn.link = cast("Any", self)
        self.house.sends += 1

    def refused_by_node(self, problem: Overloaded) -> None:
        assert problem.retry_after is not None
        assert problem.retry_after > 0
        self._over("refused")

    def expired(self) -> None:
        if self.where == "sent":
            self.left(Outcome.LOST)
        else:
            self._over("late")

    def left(self, outcome: Outcome) -> None:
        """Whoever asked is gone, and the worker has it still."""
        assert self.turn is not None
        self.turn.leaving = outcome
        self.house.leaving.append(self.turn)
        self._over("left")

    def _over(self, where: str) -> None:
        assert self.where in ("new", "line", "again", "sent"), f"{self.where} is an end already"
        self.where = where
        if self.turn is not None:
            self.turn.floor.leave(self.turn)


class House:
    """Everything around a floor."""

    def __init__(self, policy: str, seed: int) -> None:
        self.loop = FakeLoop()
        self.random = Random(seed)
        self.unreachable_seconds = 5.0
        self.refused_by_workers = 0
        self.shed = 0
        self.queries: list[FakeRunning] = []
        self.leaving: list[Turn] = []
        self.listed: set[bytes] = set()
        self.under_way: list[Dispatch] = []
        self.sends = self.first = self.number = 0
        self.floor = Floor(cast("Any", self), ("n", "q"), policy)
        self._watch()
        self.subscription: Any = SimpleNamespace(
            roster=None, passes={}, missing=frozenset(), used_at=0.0
        )
        self.subscription.refresh = lambda: None
        self.floor.subscriptions[""] = cast("Any", self.subscription)
        self.policy = policy
        self.version = 0
        self.roster([True] * len(WORKERS))

    def _watch(self) -> None:
        policy: Any = self.floor.policy
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

    # For the floor

    def by_the_node(self, running: FakeRunning) -> None:
        assert running.where in ("new", "line", "again")
        running.where = "node"
        running.turn = None

    def at_once(self, turn: Turn) -> None:
        """The node has nothing either; whoever asked it hears so at once."""
        assert cast("Any", turn.running).where in ("new", "line", "again")
        self.floor.wait(turn, self.loop.time())

    def reported(self, session: bytes, load: Load) -> None:
        self.floor.reported(session.hex(), load, 0)

    # What happens

    def roster(self, there: list[bool]) -> None:
        self.version += 1
        members = [
            Member(session, "w", "h:1", 2, session)
            for session, is_there in zip(WORKERS, there, strict=True)
            if is_there
        ]
        self.listed |= {one.session for one in members}
        shedding = Shedding(retries_per_second=RETRIES_PER_SECOND)
        self.subscription.roster = Roster(self.version, self.policy, members, shedding)
        self.subscription.passes = {
            one.session.hex(): Allocation(0, one.token, one.session, "w", one.address)
            for one in members
        }
        self.floor.learn(self.subscription)

    def ask(self, seconds: float, priority: int, *, now_only: bool) -> None:
        running = FakeRunning(self, self.loop.now + seconds, priority, now_only=now_only)
        self.queries.append(running)
        if not self.floor.works:
            running.where = "node"
            return
        self.first += 1
        self.floor.enter(cast("Any", running), self.subscription)
        self._settle()

    def _settle(self) -> None:
        for one in self.queries:
            if one.where in ("new", "again"):
                assert one.turn is not None
                assert one.turn.waits, "it is somewhere"
                one.where = "line"

    def sent(self, which: int) -> FakeRunning | None:
        found = [one for one in self.queries if one.where == "sent"]
        return found[which % len(found)] if found else None

    def seated(self, which: int, how: int, limit: int) -> None:
        running = self.sent(which)
        if running is None:
            return
        assert running.turn is not None
        self.number += 1
        load = Load(self.number, limit, 1, 0, 0.01, 1)
        running.where = "over"
        running.turn.answered(Seated(how, b"", load=load))

    def refused(self, which: int, *, known: bool) -> None:
        running = self.sent(which)
        if running is None:
            return
        turn = running.turn
        assert turn is not None
        running.where = "again"
        turn.was_refused(AtCapacity("Full.", limit=1) if known else InvalidReservation("Who?"))
        if turn.was_full and self.floor.works:
            self.floor.again(turn)
        elif self.floor.works:
            self.floor.enter(cast("Any", running), self.subscription)
        else:
            self.by_the_node(running)
        self._settle()

    def lost(self, which: int) -> None:
        running = self.sent(which)
        if running is None:
            return
        assert running.turn is not None
        running.turn.end(Outcome.LOST)
        running.where = "over"
        self.floor.away(WORKERS[which % len(WORKERS)].hex())

    def cancel(self, which: int) -> None:
        found = [one for one in self.queries if one.where in ("sent", "line")]
        if found:
            running = found[which % len(found)]
            if running.where == "sent":
                running.left(Outcome.CANCELLED)
            else:
                running._over("cancelled")

    def last_word(self, which: int, how: int) -> None:
        if self.leaving:
            turn = self.leaving.pop(which % len(self.leaving))
            turn.seated(encode_seated(Seated(how, b"")))

    def pass_time(self, seconds: float) -> None:
        self.loop.advance(seconds)
        for one in self.queries:
            if one.where in ("sent", "line") and one.deadline <= self.loop.now:
                one.expired()

    def check(self) -> None:
        at_workers = sum(one.where == "sent" for one in self.queries) + len(self.leaving)
        assert len(self.under_way) == at_workers
        in_line = sum(one.where == "line" for one in self.queries)
        assert len(self.floor.line) == in_line
        assert in_line == sum(
            one.turn is not None and one.turn.waits for one in self.queries if one.where == "line"
        )


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
    st.tuples(st.just("seated"), WHICH, HOWS, st.integers(-1, 9)),
    st.tuples(st.just("refused"), WHICH, st.booleans()),
    st.tuples(st.just("lost"), WHICH),
    st.tuples(st.just("cancel"), WHICH),
    st.tuples(st.just("last_word"), WHICH, HOWS),
    st.tuples(st.just("roster"), st.lists(st.booleans(), min_size=3, max_size=3)),
    st.tuples(st.just("pass_time"), st.sampled_from((0.001, 0.05, 0.6, 6.0))),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(WORKER_POLICIES), st.integers(0, 1_000), st.lists(ACTIONS, max_size=60))
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
        house.seated(0, DONE, 5)
        house.last_word(0, DONE)
    house.pass_time(100.0)
    for _ in range(500):
        house.last_word(0, STOPPED)
    house.check()
    assert house.under_way == []
    assert len(house.floor.line) == 0
    assert {one.where for one in house.queries} <= {
        "over", "node", "refused", "late", "left", "cancelled",
    }  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(WORKER_POLICIES), st.integers(0, 100), st.integers(1, 100))
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
