"""Tasks that ended are shown after a restart and after a move, where a queue asks for it."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

from maitred.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from maitred.matching import stored_history
from maitred.matching.task_history import PAYLOAD_BYTES
from maitred.node import caretaker, stored_histories, writer
from maitred.protocol.inspection import ListTasks
from maitred.protocol.tasks import (
    DONE,
    Add,
    ControlQueue,
    DeleteQueue,
    End,
    Finish,
    Offer,
    Revoke,
)
from maitred.settings import History
from tests.node.in_process import in_a_loop, until
from tests.node.members import Town, in_town
from tests.node.shops import shop
from tests.node.test_controls import add as added_to
from tests.node.test_inspection import (
    KNOWN,
    QUEUE,
    SESSION,
    add,
    change,
    finish,
    listed,
    show,
    take,
    whats,
)
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.matching.records import Changes
    from maitred.protocol.inspection import ListedTask
    from maitred.settings.live import SettingValue
    from tests.node.shops import Shop
    from tests.store.engines import Engine

SECONDS = 30.0
STORED = History(stored=True)
FORGOTTEN = "ended tasks forgotten before they were stored"
AGE_SECONDS = 2.0
"""Ends are written within this time where nothing goes wrong, as operating.md says."""


def told(rows: list[ListedTask]) -> list[tuple[object, ...]]:
    """What a list says of tasks that ended."""
    return [
        (
            *(one.sequence, one.state, one.by, one.attempts, one.worker, one.payload_bytes),
            *(one.arguments, one.withheld, one.added_at, one.ended_at),
        )
        for one in rows
    ]


def about(before: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The same, with moments as they are after they were converted to another loop's time."""
    return [
        tuple(pytest.approx(one, rel=0.0, abs=1e-5) if type(one) is float else one for one in row)
        for row in before
    ]


async def end_some(client: AsyncClient) -> int:
    """Have three tasks done and one cancelled; return the number of the first."""
    first = await add(client, 4)
    await finish(client, await take(client, 1))
    await finish(client, await take(client, 2))
    await client.request(Revoke(*QUEUE, 0, 0, first + 3), SECONDS)
    return first


async def set_live(client: AsyncClient, name: str, value: SettingValue) -> None:
    await client.request(ControlQueue(*QUEUE, 0, 0, "set", settings={name: value}), SECONDS)


def stored(one: Shop) -> int:
    """How many tasks the shard has written to histories."""
    partitions = one.node.shard._partitions
    assert partitions is not None
    return partitions.writer.history_tasks


def are_stored(one: Shop, tasks: int) -> bool:
    return stored(one) == tasks


@in_a_loop
async def test_a_restart_shows_the_same(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, history=STORED) as one:
        async with one.client() as client:
            first = await end_some(client)
            before = told(await listed(client, "ended", reveal=True))
            shown = await show(client, first)
            assert len(before) == 4
        for _ in range(2):
            assert await one.restart()
            async with one.client() as client:
                again = await show(client, first)
                assert whats(again) == whats(shown)
                assert (again.task.arguments, again.result) == (shown.task.arguments, shown.result)
                hidden = await show(client, first, reveal=False)
                assert (hidden.task.arguments, hidden.result) == (None, None)
                assert told(await listed(client, "ended", reveal=True)) == about(before)
                assert told(await listed(client, "ended", most=1, reveal=True)) == about(before)
                assert len(await listed(client, "cancelled")) == 1
                assert (await change(client, "run-now", first)).left == {first: "over"}
        async with one.client() as client:
            assert (await change(client, "again", first)).done == [first]


@in_a_loop
async def test_a_restart_shows_the_last_tasks_of_a_busy_partition(tmp_path: Path) -> None:
    history = History(tasks=1_500, stored=True)
    async with shop(tmp_path, Simulated(), history=history) as one:
        async with one.client() as client:
            ended: list[int] = []
            for _ in range(4):
                await add(client, 500)
                runs = await take(client, 500)
                await finish(client, runs)
                ended += [run.sequence for run in runs]
        for restarts in (False, True):
            if restarts:
                assert await one.restart()
            async with one.client() as client:
                found = await listed(client, "ended")
            assert sorted(row.sequence for row in found) == ended[-1_500:]


