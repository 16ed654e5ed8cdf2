"""Lists over partitions: every task once, in order, whatever the pages and whoever is silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from maitred.client import task_lists
from maitred.client.cursors import write_cursor
from maitred.client.task_lists import (
    EVERY_STATE,
    LOOKED_MAX,
    ListCursor,
    TaskPage,
    argument_filter,
    list_tasks,
    ordered,
    show_task,
)
from maitred.errors import (
    InvalidArgument,
    PermissionDenied,
    ProtocolViolation,
    Unavailable,
    UnknownQueue,
    UnknownRequest,
    UnknownTask,
)
from maitred.protocol.inspection import (
    EVERY_TASK,
    ListedTask,
    ListTasks,
    TaskFilter,
    TaskShown,
    TasksListed,
    TaskState,
)
from maitred.routing.names import QueueId
from tests.client.inspected_queue import FIRST, MAILS, InspectedQueue, place_of, task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.requester import Requester
    from maitred.protocol.inspection import ListedState

STATES: tuple[TaskState, ...] = (
    *("running", "waiting", "delayed", "dead", "done", "cancelled", "expired"),
)
MOMENTS = st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0])
"""Few, so that tasks of several partitions share one."""


@st.composite
def queues(draw: st.DrawFn) -> InspectedQueue:
    """Some tasks of any state in some partitions, of which the last ones may be removed."""
    tasks = []
    partitions = draw(st.integers(1, 9))
    for number in range(draw(st.integers(0, 40))):
        state = draw(st.sampled_from(STATES))
        moment = draw(MOMENTS)
        tasks.append(
            task(
                draw(st.integers(0, partitions - 1)),
                number,
                state,
                priority=draw(st.integers(0, 4)),
                due_at=moment,
                started_at=moment,
                ended_at=moment,
                worker=draw(st.sampled_from(["ant", "bee"])),
            )
        )
    queue = InspectedQueue(tasks, draw(st.integers(1, partitions)), draw(st.integers(1, 12)))
    queue.partitions = set(range(partitions))
    return queue


def expected(queue: InspectedQueue, state: ListedState, worker: str) -> list[ListedTask]:
    """The tasks in the order that the contract names."""
    over = ("done", "cancelled", "expired")
    states = over if state == "ended" else (state,)
    found = [
        replace(one, at=place_of(one))
        for one in queue.tasks.values()
        if one.state in states and worker in ("", one.worker)
    ]
    if state in ("waiting", "dead"):
        return sorted(found, key=lambda one: (one.partition, one.at))
    found.sort(key=lambda one: (one.at[0], one.partition, one.at[1]))
    return found[::-1] if state in (*over, "ended") else found


async def listed(
    queue: InspectedQueue,
    states: Sequence[ListedState] = EVERY_STATE,
    tasks: TaskFilter = EVERY_TASK,
    most: int = 100,
) -> list[TaskPage]:
    """All pages, each by the cursor of the one before."""
    pages: list[TaskPage] = []
    while not pages or pages[-1].cursor is not None:
        cursor = pages[-1].cursor if pages else None
        client = cast("Requester", queue)
        pages.append(
            await list_tasks(client, MAILS, states, tasks, reveal=True, most=most, cursor=cursor)
        )
        assert len(pages) <= 2 * len(queue.tasks) + 20, "the pages do not end"
    return pages


def tasks_of(pages: list[TaskPage]) -> list[ListedTask]:
    return [one for page in pages for one in page.tasks]


def run(queue: InspectedQueue, *arguments: Any, **named: Any) -> list[TaskPage]:  # noqa: ANN401
    return asyncio.run(listed(queue, *arguments, **named))


@given(
    queue=queues(),
    most=st.integers(1, 50),
    worker=st.sampled_from(["", "ant", "bee", "nobody"]),
    states=st.lists(st.sampled_from((*STATES, "ended")), min_size=1, unique=True),
)
def test_pages_have_every_task_once_in_order(
    queue: InspectedQueue, most: int, worker: str, states: list[ListedState]
) -> None:
    pages = run(queue, states, TaskFilter(worker=worker), most=most)
    wanted = [one for state in ordered(states) for one in expected(queue, state, worker)]
    assert tasks_of(pages) == wanted
    assert all(len(page.tasks) <= most for page in pages)
    assert not any(page.silent for page in pages)
    assert not any(page.more for page in pages), "there is time enough for full pages"


@given(queue=queues(), most=st.integers(1, 20), looked=st.integers(1, 10))
def test_pages_that_end_early_go_on_where_they_ended(
    queue: InspectedQueue, most: int, looked: int
) -> None:
    """Each partition is asked once or not at all before a page may end, so it always goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_lists, "LOOKED_MAX", looked)
        pages = run(queue, tasks=TaskFilter(worker="ant"), most=most)
    wanted = [one for state in EVERY_STATE for one in expected(queue, state, "ant")]
    assert tasks_of(pages) == wanted
    for page in pages:
        assert page.more == (page.cursor is not None and len(page.tasks) < most)


