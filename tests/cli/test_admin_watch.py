"""`maitred admin queue watch`: the table again and again, of a node with canned queues."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from maitred.errors import InvalidName, StoreUnavailable
from maitred.matching.controls import Pause, QueueControls
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import running
from tests.cli.test_admin import queue_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAUSED = {"controls": QueueControls(version=7, pause=Pause(by="ana", at=1.0))}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CannedNode]:
    with canned_node(tmp_path) as running_node:
        running_node.queue("shop/mails")
        running_node.queue("shop/other", read=2, write=2, version=1)
        running_node.queue("ads/clicks")
        yield running_node


def watched(
    node: CannedNode, *arguments: str, until: str, change: Callable[[], None] = lambda: None
) -> tuple[str, str]:
    """What it prints from the first table, after which things change, until that text."""
    with running("admin", "queue", "watch", *arguments, "--url", node.url) as process:
        assert process.stdout is not None
        seen = process.stdout.readline()
        change()
        while until not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    return seen, errors


def test_a_queue_that_is_paused_meanwhile(node: CannedNode) -> None:
    def pause() -> None:
        node.queues["shop", "mails", 1].changes[0] = PAUSED

    seen, errors = watched(node, until="paused", change=pause)
    assert errors == ""
    first = seen.splitlines()
    assert first[0].split() == [
        *("queue", "partitions", "backlog", "oldest", "in/s", "out/s"),
        *("running", "offers", "dead", "stored", "quota"),
    ]
    assert [line.split()[0] for line in first[1:4]] == ["ads/clicks", "shop/mails", "shop/other"]
    assert "\033" not in seen, "only a terminal is cleared"


def test_named_queues_as_json(node: CannedNode) -> None:
    seen, _ = watched(node, "shop/other", "--json", until="\n")
    (told,) = [json.loads(line) for line in seen.splitlines()[:1]]
    (queue,) = told["queues"]
    assert (queue["queue"], queue["partitions_asked"], queue["backlog"]) == ("other", 2, 2_400)
    assert queue["paused"] is None


def test_only_a_screen_is_watched_unless_queues_are_named(node: CannedNode) -> None:
    seen, _ = watched(node, "--namespace", "shop", "--limit", "1", until="name those")
    assert "1 of 2 queues; name those you want to see." in seen
    assert "ads/clicks" not in seen


def test_a_queue_that_does_not_answer_is_shown_as_well(node: CannedNode) -> None:
    node.queues["shop", "mails", 1].silent[0] = StoreUnavailable("The disk is away.")
    seen, errors = watched(node, until="shop/other")
    assert "unreachable" in seen
    assert "shop/mails: The disk is away. [store-unavailable]" in errors


def test_a_name_without_a_namespace(node: CannedNode) -> None:
    assert isinstance(queue_command(node, "watch", "mails").exception, InvalidName)
