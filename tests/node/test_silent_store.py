"""A store that does not answer: producers hear so after `UNSAFE_SECONDS`, not at their deadline."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from maitred.errors import OutcomeUnknown, StoreUnavailable, UnknownTask
from maitred.matching import store_replies, task_intake
from maitred.node import partition_loader, store_reads, writer
from maitred.protocol.tasks import Await, Finish, Outcome, Revoke, Revoked
from tests.node.in_process import in_a_loop, until
from tests.node.test_task_faults import SESSION, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

BRIEF_SECONDS = 0.05


COMMITS = [
    (store_replies, "UNSAFE_SECONDS"),
    (task_intake, "UNSAFE_SECONDS"),
    (writer, "UNSAFE_SECONDS"),
]
LOADS = [(partition_loader, "SILENT_SECONDS")]
READS = [(store_reads, "UNSAFE_SECONDS")]


@contextmanager
def brief_patience(patience: list[tuple[ModuleType, str]]) -> Iterator[None]:
    """Only with what the store is known not to answer, and only for so long: otherwise a busy
    machine would be taken for a silent store."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in patience:
            patch.setattr(module, name, BRIEF_SECONDS)
        yield


@in_a_loop
async def test_a_commit_that_is_not_answered(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        await one.add(queue="bills")
        await one.add(queue="mails")
        go = one.store.waits("commit")
        with brief_patience(COMMITS), pytest.raises(OutcomeUnknown):
            await one.add(queue="mails")
        for queue in ("mails", "bills"):  # the other one cannot be written either
            with pytest.raises(StoreUnavailable):
                await one.add(queue=queue)
        go.set()
        await until(lambda: one.owned("bills").partition.health.problem is None)
        await one.add(queue="mails")
        await one.add(queue="bills")
        assert one.owned("mails").partition.backlog.ready == 3  # the unknown one is among them
        assert one.owned("bills").partition.backlog.ready == 2


@in_a_loop
async def test_a_worker_gets_tasks_while_a_commit_is_not_answered(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        await one.add(queue="mails")
        await one.take(queue="mails")
        go = one.store.waits("commit")
        with brief_patience(COMMITS), pytest.raises(OutcomeUnknown):
            await one.add(queue="bills")
        # Long enough for any machine; what is tested is that the end of the task is told.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_replies, "UNSAFE_SECONDS", 60.0)
            patch.setattr(task_intake, "UNSAFE_SECONDS", 60.0)
            taken = asyncio.ensure_future(one.take())
            await until(lambda: one.owned().partition.offers.slots == 1)
            added = asyncio.ensure_future(one.add())
            (given,) = await taken
            end = await one.end(given.sequence)
            message = Finish("shop", "mails", 1, 0, 0, SESSION, [end])
            finish = asyncio.ensure_future(one.client.request(message, 30))
            assert await added == given.sequence
        go.set()
        await finish


@in_a_loop
async def test_a_partition_that_cannot_be_loaded(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        await one.add(queue="bills")
        go = one.store.waits("acquire")
        with brief_patience(LOADS), pytest.raises(StoreUnavailable):
            await one.add(queue="mails")
        calls = one.store.calls.count("acquire")
        for _ in range(3):  # at once: the same load is still under way
            with pytest.raises(StoreUnavailable):
                await one.add(queue="mails")
        assert one.store.calls.count("acquire") == calls
        await one.add(queue="bills")
        go.set()
        await until(lambda: one.partitions.loader.silent is None)
        await one.add(queue="mails")
        assert len(await one.take(2, queue="mails")) == 1


def cancel(sequence: int) -> Revoke:
    return Revoke("shop", "mails", 1, 0, 0, sequence)


def result(sequence: int) -> Await:
    return Await("shop", "mails", 1, 0, 0, sequence)


@in_a_loop
async def test_a_cancel_that_is_not_confirmed(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        first, second = await one.add(), await one.add()
        go = one.store.waits("commit")
        with brief_patience(COMMITS), pytest.raises(OutcomeUnknown) as refused:
            await one.client.request(cancel(first), 30)
        assert refused.value.outcome == "unknown"
        with pytest.raises(StoreUnavailable) as nothing:  # at once
            await one.client.request(cancel(second), 30)
        assert nothing.value.outcome == "nothing"
        with pytest.raises(StoreUnavailable):
            await one.client.request(result(first), 30)
        go.set()
        await until(lambda: one.owned().partition.health.problem is None)
        assert await one.client.request(cancel(first), 30) == Revoked("cancelled")
        assert await one.client.request(cancel(second), 30) == Revoked("cancelled")
        outcome = await one.client.request(result(first), 30)
        assert isinstance(outcome, Outcome)
        assert outcome.status == "cancelled"


@pytest.mark.parametrize("read", ["segments_around", "later_one", "result", "dead_one"])
@pytest.mark.parametrize("ask", [cancel, result])
@in_a_loop
async def test_a_read_that_is_not_answered(
    tmp_path: Path, ask: Callable[[int], Revoke | Await], read: str
) -> None:
    """Of a task that is not in memory, so that the store has to be asked."""
    async with stage(tmp_path) as one:
        unknown = await one.add() + 1000
        go = one.store.waits(read)
        with brief_patience(READS):
            # A busy machine may be late with another read, which comes before this one.
            while not (calls := one.store.calls.count(read)):
                with pytest.raises(StoreUnavailable) as refused:
                    await one.client.request(ask(unknown), 30)
                assert refused.value.outcome == "nothing"
        with pytest.raises(StoreUnavailable):  # at once: the same read is still under way
            await one.client.request(ask(unknown), 30)
        assert one.store.calls.count(read) == calls
        go.set()
        await until(lambda: one.partitions.reads.silent is None)
        with pytest.raises(UnknownTask):
            await one.client.request(ask(unknown), 30)
