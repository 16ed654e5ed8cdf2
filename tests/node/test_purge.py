"""PURGE at a real node: what is dropped, what is served meanwhile, what is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maitred import App
from maitred.errors import InvalidArgument, TaskCancelled, TaskPurged, UnknownQueue
from maitred.matching.records import Terms
from maitred.node import purge_requests
from maitred.protocol.messages import Echo
from maitred.protocol.tasks import (
    FAILED,
    Add,
    End,
    Finish,
    Offer,
    Offered,
    Purged,
    PurgeTasks,
)
from maitred.settings import Audit, User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import stage
from tests.node.shops import shop
from tests.node.test_audit import told
from tests.security.cheap import cheaply
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from tests.store.engines import Engine

SECONDS = 30.0
SESSION = b"a worker's own.."
QUEUE = ("shop", "mails", 1)


def add(count: int, partition: int = 0, **fields: Any) -> Add:  # noqa: ANN401
    return Add(*QUEUE, partition, 0, 1, [b"\x90"] * count, **fields)


def offer(slots: int, partition: int = 0) -> Offer:
    return Offer(*QUEUE, partition, 0, 1, SESSION, "worker", slots)


async def purge(client: AsyncClient, state: Any, partition: int = 0, **fields: Any) -> int:  # noqa: ANN401
    """Ask until the purge is complete; return how many there were."""
    message = PurgeTasks(*QUEUE, partition, 0, state, **fields)
    found = 0
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await client.request(message, SECONDS)
            assert isinstance(answer, Purged)
            found += answer.tasks
            if answer.is_complete:
                return found
            message.until, message.cursor = answer.until, answer.cursor


async def fail(client: AsyncClient, count: int) -> None:
    """Make dead letters of the next tasks, which have no retries."""
    offered = await client.request(offer(count), SECONDS)
    assert isinstance(offered, Offered)
    ends = [End(one.sequence, one.attempt, one.proof, FAILED) for one in offered.tasks]
    await client.request(Finish(*QUEUE, 0, 0, SESSION, ends), SECONDS)


@in_a_loop
async def test_each_state_is_counted_and_dropped_alone(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_requests, "PIECE", 7)
    async with shop(tmp_path, engine, buffer_tasks=10, hold_seconds=0.0) as one:
        async with one.client() as client:
            await client.request(add(20, terms=Terms(retries=0)), SECONDS)
            await fail(client, 20)
            await client.request(add(30, delay=3600.0), SECONDS)
            await client.request(add(100), SECONDS)
            offered = await client.request(offer(3), SECONDS)
            assert isinstance(offered, Offered)
            running = len(offered.tasks)
            waiting = 100 - running
            everything = {"waiting": waiting, "delayed": 30, "dead": 20}
            for _ in range(2):
                for state, number in everything.items():
                    assert await purge(client, state, dry_run=True) == number
            assert await purge(client, "waiting", dry_run=True, older_than=3600.0) == 0
            assert await purge(client, "waiting", older_than=3600.0) == 0
            assert await purge(client, "dead", older_than=3600.0) == 0
            for state, number in everything.items():
                assert await purge(client, state) == number
                assert await purge(client, state, dry_run=True) == 0
        assert await one.restart()
        async with one.client() as client:
            (store,) = one.stores
            use = await store.use()
            assert use.queues["shop", "mails"].tasks == running


@in_a_loop
async def test_a_cursor_that_no_answer_had_costs_no_memory_and_ends(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_requests, "PIECE", 7)
    asked = []
    async with shop(tmp_path, engine, buffer_tasks=10) as one, one.client() as client:
        await client.request(add(30, delay=3600.0), SECONDS)
        (store,) = one.stores
        read = store.later

        async def later(key: Any, until: float, most: int, size: int) -> Any:  # noqa: ANN401
            asked.append(most)
            return await read(key, until, most, size)

        monkeypatch.setattr(store, "later", later)
        assert await purge(client, "delayed", cursor=(0, 2**62)) == 30
        assert max(asked) < 100
        far = (200, 0)
        assert await purge(client, "waiting", dry_run=True, older_than=1.0, cursor=far) == 0


@in_a_loop
async def test_a_count_by_age_reads_the_store(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, buffer_tasks=10) as one, one.client() as client:
        await client.request(add(2_500), SECONDS)
        await client.request(add(50, priority=4), SECONDS)
        assert await purge(client, "waiting", dry_run=True, older_than=1e-6) == 2_550


@in_a_loop
async def test_a_large_purge_lets_others_be_served_in_bounded_memory(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_requests, "WORK_SECONDS", 0.05)
    total = 30_000
    async with shop(tmp_path, engine) as one, one.client() as client, one.client() as other:
        for _ in range(total // 1_000):
            await client.request(add(1_000), SECONDS)
        (owned,) = one.node.shard._partitions.owned.values()  # type: ignore[union-attr]
        most = 0
        purging = asyncio.create_task(purge(client, "waiting"))
        served = 0
        while not purging.done():
            await other.request(Echo(*QUEUE, 0, 0, b"x"), SECONDS)
            most = max(most, len(owned.partition.own_tasks.tasks))
            served += 1
        assert await purging == total
        # At least one request was served between two pieces.
        assert served > total / purge_requests.PIECE / 2
        assert most <= 3 * owned.partition.settings.buffer_tasks
        assert owned.partition.own_tasks.open_tasks == 0


@in_a_loop
async def test_callers_of_result_hear_that_the_task_was_purged(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one:
        app = App("shop", node=f"maitred://127.0.0.1:{one.node.port}")

        @app.handler("mails")
        async def mails() -> None: ...

        async with app, one.client() as client:
            task, cancelled = await mails.enqueue(), await mails.enqueue()
            await cancelled.cancel()
            waiting = asyncio.create_task(task.result(SECONDS))
            (owned,) = one.node.shard._partitions.owned.values()  # type: ignore[union-attr]
            await until(lambda: bool(owned.partition.results.waiters))
            assert await purge(client, "waiting") == 1
            with pytest.raises(TaskPurged, match="an operator purged its queue"):
                await waiting
            with pytest.raises(TaskPurged):
                await task.result(SECONDS)
            with pytest.raises(TaskCancelled) as alone:
                await cancelled.result(SECONDS)
            assert not isinstance(alone.value, TaskPurged)


@in_a_loop
async def test_bad_input(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        with pytest.raises(UnknownQueue):
            await purge(client, "waiting")
        assert not one.node.shard._partitions.owned, "asking makes no queue"  # type: ignore[union-attr]
        await client.request(add(1), SECONDS)
        with pytest.raises(InvalidArgument, match="whatever their age"):
            await purge(client, "delayed", older_than=5.0)
        with pytest.raises(InvalidArgument):
            await purge(client, "running")


@in_a_loop
async def test_the_audit_log_has_the_number(tmp_path: Path) -> None:
    boss = User(secret=cheaply("secret"), permissions={"*": ["admin", "produce"]})
    log = tmp_path / "audit"
    audit = Audit(directory=str(log))
    async with stage(tmp_path, users={"boss": boss}, audit=audit) as here:
        client = await here.client("boss", "secret")
        await client.request(Add("n", here.queue, 1, 0, 0, 1, [b"\x90"] * 5), SECONDS)
        for dry_run in (True, False):
            message = PurgeTasks("n", here.queue, 1, 0, 0, "waiting", dry_run=dry_run, reason="why")
            message.user = message.source = "forged"
            await client.request(message, SECONDS)
        await until(lambda: bool(told(log, "purge waiting")))
        (record,) = told(log, "purge waiting")
        assert (record["user"], record["target"]) == ("boss", f"n/{here.queue}")
        assert (record["tasks"], record["reason"]) == (5, "why")
        assert record["from"].startswith("127.0.0.1:")
        assert not told(log, "purge")
