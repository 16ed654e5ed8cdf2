"""`maitred admin query list`, `show` and `cancel`, against canned answers."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from maitred.cli import selection
from maitred.cli.admin_query_ask import STATUSES, QueryId
from maitred.cli.admin_query_rows import QUERY_LETTERS
from maitred.cli.main import cli
from maitred.cli.output import cut
from maitred.errors import InvalidArgument, MaitredError, PermissionDenied, UnknownQuery
from maitred.protocol.queries import QueryRow
from tests.cli.query_node import Plant, plant, row
from tests.cli.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Plant]:
    with plant(tmp_path) as running_plant:
        yield running_plant


def command(node: Plant, *arguments: str, typed: str = "") -> Result:
    """As `maitred admin query ...`; errors come out as they are."""
    done = CliRunner().invoke(
        cli, ["admin", "query", *arguments, "--url", node.url], typed, standalone_mode=False
    )
    expected = SystemExit | MaitredError | click.Abort
    if done.exception is not None and not isinstance(done.exception, expected):
        raise done.exception
    return done


def as_json(node: Plant, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return json.loads(command(node, *arguments, "--json").stdout)


# list


def test_the_query_table(node: Plant) -> None:
    node.rows = [
        row(1),
        row(2, query="select * from trade\nwhere \x1b[31mprice > 100 and price < 200", user=""),
        row(3, status="waiting", sent_at=0.0, returned_at=0.0, worker="", bytes_out=0),
        row(4, status="failed", error="OperationalError: no such table: qoute", relayed=True),
    ]
    done = command(node, "list")
    assert done.exit_code == 0, done.stderr
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == [
        *("id", "user", "queue", "query", "status", "worker"),
        *("received", "waited", "ran", "bytes", "error"),
    ]
    assert [line.split()[0] for line in lines] == [f"1a2b3c4d/{n}" for n in (1, 2, 3, 4)]
    assert "default/EQUITY_MARKET_RDB  select * from quote" in lines[0]
    assert "2 ms  12 ms  640 B" in lines[0]
    assert "select * from trade where" in lines[1]
    assert "\x1b" not in done.stdout
    assert lines[2].endswith("-      -")
    assert lines[3].endswith("OperationalError: no such table: qoute")
    assert "ant (relayed)" in lines[3]
    assert done.stderr == ""


def test_the_table_as_json(node: Plant) -> None:
    node.rows = [row(1)]
    told = as_json(node, "list")
    (only,) = told["queries"]
    assert only["id"] == "1a2b3c4d/1"
    assert (only["user"], only["status"], only["bytes_out"]) == ("kevin", "done", 640)
    assert (told["gateways"], told["silent"], told["unreachable"]) == (1, 0, [])


def test_options_become_a_filter(node: Plant) -> None:
    node.rows = [row(1), row(2, user="eve"), row(3, queue="EQUITY_MARKET_HDB")]
    told = as_json(node, "list", "--user", "eve")
    assert [one["sequence"] for one in told["queries"]] == [2]
    told = as_json(node, "list", "--queue", "default/EQUITY_MARKET_HDB")
    assert [one["sequence"] for one in told["queries"]] == [3]
    command(
        node,
        *("list", "--namespace", "n", "--queue", "q/r", "--status", "late", "--worker", "w"),
        *("--gateway", "1a", "--most", "7"),
    )
    asked = node.asked[-1]
    assert (asked.namespace, asked.queue, asked.status) == ("n", "q/r", "late")
    assert (asked.worker, asked.gateway, asked.most) == ("w", "1a", 7)


def test_a_status_that_is_none(node: Plant) -> None:
    done = CliRunner().invoke(cli, ["admin", "query", "list", "--status", "asleep"])
    assert done.exit_code == 2
    assert "'asleep' is not one of" in done.stderr
    assert node.asked == []


def test_every_status_can_be_asked_for() -> None:
    assert set(STATUSES) == set(get_args(get_type_hints(QueryRow)["status"]))


def test_only_the_newest_are_shown(node: Plant) -> None:
    node.rows = [row(number) for number in range(9)]
    done = command(node, "list", "--most", "3")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        f"1a2b3c4d/{n}" for n in (6, 7, 8)
    ]
    assert "The newest 3; --most shows more." in done.stderr


def test_no_queries_yet_and_none_that_match(node: Plant) -> None:
    node.gateways = 2
    assert command(node, "list").stdout == "No queries yet, at 2 gateways.\n"
    assert command(node, "list", "--user", "x").stdout == "No query matches, at 2 gateways.\n"


def test_no_gateway_says_how_to_start_one(node: Plant) -> None:
    node.gateways = 0
    done = command(node, "list")
    assert done.exit_code == 0
    assert "No gateway was asked anything yet." in done.stdout
    assert "maitred gateway" in done.stdout
    shown = command(node, "show", "7").exception
    assert isinstance(shown, UnknownQuery)
    assert "No gateway was asked anything" in str(shown.remedy)


def test_gateways_that_do_not_answer(node: Plant) -> None:
    node.rows, node.gateways, node.silent = [row(1)], 3, 2
    done = command(node, "list")
    assert done.exit_code == 1
    assert "1a2b3c4d/1" in done.stdout
    assert "2 of 3 gateways did not answer: their queries are missing here." in done.stderr
    told = as_json(node, "list")
    assert (told["gateways"], told["silent"]) == (3, 2)
    node.rows, node.silent = [], 3
    assert command(node, "list").stdout == "No gateway answered.\n"


def test_who_may_not(node: Plant) -> None:
    node.failure = PermissionDenied("kevin may not.")
    assert isinstance(command(node, "list").exception, PermissionDenied)


@pytest.mark.parametrize("form", ["lines", "json"])
def test_following(node: Plant, form: str) -> None:
    node.rows = [row(1), row(2, status="running", returned_at=0.0, changed_at=1_700_000_002.0)]

    def change() -> None:
        """What happens between two looks, in the node's thread."""
        if len(node.asked) == 1:
            node.rows[1].status, node.rows[1].changed_at = "done", 1_700_000_003.0
        elif len(node.asked) == 3:
            node.rows.append(row(5))

    node.answered = change
    options = ["--json"] if form == "json" else []
    arguments = ("admin", "query", "list", "--follow", "--url", node.url, *options)
    with running(*arguments) as process:
        assert process.stdout is not None
        expected = 4 if form == "json" else 5
        lines = [process.stdout.readline() for _ in range(expected)]
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert (rest, errors, process.returncode) == ("", "", 0)
    if form == "json":
        seen = [(one["sequence"], one["status"]) for one in map(json.loads, lines)]
    else:
        assert lines[0].split()[:3] == ["id", "user", "queue"]
        seen = [
            (int(line.split()[0].partition("/")[2]), "running" if "running" in line else "done")
            for line in lines[1:]
        ]
    assert seen == [(1, "done"), (2, "running"), (2, "done"), (5, "done")]


