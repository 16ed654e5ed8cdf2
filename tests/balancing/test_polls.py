"""The token of a poll is given back once, however the poll ends."""

from __future__ import annotations

import copy
import gc
import pickle
import random

import pytest

from maitred.balancing import BacklogHint, FewestPolls, InvalidHint, Poll
from maitred.routing.names import QueueId

QUEUE = QueueId("kitchen", "orders", 1)


class Ledger:
    """An owner that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def finished(
        self,
        queue: QueueId,  # noqa: ARG002
        partition: int,
        now: float,  # noqa: ARG002
        hint: BacklogHint | None,  # noqa: ARG002
    ) -> None:
        self.told.append(("finished", partition))

    def abandoned(self, queue: QueueId, partition: int) -> None:  # noqa: ARG002
        self.told.append(("abandoned", partition))


def test_done_counts_once() -> None:
    ledger = Ledger()
    with Poll(QUEUE, 3, ledger) as poll:
        poll.done(1.0)
        poll.done(2.0, BacklogHint(1))
    del poll
    assert ledger.told == [("finished", 3)]


def test_leaving_the_block_gives_it_back() -> None:
    ledger = Ledger()
    with Poll(QUEUE, 3, ledger):
        pass
    assert ledger.told == [("abandoned", 3)]


def test_an_exception_gives_it_back_and_passes() -> None:
    ledger = Ledger()
    with pytest.raises(ConnectionError), Poll(QUEUE, 3, ledger):
        raise ConnectionError
    assert ledger.told == [("abandoned", 3)]


def test_the_garbage_collector_gives_it_back() -> None:
    ledger = Ledger()
    poll: Poll | None = Poll(QUEUE, 3, ledger)
    del poll
    assert ledger.told == [("abandoned", 3)]


def test_a_poll_in_a_cycle_is_given_back_too() -> None:
    polls = FewestPolls(random.Random(1))
    cycle: list[object] = [polls.read(QUEUE, 1, 0.0)]
    cycle.append(cycle)
    assert polls.outstanding(QUEUE, 0) == 1
    del cycle
    gc.collect()
    assert polls.outstanding(QUEUE, 0) == 0
    assert polls.entries == 0


@pytest.mark.parametrize("backlog", [-1, 2**63, True, 1.5, float("nan"), "7", None])
def test_an_impossible_backlog_is_refused(backlog: int) -> None:
    with pytest.raises(InvalidHint, match="backlog") as caught:
        BacklogHint(backlog, 1.0)
    assert caught.value.code == "invalid-hint"


@pytest.mark.parametrize(
    "rate", [-0.1, float("nan"), float("inf"), -float("inf"), 1e13, 10**400, True, "7", None]
)
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(InvalidHint, match="rate"):
        BacklogHint(1, rate)


def test_a_poll_cannot_be_copied() -> None:
    ledger = Ledger()
    poll = Poll(QUEUE, 3, ledger)
    for copy_it in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="given back once"):
            copy_it(poll)
    poll.done(1.0)
    assert ledger.told == [("finished", 3)]
