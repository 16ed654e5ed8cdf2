"""`maitred admin queue purge`, against canned answers and a real node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest

import maitred as library
from maitred.cli.address import AskedNode
from maitred.cli.admin_purge import chosen_states
from maitred.errors import InvalidArgument, StoreUnavailable, UnknownQueue
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import Add, Purged, PurgeTasks
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import maitred, maitred_json
from tests.cli.test_admin import queue_command, queue_json
from tests.node.nodes import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maitred.node.shard import Shard


class PurgedNode(CannedNode):
    """Each partition has 25 tasks of each state, and drops ten with a request."""

    leaves_with: tuple[str, int] = ("", 0)
    """Once this state of this partition is purged, the root does not answer any more."""

    def serve(self, shard: Shard) -> None:
        super().serve(shard)

        def purge(message: PurgeTasks) -> Purged:
            self.asked.append(message)
            queue = self.queues[message.namespace, message.queue, message.queue_type]
            if message.partition in queue.silent:
                raise queue.silent[message.partition]
            if message.partition >= queue.counts.read:
                raise UnknownQueue("The partition does not exist.")
            done = message.cursor[1]
            now = min(10, 25 - done)
            if (message.state, message.partition, done) == (*self.leaves_with, 20):
                queue.silent[0] = StoreUnavailable("The disk is away.")
            return Purged(now, done + now == 25, 77, (0, done + now))

        shard.handlers[Opcode.PURGE] = purge

    @property
    def purges(self) -> list[PurgeTasks]:
        return [one for one in self.asked if isinstance(one, PurgeTasks)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[PurgedNode]:
    with canned_node(tmp_path, canned=PurgedNode()) as running:
        assert isinstance(running, PurgedNode)
        running.queue("shop/mails", read=2, write=2, version=1)
        yield running


def test_all_partitions_are_purged_in_pieces(node: PurgedNode) -> None:
    done = queue_command(node, "purge", "shop/mails", "--yes", "--reason", "why")
    assert done.exit_code == 0
    assert done.stdout == "shop/mails: 50 waiting tasks, 50 delayed tasks dropped.\n"
    assert "waiting tasks so far" in done.stderr
    assert {one.reason for one in node.purges} == {"why"}
    first = [one for one in node.purges if one.partition == 1 and one.state == "waiting"]
    assert [(one.until, one.cursor) for one in first] == [(0, (0, 0)), (77, (0, 10)), (77, (0, 20))]


def test_a_dry_run_needs_no_yes_and_drops_nothing(node: PurgedNode) -> None:
    arguments = ("--dry-run", "--state", "dead", "--older-than", "60")
    told = queue_json(node, "purge", "shop/mails", *arguments)
    assert told == {"dry_run": True, "tasks": {"dead": 50}, "unreachable": []}
    assert all((one.dry_run, one.older_than) == (True, 60.0) for one in node.purges)
    done = queue_command(node, "purge", "shop/mails", *arguments)
    assert done.stdout == "shop/mails: 50 dead letters to drop.\n"


@pytest.mark.parametrize("age", ["nan", "inf", "1e300"])
def test_an_age_that_is_none_is_refused_before_anything_is_asked(
    node: PurgedNode, age: str
) -> None:
    done = queue_command(node, "purge", "shop/mails", "--yes", "--older-than", age)
    assert isinstance(done.exception, InvalidArgument)
    assert "--older-than cannot be" in str(done.exception)
    assert not node.purges


def test_a_purge_needs_a_yes(node: PurgedNode) -> None:
    problem = queue_command(node, "purge", "shop/mails").exception
    assert isinstance(problem, InvalidArgument)
    assert "--yes" in str(problem.remedy)
    assert not node.purges


def test_partitions_that_do_not_answer(node: PurgedNode) -> None:
    node.queues["shop", "mails", 1].silent[1] = StoreUnavailable("The disk is away.")
    done = queue_command(node, "purge", "shop/mails", "--yes", "--state", "waiting")
    assert done.exit_code == 1
    assert "25 waiting tasks dropped" in done.stdout
    assert "partition 1: The disk is away. [store-unavailable]" in done.stderr


def test_what_was_dropped_is_told_if_the_root_leaves_meanwhile(node: PurgedNode) -> None:
    node.leaves_with = ("waiting", 1)
    done = queue_command(node, "purge", "shop/mails", "--yes")
    assert done.exit_code == 1
    assert "waiting tasks, 0 delayed tasks dropped.\n" in done.stdout
    assert not done.stdout.startswith("shop/mails: 0 waiting")
    assert "partition 0: The disk is away. [store-unavailable]" in done.stderr


def test_what_was_dropped_is_told_after_ctrl_c(
    node: PurgedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = AskedNode.ask

    def interrupted(self: AskedNode, question: Any) -> None:  # noqa: ANN401 - for a client
        ask(self, question)
        raise KeyboardInterrupt

    monkeypatch.setattr(AskedNode, "ask", interrupted)
    done = queue_command(node, "purge", "shop/mails", "--yes", "--state", "waiting")
    assert isinstance(done.exception, click.Abort)
    said = "shop/mails: 50 waiting tasks dropped, and those of requests in flight.\n"
    assert said in done.stderr
    dry = queue_command(node, "purge", "shop/mails", "--dry-run")
    assert isinstance(dry.exception, click.Abort)
    assert "dropped" not in dry.stderr


def test_a_real_queue_is_purged() -> None:
    with running_node() as node:
        with library.connect(node.url) as client:
            client.request(Add("shop", "mails", 1, 0, 0, 0, [b"\x90"] * 3))
        done = maitred("admin", "queue", "purge", "shop/mial", "--yes", "--url", node.url)
        assert done.returncode == 2
        assert "Did you mean 'shop/mails'?" in done.stderr
        purge = ("admin", "queue", "purge", "shop/mails", "--url", node.url)
        found = {"waiting": 3, "delayed": 0}
        assert maitred_json(*purge, "--dry-run")["tasks"] == found
        assert maitred_json(*purge, "--yes")["tasks"] == found
        assert maitred_json(*purge, "--dry-run")["tasks"] == {"waiting": 0, "delayed": 0}


def test_which_states_are_purged() -> None:
    assert chosen_states([], 0.0) == ["waiting", "delayed"]
    assert chosen_states([], 60.0) == ["waiting"]
    assert chosen_states(["dead", "waiting", "dead"], 60.0) == ["dead", "waiting"]
    with pytest.raises(InvalidArgument, match="delayed"):
        chosen_states(["delayed"], 60.0)
