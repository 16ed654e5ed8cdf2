"""Changes of tasks: named ones and all that match, in steps, and never for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from maitred.client.answers import Silent
from maitred.client.cursors import write_cursor
from maitred.client.task_changes import (
    APPLIES,
    ChangeCursor,
    ChangeStep,
    Place,
    TasksChange,
    applicable,
    change_matching,
    change_tasks,
)
from maitred.errors import (
    InvalidArgument,
    PermissionDenied,
    Unavailable,
    UnknownQueue,
    UnknownRequest,
)
from maitred.protocol.inspection import (
    CHANGED_MAX,
    EVERY_TASK,
    ArgumentFilter,
    ChangeTasks,
    ListTasks,
    TaskFilter,
)
from maitred.routing.names import QueueId
from tests.client.inspected_queue import FIRST, MAILS, InspectedQueue, task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.requester import Requester
    from maitred.protocol.inspection import ListedState, TaskAction, TaskState

AWAY = Unavailable("The shard is restarting.")
STATES: tuple[TaskState, ...] = (
    *("running", "waiting", "delayed", "dead", "done", "cancelled", "expired"),
)


def named(
    queue: InspectedQueue,
    action: TaskAction,
    places: list[Place],
    **more: Any,  # noqa: ANN401 - as `change_tasks` takes it
) -> TasksChange:
    client = cast("Requester", queue)
    return asyncio.run(change_tasks(client, MAILS, action, places, **more))


def steps(
    queue: InspectedQueue,
    action: TaskAction,
    states: Sequence[ListedState] = (),
    tasks: TaskFilter = EVERY_TASK,
    *,
    most: int = 1_000,
    **more: Any,  # noqa: ANN401 - as `change_matching` takes it
) -> list[ChangeStep]:
    """All steps, each by the cursor of the one before."""
    terms = {"reveal": True, "seconds": 1e6, **more}

    async def every() -> list[ChangeStep]:
        client = cast("Requester", queue)
        found: list[ChangeStep] = []
        cursor = None
        while not found or cursor is not None:
            found.append(
                await change_matching(client, MAILS, action, states, tasks, **terms, cursor=cursor)
            )
            cursor = found[-1].cursor
            assert len(found) <= most, "the change does not end"
        return found

    return asyncio.run(every())


def done(found: list[ChangeStep]) -> set[Place]:
    return {place for step in found for place in step.changed.done}


# Named tasks


def test_named_tasks_are_grouped_by_partition_in_pieces() -> None:
    tasks = [task(n % 3, n, "dead") for n in range(4_000)]
    queue = InspectedQueue(tasks, 3)
    places = [(one.partition, one.sequence) for one in reversed(tasks)]
    changed = named(queue, "retry", [*places, *places], reason="the SMTP server is back")
    assert sorted(changed.done) == sorted(places)
    messages = queue.heard(ChangeTasks)
    assert [len(one.sequences) for one in messages] == [1_000, 334, 1_000, 333, 1_000, 333]
    assert {one.reason for one in messages} == {"the SMTP server is back"}


def test_what_was_not_done_is_told_by_task() -> None:
    queue = InspectedQueue([task(0, 1, "dead"), task(0, 2, "running"), task(1, 3, "done")], 2)
    changed = named(
        queue, "retry", [(0, FIRST + 1), (0, FIRST + 2), (1, FIRST + 3), (1, 5), (7, 5)]
    )
    assert changed.done == [(0, FIRST + 1)]
    assert changed.left == {
        (0, FIRST + 2): "not-dead",
        (1, FIRST + 3): "not-dead",
        (1, 5): "unknown",
        (7, 5): "unknown",
    }
    assert changed.silent == {}


def test_a_task_that_is_run_again_has_a_new_number() -> None:
    queue = InspectedQueue([task(1, 3, "done")], 2)
    changed = named(queue, "again", [(1, FIRST + 3)])
    assert changed.added == {(1, FIRST + 3): (1, FIRST + 4)}


def test_partitions_that_do_not_answer_are_named() -> None:
    queue = InspectedQueue([task(0, 1), task(1, 2)], 2)
    queue.silent[1] = AWAY
    changed = named(queue, "cancel", [(0, FIRST + 1), (1, FIRST + 2)])
    assert changed.done == [(0, FIRST + 1)]
    assert changed.silent == {1: Silent(AWAY)}


def test_a_queue_that_does_not_exist_is_named_with_the_nearest() -> None:
    client = cast("Requester", InspectedQueue([]))
    mial = QueueId("shop", "mial", 1)
    with pytest.raises(UnknownQueue, match="Did you mean 'mails'"):
        asyncio.run(change_tasks(client, mial, "cancel", [(3, 5)]))
    with pytest.raises(UnknownQueue, match="Did you mean 'mails'"):
        asyncio.run(change_matching(client, mial, "cancel", reveal=False))


def test_an_older_node_is_told_in_words() -> None:
    queue = InspectedQueue([task(0, 1)])

    async def request(message: Any, timeout: float | None = None, **_: Any) -> Any:  # noqa: ANN401, ASYNC109
        if isinstance(message, ListTasks | ChangeTasks):
            raise UnknownRequest("There is no request with the opcode 0x7e.")
        return await InspectedQueue.request(queue, message, timeout)

    queue.request = request  # type: ignore[method-assign]
    assert "older release" in str(named(queue, "cancel", [(0, FIRST + 1)]).silent[0])
    (step,) = steps(queue, "cancel")
    assert "older release" in str(step.changed.silent[0])


# All that match


@st.composite
def queues(draw: st.DrawFn) -> InspectedQueue:
    tasks = [
        task(
            draw(st.integers(0, 3)),
            number,
            draw(st.sampled_from(STATES)),
            by=draw(st.sampled_from(["ana", "ben"])),
        )
        for number in range(draw(st.integers(0, 30)))
    ]
    queue = InspectedQueue(tasks, draw(st.integers(1, 4)), draw(st.integers(1, 12)))
    queue.partitions = set(range(4))
    return queue


@given(
    queue=queues(),
    action=st.sampled_from(sorted(APPLIES)),
    seconds=st.sampled_from([0.0, 1e6]),
    dry_run=st.booleans(),
    data=st.data(),
)
def test_every_matching_task_is_changed_once(
    queue: InspectedQueue, action: TaskAction, seconds: float, dry_run: bool, data: st.DataObject
) -> None:
    one_of = st.sampled_from(APPLIES[action])
    least = 1 if action == "again" else 0
    states = data.draw(st.lists(one_of, min_size=least, unique=True))
    meant = set(states) or set(APPLIES[action])
    if "ended" in meant:
        meant |= {"done", "cancelled", "expired"}
    places = {place for place, one in queue.tasks.items() if one.state in meant and one.by == "ana"}
    before = dict(queue.tasks)
    found = steps(
        queue, action, states, TaskFilter(by="ana"), seconds=seconds, dry_run=dry_run, reason="why"
    )
    assert sum(step.matched for step in found) == len(places)
    assert done(found) == (set() if dry_run else places)
    asked = [(m.partition, one) for m in queue.heard(ChangeTasks) for one in m.sequences]
    assert sorted(asked) == sorted(done(found)), "each once"
    assert all(message.reason == "why" for message in queue.heard(ChangeTasks))
    unchanged = {place: one for place, one in before.items() if place not in done(found)}
    assert {place: queue.tasks[place] for place in unchanged} == unchanged
    if seconds:
        assert len(found) == 1


def test_a_step_has_one_page_at_least_and_says_where_to_go_on() -> None:
    queue = InspectedQueue([task(0, n, "dead") for n in range(2_500)])
    first, *others = steps(queue, "drop", seconds=0.0)
    assert first.matched == CHANGED_MAX
    assert len(others) >= 2
    assert queue.tasks == {}


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_a_task_that_dies_again_at_once_is_retried_once(seconds: float) -> None:
    """Also if it goes to the end of the list, like a task of an earlier number that dies later."""
    queue = InspectedQueue([task(0, n, "dead") for n in range(20)], looks=3)

    def die(message: ChangeTasks) -> None:
        queue.now += 1
        for sequence in message.sequences:
            one = queue.tasks[0, sequence]
            queue.tasks[0, sequence] = replace(one, state="dead", ended_at=queue.now)
        late = max(queue.tasks)[1] + 1
        queue.tasks[0, late] = replace(
            task(0, late - FIRST, "dead"), added_at=1.0, ended_at=queue.now
        )

    queue.then = die
    found = steps(queue, "retry", seconds=seconds)
    assert done(found) == {(0, FIRST + n) for n in range(20)}


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_a_task_that_fails_when_it_is_run_now_is_run_once(seconds: float) -> None:
    """It is delayed again, and due later than where the change goes on."""
    queue = InspectedQueue([task(0, n, "delayed", due_at=float(n)) for n in range(10)], looks=3)

    def fail(message: ChangeTasks) -> None:
        queue.now += 1
        for sequence in message.sequences:
            queue.tasks[0, sequence] = replace(
                queue.tasks[0, sequence],
                state="delayed",
                started_at=queue.now,
                due_at=queue.now + 5,
            )

    queue.then = fail
    assert sum(step.matched for step in steps(queue, "run-now", seconds=seconds)) == 10


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_tasks_that_run_because_others_were_cancelled_go_on(seconds: float) -> None:
    """`cancel --state running` frees slots, and is not meant for the whole backlog."""
    running = [task(0, n, "running") for n in range(4)]
    queue = InspectedQueue([*running, *(task(0, n) for n in range(4, 50))], looks=3)

    def next_ones(message: ChangeTasks) -> None:
        queue.now += 1
        for sequence in message.sequences:
            del queue.tasks[0, sequence]
        waiting = [place for place, one in queue.tasks.items() if one.state == "waiting"]
        for place in waiting[: len(message.sequences)]:
            queue.tasks[place] = replace(queue.tasks[place], state="running", started_at=queue.now)

    queue.then = next_ones
    found = steps(queue, "cancel", ["running"], seconds=seconds)
    assert done(found) == {(0, FIRST + n) for n in range(4)}
    assert sum(one.state == "running" for one in queue.tasks.values()) == 4


def test_cancelling_meets_each_task_in_its_last_state() -> None:
    """What was delayed may wait meanwhile, and what waited may run."""
    queue = InspectedQueue([task(0, 1, "delayed"), task(0, 2), task(0, 3, "running")], looks=1)
    steps(queue, "cancel")
    asked = dict.fromkeys(one.state for one in queue.heard(ListTasks))
    assert list(asked) == ["delayed", "waiting", "running"]


def test_what_is_being_cancelled_is_not_cancelled_again() -> None:
    queue = InspectedQueue([task(0, n, "running") for n in range(5)])
    assert len(done(steps(queue, "cancel"))) == 5
    assert [step.matched for step in steps(queue, "cancel")] == [0]


def test_partitions_that_do_not_answer_are_passed() -> None:
    queue = InspectedQueue([task(n % 3, n, "dead") for n in range(9)], 3)
    queue.silent[1] = AWAY
    (step,) = steps(queue, "drop")
    assert step.changed.silent == {1: Silent(AWAY)}
    assert done([step]) == {(n % 3, FIRST + n) for n in range(9) if n % 3 != 1}


def test_a_partition_that_fails_in_the_middle_is_not_asked_again() -> None:
    queue = InspectedQueue([task(n % 2, n, "dead") for n in range(3_000)], 2)

    def fail(message: ChangeTasks) -> None:
        if message.partition == 0:
            queue.silent[0] = AWAY

    queue.then = fail
    found: list[ChangeStep] = []

    async def first_step() -> None:
        found.append(await change_matching(cast("Requester", queue), MAILS, "drop", reveal=False))

    asyncio.run(first_step())
    (step,) = found
    assert step.changed.silent == {0: Silent(AWAY)}
    assert len(step.changed.done) == 1_000 + 1_500


def test_private_data_is_asked_for_only_if_the_filter_needs_it() -> None:
    sent = task(0, 1, arguments=msgpack.encode({"to": "a"}), message="no such box")
    by_argument = TaskFilter(argument=ArgumentFilter("to", msgpack.encode("a")))

    def asked(wanted: TaskFilter, *, reveal: bool = True) -> tuple[set[bool], int]:
        queue = InspectedQueue([replace(sent)])
        found = steps(queue, "cancel", ["waiting"], wanted, reveal=reveal)
        return {one.reveal for one in queue.heard(ListTasks)}, len(done(found))

    assert asked(TaskFilter()) == ({False}, 1)
    assert asked(by_argument) == ({True}, 1)
    assert asked(TaskFilter(error="such box")) == ({True}, 1)
    assert asked(TaskFilter(error="such box"), reveal=False) == ({False}, 0)
    with pytest.raises(PermissionDenied, match="reveal"):
        asked(by_argument, reveal=False)


def test_what_no_partition_would_do_is_raised() -> None:
    """Not told of each partition."""

    def refusing() -> InspectedQueue:
        queue = InspectedQueue([task(0, 1), task(1, 2)], 2)

        def refuse(_: ChangeTasks) -> None:
            raise PermissionDenied("Changing tasks needs the permission 'operate'.")

        queue.then = refuse
        return queue

    with pytest.raises(PermissionDenied):
        named(refusing(), "cancel", [(0, FIRST + 1), (1, FIRST + 2)])
    with pytest.raises(PermissionDenied):
        steps(refusing(), "cancel", ["waiting"])


def test_gateways_name_the_user_and_the_address() -> None:
    queue = InspectedQueue([task(0, 1), task(0, 2)])
    named(queue, "cancel", [(0, FIRST + 1)], user="ana", source="10.0.0.7:5")
    steps(queue, "cancel", user="ana", source="10.0.0.7:5")
    assert [(one.user, one.source) for one in queue.heard(ChangeTasks)] == [
        ("ana", "10.0.0.7:5")
    ] * 2


# What cannot be


@pytest.mark.parametrize(
    ("action", "states"),
    [
        ("retry", ["waiting"]),
        ("drop", ["running"]),
        ("run-now", ["waiting"]),
        ("cancel", ["waiting", "dead"]),
        ("cancel", ["ended"]),
        ("again", ["running"]),
        ("again", []),
        ("cancel", ["asleep"]),
    ],
)
def test_states_that_an_action_does_not_apply_to(action: TaskAction, states: list[Any]) -> None:
    queue = InspectedQueue([task(0, 1, "dead")])
    with pytest.raises(InvalidArgument):
        steps(queue, action, states)
    assert queue.asked == []


def test_the_order_of_states() -> None:
    assert applicable("cancel", ["running", "delayed"]) == ("delayed", "running")
    assert applicable("again", ["ended", "dead", "done"]) == ("dead", "ended")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "nonsense",
        write_cursor(ChangeCursor(1, "waiting")),
        write_cursor(ChangeCursor(1, "dead", after=(float("nan"), 5))),
        write_cursor(ChangeCursor(1, "dead", began=float("inf"))),
        write_cursor(ChangeCursor(1, "dead", after=(-1.0, 5))),
        write_cursor(cast("Any", [2, "dead"])),
        write_cursor(cast("Any", [1, "dead", -1])),
    ],
)
def test_garbage_is_no_cursor(cursor: str) -> None:
    client = cast("Requester", InspectedQueue([task(0, 1, "dead")]))
    with pytest.raises(InvalidArgument, match="no cursor"):
        asyncio.run(change_matching(client, MAILS, "retry", reveal=False, cursor=cursor))