# show


def test_one_query(node: Plant) -> None:
    node.rows = [row(11), row(12, relayed=True, attempts=2, error="worker-lost: It is gone.")]
    done = command(node, "show", "1a2b3c4d/12")
    assert done.exit_code == 0
    text = done.stdout
    assert text.startswith("1a2b3c4d/12\n")
    for expected in (
        "status      done",
        "queue       default/EQUITY_MARKET_RDB, priority 2",
        "came by     http 127.0.0.1:50312",
        "worker      ant, relayed by the node",
        "waited 2 ms",
        "ran 12 ms",
        "bytes       30 in, 640 out",
        "error       worker-lost: It is gone.",
    ):
        assert expected in text
    assert text.endswith("\n\nselect * from quote\n")
    assert as_json(node, "show", "12")["attempts"] == 2


def test_a_query_that_waits(node: Plant) -> None:
    node.rows = [row(1, status="waiting", sent_at=0.0, returned_at=0.0, worker="", query="")]
    text = command(node, "show", "1").stdout
    assert "sent        not yet, waited" in text
    assert "(its text is not kept)" in text


def test_a_number_that_several_gateways_have(node: Plant) -> None:
    node.rows = [row(1), row(1, gateway="ffff0000")]
    problem = command(node, "show", "1").exception
    assert isinstance(problem, InvalidArgument)
    assert "1a2b3c4d/1, ffff0000/1" in problem.sentence
    assert as_json(node, "show", "ffff/1")["gateway"] == "ffff0000"


