"""What follows each accident, in every status; and which status may follow which."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from maitred.dispatch.query_states import FOLLOWS, UNDER_WAY, Accident, Verdict, after
from maitred.errors import InternalError
from maitred.protocol.queries import QueryStatus

EVERYTHING = list(product(Accident, sorted(UNDER_WAY), (False, True)))


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("accident", Accident)
def test_no_accident_can_happen_to_what_is_over(accident: Accident, idempotent: bool) -> None:
    for status in set(FOLLOWS) - UNDER_WAY:
        with pytest.raises(InternalError):
            after(accident, status, idempotent=idempotent)


@pytest.mark.parametrize("accident", [Accident.NOTHING_DONE, Accident.LINK_LOST, Accident.HUNG])
def test_no_worker_can_fail_a_query_that_has_none(accident: Accident) -> None:
    with pytest.raises(InternalError):
        after(accident, "waiting", idempotent=True)


def test_deadline_cancel_and_refusal_always_end_it() -> None:
    ends = {
        Accident.DEADLINE: Verdict.LATE,
        Accident.CANCELLED: Verdict.CANCEL,
        Accident.REFUSED: Verdict.REFUSE,
    }
    for accident, status, idempotent in EVERYTHING:
        if accident in ends:
            assert after(accident, status, idempotent=idempotent) is ends[accident]


def test_what_was_not_sent_is_asked_for_again() -> None:
    for accident in (Accident.NOTHING_DONE, Accident.LINK_LOST, Accident.HUNG):
        for idempotent in (False, True):
            assert after(accident, "connecting", idempotent=idempotent) is Verdict.AGAIN


def test_what_may_have_run_runs_again_only_if_that_does_no_harm() -> None:
    for accident in (Accident.LINK_LOST, Accident.HUNG):
        assert after(accident, "running", idempotent=False) is Verdict.LOST
        assert after(accident, "running", idempotent=True) is Verdict.AGAIN
    assert after(Accident.NOTHING_DONE, "running", idempotent=False) is Verdict.AGAIN


def test_rows_are_never_taken_back() -> None:
    for accident, idempotent in product(Accident, (False, True)):
        assert after(accident, "streaming", idempotent=idempotent) is not Verdict.AGAIN


def test_the_statuses_are_those_of_the_protocol() -> None:
    assert set(FOLLOWS) == set(get_args(QueryStatus))
    assert {name for name in FOLLOWS if FOLLOWS[name]} == UNDER_WAY
    assert all(following <= set(FOLLOWS) for following in FOLLOWS.values())
