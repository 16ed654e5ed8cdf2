"""`maitred admin queue` against a real node, from the first task to the last dead letter."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from msgspec import msgpack

import maitred as library
from maitred.matching.records import Terms
from maitred.protocol.tasks import FAILED, Add, End, Failure, Finish, Offer, Offered
from tests.cli.running import maitred, maitred_json
from tests.node.nodes import RunningNode, running_node, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

QUEUE = "shop/thumbnails"
SESSION = bytes(16)
ADDED, FAILING = 5, 3


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    """With a queue of five tasks, of which three have failed for good."""
    with running_node(shards=2) as running:
        with library.connect(running.url) as client:
            payloads = [msgpack.encode({"n": number}) for number in range(ADDED)]
            # Once, and then it is dead. The producer knows that the handler hides nothing.
            terms = Terms(retries=0, hidden=())
            client.request(Add("shop", "thumbnails", 1, 0, 0, 0, payloads, terms=terms))
            offer = Offer("shop", "thumbnails", 1, 0, 0, 0, SESSION, "ant", FAILING)
            given = cast("Offered", client.request(offer)).tasks
            why = msgpack.encode(Failure("ValueError", "too small", "Traceback: here"))
            ends = [End(task.sequence, task.attempt, task.proof, FAILED, why) for task in given]
            client.request(Finish("shop", "thumbnails", 1, 0, 0, SESSION, ends))
        yield running


def asked(node: RunningNode, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return maitred_json("admin", "queue", *arguments, "--url", node.url)


def test_the_life_of_a_queue(node: RunningNode) -> None:
    queues = asked(node, "list")["queues"]
    (listed,) = [one for one in queues if one["queue"] == "thumbnails"]
    assert (listed["namespace"], listed["type"]) == ("shop", 1)
    assert (listed["backlog"], listed["dead"]) == (ADDED - FAILING, FAILING)

    told = asked(node, "describe", QUEUE)
    (root,) = told["partitions"]
    assert (root["added"], root["backlog"], root["running"]) == (ADDED, ADDED - FAILING, 0)
    assert root["shard"] in (0, 1)
    assert told["workers"] == [], "the one that was here is gone"

    letters = asked(node, "dead", "list", QUEUE)["letters"]
    assert [one["failure"]["kind"] for one in letters] == ["ValueError"] * FAILING
    shown = asked(node, "dead", "show", QUEUE, letters[1]["id"])
    assert shown["payload"] == {"n": 1}
    assert shown["failure"]["message"] == "too small"

    assert asked(node, "dead", "drop", QUEUE, letters[0]["id"], "--yes")["done"] == 1
    assert asked(node, "dead", "retry", QUEUE, "--all", "--yes")["done"] == FAILING - 1
    assert asked(node, "dead", "list", QUEUE)["total"] == 0
    assert asked(node, "describe", QUEUE)["totals"]["backlog"] == ADDED - 1


def test_partitions_come_and_go(node: RunningNode) -> None:
    command = ("update-partitions", "shop/other", "--read")
    assert asked(node, *command, "4", "--write", "4")["after"]["read"] == 4
    refused = maitred("admin", "queue", *command, "2", "--write", "2", "--url", node.url)
    assert refused.returncode == 2
    assert "[unsafe-partition-change]" in refused.stderr
    assert asked(node, *command, "4", "--write", "2")["after"]["write"] == 2

    def states() -> list[str]:
        return [one["state"] for one in asked(node, "describe", "shop/other")["partitions"]]

    wait_until(lambda: states() == ["writable"] * 2 + ["drained"] * 2, "the others are drained")
    assert asked(node, *command, "2", "--write", "2")["after"] == {
        "read": 2,
        "write": 2,
        "version": 3,
    }


def test_a_name_that_nobody_uses_is_pointed_out(node: RunningNode) -> None:
    done = maitred("admin", "queue", "describe", "shop/thumbnial", "--url", node.url)
    assert done.returncode == 2
    assert "The queue shop/thumbnial does not exist. [unknown-queue]" in done.stderr
    assert f"Did you mean '{QUEUE}'?" in done.stderr
    used = maitred("admin", "queue", "describe", QUEUE, "--url", node.url)
    assert used.stderr == ""


def test_the_commands_of_the_guide_delete_queues(node: RunningNode) -> None:
    """docs/tasks.md: a queue that does not exist, one that is in use, and what the force does."""
    guide = (Path(__file__).parent.parent.parent / "docs" / "tasks.md").read_text()
    lines = re.findall(r"^\$ maitred (admin queue delete .*)$", guide, re.MULTILINE)
    missing, forced = (shlex.split(line) for line in lines)
    done = maitred(*missing, "--url", node.url)
    assert (done.returncode, "does not exist" in done.stdout) == (0, True)
    with library.connect(node.url) as client:
        client.request(Add("shop", "mails", 1, 0, 0, 0, [b"\x80"] * 3))
    careful = [word for word in forced if word != "--force"]
    refused = maitred(*careful, "--url", node.url)
    assert refused.returncode != 0
    assert "has 3 tasks; nothing was deleted" in refused.stderr
    assert "--force" in refused.stderr
    nobody = maitred(*(word for word in forced if word != "--yes"), "--url", node.url)
    assert "not a terminal" in nobody.stderr
    done = maitred(*forced, "--url", node.url)
    assert done.returncode == 0
    assert "shop/mails is deleted: partitions 1, tasks 3, dead letters 0." in done.stdout
    assert "mails" not in [one["queue"] for one in asked(node, "list")["queues"]]
    listed = asked(node, "list")
    (use,) = [one for one in listed["namespaces"] if one["namespace"] == "shop"]
    here = [one for one in listed["queues"] if one["namespace"] == "shop"]
    assert (use["queues"], use["queues_max"]) == (len(here), 1_000)
