"""Slots that could not be asked for are asked for again: later each time, not by all at once."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from maitred.client.allocating import Allocating
from maitred.errors import Unavailable
from maitred.settings import Client
from tests.node.in_process import in_a_loop

SETTINGS = Client()


class Waiting:
    """A query, as far as its line needs to know it."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.deadline = now + 60


async def pauses(seed: int, tries: int) -> list[float]:
    """Of one gateway whose node is away."""
    loop = asyncio.get_running_loop()
    client = cast("Any", SimpleNamespace(settings=SETTINGS))
    allocating = Allocating(client, b"", Random(seed), lambda _: None, lambda *_: None)
    line = allocating.line("desk", "price", 2, "")
    now = loop.time()
    line.demand.add(cast("Any", Waiting(now)))
    (group,) = line.demand.to_ask(now)
    found = []
    stub = SimpleNamespace(call_later=lambda pause, *_: pause, call_soon=lambda *_: None)
    allocating._loop = cast("Any", stub)
    for _ in range(tries):
        allocating._failed(line, group, Unavailable("The node is away."))
        found.append(cast("float", allocating._pauses.pop(group)))
    return found


@in_a_loop
async def test_pauses_double_up_to_the_longest_and_no_two_gateways_have_the_same() -> None:
    first, longest = SETTINGS.backoff_first_seconds, SETTINGS.backoff_longest_seconds
    many = [await pauses(seed, 12) for seed in range(50)]
    for number, column in enumerate(zip(*many, strict=True)):
        most = min(first * 2**number, longest)
        assert all(0.5 * most <= pause <= most for pause in column), column
        assert max(column) - min(column) > 0.3 * most, "they are spread"