def test_a_query_that_is_none(node: Plant) -> None:
    problem = command(node, "show", "99").exception
    assert isinstance(problem, UnknownQuery)
    assert "maitred admin query list" in str(problem.remedy)


@pytest.mark.parametrize("text", ["", "x", "a/", "/1", "a/-1", "a/b", "1a/9" + 30 * "9", "a/٣"])
def test_ids_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no query's id"):
        QueryId.parse(text)


@given(st.text("0123456789abcdef", max_size=32), st.integers(0, 2**63 - 1))
def test_ids_are_read_as_they_are_printed(gateway: str, sequence: int) -> None:
    one = QueryId(gateway, sequence)
    assert QueryId.parse(str(one)) == one


@given(st.text(), st.integers(4, 60))
def test_text_is_cut_to_one_printable_line(text: str, most: int) -> None:
    shown = cut(text, most)
    assert len(shown) <= most
    assert shown == "" or shown.isprintable()
    assert QUERY_LETTERS >= 4


# cancel


def live(sequence: int, status: str = "running", **changes: Any) -> QueryRow:  # noqa: ANN401
    return row(sequence, status=status, returned_at=0.0, **changes)


def test_cancelling_by_id(node: Plant) -> None:
    node.rows = [live(1), live(2), row(3)]
    done = command(node, "cancel", "1a2b3c4d/1", "2")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "2 queries cancelled.\n"
    assert [one.status for one in node.rows] == ["cancelled", "cancelled", "done"]
    only = command(node, "cancel", "3")
    assert only.exit_code == 1
    assert only.stdout == "0 queries cancelled.\n"
    assert only.stderr == "Query 1a2b3c4d/3 is over: done.\n"
    missing = command(node, "cancel", "77")
    assert missing.exit_code == 1
    assert "There is no query 77." in missing.stderr


def test_cancelling_as_json(node: Plant) -> None:
    node.rows = [live(1)]
    told = as_json(node, "cancel", "1", "2")
    assert [one["id"] for one in told["cancelled"]] == ["1a2b3c4d/1"]
    assert "unknown-query" in told["not_cancelled"]["2"]


def test_cancelling_all_that_match(node: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    node.rows = [live(1), live(2, "waiting"), live(3, user="eve"), row(4), live(5, "streaming")]
    alone = command(node, "cancel", "--all", "--user", "kevin").exception
    assert isinstance(alone, InvalidArgument)
    assert "To cancel 3 queries needs a yes" in alone.sentence
    monkeypatch.setattr(selection, "stdin_is_terminal", lambda: True)
    no = command(node, "cancel", "--all", "--user", "kevin", typed="n\n")
    assert isinstance(no.exception, click.Abort)
    assert [one.status for one in node.rows if one.status == "cancelled"] == []
    yes = command(node, "cancel", "--all", "--user", "kevin", typed="y\n")
    assert "3 queries cancelled." in yes.stdout
    assert [one.status for one in node.rows] == [
        *("cancelled", "cancelled", "running", "done", "cancelled")
    ]
    rest = command(node, "cancel", "--all", "--yes")
    assert rest.stdout == "1 query cancelled: 1a2b3c4d/3.\n"
    assert command(node, "cancel", "--all").stdout == "0 queries cancelled.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Nothing says which"),
        (("1", "--all"), "either ids or --all"),
        (("1", "--user", "eve"), "go with --all"),
        (("--all", "--status", "done"), "are over"),
    ],
)
def test_what_does_not_say_which(node: Plant, arguments: tuple[str, ...], said: str) -> None:
    problem = command(node, "cancel", *arguments).exception
    assert isinstance(problem, InvalidArgument)
    assert said in problem.sentence
    assert node.asked == []