@given(queue=queues(), most=st.integers(1, 20), data=st.data())
def test_silent_partitions_are_named_and_the_others_are_listed(
    queue: InspectedQueue, most: int, data: st.DataObject
) -> None:
    others = sorted(range(1, queue.read))
    silent = data.draw(st.sets(st.sampled_from(others)) if others else st.just(set()))
    away = Unavailable("The shard is restarting.")
    queue.silent = dict.fromkeys(silent, away)
    # The root tells how many partitions there are, so it may only be silent about its tasks.
    pages = run(queue, most=most)
    wanted = [one for state in EVERY_STATE for one in expected(queue, state, "")]
    assert tasks_of(pages) == [one for one in wanted if one.partition not in silent]
    named = {partition for page in pages for partition in page.silent}
    assert named == silent
    for page in pages:
        assert all(reason.error is away for reason in page.silent.values())


def test_a_partition_that_does_not_answer_is_asked_once() -> None:
    """For a page; and not at all if it did not answer for the page before."""
    queue = InspectedQueue([task(n % 3, n, STATES[n % 7]) for n in range(60)], 3)
    queue.silent[1] = Unavailable("The shard is restarting.")
    client = cast("Requester", queue)

    async def asked(**more: Any) -> list[int]:  # noqa: ANN401
        queue.asked.clear()
        page = await list_tasks(client, MAILS, reveal=True, **more)
        assert {one.partition for one in page.tasks} == {0, 2}
        return [message.partition for message in queue.heard(ListTasks)]

    assert asyncio.run(asked()).count(1) == 1
    assert asyncio.run(asked(without=[1])).count(1) == 0


def test_without_the_root_nothing_is_known() -> None:
    queue = InspectedQueue([task(0, 1)])
    queue.silent[0] = Unavailable("The shard is restarting.")
    with pytest.raises(Unavailable):
        run(queue)


def test_a_partition_that_was_never_used_is_not_missing() -> None:
    queue = InspectedQueue([task(0, 1, "dead"), task(3, 2, "running")], read=4)
    queue.partitions = {0, 3}
    (page,) = run(queue)
    assert [one.partition for one in page.tasks] == [3, 0]
    assert page.silent == {}


def test_a_hundred_empty_partitions_are_passed_in_leaps() -> None:
    queue = InspectedQueue([task(99, 1)], read=100)
    (page,) = run(queue, ["waiting"])
    assert len(page.tasks) == 1
    asked = [message.partition for message in queue.heard(ListTasks)]
    assert sorted(asked) == list(range(101)), "each once, and the one behind the last"
    assert queue.most_under_way >= 32


def test_a_page_that_is_full_in_the_middle_of_a_leap() -> None:
    queue = InspectedQueue([task(n, n, "dead") for n in range(1, 20)], read=20)
    pages = run(queue, ["dead"], most=1)
    assert [one.partition for one in tasks_of(pages)] == list(range(1, 20))


def test_a_partition_that_falls_silent_does_not_hold_up_the_others() -> None:
    queue = InspectedQueue([task(n % 2, n, "delayed") for n in range(100)], 2, looks=5)
    away = Unavailable("The shard is restarting.")

    async def request(message: Any, timeout: float | None = None, **_: Any) -> Any:  # noqa: ANN401, ASYNC109
        if len(queue.heard(ListTasks)) >= 6:
            queue.silent[1] = away
        return await InspectedQueue.request(queue, message, timeout)

    queue.request = request  # type: ignore[method-assign]
    (page,) = run(queue, ["delayed"])
    assert page.silent[1].error is away
    numbers = [one.sequence - 2**32 for one in page.tasks]
    assert [one for one in numbers if not one % 2] == list(range(0, 100, 2))
    odd = [one for one in numbers if one % 2]
    assert odd == list(range(1, 2 * len(odd), 2))
    assert 0 < len(odd) < 50


def test_a_page_of_many_partitions_asks_each_for_its_share() -> None:
    """A hundred pages of a hundred tasks for one page would be a waste."""
    queue = InspectedQueue([task(n % 100, n, "running") for n in range(2_000)], read=100)
    page = asyncio.run(
        list_tasks(cast("Requester", queue), MAILS, ["running"], reveal=False, most=100)
    )
    assert [one.sequence - 2**32 for one in page.tasks] == list(range(100))
    assert {message.most for message in queue.heard(ListTasks)} == {10}


