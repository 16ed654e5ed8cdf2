"""The last hour of a worker that attends at several roots of one shard."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from maitred.node.worker_series import WorkerSeries
from maitred.protocol.gauge_series import ShowWorkerSeries

SESSION = bytes(16)


def root(queue: str, heard: float, busy: int) -> Any:  # noqa: ANN401 - as much of one as is read
    attendance = SimpleNamespace(heard=heard, limit=4.5, busy=busy, slots=8)
    presence = SimpleNamespace(workers={SESSION: attendance})
    key = SimpleNamespace(namespace="shop", queue=queue, partition=0)
    return SimpleNamespace(key=key, partition=SimpleNamespace(presence=presence))


@pytest.mark.parametrize("reports", [((1.0, 2), (3.0, 7)), ((3.0, 7), (1.0, 2))])
def test_the_latest_report_of_a_worker_counts(reports: tuple[tuple[float, int], ...]) -> None:
    roots = {number: root(f"q{number}", *one) for number, one in enumerate(reports)}
    partitions: Any = SimpleNamespace(owned=roots)

    async def main() -> None:
        series = WorkerSeries(partitions)
        await series.sample(100)
        told = await series._show(ShowWorkerSeries(0, 0, SESSION, steps=2))
        assert told.last == 100
        assert told.columns == {"limit": [None, 4.5], "busy": [None, 7], "slots": [None, 8]}
        assert series.statistics() == {"workers": 1}

    asyncio.run(main())
