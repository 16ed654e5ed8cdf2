"""What programs see of tasks: status, history, and lists with filters."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

import maitred
from maitred import App, TaskStatus, TaskTimeline, TimelineEvent
from maitred.app import task_listing
from maitred.client.task_changes import change_matching
from maitred.errors import (
    InvalidArgument,
    PermissionDenied,
    StoreFull,
    Unavailable,
    UnknownChoice,
    UnknownQueue,
    UnknownTask,
)
from maitred.protocol.frames import Opcode
from maitred.protocol.inspection import (
    ChangeTasks,
    EventKind,
    HistoryEvent,
    ListTasks,
    TaskFilter,
    TaskShown,
)
from tests.app.fake_node import FakeNode
from tests.client.inspected_queue import FIRST, InspectedQueue, task
from tests.node.in_process import in_a_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from maitred.protocol.inspection import ListedTask, TaskAction

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
ID = f"shop/mails/0/{FIRST + 1}"

TIMELINE = f"""\
{ID}: delayed, 2 attempts, SMTPError: mailbox\\nis full
             2026-11-18 12:00:00.000Z  added by ana@10.0.0.7
    +500 ms  2026-11-18 12:00:00.500Z  started, attempt 1 at bee, by way of a parent partition
     +2.8 s  2026-11-18 12:00:03.250Z  lost with its worker, attempt 1 at bee
  ... 3 earlier events are no longer known
       +5 s  2026-11-18 12:00:08.250Z  started, attempt 2 at ant
     +3.8 s  2026-11-18 12:00:12.000Z  failed, attempt 2 at ant: SMTPError: mailbox\\nis full
       +8 s  2026-11-18 12:00:20.000Z  attempt 3 is due (planned)"""

app = App("shop")


@app.handler("mails", hide=["password"])
async def mail(to: str, password: str = "", size: int = 1) -> None: ...


@contextlib.asynccontextmanager
async def a_node(*tasks: ListedTask, read: int = 1) -> AsyncIterator[InspectedQueue]:
    queue = InspectedQueue(list(tasks), read)
    async with FakeNode() as node:
        for shard in node.shards:
            opcodes = (
                *(Opcode.DESCRIBE, Opcode.LIST_TASKS),
                *(Opcode.SHOW_TASK, Opcode.CHANGE_TASKS),
            )
            shard.handlers |= dict.fromkeys(opcodes, queue.answer)
        node.app(app)
        async with app:
            yield queue


def at(seconds: float) -> float:
    return NOON.timestamp() + seconds


def event(seconds: float, what: EventKind, **fields: Any) -> HistoryEvent:  # noqa: ANN401
    return HistoryEvent(at=at(seconds), what=what, **fields)


def troubled() -> TaskShown:
    """A task that failed twice, and is tried again in eight seconds."""
    listed = task(
        0,
        1,
        "delayed",
        attempts=2,
        retries=1,
        worker="ant",
        by="ana@10.0.0.7",
        added_at=at(0),
        due_at=at(20),
        started_at=at(8.25),
        error="SMTPError",
        message="mailbox\nis full",
        arguments=msgpack.encode({"to": "a@example.org", "password": "[hidden]"}),
        payload_bytes=27,
    )
    events = [
        event(0, "added", by="ana@10.0.0.7"),
        event(0.5, "started", attempt=1, worker="bee", forwarded=True),
        event(3.25, "lost", attempt=1, worker="bee"),
        event(8.25, "started", attempt=2, worker="ant", omitted=3),
        event(12, "failed", attempt=2, worker="ant", error="SMTPError", message="mailbox\nis full"),
        event(20, "retry", attempt=3),
    ]
    return TaskShown(task=listed, events=events, node="n", traceback="Traceback: ...", function="m")


@in_a_loop
async def test_the_status_of_a_task() -> None:
    shown = troubled()
    async with a_node(shown.task) as queue:
        queue.shown[0, FIRST + 1] = shown
        status = await app.task(ID).status()
    assert status == TaskStatus(
        id=ID,
        queue="mails",
        state="delayed",
        priority=2,
        attempts=2,
        retries=1,
        by="ana@10.0.0.7",
        added_at=NOON,
        due_at=NOON + timedelta(seconds=20),
        expires_at=None,
        worker="ant",
        started_at=NOON + timedelta(seconds=8.25),
        ended_at=None,
        kept_until=None,
        cancelling=False,
        reason="",
        error="SMTPError",
        message="mailbox\nis full",
        traceback="Traceback: ...",
        arguments={"to": "a@example.org", "password": "[hidden]"},
        withheld="",
        payload_bytes=27,
    )
    assert not status.is_over
    assert str(status) == f"{ID}: delayed, 2 attempts, SMTPError: mailbox\\nis full"
    assert app.task(status.id) == app.task(ID)


@in_a_loop
async def test_the_history_of_a_task() -> None:
    shown = troubled()
    async with a_node(shown.task) as queue:
        queue.shown[0, FIRST + 1] = shown
        history = await mail.task(ID).history()
    assert isinstance(history, TaskTimeline)
    assert [one.what for one in history] == [one.what for one in shown.events]
    assert [one.planned for one in history] == [*[False] * 5, True]
    assert history[1] == TimelineEvent(
        at=NOON + timedelta(seconds=0.5),
        what="started",
        attempt=1,
        worker="bee",
        by="",
        error="",
        message="",
        forwarded=True,
        omitted=0,
        planned=False,
    )
    assert history.status.traceback == "Traceback: ..."
    assert repr(history) == f"<TaskTimeline of {ID}: 6 events>"
    assert str(history) == TIMELINE


@in_a_loop
async def test_a_user_who_may_not_see_private_data() -> None:
    shown = troubled()
    async with a_node(shown.task) as queue:
        queue.shown[0, FIRST + 1] = shown
        queue.may_reveal = False
        status = await app.task(ID).status()
        (listed,) = [one async for one in app.tasks()]
    for one in (status, listed):
        assert (one.arguments, one.withheld, one.message) == (None, "permission", "")
        assert one.traceback == ""
        assert one.error == "SMTPError"


@in_a_loop
async def test_arguments_that_cannot_be_read() -> None:
    async with a_node(task(0, 1, arguments=b"\xc1"), task(0, 2, arguments=None)):
        found = [one async for one in app.tasks("mails")]
    assert [(one.arguments, one.withheld) for one in found] == [
        (None, "unreadable"),
        (None, "permission"),
    ]


@in_a_loop
async def test_a_task_that_does_not_exist() -> None:
    async with a_node():
        for asked in (app.task(ID).status(), app.task(ID).history()):
            with pytest.raises(UnknownTask):
                await asked


# Lists


@in_a_loop
async def test_every_task_of_the_apps_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page; a handler's queue that nobody has used yet has no tasks."""
    monkeypatch.setattr(task_listing, "PAGE", 4)
    mine = App("shop")
    for name in ("unused", "mails", "never"):
        mine.handler(name)(mail.signature.function)
    async with a_node(*(task(n % 3, n) for n in range(10)), read=3) as queue:
        mine.node, mine._settings = app.node, app._settings
        async with mine:
            found = [one.id async for one in mine.tasks()]
            by_handler = [one.id async for one in mine.handlers["mails"].tasks()]
    assert sorted(found) == sorted(f"shop/mails/{n % 3}/{FIRST + n}" for n in range(10))
    assert by_handler == found
    assert {message.most for message in queue.heard(ListTasks)} <= {1, 2, 3, 4}


