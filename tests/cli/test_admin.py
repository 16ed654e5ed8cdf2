"""`maitred admin queue list`, `describe` and `update-partitions`, against canned answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from maitred.cli import admin_units as units
from maitred.cli.admin_list import paged
from maitred.cli.admin_names import label, queue_id
from maitred.cli.main import cli
from maitred.client.answers import AT_ONCE
from maitred.errors import (
    InternalError,
    InvalidName,
    InvalidPartition,
    MaitredError,
    PermissionDenied,
    UnsafePartitionChange,
)
from maitred.protocol.tasks import Describe, Resize, StoredAmount
from maitred.routing.names import QueueId
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import MAITRED, maitred

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = 100


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CannedNode]:
    with canned_node(tmp_path) as running:
        yield running


def queue_command(node: CannedNode, *arguments: str, typed: str = "") -> Result:
    """As `maitred admin queue ...`; errors come out as they are."""
    done = CliRunner().invoke(
        cli, ["admin", "queue", *arguments, "--url", node.url], typed, standalone_mode=False
    )
    expected = SystemExit | MaitredError | click.Abort
    if done.exception is not None and not isinstance(done.exception, expected):
        raise done.exception
    return done


def queue_json(node: CannedNode, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return json.loads(queue_command(node, *arguments, "--json").stdout)


# list


def test_queues_in_the_order_of_their_names(node: CannedNode) -> None:
    node.queue("shop/thumbnails", read=4, write=2, version=7)
    node.queue("shop/mails")
    node.queue("ads/clicks")
    done = queue_command(node, "list")
    assert done.exit_code == 0
    heading, *rows = done.stdout.splitlines()
    assert " ".join(heading.split()) == (
        "queue partitions backlog oldest in/s out/s running offers dead failed run p50"
    )
    assert [row.split()[0] for row in rows] == ["ads/clicks", "shop/mails", "shop/thumbnails"]
    assert "4, 2 written" in rows[2]
    assert all("1.2k" in row and "3.4 s" in row for row in rows)
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    assert "--totals" in done.stderr
    assert "of 1,000" not in done.stderr  # far from it: nobody needs to know
    told = queue_json(node, "list")["namespaces"]
    assert {one["namespace"]: one["queues_max"] for one in told} == {"ads": 1_000, "shop": 1_000}
    asked = [one for one in node.asked if isinstance(one, Describe)]
    assert [one.partition for one in asked] == [0] * 6  # both times the roots alone


def test_a_namespace_near_its_quota_of_queues_is_told(node: CannedNode) -> None:
    for number in range(500):
        node.queue(f"shop/q{number:03}")
    node.queue("ads/clicks")
    done = queue_command(node, "list", "--limit", "501")
    assert "Queues that a namespace may have: shop has 500 of 1,000." in done.stderr


def test_totals_ask_every_partition(node: CannedNode) -> None:
    node.queue("shop/thumbnails", read=4, write=2, version=7)
    (told,) = queue_json(node, "list", "--totals")["queues"]
    assert told["partitions_asked"] == 4
    assert (told["backlog"], told["offers"], told["workers"]) == (4 * 1_200, 48, 2)
    assert (told["read"], told["write"], told["version"]) == (4, 2, 7)
    (root,) = queue_json(node, "list")["queues"]
    assert (root["partitions_asked"], root["backlog"]) == (1, 1_200)


def test_only_the_queues_of_the_page_are_described(node: CannedNode) -> None:
    for number in range(1_000):
        node.queue(f"shop/q{number:04}")
    seen: list[str] = []
    after: list[str] = []
    for expected in (400, 400, 200):
        node.asked.clear()
        done = queue_command(node, "list", "--limit", "400", *after, "--json")
        told = json.loads(done.stdout)
        assert len(told["queues"]) == expected
        assert told["total"] == 1_000
        assert sum(isinstance(one, Describe) for one in node.asked) == expected
        seen += [one["queue"] for one in told["queues"]]
        after = ["--after", told["next"]]
        assert ("of 1,000 queues" in done.stderr) == (told["next"] is not None)
    assert seen == sorted(seen)
    assert len(set(seen)) == 1_000
    assert node.most_under_way <= AT_ONCE


def test_one_namespace(node: CannedNode) -> None:
    for name in ("shop/a", "shop/b", "shopping/c"):
        node.queue(name)
    told = queue_json(node, "list", "--namespace", "shop")
    assert [one["queue"] for one in told["queues"]] == ["a", "b"]
    assert told["total"] == 2


def test_no_queues(node: CannedNode) -> None:
    assert queue_command(node, "list").stdout == "There are no queues here.\n"
    assert queue_json(node, "list") == {
        "queues": [],
        "namespaces": [],
        "total": 0,
        "next": None,
        "unreachable": [],
    }
    assert "no more" in queue_command(node, "list", "--after", "zoo/z").stdout


def test_a_queue_whose_root_does_not_answer_is_a_row(node: CannedNode) -> None:
    node.queue("shop/a")
    node.queue("shop/b").silent[0] = InternalError("It stumbled.")
    done = queue_command(node, "list")
    assert done.exit_code == 1
    assert "unreachable" in done.stdout.splitlines()[2]
    assert "shop/b: It stumbled. [internal-error]" in done.stderr
    told = queue_json(node, "list")
    assert told["queues"][1]["error"]["code"] == "internal-error"
    assert told["queues"][0]["backlog"] == 1_200


def test_a_list_that_is_refused(node: CannedNode) -> None:
    node.no_names = PermissionDenied("alice lacks the permission 'admin' on this node.")
    done = queue_command(node, "list")
    assert isinstance(done.exception, PermissionDenied)


def queue_ids() -> st.SearchStrategy[QueueId]:
    names = st.sampled_from(["a", "b", "a/b", "b/a"])
    return st.builds(QueueId, names, names, st.integers(0, 2))


@given(st.lists(queue_ids(), max_size=30), st.integers(1, 8))
def test_pages_have_everything_once(queues: list[QueueId], limit: int) -> None:
    seen: list[QueueId] = []
    after = None
    while True:
        page = paged(queues, limit, after)
        seen += page.queues
        after = page.after
        if after is None:
            break
        assert len(page.queues) >= limit
    assert len(seen) == len(set(seen))
    assert set(seen) == set(queues)
    assert [label(one) for one in seen] == sorted(label(one) for one in seen)


# describe


def test_describe_has_totals_and_a_row_for_each_partition(node: CannedNode) -> None:
    queue = node.queue("shop/thumbnails", read=4, write=2, version=7)
    queue.changes[3] = {"state": "drained", "backlog": 0, "backlog_age_seconds": 99.0}
    queue.changes[0] = {
        "queue_stored": StoredAmount(90, 12_345, 100),
        "namespace_stored": StoredAmount(95, 13_456, None, 2**20),
    }
    done = queue_command(node, "describe", "shop/thumbnails")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "shop/thumbnails"
    assert lines[1] == "partitions  4 to read, 2 to write (version 7)"
    assert lines[2] == "backlog     3,600 waiting, the oldest for 1.6 min; 12 later"
    assert lines[3] == "rates       49/s in, 2/s out"
    assert lines[4] == "workers     2, with 28 tasks running and 48 free slots waiting"
    assert lines[5] == "dead        0"
    assert lines[6] == "queues      3 of 1,000 in the namespace"
    assert lines[7] == "stored      90 of 100 tasks, 12 KiB stored"
    assert lines[8] == "namespace   95 tasks, 13 KiB of 1 MiB stored"
    work = lines[10:15]
    assert work[0].split("  ")[0] == "partition"
    assert [row.split()[0] for row in work[1:]] == ["0", "1", "2", "3"]
    states = [row.split()[2] for row in work[1:]]
    assert states == ["writable", "writable", "read-only", "drained"]
    assert "1.2 ms" in work[1]
    assert "340 ms" in work[1]
    records = lines[16:21]
    assert str(2 * 2**32 + 100) in records[1]
    assert "30/20" in records[1]
    assert records[1].split()[-2:] == ["25%", "10%"]
    assert [row.split()[:2] for row in lines[23:25]] == [["ant", "20"], ["bee", "8"]]
    assert max(map(len, lines)) <= COLUMNS
    shards = {row.split()[1] for row in work[1:]}
    assert shards <= {"0", "1"}


def test_describe_as_json(node: CannedNode) -> None:
    node.queue("shop/thumbnails", read=2, write=2, version=1).changes[0] = {
        "rate_limit_per_second": 0.5
    }
    told = queue_json(node, "describe", "shop/thumbnails")
    assert told["counts"] == {"read": 2, "write": 2, "version": 1}
    assert told["totals"]["backlog"] == 2_400
    assert [one["partition"] for one in told["partitions"]] == [0, 1]
    assert told["partitions"][1]["read_level"] == 2 * 2**32 + 100
    assert told["partitions"][1]["parent"] == 0
    assert told["partitions"][0]["worker_details"][0] == {
        "worker": "ant",
        "running": 5,
        "heard_seconds_ago": 0.5,
    }
    assert told["workers"][0] == {"worker": "ant", "running": 10, "heard_seconds_ago": 0.5}
    assert "limited to 0.5/s" in queue_command(node, "describe", "shop/thumbnails").stdout


def test_a_partition_that_does_not_answer_is_shown_with_the_reason(node: CannedNode) -> None:
    queue = node.queue("shop/thumbnails", read=3, write=3, version=1)
    queue.silent[1] = InternalError("It stumbled.", remedy="Look at its log.")
    done = queue_command(node, "describe", "shop/thumbnails")
    assert done.exit_code == 1
    assert "without the 1 of 3 partitions that did not answer" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "unreachable" in line]
    assert row.split()[:3] == ["1", "-", "unreachable"]
    assert "partition 1: It stumbled. Look at its log. [internal-error]" in done.stdout
    told = queue_json(node, "describe", "shop/thumbnails")
    assert told["partitions"][1] == {
        "partition": 1,
        "state": "unreachable",
        "error": {
            "code": "internal-error",
            "sentence": "It stumbled.",
            "remedy": "Look at its log.",
        },
    }
    assert told["totals"]["unreachable"] == 1
    assert told["totals"]["backlog"] == 2_400


def test_without_its_root_nothing_is_known_of_a_queue(node: CannedNode) -> None:
    node.queue("shop/thumbnails").silent[0] = InternalError("It stumbled.")
    done = queue_command(node, "describe", "shop/thumbnails")
    assert isinstance(done.exception, InternalError)


def test_a_hundred_partitions_are_asked_some_at_a_time(node: CannedNode) -> None:
    node.queue("shop/thumbnails", read=300, write=300, version=1)
    told = queue_json(node, "describe", "shop/thumbnails")
    assert len(told["partitions"]) == 300
    assert told["totals"]["backlog"] == 300 * 1_200
    assert 1 < node.most_under_way <= AT_ONCE


def test_many_workers_are_cut_in_the_table(node: CannedNode) -> None:
    names = [f"worker-{number:03}" for number in range(100)]
    node.queue("shop/thumbnails").changes[0] = {"workers": names, "worker_details": []}
    done = queue_command(node, "describe", "shop/thumbnails")
    assert "20 of 100 workers; --json has them all." in done.stderr
    assert "worker-019" in done.stdout
    assert "worker-020" not in done.stdout
    assert len(queue_json(node, "describe", "shop/thumbnails")["workers"]) == 100


def test_wide_numbers_still_fit_a_hundred_columns(node: CannedNode) -> None:
    node.queue("shop/thumbnails").changes[0] = {
        "partition": 0,
        "state": "read-only",
        "backlog": 10_000_000,
        "backlog_age_seconds": 86_400 * 12.0,
        "read_level": 200 * 2**32,
        "ack_level": 199 * 2**32,
        "range_id": 200,
        "added_per_second": 123_456.0,
        "finished_per_second": 99_999.0,
        "running": 12_345,
        "offers": 54_321,
        "later": 1_000_000,
        "dead": 100_000,
        "lost": 12_345,
        "forwarded_tasks": 999_999,
        "forwarded_offers": 123_456,
        "added": 10**9,
        "matched_at_once": 10**9,
        "never_written": 10**9,
    }
    done = queue_command(node, "describe", "shop/thumbnails")
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS


# How a queue is named


@pytest.mark.parametrize(
    ("text", "namespace", "expected"),
    [
        ("shop/thumbnails", None, ("shop", "thumbnails")),
        ("shop/a/b", None, ("shop", "a/b")),
        ("thumbnails", "shop", ("shop", "thumbnails")),
        ("a/b", "shop/north", ("shop/north", "a/b")),
    ],
)
def test_names_of_queues(text: str, namespace: str | None, expected: tuple[str, str]) -> None:
    assert queue_id(text, namespace) == QueueId(*expected, 1)


@pytest.mark.parametrize("text", ["thumbnails", "/thumbnails", "shop/", "shop:1/a", "", "shop/a:b"])
def test_names_that_no_queue_has(text: str) -> None:
    with pytest.raises(InvalidName):
        queue_id(text, None)
    for command in (
        ("describe", text),
        ("update-partitions", text, "--read", "1", "--write", "1"),
        ("dead", "list", text),
        ("dead", "show", text, "0/1"),
        ("dead", "drop", text, "0/1", "--yes"),
    ):
        done = maitred("admin", "queue", *command) if command[0] == "describe" else None
        if done is not None:
            assert done.returncode == 2
            assert "[invalid-name]" in done.stderr


# update-partitions


def resized(node: CannedNode, read: int, write: int, *more: str) -> Result:
    return queue_command(
        node,
        "update-partitions",
        "shop/thumbnails",
        "--read",
        str(read),
        "--write",
        str(write),
        *more,
    )


def test_growing_and_shrinking(node: CannedNode) -> None:
    queue = node.queue("shop/thumbnails", read=2, write=2, version=3)
    grown = resized(node, 4, 4)
    assert grown.stdout.splitlines()[:2] == [
        "shop/thumbnails: 2 to read, 2 to write (version 3) -> 4 to read, 4 to write (version 4)",
        "Producers and workers hear of it with their next answer.",
    ]
    shrinking = resized(node, 4, 2)
    assert "Partitions 2 to 3 take no new tasks any more; workers empty them now." in (
        shrinking.stdout
    )
    assert "update-partitions shop/thumbnails --read 2 --write 2" in shrinking.stdout
    queue.drained = {2: 5, 3: 5}
    gone = resized(node, 2, 2)
    assert "2 partitions are gone." in gone.stdout
    assert (queue.counts.read, queue.counts.write, queue.counts.version) == (2, 2, 6)
    assert "Nothing changes" in resized(node, 2, 2).stdout
    one = resized(node, 2, 1)
    assert "Partition 1 takes no new tasks any more; workers empty it now." in one.stdout


def test_what_could_strand_tasks_is_refused_unless_forced(node: CannedNode) -> None:
    queue = node.queue("shop/thumbnails", read=4, write=4, version=3)
    refused = resized(node, 2, 2)
    assert isinstance(refused.exception, UnsafePartitionChange)
    assert "still written to" in refused.exception.sentence
    assert queue.counts.version == 3
    told = json.loads(resized(node, 2, 2, "--force", "--json").stdout)
    assert told == {
        "before": {"read": 4, "write": 4, "version": 3},
        "after": {"read": 2, "write": 2, "version": 4},
    }


def test_refusals_have_their_exit_code(node: CannedNode) -> None:
    node.queue("shop/thumbnails", read=4, write=4, version=3)
    command = ("admin", "queue", "update-partitions", "shop/thumbnails", "--url", node.url)
    done = maitred(*command, "--read", "2", "--write", "2")
    assert done.returncode == 2
    assert "[unsafe-partition-change]" in done.stderr
    assert "First lower write" in done.stderr


@pytest.mark.parametrize(("read", "write"), [(0, 0), (1, 2), (-1, 1), (100_001, 1)])
def test_counts_that_can_never_be(node: CannedNode, read: int, write: int) -> None:
    node.queue("shop/thumbnails")
    assert isinstance(resized(node, read, write).exception, InvalidPartition)
    assert not any(isinstance(one, Resize) for one in node.asked)


# Words and numbers


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1k"),
        (1_234, "1.2k"),
        (9_960, "10k"),
        (12_345, "12k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (10_000_000, "10M"),
        (2**63 - 1, "9.2E"),
    ],
)
def test_counts_in_words(number: int, said: str) -> None:
    assert str(units.count(number)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (-1, "0 s"),
        (0.000_012, "12 us"),
        (0.000_999_9, "1 ms"),
        (0.0034, "3.4 ms"),
        (0.34, "340 ms"),
        (0.999_9, "1 s"),
        (3.44, "3.4 s"),
        (59, "59 s"),
        (59.99, "1 min"),
        (90, "1.5 min"),
        (7_200, "2 h"),
        (86_400 * 400, "400 d"),
    ],
)
def test_durations_in_words(seconds: float, said: str) -> None:
    assert str(units.duration(seconds)) == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0, "0"), (0.001, "0.001"), (0.5, "0.5"), (3.0, "3"), (12.34, "12"), (1_234.5, "1.2k")],
)
def test_rates_in_words(rate: float, said: str) -> None:
    assert str(units.rate(rate)) == said


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 B"), (999, "999 B"), (1_024, "1 KiB"), (2 * 2**20, "2 MiB")]
)
def test_sizes_in_words(size: int, said: str) -> None:
    assert str(units.size(size)) == said


# As the other commands


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("admin", "queu"), "Did you mean 'queue'?"),
        (("admin", "queue", "lst"), "Did you mean 'list'?"),
        (("admin", "queue", "dead", "burn"), "Choose one of: drop, list, retry, show"),
        (("admin", "queue", "describe"), "Missing argument 'QUEUE'"),
        (("admin", "queue", "list", "--limit", "0"), "not in the range"),
        (("admin", "queue", "update-partitions", "a/b", "--read", "1"), "'--write'"),
    ],
)
def test_wrong_words(arguments: tuple[str, ...], said: str) -> None:
    done = maitred(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "describe a/b",
        "update-partitions a/b --read 1 --write 1",
        "dead list a/b",
        "dead show a/b 0/1",
        "dead retry a/b 0/1",
        "dead drop a/b 0/1 --yes",
    ],
)
def test_no_node_there(command: str) -> None:
    done = CliRunner().invoke(
        cli,
        ["admin", "queue", *command.split(), "--url", "maitred://127.0.0.1:1", "--timeout", "0.2"],
        standalone_mode=False,
    )
    assert isinstance(done.exception, MaitredError)
    assert done.exception.code == "unavailable"


def test_bash_completes_down_to_the_options() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("NO BASH HERE: completion was not tried in a shell")

    def completed(*words: str) -> str:
        return (
            f"COMPREPLY=(); COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1};"
            '_maitred_completion maitred; echo "${COMPREPLY[@]}";'
        )

    program = (
        f'export PATH="{MAITRED.parent}:$PATH"; eval "$(maitred completion bash)";'
        + completed("maitred", "adm")
        + completed("maitred", "admin", "queue", "up")
        + completed("maitred", "admin", "queue", "dead", "re")
        + completed("maitred", "admin", "task", "run")
        + completed("maitred", "admin", "task", "cancel", "a/b", "--st")
        + completed("maitred", "admin", "queue", "update-partitions", "a/b", "--fo")
    )
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
    expected = ["admin", "update-partitions", "retry", "run-now", "--state", "--force"]
    assert done.stdout.split() == expected


@pytest.mark.parametrize(
    "command",
    ["", "queue", "queue list", "queue describe", "queue update-partitions", "queue dead"]
    + [f"queue dead {action}" for action in ("list", "show", "retry", "drop")]
    + ["task", "task list", "task show"]
    + [f"task {action}" for action in ("cancel", "retry", "run-now", "drop", "again")],
)
def test_every_command_has_help(command: str) -> None:
    done = CliRunner().invoke(
        cli, ["admin", *command.split(), "--help"], prog_name="maitred", standalone_mode=False
    )
    assert done.stdout.startswith(" ".join(["Usage: maitred admin", *command.split()]))
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS


def test_help_does_not_load_the_client() -> None:
    """Completion asks for the commands and their options at each press of a key."""
    program = "import sys, maitred.cli.admin; print(*(m for m in HEAVY if m in sys.modules))"
    heavy = ["asyncio", "uvloop", "maitred.client.client", "maitred.protocol.tasks"]
    done = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {heavy!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
