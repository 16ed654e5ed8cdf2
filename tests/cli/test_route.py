from __future__ import annotations

import json

import pytest

from maitred.routing import GradualChange, HashRing, QueueId, own_key, parse_time, routes
from tests.cli.running import maitred, maitred_json

BASE = ("route", "--namespace", "shop", "--queue", "thumbs", "--hosts", "a:1,b:2,c:3")


def test_json_has_exactly_the_promised_fields() -> None:
    found = maitred_json(
        *BASE, "--type", "2", "--partitions", "9", "--batch-size", "4", "--replica-points", "50",
        "--shards", "8", "--ignore-msb", "12", "--degree", "3",
    )  # fmt: skip
    expected = routes(
        HashRing(["a:1", "b:2", "c:3"], replica_points=50),
        QueueId("shop", "thumbs", 2),
        9,
        batch_size=4,
        shards=8,
        ignore_msb=12,
        degree=3,
    )
    assert found == [route._asdict() for route in expected]
    assert list(found[0]) == ["partition", "name", "key", "index", "node", "shard", "parent"]


def test_a_batch_may_be_larger_than_the_number_of_partitions() -> None:
    """As at a node, which cannot know how many partitions its queues will have."""
    small = maitred_json(*BASE, "--partitions", "2", "--batch-size", "2")
    assert maitred_json(*BASE, "--partitions", "2", "--batch-size", "8") == small


def test_the_table_and_the_tree() -> None:
    shown = maitred(*BASE, "--partitions", "6", "--degree", "2")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["partition", "name", "key", "index", "node", "shard", "parent"]
    assert lines[1].split() == ["0", "thumbs", "shop:thumbs:1", "0", "a:1", "0", "-"]
    tree = lines[lines.index("") + 1 :]
    assert [
        line.split("  ")[0] if "─" not in line else line[: line.index(":") - 3] for line in tree
    ] == [
        "thumbs",
        "├─ 1",
        "│  ├─ 3",
        "│  └─ 4",
        "└─ 2",
        "   └─ 5",
    ]


def test_a_tree_too_deep_to_draw_is_not_drawn() -> None:
    shown = maitred(*BASE, "--partitions", "500", "--degree", "1")
    assert shown.stdout.splitlines()[-1] == "(a tree of depth 499, too deep to draw)"


CHANGE = {"old": 0, "new": 4, "start": "2026-11-15T20:00:00Z", "end": 1794780000}


def test_a_gradual_change_shows_before_after_and_when() -> None:
    found = maitred_json(*BASE, "--partitions", "6", "--batch-size", json.dumps(CHANGE))
    before = maitred_json(*BASE, "--partitions", "6")
    after = maitred_json(*BASE, "--partitions", "6", "--batch-size", "4")
    assert [row["before"] for row in found] == before
    assert [row["after"] for row in found] == after
    change: GradualChange[int] = GradualChange.parse(CHANGE)
    for row in found:
        key = own_key(QueueId("shop", "thumbs", 1), row["partition"])
        assert change.value(key, parse_time(row["flips_at"])) == 4, "it has flipped by then"
        assert change.value(key, parse_time(row["flips_at"]) - 2e-6) == 0, "and not long before"
    shown = maitred(*BASE, "--partitions", "6", "--batch-size", json.dumps(CHANGE)).stdout
    assert shown.splitlines()[0].split()[:5] == ["partition", "name", "before", "after", "flips"]
    moving = sum(row["before"]["node"] != row["after"]["node"] for row in found)
    assert f"{moving} of 6 partitions move to another node" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--hosts", ""), "no-hosts", "No hosts are given"),
        (("--hosts", "a:1,b:2,a:1"), "duplicate-host", "'a:1' is named twice"),
        (("--hosts", "a:1,,b:2"), "invalid-name", "The host is empty"),
        (("--partitions", "-1"), "invalid-partition", "not -1"),
        (("--batch-size", "100001"), "invalid-partition", "100,001 is more than the 100,000"),
        (("--batch-size", "-2"), "invalid-partition", "-2 is negative"),
        (("--batch-size", "many"), "invalid-gradual-change", "'many' is neither a number"),
        (("--batch-size", "1.5"), "invalid-gradual-change", "neither a number"),
        (("--batch-size", "9" * 5_000), "invalid-gradual-change", "'999"),
        (("--batch-size", "[" * 100_000), "invalid-gradual-change", "'[[["),
        (
            ("--batch-size", '{"old": 0, "new": 2, "start": 0, "end": 1' + "0" * 400 + "}"),
            "invalid-gradual-change",
            "is not a time",
        ),
        (
            ("--batch-size", '{"old": 0, "new": 2, "start": -1.7e308, "end": 1.7e308}'),
            "invalid-gradual-change",
            "longer than numbers go",
        ),
        (("--batch-size", '{"old": 0}'), "invalid-gradual-change", "lacks new, start, end"),
        (
            ("--batch-size", '{"old": 0, "new": 2, "start": 9, "end": 1}'),
            "invalid-gradual-change",
            "after its end",
        ),
        (
            ("--batch-size", '{"old": true, "new": 2, "start": 0, "end": 1}'),
            "invalid-partition",
            "True is not a whole number",
        ),
        (("--placement", "stedy"), "unknown-algorithm", "Did you mean 'steady'?"),
        (("--queue", ""), "invalid-name", "The queue is empty"),
        (("--queue", "a:b"), "invalid-name", "has a colon"),
        (("--namespace", "/".join("x" * 200)), "invalid-name", "at most 255"),
        (("--type", "-1"), "invalid-name", "queue type -1"),
        (("--shards", "0"), "invalid-shards", "not 0"),
        (("--ignore-msb", "64"), "invalid-shards", "not 64"),
        (("--degree", "0"), "invalid-partition", "at least 1 child"),
        (("--replica-points", "0"), "invalid-argument", "points on the ring"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], code: str, sentence: str) -> None:
    refused = maitred(*BASE, *arguments)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert f"[{code}]" in refused.stderr
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
