"""What users may take at a gateway."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.dispatch.admission import Admission
from maitred.errors import Overloaded, PermissionDenied
from maitred.settings import QueryLimits, QuerySettings


def admission(**limits: Any) -> Admission:  # noqa: ANN401 - of QueryLimits
    set_for = {"ann": QueryLimits(**limits)}
    return Admission(set_for.get)


def test_without_limits_everybody_may() -> None:
    made = admission(concurrent=1)
    for _ in range(100):
        made.enter("bob", "n", "q", 0.0)
    assert made.under_way("bob") == 100


def test_allowed_queues() -> None:
    made = admission(queues=["n/q", "m/*"])
    made.enter("ann", "n", "q", 0.0)
    made.enter("ann", "m", "anything", 0.0)
    with pytest.raises(PermissionDenied):
        made.enter("ann", "n", "other", 0.0)
    assert made.under_way("ann") == 2


def test_concurrent() -> None:
    made = admission(concurrent=2)
    made.enter("ann", "n", "q", 0.0)
    made.enter("ann", "n", "r", 0.0)
    with pytest.raises(Overloaded) as refused:
        made.enter("ann", "n", "s", 0.0)
    assert refused.value.retry_after
    made.leave("ann", "n", "q", waited=True)
    made.enter("ann", "n", "s", 0.0)


def test_waiting_is_counted_for_each_queue() -> None:
    made = admission(waiting=1)
    made.enter("ann", "n", "q", 0.0)
    made.enter("ann", "n", "r", 0.0)
    with pytest.raises(Overloaded):
        made.enter("ann", "n", "q", 0.0)
    made.sent("ann", "n", "q")
    made.enter("ann", "n", "q", 0.0)
    made.waits_again("ann", "n", "q")
    made.leave("ann", "n", "q", waited=True)
    with pytest.raises(Overloaded):
        made.enter("ann", "n", "q", 0.0)


def test_rate_with_a_seconds_burst() -> None:
    made = admission(rate_per_second=3.0)
    for _ in range(3):
        made.enter("ann", "n", "q", 10.0)
    with pytest.raises(Overloaded) as refused:
        made.enter("ann", "n", "q", 10.0)
    wait = refused.value.retry_after
    assert wait is not None
    assert wait == pytest.approx(1 / 3)
    made.enter("ann", "n", "q", 10.0 + wait + 1e-6)


@given(st.floats(0.1, 50.0), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_never_more_than_the_rate(rate: float, gaps: list[float]) -> None:
    made = admission(rate_per_second=rate)
    now, admitted = 0.0, 0
    for gap in gaps:
        now += gap
        try:
            made.enter("ann", "n", "q", now)
            admitted += 1
        except Overloaded:
            pass
    assert admitted <= max(1.0, rate) + rate * sum(gaps) + 1e-6
    assert admitted >= 1


@given(st.lists(st.sampled_from(["enter", "sent", "again", "leave"]), max_size=60))
def test_what_goes_in_comes_out(steps: list[str]) -> None:
    made = admission()
    waiting = running = 0
    for step in steps:
        if step == "enter":
            made.enter("ann", "n", "q", 0.0)
            waiting += 1
        elif step == "sent" and waiting:
            made.sent("ann", "n", "q")
            waiting, running = waiting - 1, running + 1
        elif step == "again" and running:
            made.waits_again("ann", "n", "q")
            waiting, running = waiting + 1, running - 1
        elif step == "leave" and waiting + running:
            made.leave("ann", "n", "q", waited=not running)
            running, waiting = (running - 1, waiting) if running else (0, waiting - 1)
        assert made.under_way("ann") == waiting + running


def test_a_queue_has_limits_for_all_users_together() -> None:
    limits = {
        ("n", "q"): QuerySettings(concurrent=2),
        ("n", "slow"): QuerySettings(rate_per_second=2.0),
    }
    made = Admission(lambda _: None, lambda namespace, queue: limits.get((namespace, queue)))
    made.enter("ann", "n", "q", 0.0)
    made.enter("bob", "n", "q", 0.0)
    with pytest.raises(Overloaded, match="n/q has 2 queries under way"):
        made.enter("cid", "n", "q", 0.0)
    assert made.under_way("cid") == 0
    made.leave("ann", "n", "q", waited=False)
    made.enter("cid", "n", "q", 0.0)
    for user in ("ann", "bob"):
        made.enter(user, "n", "slow", 0.0)
    with pytest.raises(Overloaded, match="more than 2 queries a second") as refused:
        made.enter("cid", "n", "slow", 0.0)
    assert refused.value.retry_after == pytest.approx(0.5)
    made.enter("cid", "n", "slow", 0.5)
    made.enter("cid", "n", "other", 0.5)


def test_who_asks_too_fast_takes_no_place_of_the_queue() -> None:
    made = Admission(
        {"ann": QueryLimits(rate_per_second=1.0)}.get, lambda _, __: QuerySettings(concurrent=2)
    )
    made.enter("ann", "n", "q", 0.0)
    with pytest.raises(Overloaded, match="'ann'"):
        made.enter("ann", "n", "q", 0.0)
    made.enter("bob", "n", "q", 0.0)
    with pytest.raises(Overloaded, match="n/q has 2"):
        made.enter("bob", "n", "q", 0.0)
