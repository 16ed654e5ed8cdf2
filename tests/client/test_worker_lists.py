"""Workers of all shards, joined into pages: none is missed, none comes twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.client.statistics import ShardAnswer, Unreachable
from maitred.client.worker_lists import BEGINNING, WorkerPlace, list_workers, worker_tasks
from maitred.errors import Unavailable
from maitred.protocol.queries import WorkerRow
from maitred.protocol.worker_overview import (
    AttendingWorker,
    ListWorkers,
    ShowWorkerTasks,
    WorkersListed,
    WorkerTask,
    WorkerTasksShown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.protocol.messages import AnyRequest

Shards = list[dict[WorkerPlace, list[str]]]
"""Of each shard, the workers that attend there and the queues whose roots are there."""


class FakeShards:
    """Answers as shards do."""

    def __init__(self, shards: Shards, away: int | None = None) -> None:
        self.shards = shards
        self.away = away

    async def ask_shards(
        self,
        message: Callable[[str, int], AnyRequest | None],
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - of the interface
    ) -> list[ShardAnswer | Unreachable]:
        return [
            Unreachable(address="a", shard=number, error=Unavailable("It is away."))
            if number == self.away
            else ShardAnswer(address="a", shard=number, answer=self._answer(message("a", number)))
            for number in range(len(self.shards))
        ]

    def _answer(self, message: Any) -> Any:  # noqa: ANN401
        attending = self.shards[message.shard]
        if isinstance(message, ShowWorkerTasks):
            task = WorkerTask("n", "q", message.shard, 1, 1, float(10 - message.shard))
            return WorkerTasksShown(
                {one: [task] for _, one in attending if one in message.sessions}
            )
        assert isinstance(message, ListWorkers)
        behind = sorted(place for place in attending if place > tuple(message.after))
        page = [
            AttendingWorker(
                WorkerRow(
                    session=place[1],
                    worker=place[0],
                    address="",
                    slots=1,
                    busy=message.shard,
                    state="online",
                    heard_seconds=float(message.shard),
                ),
                [("n", queue) for queue in attending[place]],
                len(attending[place]),
            )
            for place in behind[: message.most]
        ]
        return WorkersListed(page, more=len(behind) > len(page))


async def all_of(shards: FakeShards, most: int) -> list[tuple[WorkerPlace, list[str], int]]:
    found: list[tuple[WorkerPlace, list[str], int]] = []
    after = BEGINNING
    while True:
        page = await list_workers(cast("Any", shards), after=after, most=most)
        assert len(page.workers) <= most
        found += [
            (one.place, [queue for _, queue in one.queues], one.queue_count) for one in page.workers
        ]
        if page.after is None:
            return found
        assert page.after > after
        after = page.after


NAMES = st.sampled_from(["ant", "bee", "cat"])
PLACES = st.tuples(NAMES, st.sampled_from([b"1" * 16, b"2" * 16, b"3" * 16]))


@given(
    st.lists(
        st.dictionaries(PLACES, st.lists(st.sampled_from("pqr"), max_size=2, unique=True)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
)
def test_pages_have_every_worker_once(
    attending: list[dict[WorkerPlace, list[str]]], most: int
) -> None:
    # A queue has its root at one shard.
    shards = [
        {place: sorted(f"{queue}{number}" for queue in queues) for place, queues in one.items()}
        for number, one in enumerate(attending)
    ]
    expected: dict[WorkerPlace, list[str]] = {}
    for one in shards:
        for place, queues in one.items():
            expected.setdefault(place, []).extend(queues)
    told = asyncio.run(all_of(FakeShards(shards), most))
    assert told == [
        (place, sorted(expected[place]), len(expected[place])) for place in sorted(expected)
    ]


def test_what_was_heard_last_counts_and_silent_shards_are_named() -> None:
    ant = ("ant", b"1" * 16)
    shards = FakeShards([{ant: ["p"]}, {ant: ["q"]}, {("bee", b"2" * 16): ["r"]}], away=2)

    async def scenario() -> None:
        page = await list_workers(cast("Any", shards))
        (one,) = page.workers
        assert (one.row.busy, one.row.heard_seconds) == (0, 0.0)
        assert [silent.shard for silent in page.unreachable] == [2]
        tasks, silent_shards = await worker_tasks(cast("Any", shards), [ant[1]])
        assert [task.partition for task in tasks[ant[1]]] == [1, 0], "the longest first"
        assert [silent.shard for silent in silent_shards] == [2]
        with pytest.raises(Unavailable):
            await list_workers(cast("Any", FakeShards([{}], away=0)))

    asyncio.run(scenario())
