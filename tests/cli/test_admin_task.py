"""`maitred admin task`: list, show and actions, against a queue in memory."""

from __future__ import annotations

import itertools
import json
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from maitred.cli import (
    admin_control,
    admin_task_actions,
    admin_task_filters,
    admin_task_list,
    admin_task_show,
    selection,
)
from maitred.cli.address import AskedNode
from maitred.cli.admin_task_filters import moment
from maitred.cli.admin_task_list import rows
from maitred.cli.admin_task_names import TaskName, named_tasks, one_task
from maitred.cli.main import cli
from maitred.client.task_rows import task_row
from maitred.errors import (
    InternalError,
    InvalidArgument,
    InvalidName,
    MaitredError,
    UnknownCommand,
    UnknownQueue,
    UnknownRequest,
    UnknownTask,
)
from maitred.matching.controls import Pause, QueueControls
from maitred.protocol.frames import Opcode
from maitred.protocol.inspection import ChangeTasks, HistoryEvent, ListTasks, TaskShown
from maitred.protocol.tasks import Describe, Queues, QueuesFound
from maitred.routing.names import QueueId
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import maitred
from tests.client.inspected_queue import FIRST, MAILS, InspectedQueue, task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from maitred.node.shard import Shard
    from maitred.protocol.inspection import EventKind, ListedTask

COLUMNS = 100
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
NOW = NOON.timestamp()
AWAY = InternalError("The shard is restarting.")
"""Not an error after which the client would try again for as long as it may."""