@in_a_loop
async def test_a_queue_that_does_not_exist() -> None:
    async with a_node():
        assert [one async for one in mail.tasks()] == []
        with pytest.raises(UnknownQueue, match="Did you mean 'mails'"):
            [one async for one in app.tasks("mial")]


@in_a_loop
async def test_states_and_filters_reach_the_node() -> None:
    wanted = {
        "worker": "ant",
        "error": "SMTP",
        "by": "ana",
        "argument": ("size", 128),
        "since": NOON,
        "until": NOON + timedelta(hours=1),
    }
    async with a_node() as queue:
        async for _ in app.tasks(mail, state=["dead", "done"], **wanted):  # type: ignore[arg-type]
            raise AssertionError
        async for _ in mail.tasks(state="running"):
            raise AssertionError
    messages = [message for message in queue.heard(ListTasks) if not message.partition]
    assert [message.state for message in messages] == ["dead", "done", "running"]
    told = messages[0].filter
    assert (told.worker, told.error, told.by) == ("ant", "SMTP", "ana")
    assert (told.added_after, told.added_before) == (NOON.timestamp(), NOON.timestamp() + 3_600)
    assert (told.argument.name, msgpack.decode(told.argument.value)) == ("size", 128)
    assert messages[2].filter == TaskFilter()
    assert all(message.reveal for message in messages)


