"""When reads of a store count as not answered; in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from maitred.errors import StoreUnavailable
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.node.store_reads import StoreReads
from maitred.simulation.loop import SimulatedLoop


async def read(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def test_reads_that_wait_for_each_other_are_all_answered() -> None:
    """The last one takes longer than `UNSAFE_SECONDS`, but the store answers all the while."""

    async def main() -> None:
        reads = StoreReads()
        moments = [0.75 * UNSAFE_SECONDS * number for number in range(1, 5)]
        found = await asyncio.gather(*(reads.answer(read(moment)) for moment in moments))
        assert found == moments
        assert reads.silent is None

    with closing(SimulatedLoop()) as loop:
        loop.run_until_complete(main())


def test_a_store_that_answers_no_read_is_away_until_it_does() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reads = StoreReads()
        assert await reads.answer(read(0.5)) == 0.5
        begun = loop.time()
        with pytest.raises(StoreUnavailable):
            await reads.answer(read(10.0))
        assert loop.time() - begun == pytest.approx(UNSAFE_SECONDS)
        with pytest.raises(StoreUnavailable):
            await reads.answer(read(0.0))
        assert loop.time() - begun == pytest.approx(UNSAFE_SECONDS)  # at once
        await asyncio.sleep(10.0)
        assert await reads.answer(read(0.5)) == 0.5

    with closing(SimulatedLoop()) as loop:
        loop.run_until_complete(main())


def test_a_read_that_fails_raises_its_error_at_its_caller_and_nowhere_else() -> None:
    async def fail(seconds: float) -> float:
        await asyncio.sleep(seconds)
        raise StoreUnavailable("The store has failed.")

    async def main() -> None:
        reads = StoreReads()
        with pytest.raises(StoreUnavailable, match="has failed"):
            await reads.answer(fail(0.5))
        before = asyncio.all_tasks()
        asking = asyncio.create_task(reads.answer(fail(0.5)))
        await asyncio.sleep(0.1)
        (left,) = asyncio.all_tasks() - before - {asking}
        asking.cancel()  # a read goes on without its caller
        await asyncio.wait([left])
        assert left.exception() is None

    with closing(SimulatedLoop()) as loop:
        loop.run_until_complete(main())
