"""Lists and changes of tasks over the partitions of a real node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

from maitred.client import task_lists
from maitred.client.task_changes import ChangeStep, change_matching, change_tasks
from maitred.client.task_lists import EVERY_STATE, TaskPage, list_tasks, show_task
from maitred.errors import InvalidArgument, PermissionDenied, UnknownQueue, UnknownTask
from maitred.matching.records import Terms
from maitred.protocol.inspection import ArgumentFilter, TaskFilter
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    End,
    Failure,
    Finish,
    Offer,
    Offered,
    Resize,
)
from maitred.routing.names import QueueId
from maitred.settings import User
from tests.node.in_process import in_a_loop
from tests.node.querying import stage
from tests.node.shops import shop
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.inspection import ListedState, ListedTask
    from maitred.protocol.tasks import Given
    from maitred.settings import Permission
    from tests.store.engines import Engine

SECONDS = 30.0
SESSION = b"a worker's own.."
MAILS = QueueId("shop", "mails", 1)
PARTITIONS = 3
KEPT = Terms(retries=0, retention=3_600.0, hidden=())


async def add(client: AsyncClient, partition: int, count: int, **fields: Any) -> list[int]:  # noqa: ANN401
    payloads = [msgpack.encode({"to": f"{partition}.{n}"}) for n in range(count)]
    message = Add(*MAILS, partition, 0, 1, payloads, terms=KEPT, **fields)
    answer = await client.request(message, SECONDS)
    assert isinstance(answer, Added)
    return list(range(answer.first, answer.first + count))


async def take(client: AsyncClient, partition: int, count: int) -> list[Given]:
    """Be a worker that is given tasks."""
    message = Offer(*MAILS, partition, 0, 1, SESSION, "ant", count)
    answer = await client.request(message, SECONDS)
    assert isinstance(answer, Offered)
    assert len(answer.tasks) == count
    return answer.tasks


async def end(client: AsyncClient, partition: int, given: list[Given], *, well: bool) -> None:
    body = b"\x01" if well else msgpack.encode(Failure("ValueError", "no such box"))
    how = DONE if well else FAILED
    ends = [End(one.sequence, one.attempt, one.proof, how, body) for one in given]
    await client.request(Finish(*MAILS, partition, 0, SESSION, ends), SECONDS)


async def fill(client: AsyncClient) -> dict[str, set[tuple[int, int]]]:
    """Tasks of all states in all partitions, by state."""
    await client.request(Resize(*MAILS, 0, 0, PARTITIONS, PARTITIONS), SECONDS)
    made: dict[str, set[tuple[int, int]]] = {}

    def note(state: str, partition: int, sequences: list[int]) -> None:
        made.setdefault(state, set()).update((partition, one) for one in sequences)

    for state, count in (("dead", 3), ("done", 4), ("running", 2)):
        for partition in range(PARTITIONS):
            await add(client, partition, count)
            given = await take(client, partition, count)
            if state != "running":
                await end(client, partition, given, well=state == "done")
            note(state, partition, [one.sequence for one in given])
    for partition in range(PARTITIONS):
        note("waiting", partition, await add(client, partition, 5 + partition))
        for delay in (3_600.0, 1_800.0):
            note("delayed", partition, await add(client, partition, 2, delay=delay))
    return made


async def pages(
    client: AsyncClient,
    states: Sequence[ListedState] = EVERY_STATE,
    most: int = 4,
    **more: Any,  # noqa: ANN401
) -> list[TaskPage]:
    found: list[TaskPage] = []
    while not found or found[-1].cursor is not None:
        cursor = found[-1].cursor if found else None
        found.append(
            await list_tasks(
                client,
                MAILS,
                states,
                reveal=True,
                most=most,
                cursor=cursor,
                timeout=SECONDS,
                **more,
            )
        )
        assert len(found) < 100, "the pages do not end"
    return found


def places(tasks: Sequence[ListedTask]) -> set[tuple[int, int]]:
    return {(one.partition, one.sequence) for one in tasks}


@pytest.mark.parametrize("looked_max", [1, task_lists.LOOKED_MAX])
@in_a_loop
async def test_every_task_is_listed_once_in_order(
    tmp_path: Path, engine: Engine, looked_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_lists, "LOOKED_MAX", looked_max)
    async with shop(tmp_path, engine, shards=2) as one, one.client() as client:
        made = await fill(client)
        found = [task for page in await pages(client) for task in page.tasks]
        assert len(found) == len(places(found)) == sum(map(len, made.values()))
        for state, expected in made.items():
            listed = [task for task in found if task.state == state]
            assert places(listed) == expected
            alone = [task for page in await pages(client, [state]) for task in page.tasks]  # type: ignore[list-item]
            assert [task.at for task in alone] == [task.at for task in listed]
        order = [task.state for task in found]
        assert list(dict.fromkeys(order)) == ["running", "waiting", "delayed", "dead", "done"]
        for state, key in (("running", "started_at"), ("delayed", "due_at"), ("done", "ended_at")):
            moments = [getattr(task, key) for task in found if task.state == state]
            assert moments == sorted(moments, reverse=state == "done")


@in_a_loop
async def test_filters_are_applied_by_the_partitions(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine) as one, one.client() as client:
        made = await fill(client)

        async def found(states: Sequence[ListedState], **wanted: Any) -> set[tuple[int, int]]:  # noqa: ANN401
            listed = await pages(client, states, tasks=TaskFilter(**wanted))
            return {place for page in listed for place in places(page.tasks)}

        assert await found(["dead"], error="valueerr") == made["dead"]
        assert await found(["dead"], error="no such box") == made["dead"]
        assert await found(["dead"], error="KeyError") == set()
        assert await found(EVERY_STATE, added_before=1.0) == set()
        assert await found(["running", "done"], worker="ant") == made["running"] | made["done"]
        wanted = ArgumentFilter("to", msgpack.encode("2.6"))
        (place,) = await found(["waiting"], argument=wanted)
        shown = await show_task(client, MAILS, *place, reveal=True)
        assert shown.task.arguments == msgpack.encode({"to": "2.6"})


async def change(client: AsyncClient, *arguments: Any, **more: Any) -> list[ChangeStep]:  # noqa: ANN401
    found: list[ChangeStep] = []
    cursor = None
    while not found or cursor is not None:
        found.append(
            await change_matching(
                client, MAILS, *arguments, reveal=True, cursor=cursor, timeout=SECONDS, **more
            )
        )
        cursor = found[-1].cursor
        assert len(found) < 100, "the change does not end"
    return found


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@in_a_loop
async def test_what_matches_is_changed(tmp_path: Path, engine: Engine, seconds: float) -> None:
    async with shop(tmp_path, engine) as one, one.client() as client:
        made = await fill(client)

        async def done(*arguments: Any, **more: Any) -> set[tuple[int, int]]:  # noqa: ANN401
            steps = await change(client, *arguments, seconds=seconds, **more)
            changed = {place for step in steps for place in step.changed.done}
            assert not any(step.changed.left for step in steps)
            assert sum(step.matched for step in steps) == len(changed)
            return changed

        dry = await change(client, "retry", seconds=seconds, dry_run=True)
        assert sum(step.matched for step in dry) == len(made["dead"])
        assert await done("retry", (), TaskFilter(error="ValueError")) == made["dead"]
        assert await done("retry") == set()
        assert await done("run-now") == made["delayed"]
        assert await done("again", ["done"]) == made["done"]
        waiting = made["dead"] | made["delayed"] | made["waiting"]
        cancelled = await done("cancel", ["waiting"])
        assert cancelled > waiting
        assert len(cancelled) == len(waiting) + len(made["done"])
        assert await done("cancel") == made["running"]
        assert await done("cancel") == set()
        # Those that wait at the parent partition are told to come back first.
        (page,) = await pages(client, ["running", "waiting", "delayed", "dead"], most=100)
        assert made["running"] <= places(page.tasks) <= made["running"] | cancelled
        assert all(task.cancelling for task in page.tasks)


@in_a_loop
async def test_a_letter_that_dies_again_at_once_is_retried_once(
    tmp_path: Path, engine: Engine
) -> None:
    """A worker fails each task as soon as it gets it, while the change goes on in small steps."""
    async with shop(tmp_path, engine) as one, one.client() as client:
        letters = await add(client, 0, 20)
        await end(client, 0, await take(client, 0, 20), well=False)

        async def failing() -> None:
            while True:
                given = await take(client, 0, 1)
                await end(client, 0, given, well=False)

        worker = asyncio.create_task(failing())
        try:
            steps = await change(client, "retry", seconds=0.0)
        finally:
            worker.cancel()
        done = [place for step in steps for place in step.changed.done]
        assert sorted(done) == [(0, letter) for letter in letters]


@in_a_loop
async def test_named_tasks(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine) as one, one.client() as client:
        made = await fill(client)
        meant = [*made["waiting"], *made["done"], (2, 5), (9, 5)]
        changed = await change_tasks(client, MAILS, "cancel", meant, timeout=SECONDS)
        assert set(changed.done) == made["waiting"]
        assert changed.left == {
            **dict.fromkeys(made["done"], "over"),
            (2, 5): "unknown",
            (9, 5): "unknown",
        }


@in_a_loop
async def test_each_user_sees_and_does_what_is_permitted(tmp_path: Path) -> None:
    granted: dict[str, list[Permission]] = {
        "producer": ["produce"],
        "looker": ["read"],
        "insider": ["read", "reveal"],
        "operator": ["operate"],
    }
    users = {
        name: User(secret=cheaply("secret"), permissions={"*": permissions})
        for name, permissions in granted.items()
    }
    async with stage(tmp_path, users=users) as here:
        producer = await here.client("producer", "secret")
        looker = await here.client("looker", "secret")
        insider = await here.client("insider", "secret")
        operator = await here.client("operator", "secret")
        queue = QueueId("n", here.queue, 1)
        payload = msgpack.encode(["a@example.org"])
        await producer.request(Add(*queue, 0, 0, 1, [payload], terms=KEPT), SECONDS)

        (page, private) = [
            await list_tasks(client, queue, reveal=True) for client in (looker, insider)
        ]
        (one,) = page.tasks
        assert (one.arguments, one.withheld) == (None, "permission")
        assert one.by.startswith("producer@127.0.0.1")
        assert private.tasks[0].arguments == payload
        shown = await show_task(looker, queue, 0, one.sequence, reveal=True)
        assert (shown.task.arguments, shown.task.withheld) == (None, "permission")
        shown = await show_task(insider, queue, 0, one.sequence, reveal=True)
        assert shown.task.arguments == payload

        wanted = TaskFilter(argument=ArgumentFilter("0", msgpack.encode("a@example.org")))
        (found,) = (await list_tasks(insider, queue, tasks=wanted, reveal=True)).tasks
        assert found.sequence == one.sequence
        with pytest.raises(PermissionDenied, match="reveal"):
            await list_tasks(looker, queue, tasks=wanted, reveal=True)
        with pytest.raises(PermissionDenied, match="read"):
            await list_tasks(producer, queue, reveal=True)
        for client in (looker, insider, producer):
            with pytest.raises(PermissionDenied):
                await change_tasks(client, queue, "cancel", [(0, one.sequence)])
            with pytest.raises(PermissionDenied):
                await change_matching(client, queue, "cancel", reveal=True)
        step = await change_matching(operator, queue, "cancel", reveal=True)
        assert step.changed.done == [(0, one.sequence)]


@in_a_loop
async def test_what_does_not_exist(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine) as one, one.client() as client:
        await add(client, 0, 1)
        mial = QueueId("shop", "mail", 1)
        for asked in (
            list_tasks(client, mial, reveal=True),
            show_task(client, mial, 0, 5, reveal=True),
            change_tasks(client, mial, "cancel", [(0, 5)]),
            change_matching(client, mial, "cancel", reveal=True),
        ):
            with pytest.raises(UnknownQueue, match="Did you mean 'mails'"):
                await asked
        with pytest.raises(UnknownTask):
            await show_task(client, MAILS, 0, 5, reveal=True)
        with pytest.raises(InvalidArgument):
            await list_tasks(client, MAILS, reveal=True, cursor="nonsense")
