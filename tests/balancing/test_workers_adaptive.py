"""The adaptive policy: fills what is really there, is not fooled, and comes back."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.balancing.workers import Adaptive, Dispatch, LoadReport, QueryOutcome
from maitred.balancing.workers.trust import FIRST_TRUST

numbers = st.one_of(
    st.integers(-(10**30), 10**30), st.integers(-5, 200), st.booleans(), st.floats(), st.none()
)


def report(number: int, limit: int, service: float = 0.05, **more: int) -> LoadReport:
    whole = {"serving": 0, "waiting": 0, "yours": 0, "senders": 1, **more}
    return LoadReport(
        number,
        limit,
        whole["serving"],
        whole["waiting"],
        service,
        whole["yours"],
        whole["senders"],
    )


def fill(policy: Adaptive, now: float, most: int = 5_000) -> list[Dispatch]:
    """Ask until there is no room."""
    sent = []
    for _ in range(most):
        worker = policy.pick(now)
        if worker is None:
            break
        sent.append(policy.sent(worker, now))
    return sent


@given(limits=st.lists(st.integers(1, 200), min_size=1, max_size=4), seed=st.integers(0, 50))
def test_each_worker_is_filled_to_its_limit_and_not_beyond(limits: list[int], seed: int) -> None:
    policy = Adaptive(Random(seed))
    for number, limit in enumerate(limits):
        policy.joined(str(number), 1_000, 0.0)
        policy.reported(str(number), report(1, limit, 0.01 * (number + 1)), 0.0)
    assert len(fill(policy, 0.1)) == sum(limits)
    for number, limit in enumerate(limits):
        assert policy.in_flight(str(number)) == limit


def test_the_faster_worker_is_filled_first_and_equals_share() -> None:
    policy = Adaptive(Random(1))
    for name, service in (("slow", 0.1), ("fast", 0.05), ("as fast", 0.052)):
        policy.joined(name, 100, 0.0)
        policy.reported(name, report(1, 100, service), 0.0)
    fill(policy, 0.0, 190)
    assert policy.in_flight("slow") < 10, "only what explores"
    assert abs(policy.in_flight("fast") - policy.in_flight("as fast")) < 10


def test_a_worker_that_gets_nothing_is_looked_at_now_and_then() -> None:
    policy = Adaptive(Random(1))
    for name, service in (("slow", 0.1), ("fast", 0.05)):
        policy.joined(name, 1_000, 0.0)
        policy.reported(name, report(1, 1_000, service), 0.0)
    picked = [policy.pick(0.0) for _ in range(640)]
    assert picked.count("slow") <= 10
    fill(policy, 0.0, 640)
    assert policy.in_flight("slow") >= 5


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers, numbers, numbers, numbers), max_size=30),
    st.integers(0, 20),
)
def test_whatever_is_reported_what_is_sent_stays_bounded_and_something_is(
    lies: list[tuple[object, ...]], seed: int
) -> None:
    policy = Adaptive(Random(seed))
    policy.joined("liar", 10, 0.0)
    now = 0.0
    for lie in lies:
        now += 0.05
        number = lie[0] if isinstance(lie[0], int) else 0
        policy.reported("liar", LoadReport(number, *lie[1:]), now)  # type: ignore[arg-type]
        sent = fill(policy, now)
        assert policy.in_flight("liar") <= FIRST_TRUST + 1
        for dispatch in sent:
            policy.ended(dispatch, QueryOutcome.LOST, now)
    now += 5.0
    assert policy.pick(now) == "liar", "it is tried again"


def test_an_honest_worker_is_not_starved_by_one_that_lies_about_everything() -> None:
    policy = Adaptive(Random(1))
    for name in ("liar", "honest"):
        policy.joined(name, 100, 0.0)
    policy.reported("honest", report(1, 100, 0.05), 0.0)
    policy.reported("liar", report(2**62, 10**9, 1e-9), 0.0)
    sent = fill(policy, 0.0)
    assert policy.in_flight("honest") == 100
    assert len(sent) <= 100 + FIRST_TRUST


def test_a_limit_that_jumps_is_followed_down_at_once_and_up_slowly() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 500, 0.0)
    policy.reported("a", report(1, 100), 0.0)
    policy.reported("a", report(2, 10), 0.01)
    assert len(fill(policy, 0.01)) == 10
    policy.reported("a", report(3, 500), 0.02)
    assert len(fill(policy, 0.02)) <= 10
    policy.reported("a", report(4, 500), 0.12)
    assert policy.in_flight("a") + len(fill(policy, 0.12)) < 60


def test_a_report_that_was_overtaken_is_left_out_until_there_was_silence() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 500, 0.0)
    policy.reported("a", report(7, 10), 0.0)
    policy.reported("a", report(6, 50), 0.1)
    assert len(fill(policy, 0.1)) == 10
    policy.reported("a", report(1, 12), 1.0)  # a worker that began anew
    assert len(fill(policy, 1.0)) == 2


def test_a_number_far_too_high_is_not_believed_for_ever_however_many_answers_come() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 500, 0.0)
    policy.reported("a", report(2**62, 10), 0.0)
    for number in range(20):
        now = 0.05 * number
        policy.ended(policy.sent("a", now), QueryOutcome.DONE, now)
        policy.reported("a", report(number, 4), now)
    assert len(fill(policy, 1.0)) == 4


def test_one_failure_takes_none_of_few_slots_away() -> None:
    """A worker of two that is given one looks unused to itself, and would stay at two."""
    policy = Adaptive(Random(1))
    for name in ("a", "b"):
        policy.joined(name, 10, 0.0)
        policy.reported(name, report(1, 2), 0.0)
    policy.ended(policy.sent("a", 0.0), QueryOutcome.LOST, 0.0)
    policy.reported("a", report(2, 2), 5.0)
    policy.reported("b", report(2, 2), 5.0)
    assert len(fill(policy, 5.0)) == 4


def test_silence_halves_the_limit_down_to_one_and_an_answer_brings_it_back() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 64, 0.0)
    policy.reported("a", report(1, 64), 0.0)
    sent = fill(policy, 1.5)  # a second beyond half a second
    assert len(sent) == 16
    assert fill(policy, 60.0) == []
    for dispatch in sent:
        policy.ended(dispatch, QueryOutcome.LOST, 60.0)
    assert len(fill(policy, 70.0)) == 1
    policy.reported("a", report(2, 64), 70.1)
    assert len(fill(policy, 70.1)) > 10


def test_an_overdue_query_keeps_its_slot_and_is_one_loss_whenever_it_ends() -> None:
    policy = Adaptive(Random(1))
    for name in ("hangs", "works"):
        policy.joined(name, 10, 0.0)
        policy.reported(name, report(1, 10), 0.0)
    sent = fill(policy, 0.0)
    hung = [one for one in sent if one.worker.name == "hangs"]
    for dispatch in hung:
        policy.overdue(dispatch, 1.0)
        policy.overdue(dispatch, 1.0)  # a second call does nothing
    assert policy.in_flight("hangs") == 10
    good = policy._known["hangs"].health.good
    assert good == pytest.approx(0.98**10)
    assert policy.pick(2.9) is None
    policy.reported("hangs", report(2, 10), 3.0)
    for dispatch in hung:
        policy.ended(dispatch, QueryOutcome.LOST, 3.0)
    assert policy._known["hangs"].health.good == good
    assert len(fill(policy, 3.0)) == 10, "the pauses were over long before"


def test_an_overdue_query_that_ends_at_once_holds_its_slot_for_its_pause() -> None:
    policy = Adaptive(Random(1))
    policy.joined("late", 1, 0.0)
    policy.reported("late", report(1, 1, 0.05), 0.0)
    (dispatch,) = fill(policy, 0.0)
    policy.overdue(dispatch, 1.0)
    policy.ended(dispatch, QueryOutcome.LOST, 1.001)
    assert policy.pick(1.04) is None
    assert policy.pick(1.06) == "late"


def test_a_refusal_lowers_the_limit_and_holds_its_slot() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 50, 0.0)
    policy.reported("a", report(1, 50, 0.05), 0.0)
    sent = fill(policy, 0.0)
    policy.ended(sent.pop(), QueryOutcome.REFUSED, 0.001, 30)
    assert policy.pick(0.002) is None
    for dispatch in sent[:25]:
        policy.ended(dispatch, QueryOutcome.DONE, 0.01)
    assert policy.in_flight("a") == 24
    assert len(fill(policy, 0.02)) == 5, "30, less the slot of the refused one"
    assert len(fill(policy, 0.06)) == 1, "which is free after the time that work takes"


def test_one_that_says_it_has_room_and_refuses_is_judged_by_what_it_had() -> None:
    """However huge what it says: it is tried with one more, and the seldomer the more often."""
    policy = Adaptive(Random(1))
    policy.joined("liar", 10**9, 0.0)
    inside: list[Dispatch] = []
    refused = [0, 0]
    number = 0
    for step in range(4_000):  # 4 s; it has room for 20, and each takes 50 ms
        now = step * 0.001
        while inside and now - inside[0].sent_at >= 0.05:
            number += 1
            policy.ended(inside.pop(0), QueryOutcome.DONE, now)
            policy.reported("liar", report(number, 10**9, 1e-9), now)
        for dispatch in fill(policy, now):
            if len(inside) < 20:
                inside.append(dispatch)
            else:
                refused[0 if now < 2.0 else 1] += 1
                policy.ended(dispatch, QueryOutcome.REFUSED, now, 10**9)
    assert refused[1] < 20, "of 800; without a bound it would be thousands"
    assert len(inside) == 20, "and it has what it can do"


def test_one_that_refused_everything_for_a_moment_is_soon_used_again() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 50, 0.0)
    policy.reported("a", report(1, 50), 0.0)
    for step in range(100):  # a second of refusals
        for dispatch in fill(policy, step * 0.01):
            policy.ended(dispatch, QueryOutcome.REFUSED, step * 0.01, 50)
        policy.reported("a", report(2 + step, 50), step * 0.01)
    now = 2.0  # the slots of those that were refused are free again
    inside = fill(policy, now)
    for step in range(100):
        now += 0.01
        for dispatch in [one for one in inside if now - one.sent_at >= 0.05]:
            inside.remove(dispatch)
            policy.ended(dispatch, QueryOutcome.DONE, now)
        policy.reported("a", report(200 + step, 50), now)
        inside += fill(policy, now)
    assert policy.in_flight("a") == 50


def test_who_failed_more_than_one_that_has_left_is_used_again() -> None:
    policy = Adaptive(Random(3))
    for name in ("good", "bad"):
        policy.joined(name, 20, 0.0)
        policy.reported(name, report(1, 20, 0.05), 0.0)
    for _ in range(20):
        policy.ended(policy.sent("bad", 0.0), QueryOutcome.FAILED, 0.0)
    assert policy.pick(0.0, without=("good",)) is None
    policy.left("good", 0.0)
    assert policy.pick(0.0) == "bad"


@pytest.mark.parametrize("outcome", [QueryOutcome.FAILED, QueryOutcome.REFUSED])
def test_a_worker_that_answers_badly_and_fast_gets_little(outcome: QueryOutcome) -> None:
    """A second of queries; good answers take 50 ms, the bad ones of the other worker 1 ms."""
    policy = Adaptive(Random(3))
    for name in ("good", "bad"):
        policy.joined(name, 20, 0.0)
        policy.reported(name, report(1, 20, 0.05), 0.0)
    ends: list[tuple[float, Dispatch]] = []
    counts = {"good": 0, "bad": 0}
    for step in range(4_000):
        now = step * 0.00025
        for entry in [entry for entry in ends if entry[0] <= now]:
            ends.remove(entry)
            good = entry[1].worker.name == "good"
            policy.ended(entry[1], QueryOutcome.DONE if good else outcome, now, None if good else 0)
        worker = policy.pick(now)
        if worker is not None:
            counts[worker] += 1
            ends.append((now + (0.05 if worker == "good" else 0.001), policy.sent(worker, now)))
    assert counts["good"] >= 370, "nearly all that it can do: 20 at a time, 50 ms each"
    assert counts["bad"] < 60


def test_what_fails_everywhere_is_nobodys_fault() -> None:
    policy = Adaptive(Random(1))
    for name in ("a", "b"):
        policy.joined(name, 10, 0.0)
        policy.reported(name, report(1, 10, 0.001), 0.0)
    for number in range(100):
        for name in ("a", "b"):
            policy.ended(policy.sent(name, 0.0), QueryOutcome.FAILED, 0.0)
            policy.ended(policy.sent(name, 0.0), QueryOutcome.DONE, 0.0)
            policy.reported(name, report(2 + number, 10, 0.001), 0.0)
    for name in ("a", "b"):
        policy.reported(name, report(999, 10, 0.001), 10.0)
    fill(policy, 10.0)
    assert policy.in_flight("a") + policy.in_flight("b") >= 18


def test_a_limit_at_the_floor_recovers_without_any_report() -> None:
    policy = Adaptive(Random(1))
    policy.joined("a", 10, 0.0)
    policy.ended(policy.sent("a", 0.0), QueryOutcome.REFUSED, 0.0, 0)
    now = 1.0
    for _ in range(200):
        now += 0.05
        for dispatch in fill(policy, now):
            policy.ended(dispatch, QueryOutcome.DONE, now + 0.05)
        now += 0.05
    assert len(fill(policy, now)) == 10


@given(gateways=st.integers(2, 12), limit=st.integers(20, 300), seed=st.integers(0, 100))
def test_gateways_that_see_the_same_room_do_not_all_take_it(
    gateways: int, limit: int, seed: int
) -> None:
    policies = [Adaptive(Random(f"{seed} {number}")) for number in range(gateways)]
    taken = limit // 2
    for policy in policies:
        policy.joined("a", 1_000, 0.0)
        policy.reported("a", report(1, limit, serving=taken, senders=gateways), 0.0)
    sent = sum(len(fill(policy, 0.0)) for policy in policies)
    assert sent <= limit - taken + 2 * gateways, "each takes its part, and at most one by chance"


@given(gateways=st.integers(2, 8), seed=st.integers(0, 20))
def test_a_gateway_that_comes_late_gets_its_part(gateways: int, seed: int) -> None:
    policy = Adaptive(Random(seed))
    policy.joined("a", 1_000, 0.0)
    sent = 0
    for number in range(100):
        told = report(number, 240, serving=240 + sent, yours=sent, senders=gateways)
        policy.reported("a", told, 0.1 * number)
        sent += len(fill(policy, 0.1 * number))
    assert sent == pytest.approx(240 / gateways, abs=1)