@pytest.mark.parametrize("ago", [timedelta(minutes=5), 300, 300.0])
@in_a_loop
async def test_since_may_be_how_long_ago(ago: Any) -> None:  # noqa: ANN401
    async with a_node() as queue:
        session = await app.session()
        session.wall_clock = NOON.timestamp
        assert [one async for one in app.tasks("mails", since=ago)] == []
    (first, *_) = queue.heard(ListTasks)
    assert first.filter.added_after == NOON.timestamp() - 300


@in_a_loop
async def test_tasks_that_are_missing_are_told_at_the_end() -> None:
    async with a_node(*(task(n, n) for n in range(4)), read=4) as queue:
        queue.silent[1] = queue.silent[3] = away = Unavailable("It restarts.")
        found: list[str] = []

        async def collect() -> None:
            async for one in app.tasks("mails"):
                found.append(one.id)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(Unavailable, match="shop/mails/1 and 1 other partition") as caught:
            await collect()
    assert found == [f"shop/mails/{n}/{FIRST + n}" for n in (0, 2)]
    assert "It restarts." in str(caught.value)
    assert str(caught.value.__cause__) == str(away)


@in_a_loop
async def test_a_list_that_the_user_may_not_see() -> None:
    async with a_node() as queue:
        queue.silent[0] = PermissionDenied("Listing tasks needs the permission 'read'.")
        with pytest.raises(PermissionDenied):
            [one async for one in app.tasks("mails")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "asleep"},
        {"state": []},
        {"since": "yesterday"},
        {"since": float("nan")},
        {"until": True},
        {"worker": 5},
        {"error": ValueError},
        {"argument": {"size": 128}},
        {"argument": ("size",)},
        {"argument": ("size", object())},
    ],
)
def test_filters_are_checked_at_the_call(wrong: dict[str, Any]) -> None:
    for listing in (app.tasks, mail.tasks, app.sync.tasks, mail.sync.tasks):
        with pytest.raises(InvalidArgument):
            listing(**wrong)


def test_a_misspelt_filter() -> None:
    with pytest.raises(UnknownChoice, match="'worker'"):
        app.tasks(wroker="ant")  # type: ignore[call-arg]


# For synchronous code, and by name


@in_a_loop
async def test_synchronous_code_sees_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_listing, "PAGE", 2)
    shown = troubled()
    async with a_node(shown.task, task(0, 2), task(0, 3)) as queue:
        queue.shown[0, FIRST + 1] = shown
        sync = app.sync

        def look() -> None:
            handle = sync.task(ID)
            assert handle.status().attempts == 2
            assert len(handle.history()) == 6
            numbers = [FIRST + 2, FIRST + 3, FIRST + 1]
            expected = [f"shop/mails/0/{number}" for number in numbers]
            assert [one.id for one in sync.tasks()] == expected
            assert [one.id for one in mail.sync.tasks()] == expected
            for one in sync.tasks("mails", state="delayed"):
                assert one.id == ID
                break
            sync.close()

        await asyncio.to_thread(look)


def test_the_public_names() -> None:
    assert {"TaskStatus", "TaskTimeline", "TimelineEvent"} <= set(maitred.__all__)


@pytest.mark.parametrize(
    ("action", "hint"), [("drop", "it goes on with the rest"), ("again", "once more")]
)
@in_a_loop
async def test_a_change_that_ends_early_says_what_was_done(
    monkeypatch: pytest.MonkeyPatch, action: TaskAction, hint: str
) -> None:
    steps = functools.partial(change_matching, seconds=0.0)
    monkeypatch.setattr("maitred.app.task_actions.change_matching", steps)
    problem = PermissionDenied("The user may not operate shop.")
    dead = [task(partition, 1, "dead") for partition in range(2)]
    async with a_node(*dead, read=2) as queue:
        queue.silent[1] = problem
        with pytest.raises(PermissionDenied) as refused:
            await app.change_tasks(action, "mails", state="dead")
        assert len(queue.heard(ChangeTasks)) == 1
        (note,) = refused.value.__notes__
        assert note.startswith("Before that, 1 tasks were changed.")
        assert hint in note
        queue.silent[1] = StoreFull("The disk is full.")
        with pytest.raises(Unavailable, match=hint):
            await app.change_tasks(action, "mails", state="dead")
        queue.silent = dict.fromkeys(range(2), problem)
        with pytest.raises(PermissionDenied) as refused:
            await app.change_tasks(action, "mails", state="dead")
        assert not hasattr(refused.value, "__notes__")