class TaskNode(CannedNode):
    """A node with one queue, `shop/mails`."""

    def __init__(self, *tasks: ListedTask, read: int = 3) -> None:
        super().__init__()
        self.mails = InspectedQueue(list(tasks), read)
        self.mails.now = NOW

    def serve(self, shard: Shard) -> None:
        super().serve(shard)
        opcodes = (Opcode.DESCRIBE, Opcode.LIST_TASKS, Opcode.SHOW_TASK, Opcode.CHANGE_TASKS)
        shard.handlers.update(dict.fromkeys(opcodes, self.mails.answer))

        def queues(_: Queues) -> QueuesFound:
            return QueuesFound([("shop", "mails", 1)], {})

        shard.handlers[Opcode.QUEUES] = queues


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock that the command reads."""
    stopped = SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic)
    for module in (admin_task_list, admin_task_show, admin_task_filters, admin_control):
        monkeypatch.setattr(module, "time", stopped)


def ago(seconds: float) -> float:
    return NOW - seconds


def some_tasks() -> list[ListedTask]:
    """Two of each state."""
    return [
        task(0, 1, "running", started_at=ago(7), worker="ant", arguments=packed(to="a@b", n=1)),
        task(1, 2, "running", started_at=ago(3_600), worker="a-worker-with-a-long-name"),
        task(0, 3, "waiting", due_at=ago(90), arguments=packed(to="c@d", n=2)),
        task(2, 4, "waiting", due_at=ago(5), arguments=packed(to="e@f", n=3)),
        task(1, 5, "delayed", due_at=ago(-30), attempts=1, retries=2, error="SMTPError"),
        task(0, 6, "delayed", due_at=ago(-3_000)),
        task(2, 7, "dead", ended_at=ago(60), error="SMTPError", message="mailbox\x1b[2J full"),
        task(0, 8, "dead", ended_at=ago(90), error="KeyError", message="'to'"),
        task(0, 9, "done", ended_at=ago(9), kept_until=ago(-50)),
        task(1, 10, "cancelled", ended_at=ago(20)),
    ]


def packed(**arguments: object) -> bytes:
    return msgpack.encode(arguments)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TaskNode]:
    with canned_node(tmp_path, canned=TaskNode(*some_tasks())) as running:
        assert isinstance(running, TaskNode)
        yield running


def command(node: CannedNode, *arguments: str, typed: str = "") -> Result:
    """As `maitred admin task ...`; errors come out as they are."""
    done = CliRunner().invoke(
        cli, ["admin", "task", *arguments, "--url", node.url], typed, standalone_mode=False
    )
    expected = SystemExit | MaitredError | click.Abort
    if done.exception is not None and not isinstance(done.exception, expected):
        raise done.exception
    return done


def told(node: CannedNode, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return json.loads(command(node, *arguments, "--json").stdout)


def at(partition: int, number: int) -> str:
    return f"{partition}/{FIRST + number}"


def whole(partition: int, number: int) -> str:
    return f"shop/mails/{at(partition, number)}"


# list


def test_tasks_come_by_state_in_a_table_that_fits(node: TaskNode) -> None:
    done = command(node, "list", "shop/mails")
    assert (done.exit_code, done.stderr) == (0, "")
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == ["id", "state", "when", "tries", "worker", "about"]
    assert [line.split()[1] for line in lines] == [
        *["running"] * 2,
        *["waiting"] * 2,
        *["delayed"] * 2,
        *["dead"] * 2,
        *["done", "cancelled"],
    ]
    assert [line.split()[0] for line in lines[:2]] == [at(1, 2), at(0, 1)], "the longest first"
    assert "for 1 h" in lines[0]
    assert '{"to": "a@b", "n": 1}' in lines[1]
    assert "in 30 s" in lines[4]
    assert "KeyError: 'to'" in lines[6]
    assert "9 s ago" in lines[8]
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    assert "\x1b" not in done.stdout


@given(
    tasks=st.lists(
        st.builds(
            task,
            st.integers(0, 99_999),
            st.integers(0, 2**62),
            st.sampled_from(["running", "waiting", "delayed", "dead", "done", "expired"]),
            worker=st.text(max_size=40),
            error=st.text(max_size=150),
            message=st.text(max_size=150),
            attempts=st.integers(0, 2**31),
            arguments=st.none() | st.binary(max_size=20).map(msgpack.encode),
            cancelling=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_table_is_of_printable_lines(tasks: list[ListedTask]) -> None:
    """Whatever workers and arguments say."""
    for row in rows(tasks, 1e9):
        assert list(row) == ["id", "state", "when", "tries", "worker", "about"]
        assert all(str(cell).isprintable() for cell in row.values())
        assert len(str(row["worker"])) <= 16


def test_json_has_the_rows_of_http(node: TaskNode) -> None:
    found = told(node, "list", "shop/mails", "--state", "dead")
    letters = [one for one in some_tasks() if one.state == "dead"]
    assert [one["id"] for one in found["tasks"]] == [whole(0, 8), whole(2, 7)]
    assert found["tasks"][1].keys() == task_row(MAILS, letters[0]).keys()
    assert found["tasks"][1]["message"] == "mailbox\x1b[2J full"
    assert (found["cursor"], found["more"], found["unreachable"]) == (None, False, [])
    assert found["looked_at"] == 2


def test_pages_follow_their_cursors(node: TaskNode) -> None:
    found: list[str] = []
    after: list[str] = []
    while len(found) < 20:
        page = told(node, "list", "shop/mails", "--limit", "3", *after)
        found += [one["id"] for one in page["tasks"]]
        if page["cursor"] is None:
            break
        after = ["--after", page["cursor"]]
    assert len(found) == len(set(found)) == 10
    done = command(node, "list", "shop/mails", "--limit", "3")
    assert done.stderr.startswith("\n3 tasks. The next page: --after ")


def test_filters_reach_the_partitions(node: TaskNode) -> None:
    options = ("--state", "dead", "--state", "running", "--worker", "ant", "--error", "SMTP")
    more = ("--by", "ana", "--since", "2h", "--until", "2026-11-18T19:00Z", "--argument", "n=1")
    assert command(node, "list", "shop/mails", *options, *more).exit_code == 0
    messages = node.mails.heard(ListTasks)
    assert {message.state for message in messages} == {"running", "dead"}
    wanted = messages[0].filter
    assert (wanted.worker, wanted.error, wanted.by) == ("ant", "SMTP", "ana")
    assert wanted.added_after == ago(7_200)
    assert wanted.added_before == datetime(2026, 11, 18, 19, tzinfo=UTC).timestamp()
    assert (wanted.argument.name, msgpack.decode(wanted.argument.value)) == ("n", 1)


def test_tasks_that_match_an_argument(node: TaskNode) -> None:
    found = told(node, "list", "shop/mails", "--argument", 'to="c@d"')
    assert [one["id"] for one in found["tasks"]] == [whole(0, 3)]


def test_partitions_that_do_not_answer_are_named(node: TaskNode) -> None:
    node.mails.silent[1] = AWAY
    done = command(node, "list", "shop/mails")
    assert done.exit_code == 1
    assert done.stderr.startswith("partition 1: The shard is restarting.")
    assert len(done.stdout.splitlines()) == 1 + 7
    found = told(node, "list", "shop/mails")
    assert [one["partition"] for one in found["unreachable"]] == [1]
    node.mails.tasks.clear()
    assert "no such tasks" not in command(node, "list", "shop/mails").stdout


def test_no_such_tasks(node: TaskNode) -> None:
    assert command(node, "list", "shop/mails", "--state", "expired").stdout == (
        "shop/mails has no such tasks.\n"
    )


def test_a_search_that_takes_long_says_where_to_go_on(
    node: TaskNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_task_list, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr("maitred.client.task_lists.LOOKED_MAX", 1)
    done = command(node, "list", "shop/mails", "--worker", "nobody")
    assert done.exit_code == 0
    assert "Search on: --after " in done.stderr
    assert done.stdout == ""
    cursor = done.stderr.split()[-1]
    assert command(node, "list", "shop/mails", "--after", cursor).exit_code == 0


def test_users_who_may_not_see_private_data(node: TaskNode) -> None:
    node.mails.may_reveal = False
    done = command(node, "list", "shop/mails")
    assert "a@b" not in done.stdout
    assert "mailbox" not in done.stdout
    assert "SMTPError" in done.stdout
    assert "(needs the permission `reveal`)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("list", "mails"), InvalidName),
        (("list", "shop/mails", "--after", "nonsense"), InvalidArgument),
        (("list", "shop/mails", "--since", "yesterday"), InvalidArgument),
        (("list", "shop/mails", "--argument", "size"), InvalidArgument),
        (("show", "shop/mails"), InvalidArgument),
        (("show", at(0, 1)), InvalidArgument),
        (("show", "shop/mails", at(0, 1), at(0, 2)), InvalidArgument),
        (("show", whole(0, 1), whole(0, 2)), InvalidArgument),
        (("cancel",), InvalidArgument),
        (("cancel", "shop/mails"), InvalidArgument),
        (("cancel", "--all"), InvalidArgument),
        (("cancel", whole(0, 1), "--all"), InvalidArgument),
        (("cancel", whole(0, 1), "--error", "x"), InvalidArgument),
        (("cancel", whole(0, 1), "--dry-run"), InvalidArgument),
        (("again", "shop/mails", "--all", "--yes"), InvalidArgument),
        (("cancel", "shop/mails", "--all", "--reason", "x" * 501), InvalidArgument),
        (("cancle", "shop/mails"), UnknownCommand),
    ],
)
def test_wrong_words(
    node: TaskNode, arguments: tuple[str, ...], problem: type[MaitredError]
) -> None:
    done = command(node, *arguments)
    assert isinstance(done.exception, problem), done.output
    assert node.mails.heard(ChangeTasks) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "shop/mial"),
        ("show", "shop/mial/0/5"),
        ("cancel", "shop/mial/0/5"),
        ("cancel", "shop/mial", "--all", "--yes"),
    ],
)
def test_the_nearest_queue_is_named(node: TaskNode, arguments: tuple[str, ...]) -> None:
    problem = command(node, *arguments).exception
    assert isinstance(problem, UnknownQueue)
    assert problem.remedy == "Did you mean 'shop/mails'?"


@pytest.mark.parametrize(
    "arguments", [("list", "shop/mails"), ("cancel", whole(0, 1)), ("show", whole(0, 1))]
)
def test_an_older_node_is_told_in_words(node: TaskNode, arguments: tuple[str, ...]) -> None:

    def older(message: Any) -> None:  # noqa: ANN401
        if not isinstance(message, Describe):
            raise UnknownRequest("There is no request with the opcode 0x7c.")

    node.mails.before = older
    done = command(node, *arguments)
    assert "runs an older release of maitred. Upgrade it." in done.stderr + str(done.exception)
    assert done.exit_code == 1


# names


@pytest.mark.parametrize(
    ("words", "namespace", "expected"),
    [
        (["shop/mails/0/5"], None, [("shop", "mails", 0, 5)]),
        (["shop/mails", "0/5", "1/6"], None, [("shop", "mails", 0, 5), ("shop", "mails", 1, 6)]),
        (["shop/mails", "shop/mails/0/5"], None, [("shop", "mails", 0, 5)]),
        (["shop/a/b/0/5", "ads/c/1/6"], None, [("shop", "a/b", 0, 5), ("ads", "c", 1, 6)]),
        (["mails", "0/5"], "shop", [("shop", "mails", 0, 5)]),
        (["mails/0/5", "0/5"], "shop", [("shop", "mails/0/5", 0, 5)]),
        (["a/b", "a/b/c/0/5"], "sh/op", None),
        (["b", "sh/op/b/0/5"], "sh/op", [("sh/op", "b", 0, 5)]),
        (["shop/mails", "5"], None, None),
        (["shop/mails", "0/x"], None, None),
        (["shop/mails", "0/5/6"], None, None),
        (["shop/mails", "ads/mails/0/5"], None, None),
        (["shop/mails/0/5", "0/6"], None, None),
        (["0/5"], None, None),
        (["shop/mails", f"0/{2**63}"], None, None),
        (["shop/mails", "100000/5"], None, None),
    ],
)
def test_names_of_tasks(
    words: list[str], namespace: str | None, expected: list[tuple[str, str, int, int]] | None
) -> None:
    if expected is None:
        with pytest.raises(InvalidArgument):
            named_tasks(words, namespace)
        return
    found = named_tasks(words, namespace)
    assert found.tasks == [
        TaskName(QueueId(space, queue, 1), partition, sequence)
        for space, queue, partition, sequence in expected
    ]


def test_a_printed_name_is_a_name_again() -> None:
    name = TaskName(MAILS, 3, FIRST)
    assert one_task([str(name)], None) == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", NOW - 90),
        ("90s", NOW - 90),
        ("1.5h", NOW - 5_400),
        ("15 min", NOW - 900),
        ("15m", NOW - 900),
        ("3d", NOW - 259_200),
        ("2026-11-18T19:00Z", datetime(2026, 11, 18, 19, tzinfo=UTC).timestamp()),
        (
            "2026-11-18 19:00:30.5+02:00",
            datetime(2026, 11, 18, 17, 0, 30, 500_000, UTC).timestamp(),
        ),
        ("2026-11-18T19:00", datetime(2026, 11, 18, 19).timestamp()),  # noqa: DTZ001 - local time
        ("yesterday", None),
        ("", None),
        ("-5s", None),
        ("5w", None),
        ("nan", None),
        ("9" * 5_000, None),
    ],
)
def test_moments(text: str, expected: float | None) -> None:
    if expected is None:
        with pytest.raises(InvalidArgument, match="--until"):
            moment(text, NOW, "--until")
    else:
        assert moment(text, NOW) == expected


# show


def event(seconds_ago: float, what: EventKind, **fields: Any) -> HistoryEvent:  # noqa: ANN401
    return HistoryEvent(at=ago(seconds_ago), what=what, **fields)


def show(node: TaskNode, one: ListedTask, **fields: Any) -> str:  # noqa: ANN401
    """What the command prints of this task."""
    place = (one.partition, one.sequence)
    node.mails.tasks[place] = one
    told: dict[str, Any] = {"events": [], "node": "node-1", "shard": 1, **fields}
    node.mails.shown[place] = TaskShown(task=one, **told)
    done = command(node, "show", str(TaskName(MAILS, *place)))
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    return done.stdout


def fact(shown: str, name: str) -> str:
    lines = shown[: shown.index("\n\n")].splitlines()
    (begin,) = [at for at, line in enumerate(lines) if line.startswith(f"{name} ")]
    more = itertools.takewhile(lambda line: line.startswith(" "), lines[begin + 1 :])
    return " ".join([lines[begin][len(name) :].strip(), *map(str.strip, more)])


def test_a_task_that_failed_and_is_tried_again(node: TaskNode) -> None:
    one = task(
        1,
        70,
        "delayed",
        attempts=2,
        retries=2,
        by="ana@10.0.0.7",
        added_at=ago(100),
        due_at=ago(-20.5),
        worker="ant",
        error="SMTPError",
        message="mailbox \x1b[2J full",
        arguments=packed(to="a@b", card="[hidden]"),
        payload_bytes=40,
        expires_at=ago(-5_000),
    )
    events = [
        event(100, "added", by="ana@10.0.0.7"),
        event(90, "started", attempt=1, worker="bee", forwarded=True),
        event(80, "lost", attempt=1, worker="bee"),
        event(50, "started", attempt=2, worker="ant", omitted=4),
        event(10, "failed", attempt=2, worker="ant", error="SMTPError", message="full"),
        event(-20.5, "retry", attempt=3),
    ]
    shown = show(
        node,
        one,
        events=events,
        timeout=30.0,
        function="send",
        traceback="Traceback:\n  File x\x1b[0m\nSMTPError: full\n",
    )
    assert shown.splitlines()[0] == whole(1, 70)
    assert fact(shown, "state") == "delayed, attempt 2 of 4"
    assert fact(shown, "why") == "SMTPError: mailbox \\x1b[2J full"
    assert fact(shown, "next") == "attempt 3 is due in 20 s, at 2026-11-18 12:00:20.500Z"
    assert fact(shown, "added") == ("2026-11-18 11:58:20.000Z by ana@10.0.0.7, 1.7 min ago")
    assert fact(shown, "options") == (
        "priority 2, result kept for 1 min, timeout 30 s, "
        "expires at 2026-11-18 13:23:20.000Z unless it has begun"
    )
    assert fact(shown, "function") == "send"
    assert fact(shown, "where") == "partition 1, shard 1 of node-1"
    history = shown[shown.index("History") :].splitlines()
    assert "started, attempt 1 at bee, by way of a parent partition" in history[2]
    assert "+10 s" in history[2]
    assert "4 earlier events are no longer known" in history[4]
    assert "failed, attempt 2 at ant: SMTPError: full" in history[6]
    assert "attempt 3 is due" in history[7]
    assert '"card": "[hidden]"' in shown
    assert shown.endswith("Traceback\nTraceback:\n  File x[0m\nSMTPError: full\n")
    assert "\x1b" not in shown


def test_what_comes_next_is_told_for_every_state(node: TaskNode) -> None:
    def following(one: ListedTask, **fields: Any) -> str:  # noqa: ANN401
        return fact(show(node, one, **fields), "next")

    running = task(0, 50, "running", started_at=ago(5), worker="ant")
    assert following(running, timeout=60.0, lease_until=ago(-8.2)) == (
        "its worker reports how it ends, or it times out in 55 s; if the worker is lost, it is "
        "tried again in 8.2 s"
    )
    assert following(running) == (
        "its worker reports how it ends; it has no timeout, and `maitred admin task cancel` stops "
        "it"
    )
    assert "told to stop it" in following(replace(running, cancelling=True))
    waiting = task(0, 50, "waiting")
    assert following(waiting) == (
        "its first attempt begins as soon as a worker has a free slot and no task before it"
    )
    assert "does not run" in following(replace(waiting, cancelling=True))
    node.mails.changes = {"workers": ["ant", "bee"]}
    assert "as soon as one of 2 workers has a free slot" in following(waiting)
    node.mails.changes = {"rate_limit_per_second": 2.5}
    assert "at most 2.5 tasks a second" in following(waiting)
    node.mails.changes = {"workers": [], "served_seconds_ago": 7_200.0}
    assert following(waiting) == (
        "no worker serves the queue (the last one was there 2 h ago): `maitred worker MODULE:APP` "
        "starts one"
    )
    pause = Pause(by="ben", at=ago(180), reason="a bad release")
    node.mails.changes = {"controls": QueueControls(pause=pause)}
    paused = "an operator has to resume the queue, which is paused for 3 min, by ben: a bad release"
    assert following(waiting) == paused
    delayed = task(0, 50, "delayed", due_at=ago(-60))
    assert following(delayed).startswith("its first attempt is due in 1 min, at 2026-11-18 12:01")
    assert following(delayed).endswith(f"; but {paused}")
    node.mails.changes = {}
    assert following(task(0, 50, "dead")) == (
        f"nothing; `maitred admin task retry {whole(0, 50)}` tries it again, `drop` deletes it"
    )
    done = task(0, 50, "done", ended_at=ago(5), kept_until=ago(-55))
    assert following(done).startswith("it is forgotten in 55 s, at 2026-11-18 12:00:55")
    assert following(replace(done, kept_until=ago(1))) == "it is forgotten soon"
    dropped = task(0, 50, "failed", ended_at=ago(60), error="KeyError", attempts=4)
    assert following(dropped) == "it is forgotten soon"
    assert fact(show(node, dropped), "state") == "failed, 1 min ago, 4 attempts"
    assert fact(show(node, dropped), "why") == "KeyError"


def test_a_result(node: TaskNode) -> None:
    one = task(0, 60, "done", attempts=1, arguments=packed(to="a@b"))
    assert '"sent": true' in show(node, one, result=packed(sent=True))
    assert "Result\n(no longer kept)" in show(node, one, result_withheld="forgotten")
    node.mails.may_reveal = False
    shown = show(node, one, result=packed(sent=True), traceback="Traceback: secret")
    assert "sent" not in shown
    assert "a@b" not in shown
    assert "secret" not in shown
    assert shown.count("(needs the permission `reveal`)") == 2


def test_show_as_json(node: TaskNode) -> None:
    found = told(node, "show", "shop/mails", at(2, 7))
    assert found["task"]["id"] == whole(2, 7)
    assert found["next"].startswith("nothing; ")
    assert [one["what"] for one in found["events"]] == ["added"]
    assert found["node"] == "node"


def test_the_task_is_shown_even_if_the_root_is_away(node: TaskNode) -> None:
    node.mails.silent[0] = AWAY
    done = command(node, "show", whole(2, 4))
    assert fact(done.stdout, "next").startswith("its first attempt begins as soon as a worker has")


def test_a_task_that_does_not_exist(node: TaskNode) -> None:
    assert isinstance(command(node, "show", whole(0, 77)).exception, UnknownTask)


# actions by id


def test_named_tasks_are_changed_without_a_question(node: TaskNode) -> None:
    done = command(node, "retry", "shop/mails", at(0, 8), at(2, 7), "--reason", "it is back")
    assert (done.exit_code, done.stdout) == (0, "2 tasks will be tried again.\n")
    assert {message.reason for message in node.mails.heard(ChangeTasks)} == {"it is back"}
    done = command(node, "cancel", whole(0, 1), whole(0, 3))
    assert (done.exit_code, done.stdout) == (0, "2 tasks cancelled, or told to stop.\n")
    done = command(node, "run-now", whole(1, 5))
    assert (done.exit_code, done.stdout) == (0, "1 task due now.\n")


def test_dropping_asks_also_for_one(node: TaskNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(command(node, "drop", whole(0, 8)).exception, InvalidArgument)
    monkeypatch.setattr(selection, "stdin_is_terminal", lambda: True)
    assert isinstance(command(node, "drop", whole(0, 8), typed="n\n").exception, click.Abort)
    assert (0, FIRST + 8) in node.mails.tasks
    done = command(node, "drop", whole(0, 8), typed="y\n")
    assert "Drop 1 task? They cannot be brought back." in done.output
    assert (0, FIRST + 8) not in node.mails.tasks
    assert command(node, "drop", whole(2, 7), "--yes").exit_code == 0


def test_a_new_task_has_a_new_id(node: TaskNode) -> None:
    done = command(node, "again", whole(0, 9))
    assert done.stdout == f"1 task added again.\n{whole(0, 9)} runs again as {whole(0, 11)}\n"
    assert told(node, "again", whole(0, 9))["added"] == {whole(0, 9): whole(0, 12)}


def test_what_was_not_done_is_named_with_the_reason(node: TaskNode) -> None:
    node.mails.silent[1] = AWAY
    done = command(node, "retry", "shop/mails", at(0, 8), at(0, 1), at(2, 77), at(1, 5))
    assert done.exit_code == 1
    assert done.stdout == "1 task will be tried again.\n"
    assert done.stderr.splitlines() == [
        f"Not done, the task is no dead letter: {whole(0, 1)}.",
        f"Not done, there is no such task: {whole(2, 77)}.",
        "partition shop/mails/1: The shard is restarting. [internal-error]",
    ]
    found = told(node, "retry", "shop/mails", at(0, 1), at(1, 5))
    assert (found["done"], found["left"]) == (0, {whole(0, 1): "not-dead"})
    assert [one["partition"] for one in found["unreachable"]] == ["shop/mails/1"]


# actions by filter


def test_all_that_match_after_a_question(node: TaskNode, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("cancel", "shop/mails", "--state", "waiting", "--state", "running")
    assert isinstance(command(node, *arguments).exception, InvalidArgument)
    monkeypatch.setattr(selection, "stdin_is_terminal", lambda: True)
    refused = command(node, *arguments, typed="n\n")
    assert isinstance(refused.exception, click.Abort)
    assert (
        "Cancel 4 tasks of shop/mails (that are waiting or running)? Those that run are stopped."
        in refused.output
    )
    assert node.mails.heard(ChangeTasks) == []
    done = command(node, *arguments, "--reason", "overload", typed="y\n")
    assert done.exit_code == 0
    assert done.stdout.endswith("4 tasks cancelled, or told to stop.\n")
    assert {message.reason for message in node.mails.heard(ChangeTasks)} == {"overload"}


def test_all_without_a_question(node: TaskNode) -> None:
    found = told(node, "drop", "shop/mails", "--error", "smtp", "--yes")
    assert (found["matched"], found["done"], found["left"]) == (1, 1, {})
    found = told(node, "retry", "shop/mails", "--all", "--yes")
    assert (found["matched"], found["done"]) == (1, 1)
    found = told(node, "again", "shop/mails", "--state", "ended", "--yes")
    assert (found["matched"], len(found["added"])) == (2, 2)
    found = told(node, "run-now", "shop/mails", "--all", "--yes")
    assert found["done"] == 2


def test_nothing_that_matches_needs_no_question(node: TaskNode) -> None:
    done = command(node, "retry", "shop/mails", "--error", "nothing like that")
    assert (done.exit_code, done.stdout) == (0, "0 tasks will be tried again.\n")


def test_a_dry_run_counts(node: TaskNode) -> None:
    done = command(node, "cancel", "shop/mails", "--all", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "6 tasks would be cancelled.\n")
    found = told(node, "cancel", "shop/mails", "--state", "delayed", "--dry-run")
    assert (found["dry_run"], found["matched"], found["done"]) == (True, 2, 0)
    assert node.mails.heard(ChangeTasks) == []


def many(node: TaskNode, count: int) -> None:
    made = (task(0, 100 + n, "dead", added_at=1.0, ended_at=2.0) for n in range(count))
    node.mails.tasks = {(0, one.sequence): one for one in made}


def test_progress_is_told(node: TaskNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_task_actions, "PROGRESS_SECONDS", 0.0)
    many(node, 2_500)
    done = command(node, "drop", "shop/mails", "--all", "--yes")
    assert done.stdout == "2,500 tasks dropped.\n"
    assert "1,000 tasks dropped so far\n2,000 tasks dropped so far\n" in done.stderr


def test_a_question_about_very_many_says_at_least(
    node: TaskNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_task_actions, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(admin_task_actions, "COUNT_SECONDS", 0.0)
    monkeypatch.setattr(selection, "stdin_is_terminal", lambda: True)
    many(node, 2_500)
    done = command(node, "retry", "shop/mails", "--all", typed="n\n")
    assert "Retry at least 1,000 tasks of shop/mails? They will all run again." in done.output


def test_ctrl_c_tells_what_was_done(node: TaskNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_task_actions, "PROGRESS_SECONDS", 0.0)
    many(node, 2_500)
    ask = AskedNode.ask

    def interrupted(asked: AskedNode, question: Any) -> Any:  # noqa: ANN401
        ask(asked, question)
        raise KeyboardInterrupt

    monkeypatch.setattr(AskedNode, "ask", interrupted)
    done = CliRunner().invoke(
        cli, ["admin", "task", "drop", "shop/mails", "--all", "--yes", "--url", node.url]
    )
    assert "shop/mails: 2,500 tasks dropped, and those of the request in flight." in done.stderr
    assert done.exit_code == 1


def test_partitions_that_fail_are_told_and_the_others_are_done(node: TaskNode) -> None:
    node.mails.silent[2] = AWAY
    done = command(node, "retry", "shop/mails", "--all", "--yes")
    assert done.exit_code == 1
    assert done.stdout == "1 task will be tried again.\n"
    assert done.stderr == "partition shop/mails/2: The shard is restarting. [internal-error]\n"


def test_what_changed_meanwhile_is_no_failure(node: TaskNode) -> None:
    """Another operator was faster: the task no longer matches."""

    def another(message: Any) -> None:  # noqa: ANN401
        if isinstance(message, ChangeTasks) and message.partition == 2:
            place = (2, FIRST + 7)
            node.mails.tasks[place] = replace(node.mails.tasks[place], state="waiting")

    node.mails.before = another
    done = command(node, "retry", "shop/mails", "--all", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 task will be tried again.\n")
    assert done.stderr == f"Not done, the task is no dead letter: {whole(2, 7)}.\n"


# the program


def test_errors_and_their_exit_codes(node: TaskNode) -> None:
    done = maitred("admin", "task", "show", "shop/mails/0/x", "--url", node.url)
    assert done.returncode == 2
    assert "[invalid-name]" in done.stderr or "[invalid-argument]" in done.stderr
    done = maitred("admin", "task", "show", whole(0, 77), "--url", node.url)
    assert done.returncode == 1
    assert "[unknown-task]" in done.stderr
