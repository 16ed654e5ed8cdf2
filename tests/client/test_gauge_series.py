"""The pasts of several shards, brought to the same steps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from maitred.client.gauge_series import gather_shard_series, gather_worker_series
from maitred.client.statistics import ShardAnswer, Unreachable
from maitred.errors import Unavailable, UnknownRequest
from maitred.protocol.gauge_series import GaugesShown

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.messages import AnyRequest

AWAY = Unreachable(address="a", shard=9, error=Unavailable("It is away."))


class FakeShards:
    """Answers as shards do; each knows three steps."""

    def __init__(self, *answers: GaugesShown | Unreachable) -> None:
        self.answers = answers

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - of the interface
    ) -> list[ShardAnswer | Unreachable]:
        assert cast("Any", message("a", 0)).steps == 3
        return [
            one
            if isinstance(one, Unreachable)
            else ShardAnswer(address="a", shard=number, answer=one)
            for number, one in enumerate(self.answers)
        ]


def told(last: int, *values: float | None, step_seconds: int = 10) -> GaugesShown:
    return GaugesShown(step_seconds, last, {"load": list(values)} if values else {})


def test_shards_that_have_measured_other_steps() -> None:
    shards = FakeShards(told(100, 1, 2, 3), told(99, 4, 5, 6), told(40, 7, 8, 9), AWAY, told(-1))
    found = asyncio.run(gather_shard_series(cast("Any", shards), seconds=30))
    # The shard that is about to measure the last step decides where all end.
    assert found.start == (99 - 2) * 10
    assert {one.shard: one.points.get("load") for one in found.shards} == {
        0: [None, 1, 2],
        1: [4, 5, 6],
        2: [None, None, None],
        4: None,
    }
    assert found.unreachable == [AWAY]


def test_a_worker_that_attends_at_several_shards() -> None:
    shards = FakeShards(told(100, 1, None, None), told(100, 9, 2, None), told(100))
    found = asyncio.run(gather_worker_series(cast("Any", shards), bytes(16), seconds=25))
    assert (found.start, found.points) == (980, {"load": [1, 2, None]})


def test_shards_of_another_release() -> None:
    older = Unreachable(address="a", shard=1, error=UnknownRequest("It does not know that."))
    other = told(10, 5, 5, 5, step_seconds=60)
    found = asyncio.run(gather_shard_series(cast("Any", FakeShards(other, older)), seconds=30))
    assert (found.shards, found.unreachable) == ([], [older])
    with pytest.raises(UnknownRequest):
        asyncio.run(gather_shard_series(cast("Any", FakeShards(older)), seconds=30))
