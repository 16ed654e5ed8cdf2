"""Slots that could not be asked for are asked for again: later each time, not by all at once."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

from maitred.client.queues import QueueView
from maitred.dispatch.ask import Ask
from maitred.dispatch.slot_requests import SlotRequests
from maitred.errors import Unavailable

FIRST, LONGEST = 0.05, 2.0


class Waiting:
    """A query, as far as its line needs to know it."""

    def __init__(self, now: float) -> None:
        self.ask = Ask(namespace="desk", queue="price", payload=b"", deadline=now + 60)
        self.since = now
        self.deadline = now + 60


class AwayNode:
    """Effects whose node is away; the moments of alarms are written down."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.acts: list[Any] = []

    def soon(self, act: Any) -> None:  # noqa: ANN401
        self.acts.append(act)

    def wake_at(self, moment: float, act: Any) -> Any:  # noqa: ANN401
        self.moments.append(moment)
        self.acts.append(act)
        return SimpleNamespace(cancel=lambda: None)

    def ask_node(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        raise Unavailable("The node is away.")


def pauses(seed: int, tries: int) -> list[float]:
    """Of one gateway whose node is away."""
    effects = AwayNode()
    random = Random(seed)
    requests = SlotRequests(
        effects=cast("Any", effects),
        session=b"",
        random=random,
        backoff=(FIRST, LONGEST),
        new_view=lambda queue: QueueView(queue, "weighted", random),
        learned=lambda *_: None,
    )
    requests.add(cast("Any", Waiting(0.0)), 0.0)
    now = 0.0
    found: list[float] = []
    while len(found) < tries:
        effects.acts.pop(0)(now)
        if effects.moments:
            moment = effects.moments.pop()
            found.append(moment - now)
            now = moment
    return found


def test_pauses_double_up_to_the_longest_and_no_two_gateways_have_the_same() -> None:
    many = [pauses(seed, 12) for seed in range(50)]
    for number, column in enumerate(zip(*many, strict=True)):
        most = min(FIRST * 2**number, LONGEST)
        assert all(0.499 * most <= pause <= 1.001 * most for pause in column), column
        assert max(column) - min(column) > 0.3 * most, "they are spread"