@in_a_loop
async def test_it_is_set_live_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)

    engine = Simulated()
    async with shop(tmp_path, engine) as one:
        async with one.client() as client:
            await end_some(client)
            await set_live(client, "history.stored", value=True)
            later = await end_some(client)
            await until(lambda: stored(one) == 4)
        assert await one.restart()
        async with one.client() as client:
            rows = await listed(client, "ended")
            assert {row.sequence for row in rows} == set(range(later, later + 4))
            await set_live(client, "history.stored", value=False)
            (held,) = engine.disk.contents.all().values()
            await until(lambda: not [number for number in held.results if number < 0])
            assert len(await listed(client, "ended")) == 4, "in memory"


@pytest.mark.parametrize("problem", [StoreFull("Full."), StoreUnavailable("Away.")])
@in_a_loop
async def test_a_history_that_cannot_be_stored_stops_no_task(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: Any,  # noqa: ANN401
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    async with shop(tmp_path, Simulated(), history=STORED, hold_seconds=0.0) as one:
        (store,), commit = one.stores, one.stores[0].commit
        failed = 0

        async def failing(group: list[Changes]) -> Any:  # noqa: ANN401
            nonlocal failed
            if any(row.sequence < 0 for changes in group for row in changes.results):
                failed += 1
                raise problem
            return await commit(group)

        monkeypatch.setattr(store, "commit", failing)
        async with one.client() as client:
            for _ in range(3):
                await end_some(client)
            await until(lambda: failed > 2)
            assert "history not stored" in one.node.log.events("warning")
            assert stored(one) == 0
            assert len(await listed(client, "ended")) == 12
            await set_live(client, "history.tasks", value=10)
            assert len(await listed(client, "ended")) == 10
            memory = one.node.shard._partitions.histories.memory  # type: ignore[union-attr]
            memory.most_bytes = memory.used * 6 // 10
            await end_in(client, "mails")
            said = one.node.log.lines
            await until(lambda: FORGOTTEN in [event for _, event, _ in said])
            lost = [fields["tasks"] for _, event, fields in said if event == FORGOTTEN]
            assert lost == [4], "those beyond the number are not lost"
            monkeypatch.setattr(store, "commit", commit)
            await until(lambda: stored(one) == 6)
        assert await one.restart()
        async with one.client() as client:
            assert len(await listed(client, "ended")) == 6


@in_a_loop
async def test_a_history_for_which_quotas_have_no_room_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    made = shop(tmp_path, Simulated(), history=STORED, stored_bytes=1_000)
    async with made as one, one.client() as client:
        await end_some(client)
        said = one.node.log.lines
        await until(lambda: "history not stored" in [event for _, event, _ in said])
        (told,) = [fields for _, event, fields in said if event == "history not stored"]
        assert told == {
            "namespace": "shop",
            "queue": "mails",
            "partition": 0,
            "error": writer.NO_ROOM,
        }
        assert stored(one) == 0
        assert len(await listed(client, "ended")) == 4


@in_a_loop
async def test_a_row_that_cannot_be_written_for_now_is_left_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory bounds what it keeps; a row is kept besides."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 1e6)
    async with shop(tmp_path, Simulated(), history=STORED, hold_seconds=0.0) as one:
        partitions = one.node.shard._partitions
        assert partitions is not None
        async with one.client() as client:
            await end_some(client)
            (owned,) = partitions.owned.values()
            kept = owned.partition.ended_tasks
            kept.fill_row(3, 10**6)
            assert (len(kept.row), len(kept.unstored)) == (3, 1)
            monkeypatch.setattr(owned.partition.health, "problem", StoreUnavailable("Away."))
            commit = await partitions.writer.write_histories([owned])
            assert (commit.has_rows, commit.idle) == (False, [owned])
            assert (len(kept.row), len(kept.unstored)) == (0, 4)
            monkeypatch.undo()
            await partitions.stored_histories.write()
            assert stored(one) == 4


@in_a_loop
async def test_large_arguments_of_what_is_over_are_left_out_and_the_list_says_so(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, Simulated(), history=STORED) as one:
        payload = msgpack.encode(["x" * PAYLOAD_BYTES])
        async with one.client() as client:
            await client.request(Add(*QUEUE, 0, 0, 1, [payload], terms=KNOWN), SECONDS)
            await finish(client, await take(client, 1))
        for restarts in (False, True):
            if restarts:
                assert await one.restart()
            async with one.client() as client:
                (row,) = await listed(client, "ended", reveal=True)
                told = row.arguments, row.withheld, row.payload_bytes
                assert told == (None, "forgotten", len(payload))
                shown = (await show(client, row.sequence)).task
                assert (shown.arguments, shown.withheld) == (None, "forgotten")
                left = (await change(client, "again", row.sequence)).left
                assert left == {row.sequence: "forgotten"}


@pytest.mark.parametrize("is_written", [False, True])
@in_a_loop
async def test_a_history_of_unknown_outcome_costs_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """The partition stays, with its running tasks and those that are in memory only."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    async with shop(tmp_path, Simulated(), history=STORED) as one:
        (store,), commit = one.stores, one.stores[0].commit
        partitions = one.node.shard._partitions
        assert partitions is not None
        failed = 0

        async def unsure(group: list[Changes]) -> Any:  # noqa: ANN401
            nonlocal failed
            is_history = any(row.sequence < 0 for changes in group for row in changes.results)
            if not is_history or failed:
                return await commit(group)
            failed += 1
            if is_written:
                await commit(group)
            raise OutcomeUnknown("The connection was lost.")

        monkeypatch.setattr(store, "commit", unsure)
        async with one.client() as client:
            first = await end_some(client)
            before = list(partitions.owned.values())
            await until(lambda: stored(one) == 4)
            assert failed == 1
            assert list(partitions.owned.values()) == before
            assert len(await listed(client, "ended")) == 4
        assert await one.restart()
        async with one.client() as client:
            rows = await listed(client, "ended")
            assert sorted(row.sequence for row in rows) == list(range(first, first + 4))


@pytest.mark.parametrize("problem", [None, StoreUnavailable("Away.")])
@in_a_loop
async def test_a_store_that_is_silent_about_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: StoreUnavailable | None
) -> None:
    """Tasks are refused until the store answers, and longer if it answers with a failure."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(writer, "UNSAFE_SECONDS", 0.05)
    async with shop(tmp_path, Simulated(), history=STORED, hold_seconds=0.0) as one:
        (store,), commit, answers = one.stores, one.stores[0].commit, asyncio.Event()
        tried = asyncio.Event()
        works = problem is None

        async def slow(group: list[Changes]) -> Any:  # noqa: ANN401
            if any(row.sequence < 0 for changes in group for row in changes.results):
                await answers.wait()
            elif answers.is_set():
                tried.set()
            if answers.is_set() and not works:
                raise StoreUnavailable("Away.")
            return await commit(group)

        monkeypatch.setattr(store, "commit", slow)
        partitions = one.node.shard._partitions
        assert partitions is not None
        async with one.client() as client:
            await add(client, 1)
            await finish(client, await take(client, 1))
            (owned,) = partitions.owned.values()
            await until(lambda: owned.partition.health.problem is not None)
            assert partitions.writer.is_failing
            answers.set()
            if problem is not None:
                await asyncio.wait_for(tried.wait(), SECONDS)
                assert owned.partition.health.problem is not None
                assert partitions.writer.is_failing
                works = True
            await until(lambda: owned.partition.health.problem is None)
            await until(lambda: stored(one) == 1)
            said = one.node.log.events("error"), one.node.log.events("info")
            assert "store cannot be written; tasks are refused" in said[0]
            assert "store can be written again" in said[1]


@in_a_loop
async def test_histories_are_written_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of many large rows would keep those of tasks waiting."""
    monkeypatch.setattr(writer, "HISTORY_BYTES", 1)
    async with shop(tmp_path, Simulated(), history=STORED) as one:
        (store,), commit = one.stores, one.stores[0].commit
        sizes: list[int] = []

        async def counting(group: list[Changes]) -> Any:  # noqa: ANN401
            sizes.append(sum(row.sequence < 0 for changes in group for row in changes.results))
            return await commit(group)

        monkeypatch.setattr(store, "commit", counting)
        async with one.client() as client:
            for queue in range(5):
                await end_in(client, f"queue-{queue}")
            await until(lambda: stored(one) == 5)
            assert max(sizes) == 1
            for queue in range(5):
                await end_in(client, f"queue-{queue}")
        assert await one.restart()
        assert (sum(sizes), max(sizes)) == (10, 1), "also when the node stops"


@in_a_loop
async def test_a_history_that_waits_for_room_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 1e6)
    monkeypatch.setattr(stored_histories, "WRITTEN_AT_ONCE", 1)
    async with shop(tmp_path, Simulated(), history=STORED, hold_seconds=0.0) as one:
        partitions = one.node.shard._partitions
        assert partitions is not None
        async with one.client() as client:
            for queue in range(5):
                await end_in(client, f"queue-{queue}")
            for owned in list(partitions.owned.values())[:4]:
                monkeypatch.setattr(owned.partition.stored_history, "take", lambda _: None)
            await partitions.stored_histories.write()
            assert stored(one) == 1
            monkeypatch.undo()
            await partitions.stored_histories.write()
            assert stored(one) == 5


@in_a_loop
async def test_all_rows_of_a_queue_go_when_it_stores_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than one commit lets expire."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(stored_history, "EXPIRED_AT_ONCE", 2)
    engine = Simulated()
    async with shop(tmp_path, engine, history=STORED) as one, one.client() as client:
        for number in range(7):
            await add(client, 1)
            await finish(client, await take(client, 1))
            await until(functools.partial(are_stored, one, number + 1))
        await set_live(client, "history.stored", value=False)
        (held,) = engine.disk.contents.all().values()
        await until(lambda: not [number for number in held.results if number < 0])


@in_a_loop
async def test_a_deleted_queue_leaves_nothing(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, history=STORED) as one:
        async with one.client() as client:
            await end_some(client)
        assert await one.restart()
        async with one.client() as client:
            assert len(await listed(client, "ended")) == 4
            await client.request(DeleteQueue(*QUEUE, 0, 0), SECONDS)
            await end_some(client)
            assert len(await listed(client, "ended")) == 4


# In a cluster


async def end_in(at: Town | AsyncClient, queue: str, tasks: int = 1) -> None:
    """Have tasks of the queue done by a worker."""
    where = ("shop", queue, 1, 0, 0)
    ask: Callable[[Any], Awaitable[Any]] = at.ask if isinstance(at, Town) else at.request
    await ask(added_to(0, queue, count=tasks))
    offered = await ask(Offer(*where, 1, SESSION, "worker", tasks))
    ends = [
        End(one.sequence, one.attempt, one.proof, DONE, msgpack.encode("fine"))
        for one in offered.tasks
    ]
    assert len(ends) == tasks
    await ask(Finish(*where, SESSION, ends))


async def ended_in(town: Town, queue: str) -> list[ListedTask]:
    found = await town.ask(ListTasks("shop", queue, 1, 0, 0, "ended"))
    rows: list[ListedTask] = found.tasks
    return rows


def test_what_ended_is_shown_by_the_next_owner() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await end_in(town, queue, 3)
        before = told(await ended_in(town, queue))
        assert len(before) == 3
        town.states(a="draining")
        assert town.owner(queue).place.host != "a"
        assert told(await ended_in(town, queue)) == about(before)
        town.states(a="active")
        await end_in(town, queue)
        assert told(await ended_in(town, queue))[1:] == about(before), "it has each of them once"

    in_town(main, history=STORED)


def test_what_ended_is_shown_after_the_death_of_its_node() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await end_in(town, queue, 3)
        await asyncio.sleep(AGE_SECONDS)
        before = told(await ended_in(town, queue))
        await end_in(town, queue)  # a moment before the crash, so it may be lost
        town.kill("a")
        town.states(a="dead")
        assert told(await ended_in(town, queue))[-3:] == about(before)

    in_town(main, history=STORED)


def test_without_the_setting_they_are_lost() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await end_in(town, queue, 3)
        await asyncio.sleep(AGE_SECONDS)
        town.kill("a")
        town.states(a="dead")
        assert not await ended_in(town, queue)

    in_town(main)
