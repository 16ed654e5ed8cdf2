"""What accidents mean, at every stage; and which status may follow which."""

from __future__ import annotations

from itertools import product

import pytest

from maitred.dispatch.query_states import FOLLOWS, UNDER_WAY, Accident, Stage, Verdict, after
from maitred.protocol.queries import QueryRow

EVERYTHING = list(product(Accident, Stage, (False, True)))


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("accident", Accident)
def test_nothing_happens_to_what_is_over(accident: Accident, idempotent: bool) -> None:
    assert after(accident, Stage.OVER, idempotent=idempotent) is Verdict.NOTHING


def test_deadline_cancel_and_refusal_always_end_it() -> None:
    ends = {
        Accident.DEADLINE: Verdict.LATE,
        Accident.CANCELLED: Verdict.CANCEL,
        Accident.REFUSED: Verdict.REFUSE,
    }
    for accident, stage, idempotent in EVERYTHING:
        if accident in ends and stage is not Stage.OVER:
            assert after(accident, stage, idempotent=idempotent) is ends[accident]


def test_what_was_not_sent_is_asked_for_again() -> None:
    for accident in (Accident.NOTHING_DONE, Accident.LINK_LOST, Accident.HUNG):
        for idempotent in (False, True):
            assert after(accident, Stage.CONNECTING, idempotent=idempotent) is Verdict.AGAIN


def test_what_may_have_run_runs_again_only_if_that_does_no_harm() -> None:
    for accident in (Accident.LINK_LOST, Accident.HUNG):
        assert after(accident, Stage.SENT, idempotent=False) is Verdict.LOST
        assert after(accident, Stage.SENT, idempotent=True) is Verdict.AGAIN
    assert after(Accident.NOTHING_DONE, Stage.SENT, idempotent=False) is Verdict.AGAIN


def test_rows_are_never_taken_back() -> None:
    for accident, idempotent in product(Accident, (False, True)):
        assert after(accident, Stage.STREAMING, idempotent=idempotent) is not Verdict.AGAIN


def test_the_statuses_are_those_of_the_protocol() -> None:
    status = QueryRow.__annotations__["status"]
    assert all(f'"{name}"' in status or f"'{name}'" in status for name in FOLLOWS)
    assert {name for name in FOLLOWS if FOLLOWS[name]} == UNDER_WAY
    assert all(following <= set(FOLLOWS) for following in FOLLOWS.values())
