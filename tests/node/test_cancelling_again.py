"""Whoever asks to cancel a task again hears how it ended, or that this is no longer known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from maitred.errors import NotOwner, OutcomeUnknown, StoreUnavailable, TaskForgotten
from maitred.matching.records import Terms
from maitred.protocol.tasks import DONE, FAILED, Await, Finish, Outcome, Revoke, Revoked
from tests.node.in_process import in_a_loop, until
from tests.node.test_task_faults import SESSION, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.test_task_faults import Stage

KEPT = Terms(retries=0, retention=3_600.0)
SHORT = Terms(retries=0, retention=60.0)
NEVER_KEPT = Terms(retries=0, retention=0.0)


async def cancel(one: Stage, sequence: int) -> str:
    answer = await one.client.request(Revoke("shop", "mails", 1, 0, 0, sequence), 30)
    assert isinstance(answer, Revoked)
    return answer.state


async def status(one: Stage, sequence: int) -> str:
    answer = await one.client.request(Await("shop", "mails", 1, 0, 0, sequence), 30)
    assert isinstance(answer, Outcome)
    return answer.status


def owner_is_lost(one: Stage) -> None:
    """The next request loads the partition anew: only the store knows what was."""
    one.partitions.lost(one.owned().key, OutcomeUnknown("for the test"))


@in_a_loop
async def test_while_the_store_is_away(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add()

        async def away() -> None:
            raise StoreUnavailable("It is away.")

        one.store.instead["commit"] = away
        with pytest.raises(OutcomeUnknown):
            await cancel(one, sequence)
        with pytest.raises(StoreUnavailable):
            await cancel(one, sequence)
        with pytest.raises(StoreUnavailable):
            await status(one, sequence)
        del one.store.instead["commit"]
        await until(lambda: one.owned().partition.health.problem is None)
        assert await cancel(one, sequence) == "cancelled"
        assert await status(one, sequence) == "cancelled"


@pytest.mark.parametrize("terms", [KEPT, SHORT, NEVER_KEPT])
@in_a_loop
async def test_when_the_owner_was_lost(tmp_path: Path, terms: Terms) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add(terms=terms)
        assert await cancel(one, sequence) == "cancelled"
        owner_is_lost(one)
        if terms is KEPT:
            assert await cancel(one, sequence) == "cancelled"
            assert await status(one, sequence) == "cancelled"
        else:
            with pytest.raises(TaskForgotten):
                await cancel(one, sequence)
            with pytest.raises(TaskForgotten):
                await status(one, sequence)


@in_a_loop
async def test_one_of_which_nothing_is_kept_is_not_said_to_be_over(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add(terms=NEVER_KEPT)
        assert await cancel(one, sequence) == "cancelled"
        with pytest.raises(TaskForgotten):
            await cancel(one, sequence)


@pytest.mark.parametrize("how", [DONE, FAILED])
@pytest.mark.parametrize("terms", [KEPT, SHORT])
@in_a_loop
async def test_one_that_ended_otherwise(tmp_path: Path, how: int, terms: Terms) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add(terms=terms)
        await one.take()
        message = Finish("shop", "mails", 1, 0, 0, SESSION, [await one.end(sequence, how=how)])
        await one.client.request(message, 30)
        assert await cancel(one, sequence) == "over"
        owner_is_lost(one)
        if how == FAILED or terms is KEPT:  # a dead letter says so for as long as it is there
            assert await cancel(one, sequence) == "over"
            assert await status(one, sequence) == ("done" if how == DONE else "failed")
        else:
            with pytest.raises(TaskForgotten):
                await cancel(one, sequence)


@in_a_loop
async def test_a_partition_that_is_lost_cancels_nothing_that_was_not_written(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        sequence = await one.add()
        go = one.store.waits("commit")
        asked = asyncio.ensure_future(cancel(one, sequence))
        result = asyncio.ensure_future(status(one, sequence))
        await until(lambda: one.owned().partition.ledger.under_way is not None)
        key = one.owned().key
        one.partitions.lost(key, NotOwner("for the test"))
        # Both ask again by themselves: nothing was done. The task is there, and is cancelled now.
        await until(lambda: key in one.partitions.owned)
        go.set()  # too late: the partition has another range id
        assert await asked == "cancelled"
        assert await result == "cancelled"