def test_a_list_that_finds_nothing_says_how_far_it_came() -> None:
    queue = InspectedQueue([task(n % 3, n, "delayed") for n in range(3_000)], 3, looks=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_lists, "LOOKED_MAX", 1_000)
        first, *others = run(queue, ["delayed"], TaskFilter(worker="nobody"))
    assert first.tasks == []
    assert first.more
    assert 1_000 <= first.looked_at < 1_500
    assert len(others) in (2, 3)
    assert not others[-1].more


def test_a_page_takes_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the time is over at once; each partition has been asked all the same."""
    monkeypatch.setattr(task_lists, "PAGE_SECONDS", 0.0)
    queue = InspectedQueue([task(n % 3, n, "delayed") for n in range(30)], 3, looks=2)
    pages = run(queue, ["delayed"])
    assert len(pages) > 1
    assert [one.sequence - 2**32 for one in tasks_of(pages)] == list(range(30))
    assert all(page.more for page in pages[:-1])


@pytest.mark.parametrize("looks", [1, 7, LOOKED_MAX])
def test_tasks_without_a_moment_are_listed_once(looks: int) -> None:
    """A result of an earlier release does not say when its task ended: its place begins with 0,
    like the beginning of a list."""
    tasks = [task(n % 3, n, "done", ended_at=0.0) for n in range(12)]
    pages = run(InspectedQueue(tasks, 3, looks), ["ended"], most=5)
    found = [(one.partition, one.sequence) for one in tasks_of(pages)]
    assert sorted(found) == sorted((one.partition, one.sequence) for one in tasks)


# What cannot be


def forged(*fields: object) -> str:
    return write_cursor(cast("Any", list(fields)))


GOOD = write_cursor(ListCursor(1, "delayed", (3.5, 0, 2**32)))


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "nonsense",
        "ünsinn",
        "\x00",
        GOOD + "!",
        GOOD + "=",
        GOOD[:-1],
        " " + GOOD,
        "A" * 10_000,
        forged(2, "delayed", None),
        forged(1, "running", None),
        forged(1, "sleeping", None),
        forged(1, "delayed"),
        forged(1, "delayed", [3.5, 0]),
        forged(1, "delayed", [3.5, 0, -1]),
        forged(1, "delayed", [3.5, 0, 2**63]),
        forged(1, "delayed", [3.5, -1, 1]),
        forged(1, "delayed", [3.5, 100_000, 1]),
        forged(1, "delayed", [float("nan"), 0, 1]),
        forged(1, "delayed", [float("inf"), 0, 1]),
        forged(1, "delayed", [-1.0, 0, 1]),
        forged(1, "delayed", None, 5),
    ],
)
def test_garbage_is_no_cursor(cursor: str) -> None:
    queue = InspectedQueue([task(0, 1, "delayed")])
    with pytest.raises(InvalidArgument, match="cursor"):
        asyncio.run(
            list_tasks(cast("Requester", queue), MAILS, ["delayed"], reveal=False, cursor=cursor)
        )
    assert queue.asked == []


@given(cursor=st.text(max_size=40) | st.binary(max_size=40).map(lambda one: one.decode("latin-1")))
def test_any_text_is_a_cursor_or_is_refused(cursor: str) -> None:
    queue = InspectedQueue([])
    client = cast("Requester", queue)
    with pytest.raises(InvalidArgument):
        asyncio.run(list_tasks(client, MAILS, ["delayed"], reveal=False, cursor=cursor))


def test_a_cursor_can_stand_in_a_url() -> None:
    assert GOOD.replace("-", "").replace("_", "").isalnum()


def test_what_a_page_cannot_be() -> None:
    client = cast("Requester", InspectedQueue([]))
    for most in (0, 1_001):
        with pytest.raises(InvalidArgument, match="tasks"):
            asyncio.run(list_tasks(client, MAILS, reveal=False, most=most))
    with pytest.raises(InvalidArgument, match="no state of tasks"):
        asyncio.run(list_tasks(client, MAILS, [cast("Any", "asleep")], reveal=False))
    with pytest.raises(InvalidArgument, match="which state"):
        asyncio.run(list_tasks(client, MAILS, [], reveal=False))


def test_an_unknown_queue_is_named_with_the_nearest() -> None:
    client = cast("Requester", InspectedQueue([]))
    with pytest.raises(UnknownQueue, match="Did you mean 'mails'"):
        asyncio.run(list_tasks(client, QueueId("shop", "mial", 1), reveal=False))


def test_a_filter_that_would_tell_arguments_needs_permission() -> None:
    client = cast("Requester", InspectedQueue([]))
    wanted = TaskFilter(argument=argument_filter("card=4929"))
    with pytest.raises(PermissionDenied, match="reveal"):
        asyncio.run(list_tasks(client, MAILS, tasks=wanted, reveal=False))
    queue = InspectedQueue([], read=2)
    queue.silent[1] = PermissionDenied("To find tasks by their arguments, ...")
    with pytest.raises(PermissionDenied):
        asyncio.run(list_tasks(cast("Requester", queue), MAILS, tasks=wanted, reveal=True))


def test_states_that_overlap_are_listed_once() -> None:
    assert ordered(["done", "ended", "running"]) == ("running", "ended")
    assert ordered(["expired", "cancelled", "done"]) == ("ended",)
    assert ordered(["expired", "dead", "done"]) == ("dead", "done", "expired")


@pytest.mark.parametrize("state", ["delayed", "waiting", "ended"])
@pytest.mark.parametrize(
    ("sequences", "cursor"),
    [
        ([], (0.0, 0)),
        ([], (5.0, 2**32 + 5)),
        ([7, 6], None),
        ([7], (0.0, 0)),
        ([7, 7], None),
    ],
)
def test_a_partition_that_leads_nowhere_is_not_asked_for_ever(
    state: ListedState, sequences: list[int], cursor: tuple[float, int] | None
) -> None:
    """It is taken for one that does not answer."""

    class Broken(InspectedQueue):
        def _list(self, message: ListTasks) -> TasksListed:
            order = sequences if state != "ended" else [10 - one for one in sequences]
            tasks = [replace(task(0, one), at=(5.0, 2**32 + one)) for one in order]
            behind = (5.0, 2**32 + 5)
            return TasksListed(tasks, cursor if message.after == behind else behind, 1, 1.0)

    pages = run(Broken([]), [state])
    assert isinstance(pages[-1].silent[0].error, ProtocolViolation)


def test_an_older_node_is_told_in_words() -> None:
    queue = InspectedQueue([task(0, 1), task(1, 2)], read=2)
    older = UnknownRequest("There is no request with the opcode 0x7c.")

    async def request(message: Any, timeout: float | None = None, **_: Any) -> Any:  # noqa: ANN401, ASYNC109
        if message.partition == 1 and isinstance(message, ListTasks):
            raise older
        return await InspectedQueue.request(queue, message, timeout)

    queue.request = request  # type: ignore[method-assign]
    (page,) = run(queue)
    assert [one.partition for one in page.tasks] == [0]
    assert "runs an older release of maitred" in str(page.silent[1])
    assert "Upgrade it." in str(page.silent[1])


# One task, and filters


def test_private_data_comes_only_if_it_is_asked_for() -> None:
    secret = task(0, 1, arguments=msgpack.encode({"card": "4929"}))
    client = cast("Requester", InspectedQueue([secret]))

    async def shown(*, reveal: bool) -> tuple[bytes | None, bytes | None]:
        page = await list_tasks(client, MAILS, reveal=reveal)
        one = await show_task(client, MAILS, 0, secret.sequence, reveal=reveal)
        return page.tasks[0].arguments, one.task.arguments

    assert asyncio.run(shown(reveal=False)) == (None, None)
    assert asyncio.run(shown(reveal=True)) == (secret.arguments, secret.arguments)


def test_users_who_may_not_see_private_data_are_told_so() -> None:
    queue = InspectedQueue([task(0, 1, "done", arguments=b"\x90"), task(0, 2, arguments=b"\x90")])
    queue.shown[0, FIRST + 1] = TaskShown(
        task=queue.tasks[0, FIRST + 1], events=[], result=b"\x01", traceback="Traceback: ..."
    )
    queue.may_reveal = False
    (page,) = run(queue)
    assert [(one.arguments, one.withheld) for one in page.tasks] == [(None, "permission")] * 2
    client = cast("Requester", queue)
    shown = asyncio.run(show_task(client, MAILS, 0, FIRST + 1, reveal=True))
    assert (shown.result, shown.result_withheld, shown.traceback) == (None, "permission", "")
    not_asked = asyncio.run(show_task(client, MAILS, 0, FIRST + 1, reveal=False))
    assert (not_asked.task.withheld, not_asked.result_withheld) == ("", "")


def test_an_unknown_task() -> None:
    client = cast("Requester", InspectedQueue([]))
    with pytest.raises(UnknownTask):
        asyncio.run(show_task(client, MAILS, 0, 5, reveal=True))


def test_filters_by_argument() -> None:
    found = argument_filter('url="https://a?b=c"')
    assert (found.name, msgpack.decode(found.value)) == ("url", "https://a?b=c")
    assert msgpack.decode(argument_filter("size=128").value) == 128
    assert msgpack.decode(argument_filter("0=null").value) is None
    for wrong in ("", "size", "size=", "=3", "url=https://a", "size={"):
        with pytest.raises(InvalidArgument, match="JSON"):
            argument_filter(wrong)
