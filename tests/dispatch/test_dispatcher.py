"""The dispatcher, one rule at a time, and under everything that may happen, in any order.

There is no loop and no connection here: events are calls, and what the dispatcher does is recorded.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.balancing.workers import QueryOutcome
from maitred.dispatch.ask import Ask
from maitred.dispatch.warm_slots import SHARE
from maitred.errors import (
    AtCapacity,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Draining,
    InvalidArguments,
    MaitredError,
    NoWorker,
    Overloaded,
    PayloadTooLarge,
    SlotTaken,
    Unavailable,
    WorkerLost,
)
from maitred.protocol.frames import ANSWER, Opcode
from maitred.protocol.queries import (
    Allocate,
    Allocated,
    Member,
    Relay,
    Relayed,
    Roster,
    Subscribe,
    Suspect,
)
from maitred.protocol.query_link import QueryEnd, encode_query_end
from maitred.protocol.tasks import DONE, FAILED, STOPPED, TIMED_OUT
from maitred.settings import QueryLimits
from tests.dispatch.recorded import NodeRequest, RecordedEffects, RecordedQuery, WorkerLink

SESSIONS = [bytes([number]) * 16 for number in range(1, 4)]
FIRST, SECOND, _ = SESSIONS


def allocate(world: RecordedEffects, *sessions: bytes) -> None:
    """The node answers the oldest request for slots with slots of these workers."""
    (request, *_) = [one for one in world.requests if isinstance(one.message, Allocate)]
    world.answer(request, Allocated([world.allocation(session) for session in sessions]))


def end(link: WorkerLink, stream: int, how: int = DONE, body: bytes = b"\x01", **more: Any) -> None:  # noqa: ANN401
    receiver = link.streams.pop(stream)
    if receiver is not None:
        receiver.finished(encode_query_end(QueryEnd(how, body, **more)), link.world.now)
    link.world.settle()


def refuse(link: WorkerLink, stream: int, problem: MaitredError) -> None:
    receiver = link.streams.pop(stream)
    if receiver is not None:
        receiver.refused(problem, link.world.now)
    link.world.settle()


def sent(world: RecordedEffects, **fields: Any) -> tuple[RecordedQuery, WorkerLink, int]:  # noqa: ANN401
    """A query that its worker has."""
    link = world.links.get(FIRST) or world.link(FIRST)
    query = world.ask(**fields)
    allocate(world, FIRST)
    return query, link, [*link.streams][-1]


def status(query: RecordedQuery) -> str:
    return query.entry.status


# One rule each


def test_a_query_waits_gets_a_slot_is_sent_and_answered() -> None:
    world = RecordedEffects()
    query, link, stream = sent(world)
    assert status(query) == "running"
    world.advance(2.0)
    end(link, stream)
    assert query.outcome == b"\x01"
    assert status(query) == "done"
    assert query.entry.returned_at - query.entry.received_at == pytest.approx(2.0)
    assert world.dispatcher.under_way == 0


def test_queries_of_one_turn_share_a_request() -> None:
    world = RecordedEffects()
    settle, world.settle = world.settle, lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        world.ask()
    world.settle = settle  # type: ignore[method-assign]
    world.settle()
    assert [one.message.slots for one in world.requests] == [5]


@pytest.mark.parametrize("problem", [Overloaded("Full."), Draining("It stops.")])
def test_what_a_worker_refuses_is_asked_for_again_and_its_partition_is_told(
    problem: MaitredError,
) -> None:
    world = RecordedEffects()
    query, link, stream = sent(world)
    refuse(link, stream, problem)
    assert status(query) == "waiting"
    ((message, _),) = world.told_node
    assert isinstance(message, Suspect)
    assert message.refused == [(1).to_bytes(16)]
    allocate(world, FIRST)
    end(link, [*link.streams][-1])
    assert query.outcome == b"\x01"
    assert query.entry.attempts == 2


def test_refusals_while_one_is_reported_are_reported_together() -> None:
    world = RecordedEffects()
    first, link, one = sent(world)
    second, _, two = sent(world)
    third, _, three = sent(world)
    for stream in (one, two, three):
        refuse(link, stream, Overloaded("Full."))
    assert [len(message.refused) for message, _ in world.told_node] == [1]
    _, told = world.told_node[0]
    assert told is not None
    told(True)  # noqa: FBT003
    assert [len(message.refused) for message, _ in world.told_node] == [1, 2]
    for query in (first, second, third):
        query.leave(world.now)


def test_the_second_try_is_at_once_and_the_third_after_a_pause() -> None:
    world = RecordedEffects()
    query, link, stream = sent(world)
    refuse(link, stream, Overloaded("Full."))
    allocate(world, FIRST)
    refuse(link, [*link.streams][-1], Overloaded("Full."))
    assert not [one for one in world.requests if isinstance(one.message, Allocate)]
    world.advance(0.02)
    allocate(world, FIRST)
    assert query.entry.attempts == 3
    query.leave(world.now)


def test_a_slot_that_was_taken_is_no_attempt() -> None:
    world = RecordedEffects()
    query, link, stream = sent(world)
    refuse(link, stream, SlotTaken("A task was faster."))
    assert (query.entry.attempts, query.tries) == (0, 0)
    allocate(world, FIRST)
    assert query.entry.attempts == 1
    query.leave(world.now)


def test_what_is_refused_for_what_it_asks_is_not_asked_again() -> None:
    world = RecordedEffects()
    query, link, stream = sent(world)
    refuse(link, stream, InvalidArguments("No."))
    assert isinstance(query.outcome, InvalidArguments)
    assert not world.requests


@pytest.mark.parametrize("hung", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_lost_link_runs_only_an_idempotent_query_again(*, idempotent: bool, hung: bool) -> None:
    world = RecordedEffects()
    query, _, _ = sent(world, idempotent=idempotent)
    world.cut(FIRST, hung=hung)
    if not idempotent:
        assert isinstance(query.outcome, WorkerLost)
        assert status(query) == "lost"
        return
    second = world.link(SECOND)
    allocate(world, SECOND)
    assert world.runs[-1][1].lost == [(1).to_bytes(16)], "the worker hears of the lost attempt"
    end(second, [*second.streams][-1])
    assert query.outcome == b"\x01"


def test_rows_are_not_taken_back() -> None:
    world = RecordedEffects()
    query, link, stream = sent(world, idempotent=True)
    receiver = link.streams[stream]
    assert receiver is not None
    receiver.rows_came(b"\x01", world.now)
    world.cut(FIRST)
    assert query.rows == [b"\x01"]
    assert isinstance(query.outcome, WorkerLost)


def test_a_worker_that_hangs_is_avoided_and_each_partition_is_told_once() -> None:
    world = RecordedEffects()
    query, _, _ = sent(world)
    world.cut(FIRST, hung=True)
    assert world.hanging == [FIRST]
    assert [message.worker_session for message, _ in world.told_node] == [FIRST]
    # Another partition gives out a slot of the same worker: it is told, and the query asks again.
    other = world.ask()
    (request,) = world.requests
    allocation = world.allocation(FIRST)
    allocation.partition = 3
    world.answer(request, Allocated([allocation]))
    assert [message.partition for message, _ in world.told_node] == [0, 3]
    assert not world.dials
    # The same one once more is believed: the worker may have woken up.
    (request,) = world.requests
    allocation = world.allocation(FIRST)
    allocation.partition = 3
    world.answer(request, Allocated([allocation]))
    assert len(world.dials) == 1
    assert isinstance(query.outcome, WorkerLost)
    other.leave(world.now)


def test_a_worker_that_hung_and_is_connected_again_is_not_avoided() -> None:
    world = RecordedEffects()
    sent(world)
    world.cut(FIRST, hung=True)
    link = world.link(FIRST)
    query = world.ask()
    (request,) = world.requests
    allocation = world.allocation(FIRST)
    allocation.partition = 3
    world.answer(request, Allocated([allocation]))
    assert [message.partition for message, _ in world.told_node] == [0], "nobody is told again"
    end(link, [*link.streams][-1])
    assert query.outcome == b"\x01"


def test_a_warm_slot_is_used_without_the_node_for_a_moment() -> None:
    world = RecordedEffects()
    _, link, stream = sent(world)
    end(link, stream, again=b"w" * 16, again_seconds=1.0)
    query = world.ask()
    assert not world.requests
    assert world.runs[-1][1].token == b"w" * 16
    end(link, [*link.streams][-1], again=b"v" * 16, again_seconds=1.0)
    assert query.outcome == b"\x01"
    world.advance(SHARE)
    late = world.ask()
    assert len(world.requests) == 1, "its time is over"
    late.leave(world.now)


def test_a_warm_slot_goes_to_a_query_that_waits_already() -> None:
    world = RecordedEffects()
    _, link, stream = sent(world)
    waiting = world.ask()
    end(link, stream, again=b"w" * 16, again_seconds=1.0)
    assert waiting.warm
    assert world.requests[0].taken_back
    waiting.leave(world.now)


def test_a_caller_that_leaves_stops_the_worker_or_gives_the_slot_back() -> None:
    world = RecordedEffects()
    query, _, stream = sent(world)
    query.leave(world.now)
    assert isinstance(query.outcome, Cancelled)
    assert world.stopped == [stream]
    waiting = world.ask()
    waiting.leave(world.now)
    (request,) = world.requests
    assert request.taken_back
    world.answer(request, Allocated([world.allocation(FIRST)]))
    assert [*world.used.values()] == ["given back"]


def test_a_slot_that_comes_for_a_query_that_left_goes_to_the_next_one() -> None:
    world = RecordedEffects()
    world.link(FIRST)
    left, stays = world.ask(), world.ask()
    left.leave(world.now)
    allocate(world, FIRST)
    assert status(stays) == "running"
    assert world.requests[0].taken_back, "its own request is in vain now"
    stays.leave(world.now)


@pytest.mark.parametrize("when", ["waiting", "dialling", "running"])
def test_a_deadline_ends_a_query_wherever_it_is(when: str) -> None:
    world = RecordedEffects()
    query = world.ask(seconds=1.0)
    if when != "waiting":
        allocate(world, FIRST)
    if when == "running":
        world.link(FIRST)
    world.advance(0.99)
    assert not query.over
    world.advance(0.02)
    assert isinstance(query.outcome, DeadlineExceeded)
    assert status(query) == "late"
    if when == "running":
        assert world.stopped == [1]
    if when == "dialling":
        world.link(FIRST)
        assert [*world.used.values()] == ["released"]


def test_a_worker_out_of_reach_is_reached_through_the_node() -> None:
    world = RecordedEffects()
    query = world.ask()
    allocate(world, FIRST)
    world.fails(FIRST, "unreachable")
    (request,) = world.requests
    assert isinstance(request.message, Relay)
    assert query.entry.relayed
    body = encode_query_end(QueryEnd(DONE, b"\x07"))
    world.answer(request, Relayed(Opcode.RUN + ANSWER, body, more=False))
    assert query.outcome == b"\x07"


def test_a_node_that_refuses_and_one_that_is_away() -> None:
    world = RecordedEffects()
    refused, waits = world.ask(), world.ask(user="ann")
    first, second = world.requests
    world.answer(first, NoWorker("Nobody serves it."))
    assert isinstance(refused.outcome, NoWorker)
    world.answer(second, Unavailable("It is started again."))
    assert waits.outcome is None
    assert not world.requests
    world.advance(0.05)
    assert len(world.requests) == 1, "asked again after a pause"
    waits.leave(world.now)


def test_admission_counts_to_the_end_and_a_refusal_is_in_the_table() -> None:
    world = RecordedEffects(limits=lambda _: QueryLimits(concurrent=1))
    query, link, stream = sent(world)
    refused = world.ask()
    assert isinstance(refused.outcome, Overloaded)
    assert status(refused) == "refused"
    end(link, stream)
    assert query.outcome == b"\x01"
    assert world.ask().outcome is None


def test_draining_is_over_with_the_last_query_and_closing_ends_the_rest() -> None:
    world = RecordedEffects()
    one, other = world.ask(), world.ask()
    world.dispatcher.drain()
    one.leave(world.now)
    assert world.dispatcher.under_way == 1
    assert world.drains == 0
    world.dispatcher.close(world.now)
    assert world.drains == 1
    assert isinstance(other.outcome, Closed)
    assert all(alarm.cancelled for alarm in world.alarms)


def test_a_queue_with_a_policy_is_subscribed_to_and_its_workers_are_picked() -> None:
    world = RecordedEffects()
    world.link(FIRST)
    world.link(SECOND)
    first = world.ask()
    (request,) = world.requests
    world.answer(request, Allocated([world.allocation(FIRST)], policy="round-robin"))
    (subscription,) = world.requests
    assert isinstance(subscription.message, Subscribe)
    members = [Member(one, "w", "h:1", 4, one) for one in (FIRST, SECOND)]
    world.answer(subscription, Roster(1, "round-robin", members))
    queries = [world.ask() for _ in range(4)]
    assert {query.allocation.session for query in queries} == {FIRST, SECOND}
    assert not [one for one in world.requests if isinstance(one.message, Allocate)]
    # A worker that has no room is not asked a second time.
    query = queries[0]
    link = world.links[query.allocation.session]
    stream = next(number for number, one in link.streams.items() if one is query)
    refuse(link, stream, AtCapacity("Full.", limit=1))
    assert query.allocation.session != link.session
    assert status(query) == "running"
    # A link that breaks takes its worker out for a moment.
    world.cut(FIRST)
    for _ in range(4):
        assert world.ask().allocation.session == SECOND
    assert first.outcome is not None


@pytest.mark.parametrize(
    ("leaves", "outcome"),
    [("by itself", QueryOutcome.CANCELLED), ("by its deadline", QueryOutcome.LOST)],
)
def test_a_worker_is_busy_until_its_last_word_and_a_deadline_counts_as_lost(
    leaves: str, outcome: QueryOutcome
) -> None:
    world = RecordedEffects()
    world.link(FIRST)
    world.ask()
    (request,) = world.requests
    world.answer(request, Allocated([world.allocation(FIRST)], policy="least-active"))
    (subscription,) = world.requests
    world.answer(subscription, Roster(1, "least-active", [Member(FIRST, "w", "h:1", 4, FIRST)]))
    policy = world.dispatcher.queues.by_place["n", "q"].policy
    ends: list[QueryOutcome] = []
    ended = policy.ended

    def recorded(dispatch: Any, how: QueryOutcome, *more: Any) -> None:  # noqa: ANN401
        ends.append(how)
        ended(dispatch, how, *more)

    policy.ended = recorded  # type: ignore[method-assign, assignment]
    query = world.ask(seconds=1.0)
    if leaves == "by itself":
        query.leave(world.now)
    else:
        world.advance(1.0)
    assert query.over
    assert policy.in_flight(FIRST.hex()) == 1
    link = world.links[FIRST]
    end(link, [*link.streams][-1], STOPPED)
    assert policy.in_flight(FIRST.hex()) == 0
    assert ends == [outcome]


def test_a_worker_that_hung_is_asked_as_soon_as_it_speaks_again() -> None:
    """Its queries were lost at their deadlines: what follows from that is over by then."""
    world = RecordedEffects()
    world.link(FIRST)
    world.ask()
    (request,) = world.requests
    world.answer(request, Allocated([world.allocation(FIRST)], policy="adaptive"))
    (subscription,) = world.requests
    world.answer(subscription, Roster(1, "adaptive", [Member(FIRST, "w", "h:1", 4, FIRST)]))
    link = world.links[FIRST]
    end(link, [*link.streams][-1], DONE)
    hung = [world.ask(seconds=1.0) for _ in range(4)]
    world.advance(1.0)
    assert all(query.over for query in hung)
    waiting = world.ask(seconds=1.0)
    assert status(waiting) == "waiting", "nothing more goes to a worker that does not answer"
    world.advance(1.5)
    for stream in [*link.streams]:
        end(link, stream, STOPPED)
    assert status(world.ask(seconds=1.0)) == "running"


class CancellingQuery(RecordedQuery):
    """A query whose caller cancels another one when it hears of the end of this one."""

    other: RecordedQuery

    def hand_answer(
        self, body: bytes, problem: MaitredError | None, *, drop_rows: bool = False
    ) -> None:
        super().hand_answer(body, problem, drop_rows=drop_rows)
        self.other.leave(100.0)


def two_of_one_turn(
    world: RecordedEffects, payload: bytes
) -> tuple[CancellingQuery, RecordedQuery]:
    """Two queries of one slot request; the end of the first one cancels the second one."""
    ask = Ask(namespace="n", queue="q", payload=payload, deadline=world.now + 10)
    first = CancellingQuery(world.dispatcher, ask, world.now)
    ask = Ask(namespace="n", queue="q", payload=b"\x90", deadline=world.now + 10)
    second = first.other = RecordedQuery(world.dispatcher, ask, world.now)
    world.dispatcher.begin(first, world.now)
    world.dispatcher.begin(second, world.now)
    world.settle()
    return first, second


def test_a_query_cancelled_in_the_moment_in_which_it_gets_a_slot_gives_the_slot_back() -> None:
    world = RecordedEffects()
    world.link(FIRST)
    first, second = two_of_one_turn(world, bytes(WorkerLink.frame_bytes))
    allocate(world, FIRST, FIRST)
    assert isinstance(first.outcome, PayloadTooLarge)
    assert isinstance(second.outcome, Cancelled)
    assert status(second) == "cancelled"
    assert len(world.used) == 2, "both slots were given back"
    assert not world.runs


def test_a_query_cancelled_in_the_moment_in_which_it_is_refused_ends_once() -> None:
    world = RecordedEffects()
    first, second = two_of_one_turn(world, b"\x90")
    world.answer(world.requests[0], NoWorker("There is none."))
    assert isinstance(first.outcome, NoWorker)
    assert isinstance(second.outcome, Cancelled)


def test_a_query_cancelled_in_the_moment_in_which_its_link_is_lost_ends_once() -> None:
    world = RecordedEffects()
    world.link(FIRST)
    first, second = two_of_one_turn(world, b"\x90")
    allocate(world, FIRST, FIRST)
    world.cut(FIRST)
    assert isinstance(first.outcome, WorkerLost)
    assert isinstance(second.outcome, Cancelled)


def test_a_query_cancelled_in_the_moment_in_which_the_gateway_closes_ends_once() -> None:
    world = RecordedEffects()
    first, second = two_of_one_turn(world, b"\x90")
    world.dispatcher.close(world.now)
    assert isinstance(first.outcome, Closed)
    assert isinstance(second.outcome, Cancelled)


# Everything, in any order

HOWS = st.sampled_from((DONE, DONE, FAILED, TIMED_OUT, STOPPED))
PROBLEMS = st.sampled_from(
    (
        Overloaded("Full."),
        AtCapacity("Full.", limit=2),
        SlotTaken("Taken."),
        Draining("It stops."),
        InvalidArguments("No."),
        DeadlineExceeded("Late."),
        WorkerLost("Lost."),
    )
)
NODE_PROBLEMS = st.sampled_from(
    (Unavailable("Away."), NoWorker("None."), Overloaded("Too many."), Cancelled("No."))
)
WHICH = st.integers(0, 50)
ACTIONS = st.one_of(
    st.tuples(
        st.just("ask"),
        st.sampled_from(("q", "picked")),
        st.sampled_from((0.05, 5.0, 60.0)),
        st.booleans(),
        st.sampled_from((False, False, True)),
    ),
    st.tuples(st.just("allocate"), WHICH, st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("node_fails"), WHICH, NODE_PROBLEMS),
    st.tuples(st.just("open"), st.integers(0, 2)),
    st.tuples(st.just("dial_fails"), st.integers(0, 2), st.sampled_from(("gone", "unreachable"))),
    st.tuples(st.just("cut"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("end"), WHICH, HOWS, st.booleans()),
    st.tuples(st.just("rows"), WHICH),
    st.tuples(st.just("refuse"), WHICH, PROBLEMS),
    st.tuples(st.just("leave"), WHICH),
    st.tuples(st.just("told"), st.booleans()),
    st.tuples(st.just("roster"), st.lists(st.booleans(), min_size=3, max_size=3)),
    st.tuples(st.just("pass_time"), st.sampled_from((0.001, 0.03, 0.6, 6.0))),
)


class World:
    """A dispatcher, and everything that may happen around it."""

    def __init__(self) -> None:
        self.effects = RecordedEffects(limits=lambda _: QueryLimits())
        self.queries: list[RecordedQuery] = []
        self.done: dict[int, bool] = {}
        """By query: whether what it was sent last was answered or may have been run."""
        self.version = 0
        self.warm = 0
        record = self.effects.run

        def run(receiver: Any, body: Any, now: float) -> None:  # noqa: ANN401
            assert isinstance(receiver, RecordedQuery)
            assert not self.done.get(receiver.sequence) or receiver.ask.idempotent, "run twice"
            assert not receiver.rows
            if not receiver.attempt:
                self.effects.use(body.token, "sent")
            self.done[receiver.sequence] = True
            record(receiver, body, now)

        self.effects.run = run  # type: ignore[method-assign, assignment]

    def ask(self, queue: str, seconds: float, idempotent: bool, now_only: bool) -> None:
        self.queries.append(
            self.effects.ask(queue, seconds, idempotent=idempotent, do_not_queue=now_only)
        )

    def _request(self, which: int, *kinds: type) -> NodeRequest | None:
        found = [one for one in self.effects.requests if isinstance(one.message, kinds)]
        return found[which % len(found)] if found else None

    def allocate(self, which: int, slots: int, worker: int) -> None:
        request = self._request(which, Allocate)
        if request is not None:
            count = min(slots, request.message.slots)
            policy = "adaptive" if request.message.queue == "picked" else ""
            made = [self.effects.allocation(SESSIONS[worker]) for _ in range(count)]
            self.effects.answer(request, Allocated(made, policy=policy))

    def node_fails(self, which: int, problem: MaitredError) -> None:
        request = self._request(which, Allocate, Subscribe, Relay)
        if request is not None:
            self.effects.answer(request, problem)

    def open(self, worker: int) -> None:
        if SESSIONS[worker] not in self.effects.links:
            self.effects.link(SESSIONS[worker])

    def dial_fails(self, worker: int, why: str) -> None:
        self.effects.fails(SESSIONS[worker], why)

    def cut(self, worker: int, hung: bool) -> None:
        if SESSIONS[worker] in self.effects.links:
            self.effects.cut(SESSIONS[worker], hung=hung)

    def _at_a_worker(self, which: int) -> tuple[WorkerLink, int] | None:
        found = self.effects.under_way()
        return found[which % len(found)] if found else None

    def end(self, which: int, how: int, warm: bool) -> None:
        found = self._at_a_worker(which)
        if found is not None:
            self.warm += warm
            again = (10**6 + self.warm).to_bytes(16) if warm else b""
            end(*found, how, again=again, again_seconds=0.5)

    def rows(self, which: int) -> None:
        found = self._at_a_worker(which)
        if found is not None:
            receiver = found[0].streams[found[1]]
            if receiver is not None:
                receiver.rows_came(b"\x01", self.effects.now)

    def refuse(self, which: int, problem: MaitredError) -> None:
        found = self._at_a_worker(which)
        if found is not None:
            receiver = found[0].streams[found[1]]
            if isinstance(receiver, RecordedQuery) and not receiver.rows:
                self.done[receiver.sequence] = isinstance(problem, WorkerLost)
                refuse(*found, problem)

    def leave(self, which: int) -> None:
        if self.queries:
            self.queries[which % len(self.queries)].leave(self.effects.now)
            self.effects.settle()

    def told(self, arrived: bool) -> None:
        if self.effects.told_node:
            _, told = self.effects.told_node.pop(0)
            if told is not None:
                told(arrived)

    def roster(self, there: list[bool]) -> None:
        request = self._request(0, Subscribe)
        if request is not None:
            self.version += 1
            members = [
                Member(session, "w", "h:1", 2, session)
                for session, is_there in zip(SESSIONS, there, strict=True)
                if is_there
            ]
            self.effects.answer(request, Roster(self.version, "adaptive", members))

    def pass_time(self, seconds: float) -> None:
        self.effects.advance(seconds)

    def check(self) -> None:
        dispatcher = self.effects.dispatcher
        is_open = [one for one in self.queries if one.outcome is None]
        assert dispatcher.under_way == len(is_open) == dispatcher.table.under_way
        assert all(one.over == (one.outcome is not None) for one in self.queries)
        assert all(one.deadline > self.effects.now for one in is_open), "nobody waits for ever"


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_whatever_happens_every_query_ends_once_and_is_run_once(
    actions: list[tuple[Any, ...]],
) -> None:
    world = World()
    for name, *given_ in actions:
        getattr(world, name)(*given_)
        world.check()
    world.pass_time(100.0)
    world.check()
    dispatcher = world.effects.dispatcher
    assert dispatcher.under_way == 0
    assert not dispatcher._pauses
    assert dispatcher.queues.queued == 0
    assert dispatcher.admission is not None
    assert dispatcher.admission.under_way("") == 0
    # Whatever is answered after that finds nothing to do.
    for request in [one for one in world.effects.requests if isinstance(one.message, Allocate)]:
        world.effects.answer(request, Cancelled("Over."))
    assert all(line.idle for line in dispatcher.slot_requests.lines.values())
    for link, stream in world.effects.under_way():
        end(link, stream, STOPPED)
    for queue in dispatcher.queues.by_place.values():
        policy = queue.policy
        assert all(policy.in_flight(name) == 0 for name in policy.workers), "nothing is in flight"
