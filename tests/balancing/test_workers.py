"""Worker policies: what holds for all of them, and each rule."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.balancing.workers import WORKER_POLICIES, LoadReport, QueryOutcome, worker_policy
from maitred.balancing.workers.counting import SLOTS_MAX
from maitred.balancing.workers.p2c_peak_ewma import PeakEwma
from maitred.balancing.workers.two_phase import TwoPhase
from maitred.errors import UnknownAlgorithm

NAMES = ("a", "b", "c")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(NAMES), st.integers(0, 20)),
        st.tuples(st.just("leave"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("ask"), st.just(""), st.just(0)),
        st.tuples(st.just("end"), st.sampled_from(list(QueryOutcome)), st.integers(0, 50)),
        st.tuples(st.just("report"), st.sampled_from(NAMES), st.integers(0, 30)),
    ),
    max_size=120,
)


@pytest.mark.parametrize("name", WORKER_POLICIES)
@given(steps=steps, seed=st.integers(0, 100))
def test_every_policy_counts_from_sending_to_the_end_on_every_path(
    name: str, steps: list[tuple[str, object, int]], seed: int
) -> None:
    policy = worker_policy(name, Random(seed))
    there: set[str] = set()
    sent = []
    lives = dict.fromkeys(NAMES, 0)
    expected: dict[tuple[str, int], int] = {}
    now = 0.0
    for number, (kind, what, amount) in enumerate(steps):
        now += 0.01
        if kind == "join":
            policy.joined(str(what), amount, now)
            there.add(str(what))
        elif kind == "leave":
            policy.left(str(what), now)
            if what in there:
                lives[str(what)] += 1
            there.discard(str(what))
        elif kind == "ask":
            worker = policy.pick(now)
            assert worker is None or worker in there
            if worker is not None:
                sent.append((policy.sent(worker, now), (worker, lives[worker])))
                expected[sent[-1][1]] = expected.get(sent[-1][1], 0) + 1
        elif kind == "end" and sent:
            dispatch, key = sent.pop(amount % len(sent))
            assert isinstance(what, QueryOutcome)
            policy.ended(dispatch, what, now, amount if what is QueryOutcome.REFUSED else None)
            policy.ended(dispatch, QueryOutcome.DONE, now)  # a second end does nothing
            expected[key] -= 1
        elif kind == "report":
            policy.reported(str(what), LoadReport(number, amount, amount // 2, 1, 0.01), now)
        for worker in NAMES:
            count = expected.get((worker, lives[worker]), 0) if worker in there else 0
            assert policy.in_flight(worker) == count
    assert set(policy.workers) == there


@pytest.mark.parametrize("name", WORKER_POLICIES)
def test_nobody_is_picked_if_nobody_is_there_or_allowed(name: str) -> None:
    policy = worker_policy(name, Random(1))
    assert policy.pick(0.0) is None
    policy.joined("a", 10, 0.0)
    assert policy.pick(0.0, without=("a",)) is None
    policy.joined("b", 10, 0.0)
    assert {policy.pick(0.0, without=("a",)) for _ in range(20)} == {"b"}


@pytest.mark.parametrize("name", WORKER_POLICIES)
@pytest.mark.parametrize("slots", [-5, 10**30, True, None, "many", float("nan")])
def test_slots_that_cannot_be_are_bounded(name: str, slots: object) -> None:
    policy = worker_policy(name, Random(1))
    policy.joined("liar", slots, 0.0)  # type: ignore[arg-type]
    policy.joined("honest", 10, 0.0)
    for _ in range(5):
        worker = policy.pick(0.0)
        assert worker is not None
        policy.sent(worker, 0.0)


def test_what_is_sent_to_a_worker_that_just_left_still_ends() -> None:
    policy = worker_policy("adaptive", Random(1))
    policy.joined("a", 3, 0.0)
    policy.left("a", 0.0)
    dispatch = policy.sent("a", 0.0)
    assert policy.in_flight("a") == 0
    policy.ended(dispatch, QueryOutcome.LOST, 1.0)
    policy.joined("a", 3, 1.0)
    assert policy.in_flight("a") == 0


def test_a_policy_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownAlgorithm, match="Did you mean 'two-phase'"):
        worker_policy("two-phases", Random(1))


@given(
    slots=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    asked=st.integers(0, 300),
    seed=st.integers(0, 100),
)
def test_two_phase_never_goes_beyond_the_slots_and_refuses_only_when_all_are_taken(
    slots: list[int], asked: int, seed: int
) -> None:
    policy = TwoPhase(Random(seed))
    for number, count in enumerate(slots):
        policy.joined(str(number), count, 0.0)
    for number in range(asked):
        worker = policy.pick(0.0)
        assert (worker is None) == (number >= sum(slots))
        if worker is None:
            return
        policy.sent(worker, 0.0)
        assert policy.in_flight(worker) <= slots[int(worker)]


def test_two_phase_draws_by_capacity_while_somebody_is_idle_and_then_takes_the_most() -> None:
    policy = TwoPhase(Random(5))
    policy.joined("small", 100, 0.0)
    policy.joined("large", 300, 0.0)
    drawn = [policy.pick(0.0) for _ in range(4_000)]
    assert drawn.count("large") / len(drawn) == pytest.approx(0.75, abs=0.03)
    for _ in range(61):
        policy.sent("small", 0.0)  # less than 40 % of it is free, so it is out
    assert {policy.pick(0.0) for _ in range(50)} == {"large"}
    for _ in range(265):
        policy.sent("large", 0.0)  # 39 free against 35: nobody is idle, the most capacity wins
    assert {policy.pick(0.0) for _ in range(50)} == {"small"}


def test_round_robin_takes_turns() -> None:
    policy = worker_policy("round-robin", Random(1))
    for name in NAMES:
        policy.joined(name, 1, 0.0)
    assert [policy.pick(0.0) for _ in range(6)] == [*NAMES, *NAMES]


def test_least_active_and_weighted_least_connections_differ_by_the_weights() -> None:
    least, weighted = (
        worker_policy(name, Random(1)) for name in ("least-active", "weighted-least-connections")
    )
    for policy in (least, weighted):
        policy.joined("small", 1, 0.0)
        policy.joined("large", 100, 0.0)
        policy.sent("large", 0.0)
    assert least.pick(0.0) == "small"
    assert weighted.pick(0.0) == "large"


def test_peak_ewma_jumps_up_at_once_and_comes_down_slowly() -> None:
    policy = PeakEwma(Random(1))
    policy.joined("a", 1, 0.0)
    policy.ended(policy.sent("a", 0.0), QueryOutcome.DONE, 1.0)
    record = policy._known["a"]
    assert record.mean_seconds == 1.0
    policy.ended(policy.sent("a", 1.0), QueryOutcome.DONE, 1.1)
    assert 0.98 < record.mean_seconds < 1.0
    assert repr(policy) == "<PeakEwma, 1 workers, 0 in flight>"


def test_no_worker_is_believed_more_than_the_limit() -> None:
    policy = TwoPhase(Random(1))
    policy.joined("a", 10**9, 0.0)
    assert policy._known["a"].slots == SLOTS_MAX
    assert repr(policy._known["a"]) == f"<PolicyWorker 'a', 0 of {SLOTS_MAX} in flight>"
