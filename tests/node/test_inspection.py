"""LIST_TASKS, SHOW_TASK and CHANGE_TASKS at a real node: what operators see and do."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import msgpack

from maitred import App
from maitred.errors import (
    InvalidArgument,
    PermissionDenied,
    TaskCancelled,
    TaskForgotten,
    UnknownQueue,
    UnknownTask,
)
from maitred.matching.records import Terms
from maitred.node import inspection_requests, purge_requests, queue_requests
from maitred.node.task_views import TaskView
from maitred.protocol.inspection import (
    ArgumentFilter,
    ChangeTasks,
    ListedTask,
    ListTasks,
    ShowTask,
    TaskFilter,
    TasksChanged,
    TaskShown,
    TasksListed,
)
from maitred.protocol.messages import Echo
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    DeadLetters,
    End,
    Failure,
    Finish,
    Given,
    Offer,
    Offered,
    PurgeTasks,
    Resize,
)
from maitred.settings import Audit, History, Permission, User
from maitred.simulation.loop import SimulatedLoop
from tests.node.in_process import Portions, in_a_loop, until
from tests.node.querying import stage
from tests.node.shops import Shop, shop
from tests.node.test_audit import told
from tests.security.cheap import cheaply
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.matching.records import Dead
    from maitred.protocol.tasks import DeadLettersFound, Purged
    from tests.store.engines import Engine

SECONDS = 30.0
SESSION = b"a worker's own.."
QUEUE = ("shop", "mails", 1)
KNOWN = Terms(retries=1, backoff_first=3600.0, backoff_longest=3600.0, hidden=())


async def add(client: AsyncClient, count: int, **fields: Any) -> int:  # noqa: ANN401
    """Add tasks whose argument is their number; return the sequence number of the first."""
    fields.setdefault("terms", KNOWN)
    payloads = [msgpack.encode([number]) for number in range(count)]
    answer = await client.request(Add(*QUEUE, 0, 0, 1, payloads, **fields), SECONDS)
    assert isinstance(answer, Added)
    return answer.first


async def take(client: AsyncClient, slots: int) -> list[Given]:
    answer = await client.request(Offer(*QUEUE, 0, 0, 1, SESSION, "worker", slots), SECONDS)
    assert isinstance(answer, Offered)
    return answer.tasks


async def finish(client: AsyncClient, tasks: Sequence[Given], how: int = DONE) -> None:
    body = msgpack.encode("fine")
    if how != DONE:
        body = msgpack.encode(Failure("ValueError", "no such address", "Traceback ..."))
    ends = [End(one.sequence, one.attempt, one.proof, how, body) for one in tasks]
    await client.request(Finish(*QUEUE, 0, 0, SESSION, ends), SECONDS)


async def listed(
    client: AsyncClient,
    state: Any,  # noqa: ANN401
    most: int = 1_000,
    partition: int = 0,
    **fields: Any,  # noqa: ANN401
) -> list[ListedTask]:
    """Follow the cursors to the end."""
    found: list[ListedTask] = []
    after = (0.0, 0)
    async with asyncio.timeout(SECONDS):
        while True:
            message = ListTasks(*QUEUE, partition, 0, state, after=after, most=most, **fields)
            answer = await client.request(message, SECONDS)
            assert isinstance(answer, TasksListed)
            assert len(answer.tasks) <= most
            found += answer.tasks
            if answer.cursor is None:
                return found
            assert answer.cursor != after
            after = answer.cursor


async def show(client: AsyncClient, sequence: int, *, reveal: bool = True) -> TaskShown:
    answer = await client.request(ShowTask(*QUEUE, 0, 0, sequence, reveal), SECONDS)
    return cast("TaskShown", answer)


async def change(client: AsyncClient, action: Any, *sequences: int) -> TasksChanged:  # noqa: ANN401
    answer = await client.request(ChangeTasks(*QUEUE, 0, 0, action, [*sequences]), SECONDS)
    return cast("TasksChanged", answer)


def whats(shown: TaskShown) -> list[str]:
    return [one.what for one in shown.events]


def arguments_of(row: ListedTask) -> Any:  # noqa: ANN401
    assert row.arguments is not None, row.withheld
    return msgpack.decode(row.arguments)


@in_a_loop
async def test_every_state_is_listed_and_shown(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, hold_seconds=0.0) as one, one.client() as client:
        first = await add(client, 6)
        await finish(client, await take(client, 1))
        await finish(client, await take(client, 1), FAILED)  # one retry is left
        (running,) = await take(client, 1)
        dead = await add(client, 1, terms=Terms(retries=0, hidden=()), priority=0)
        await finish(client, await take(client, 1), FAILED)
        delayed = await add(client, 1, delay=7200.0)
        states = {state: await listed(client, state) for state in ("running", "waiting", "delayed")}
        assert [row.sequence for row in states["running"]] == [running.sequence]
        assert [row.sequence for row in states["waiting"]] == [first + 3, first + 4, first + 5]
        assert [row.sequence for row in states["delayed"]] == [first + 1, delayed]
        (letter,) = await listed(client, "dead")
        assert (letter.sequence, letter.error, letter.reason) == (dead, "ValueError", "failed")
        (over,) = await listed(client, "ended")
        assert (over.sequence, over.state, over.worker) == (first, "done", "worker")
        assert await listed(client, "cancelled") == []

        shown = await show(client, first)
        assert whats(shown) == ["added", "started", "done", "forgotten"]
        assert shown.result is not None
        assert msgpack.decode(shown.result) == "fine"
        assert shown.task.by == "127.0.0.1"
        shown = await show(client, first + 1)
        assert whats(shown) == ["added", "started", "failed", "retry"]
        assert (shown.task.attempts, shown.task.retries) == (1, 0)
        assert shown.events[2].message == "no such address"
        assert shown.traceback == "Traceback ..."
        assert whats(await show(client, running.sequence)) == ["added", "started"]
        assert whats(await show(client, first + 3)) == ["added"]
        assert arguments_of((await show(client, first + 3)).task) == [3]
        assert whats(await show(client, dead)) == ["added", "started", "failed", "dead"]
        assert whats(await show(client, delayed)) == ["added", "due"]


@in_a_loop
async def test_what_a_restart_leaves_of_the_history(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, hold_seconds=0.0) as one:
        async with one.client() as client:
            first = await add(client, 5)
            await finish(client, await take(client, 1), FAILED)
            await finish(client, await take(client, 1))
        assert await one.restart()
        async with one.client() as client:
            assert whats(await show(client, first)) == ["added", "started", "failed", "retry"]
            assert [row.sequence for row in await listed(client, "waiting")] == [
                *range(first + 2, first + 5)
            ]
            assert await listed(client, "ended") == []
            over = await show(client, first + 1)  # its result was kept
            assert over.task.state == "done"
            assert over.task.withheld == "forgotten"
            # No worker has said what it hides, and the arguments are gone.
            assert (over.result, over.result_withheld) == (None, "unknown")


@in_a_loop
async def test_a_long_backlog_is_listed_in_pages_while_others_are_served(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection_requests, "PIECE", 70)
    monkeypatch.setattr(inspection_requests, "SLICE", 10)
    monkeypatch.setattr(inspection_requests, "LOOKED_AT", 500)
    portions = Portions()
    monkeypatch.setattr(inspection_requests, "TaskView", portions.counted(TaskView))
    total = 3_000
    async with shop(tmp_path, engine, buffer_tasks=10) as one, one.client() as client:
        for _ in range(total // 100):
            await add(client, 100)
        await add(client, 100, priority=4)
        await add(client, 300, delay=3600.0)
        (owned,) = one.node.shard._partitions.owned.values()  # type: ignore[union-attr]
        in_memory = len(owned.partition.own_tasks.tasks)
        served = 0

        async def others() -> None:
            nonlocal served
            async with one.client() as other:
                while True:
                    await other.request(Echo(*QUEUE, 0, 0, b"x"), SECONDS)
                    served += 1

        echoing = asyncio.create_task(others())
        found = await listed(client, "waiting", 333)
        echoing.cancel()
        numbers = [row.sequence for row in found]
        assert len(set(numbers)) == len(numbers) == total + 100
        assert [row.priority for row in found] == [2] * total + [4] * 100
        assert served > total / 333, "others are served between two pages, at least"
        assert len(await listed(client, "delayed", 77)) == 300
        assert len(owned.partition.own_tasks.tasks) == in_memory < total, "a list reads none"

        absent = TaskFilter(argument=ArgumentFilter("0", msgpack.encode(-1)))
        message = ListTasks(*QUEUE, 0, 0, "waiting", absent, reveal=True)
        answer = cast("TasksListed", await client.request(message, SECONDS))
        assert answer.tasks == []
        assert answer.cursor is not None
        assert 500 <= answer.looked_at < 700
        assert await listed(client, "waiting", filter=absent, reveal=True) == []
        # The first slice of a list does not wait, nor does the second if no other list works.
        assert 10 <= portions.longest <= 20, "tasks were compared before others had their turn"


@in_a_loop
async def test_dead_letters_are_read_within_a_number_of_bytes(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (inspection_requests, "PIECE_BYTES"),
        (purge_requests, "PIECE_BYTES"),
        (queue_requests, "LETTER_BYTES"),
    ):
        monkeypatch.setattr(module, name, 1_000)
    async with shop(tmp_path, engine, hold_seconds=0.0) as one, one.client() as client:
        payloads = [msgpack.encode("x" * 400)] * 20
        terms = Terms(retries=0, hidden=())
        await client.request(Add(*QUEUE, 0, 0, 1, payloads, terms=terms), SECONDS)
        await finish(client, await take(client, 20), FAILED)
        (store,) = one.stores
        read, sizes = store.dead, []

        async def dead(*given: Any) -> list[Dead]:  # noqa: ANN401
            found = await read(*given)
            sizes.append(sum(len(letter.body) for letter in found))
            return found

        monkeypatch.setattr(store, "dead", dead)
        assert len(await listed(client, "dead")) == 20
        found = await client.request(DeadLetters(*QUEUE, 0, 0, "list"), SECONDS)
        assert len(cast("DeadLettersFound", found).letters) == 20
        message = PurgeTasks(*QUEUE, 0, 0, "dead")
        purged = cast("Purged", await client.request(message, SECONDS))
        assert (purged.tasks, purged.is_complete) == (20, True)
        assert len(sizes) >= 20, "each of the three read several times"
        assert max(sizes) < 2_000


@in_a_loop
async def test_a_list_that_ends_after_every_slice_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection_requests, "PIECE", 20)
    monkeypatch.setattr(inspection_requests, "SLICE", 7)
    monkeypatch.setattr(inspection_requests, "WORK_SECONDS", 0.0)
    absent = TaskFilter(by="nobody")
    async with shop(tmp_path, Simulated(), buffer_tasks=10) as one, one.client() as client:
        first = await add(client, 100)
        await add(client, 50, delay=3600.0)
        found = await listed(client, "waiting")
        assert [row.sequence for row in found] == [*range(first, first + 100)]
        assert len(await listed(client, "delayed")) == 50
        answer = await client.request(ListTasks(*QUEUE, 0, 0, "delayed", absent), SECONDS)
        assert cast("TasksListed", answer).looked_at == 7
        assert await listed(client, "delayed", filter=absent) == []


def test_lists_take_turns_and_rest_for_as_long_as_they_work() -> None:
    worked: list[float] = []

    async def scan(pace: inspection_requests.ScanPace) -> None:
        for _ in range(3):
            async with pace:
                worked.append(loop.now)
                await asyncio.sleep(1.0)

    async def scans() -> None:
        pace = inspection_requests.ScanPace(loop)
        begun = asyncio.gather(scan(pace), scan(pace))
        await asyncio.sleep(2.5)
        begun.cancel()  # the one that works rests first, and its turn is free then
        with suppress(asyncio.CancelledError):
            await begun
        await scan(pace)

    with closing(SimulatedLoop()) as loop:
        began = loop.now
        loop.run_until_complete(scans())
    assert [at - began for at in worked] == pytest.approx([0.0, 2.0, 3.0, 5.0, 7.0])


@in_a_loop
async def test_filters(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), hold_seconds=0.0) as one, one.client() as client:
        before = time.time()
        first = await add(client, 4)
        await finish(client, await take(client, 2), FAILED)

        async def found(state: str, **fields: Any) -> list[int]:  # noqa: ANN401
            reveal = fields.pop("reveal", False)
            rows = await listed(client, state, filter=TaskFilter(**fields), reveal=reveal)
            return sorted(row.sequence - first for row in rows)

        assert await found("delayed", error="valueerr") == [0, 1]
        assert await found("delayed", error="address", reveal=True) == [0, 1]
        assert await found("delayed", error="address") == [], "messages are private"
        assert await found("delayed", error="KeyError") == []
        assert await found("delayed", worker="worker") == [0, 1]
        assert await found("delayed", worker="other") == []
        assert await found("waiting", by="127.0.0.1") == [2, 3]
        assert await found("waiting", by="alice") == []
        assert await found("waiting", added_after=before - 1) == [2, 3]
        assert await found("waiting", added_after=before + 3600) == []
        assert await found("waiting", added_before=before - 1) == []
        three = ArgumentFilter("0", msgpack.encode(3))
        assert await found("waiting", argument=three, reveal=True) == [3]
        with pytest.raises(InvalidArgument, match="reveal"):
            await found("waiting", argument=three)
        broken = ArgumentFilter("0", b"\xc1")
        with pytest.raises(InvalidArgument, match="msgpack"):
            await found("waiting", argument=broken, reveal=True)


@in_a_loop
async def test_tasks_are_changed_and_the_others_are_named(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, hold_seconds=0.0, buffer_tasks=10) as one:
        async with one.client() as client:
            first = await add(client, 4)
            await finish(client, await take(client, 1))
            later = await add(client, 30, delay=7200.0)
            dead = await add(client, 1, terms=Terms(retries=0, hidden=()), priority=0)
            await finish(client, await take(client, 1), FAILED)

        assert await one.restart()  # most is in the store alone
        async with one.client() as client:
            (running,) = await take(client, 1)
            told = await change(client, "run-now", later, later + 29, running.sequence, dead, 7)
            assert told.done == [later, later + 29]
            assert told.left == {running.sequence: "running", dead: "not-delayed", 7: "not-delayed"}
            ready = {row.sequence for row in await listed(client, "waiting")}
            assert {later, later + 29} <= ready

            told = await change(client, "cancel", first + 2, later + 1, running.sequence, first, 7)
            assert told.done == [first + 2, later + 1, running.sequence]
            assert told.left == {first: "over", 7: "unknown"}
            states = {row.sequence: row.state for row in await listed(client, "ended")}
            assert states == {first + 2: "cancelled", later + 1: "cancelled"}

            told = await change(client, "again", dead, first + 2, later + 2, first, 7)
            assert set(told.added) == {dead, first + 2}
            assert told.left == {later + 2: "delayed", first: "forgotten", 7: "unknown"}
            again = await show(client, told.added[first + 2])
            assert arguments_of(again.task) == [2]

            told = await change(client, "retry", dead, later + 2)
            assert (told.done, told.left) == ([dead], {later + 2: "not-dead"})
            assert await listed(client, "dead") == []
            told = await change(client, "drop", dead)
            assert told.left == {dead: "not-dead"}


@in_a_loop
async def test_a_task_that_runs_now_keeps_its_number_through_a_restart(
    tmp_path: Path, engine: Engine
) -> None:
    async with shop(tmp_path, engine) as one:
        async with one.client() as client:
            later = await add(client, 1, delay=7200.0)
            await change(client, "run-now", later)
        assert await one.restart()
        async with one.client() as client:
            (given,) = await take(client, 1)
            assert given.sequence == later
            await finish(client, [given])
            with pytest.raises((TaskForgotten, UnknownTask)):
                await show(client, later + 1)


@in_a_loop
async def test_all_partitions_know_what_is_hidden(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), shards=2) as one:
        app = App("shop", node=f"maitred://127.0.0.1:{one.node.port}")

        @app.handler("mails", hide=["card"])
        async def mails(to: str, card: str) -> str:
            return f"{to} paid with {card}"

        async with app, one.client() as client:
            task = await mails.enqueue("ann", "4111-secret")
            await client.request(Resize(*QUEUE, 0, 0, 2, 2), SECONDS)
            shown = await show(client, task.sequence)
            assert b"4111" not in msgpack.encode(shown)
            # A producer that does not know the handler, at a partition that is not the root.
            payload = msgpack.encode({"to": "bob", "card": "4222-secret"})
            answer = await client.request(Add(*QUEUE, 1, 0, 1, [payload]), SECONDS)
            assert isinstance(answer, Added)
            (row,) = await listed(client, "waiting", partition=1, reveal=True)
            assert (row.arguments, row.withheld) == (None, "unknown")
            hidden = ArgumentFilter("card", msgpack.encode("4222-secret"))
            found = await listed(
                client, "waiting", partition=1, filter=TaskFilter(argument=hidden), reveal=True
            )
            assert found == []


@in_a_loop
async def test_the_result_is_shown_without_what_is_hidden(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), hold_seconds=0.0) as one, one.client() as client:
        terms = Terms(hidden=(1,))
        payload = msgpack.encode(["ann", "4111-secret"])
        await client.request(Add(*QUEUE, 0, 0, 1, [payload], terms=terms), SECONDS)
        (given,) = await take(client, 1)
        body = msgpack.encode({"told": ["paid with 4111-secret"], "4111-secret": 1})
        ends = [End(given.sequence, given.attempt, given.proof, DONE, body)]
        await client.request(Finish(*QUEUE, 0, 0, SESSION, ends), SECONDS)
        shown = await show(client, given.sequence)
        assert shown.result is not None
        assert msgpack.decode(shown.result) == {"told": ["paid with [hidden]"], "[hidden]": 1}
        assert arguments_of(shown.task) == ["ann", "[hidden]"]
        assert (await show(client, given.sequence, reveal=False)).result is None


@in_a_loop
async def test_permissions_and_the_audit_log(tmp_path: Path) -> None:
    granted: dict[str, list[Permission]] = {
        "producer": ["produce", "work"],
        "looker": ["read"],
        "operator": ["operate"],
        "auditor": ["read", "reveal"],
    }
    users = {
        name: User(secret=cheaply("secret"), permissions={"shop": permissions})
        for name, permissions in granted.items()
    }
    log = tmp_path / "audit"
    async with stage(tmp_path, users=users, audit=Audit(directory=str(log))) as here:
        producer = await here.client("producer", "secret")
        looker = await here.client("looker", "secret")
        operator = await here.client("operator", "secret")
        auditor = await here.client("auditor", "secret")
        first = await add(producer, 2)
        await finish(producer, await take(producer, 1), FAILED)
        for client, may_see in ((looker, False), (operator, False), (auditor, True)):
            (row,) = await listed(client, "delayed", reveal=True)
            shown = await show(client, first)
            assert (row.arguments is not None) is may_see
            assert (shown.task.arguments is not None) is may_see
            assert bool(row.message) is bool(shown.traceback) is may_see
            assert row.error == "ValueError"
            assert (row.by, row.worker) == ("producer@127.0.0.1", "worker")
            assert any(one.message for one in shown.events) is may_see
        wanted = TaskFilter(argument=ArgumentFilter("0", msgpack.encode(0)))
        with pytest.raises(PermissionDenied, match="reveal"):
            await listed(looker, "delayed", filter=wanted, reveal=True)
        with pytest.raises(PermissionDenied):
            await listed(producer, "waiting")
        for client in (looker, auditor, producer):
            with pytest.raises(PermissionDenied):
                await change(client, "cancel", first)
        message = ChangeTasks(*QUEUE, 0, 0, "cancel", [first, first + 1, 99], reason="why")
        message.user = message.source = "forged"
        await operator.request(message, SECONDS)
        await until(lambda: bool(told(log, "cancel tasks")))
        (record,) = told(log, "cancel tasks")
        assert (record["user"], record["target"]) == ("operator", "shop/mails")
        assert (record["tasks"], record["reason"]) == (2, "why")
        assert record["ids"] == [first, first + 1]
        assert record["from"].startswith("127.0.0.1:")
        with pytest.raises(PermissionDenied):
            await looker.request(ListTasks("desk", "mails", 1, 0, 0, "dead"), SECONDS)


@in_a_loop
async def test_a_cancelled_task_says_so_to_its_producer(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one:
        app = App("shop", node=f"maitred://127.0.0.1:{one.node.port}")

        @app.handler("mails")
        async def mails() -> None: ...

        async with app, one.client() as client:
            task = await mails.enqueue()
            assert (await change(client, "cancel", task.sequence)).done == [task.sequence]
            with pytest.raises(TaskCancelled):
                await task.result(SECONDS)


@in_a_loop
async def test_history_can_be_turned_off_and_is_bounded_by_the_shard(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), history=History(tasks=0)) as one:
        async with one.client() as client:
            first = await add(client, 1)
            await finish(client, await take(client, 1))
            assert await listed(client, "ended") == []
            assert (await show(client, first)).task.state == "done"  # the result is kept
        memory = histories(one).memory
        assert memory.used == 0


def histories(one: Shop) -> Any:  # noqa: ANN401
    return one.node.shard._partitions.histories  # type: ignore[union-attr]


@in_a_loop
async def test_large_arguments_are_left_to_the_task_itself(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        payload = msgpack.encode(["x" * 5_000])
        await client.request(Add(*QUEUE, 0, 0, 1, [payload], terms=KNOWN), SECONDS)
        (row,) = await listed(client, "waiting", reveal=True)
        assert (row.arguments, row.withheld, row.payload_bytes) == (None, "size", len(payload))
        assert arguments_of((await show(client, row.sequence)).task) == ["x" * 5_000]


@in_a_loop
async def test_bad_input(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        with pytest.raises(UnknownQueue):
            await listed(client, "waiting")
        assert not one.node.shard._partitions.owned, "asking makes no queue"  # type: ignore[union-attr]
        first = await add(client, 1)
        for bad in (0, 7, first + 1, 2**62):
            with pytest.raises((UnknownTask, TaskForgotten)):
                await show(client, bad)
        for message in (
            ListTasks(*QUEUE, 0, 0, cast("Any", "asleep")),
            ListTasks(*QUEUE, 0, 0, "waiting", after=(9.0, 1)),
            ListTasks(*QUEUE, 0, 0, "waiting", after=(-1.0, 1)),
            ListTasks(*QUEUE, 0, 0, "waiting", most=1_001),
            ChangeTasks(*QUEUE, 0, 0, "cancel", []),
            ChangeTasks(*QUEUE, 0, 0, cast("Any", "bless"), [first]),
        ):
            with pytest.raises(InvalidArgument):
                await client.request(message, SECONDS)
        for place in ((float("inf"), 5), (float("nan"), 1), (1e300, 2**62)):
            for state in ("running", "delayed", "dead", "ended"):
                message = ListTasks(*QUEUE, 0, 0, cast("Any", state), after=place)
                assert cast("TasksListed", await client.request(message, SECONDS)).tasks == []
