"""`maitred admin queue pause`, `resume` and `set`: against canned answers, and a real node."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import maitred as library
from maitred.cli.admin_control import read_settings, told_of_settings
from maitred.errors import InvalidArgument, InvalidSetting, UnknownQueue, UnknownSetting
from maitred.matching.controls import LiveSetting, Pause, QueueControls
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import Add, ControlQueue, EffectiveSetting, QueueControlled
from maitred.settings.live import SETTABLE
from tests.cli.admin_node import CannedNode, canned_node
from tests.cli.running import maitred, maitred_json
from tests.cli.test_admin import queue_command, queue_json
from tests.node.nodes import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maitred.node.shard import Shard

PAUSE = Pause(by="ana", at=1_700_000_000.0, reason="a bad release")
CONTROLS = QueueControls(version=7, pause=PAUSE)


class ControlledNode(CannedNode):
    """A node that answers CONTROL as the test says."""

    answer = QueueControlled(CONTROLS, changed=True, partitions=4, told=4)

    def serve(self, shard: Shard) -> None:
        super().serve(shard)

        def control(message: ControlQueue) -> QueueControlled:
            self.asked.append(message)
            if (message.namespace, message.queue, message.queue_type) not in self.queues:
                raise UnknownQueue("The queue does not exist.")
            return self.answer

        shard.handlers[Opcode.CONTROL] = control

    @property
    def controls(self) -> list[ControlQueue]:
        return [one for one in self.asked if isinstance(one, ControlQueue)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ControlledNode]:
    with canned_node(tmp_path, canned=ControlledNode()) as running:
        assert isinstance(running, ControlledNode)
        running.queue("shop/mails")
        yield running


def test_a_pause_says_why_and_which_version_it_expects(node: ControlledNode) -> None:
    reason = ("--reason", "a bad release", "--expect-version", "6")
    done = queue_command(node, "pause", "shop/mails", *reason)
    assert done.exit_code == 0
    assert done.stdout == "shop/mails is paused. Running tasks go on.\n"
    (asked,) = node.controls
    assert (asked.action, asked.reason, asked.version) == ("pause", "a bad release", 6)


def test_a_queue_that_was_paused_already(node: ControlledNode) -> None:
    node.answer = QueueControlled(CONTROLS, changed=False, partitions=4, told=4)
    done = queue_command(node, "pause", "shop/mails")
    assert done.exit_code == 0
    assert done.stdout.startswith("shop/mails was paused already, for ")
    assert done.stdout.endswith(", by ana: a bad release.\n")


def test_resuming(node: ControlledNode) -> None:
    assert queue_command(node, "resume", "shop/mails").stdout == "shop/mails is resumed.\n"
    node.answer = QueueControlled(QueueControls(), changed=False, partitions=1, told=1)
    assert queue_command(node, "resume", "shop/mails").stdout == "shop/mails was not paused.\n"


def test_partitions_that_did_not_answer(node: ControlledNode) -> None:
    node.answer = QueueControlled(CONTROLS, changed=True, partitions=4, told=2)
    done = queue_command(node, "pause", "shop/mails")
    assert done.exit_code == 1
    assert "2 partitions did not answer; the root goes on telling them." in done.stderr


def test_json_has_the_record(node: ControlledNode) -> None:
    told = queue_json(node, "pause", "shop/mails")
    assert told == {
        "controls": {
            "version": 7,
            "pause": {"by": "ana", "at": 1_700_000_000.0, "reason": "a bad release"},
            "settings": {},
            "words": {},
        },
        "changed": True,
        "partitions": 4,
        "told": 4,
    }


@pytest.mark.parametrize("command", [("pause",), ("resume",), ("set", "rate=5")])
def test_a_queue_that_does_not_exist(node: ControlledNode, command: tuple[str, ...]) -> None:
    name, *rest = command
    problem = queue_command(node, name, "shop/mial", *rest).exception
    assert isinstance(problem, UnknownQueue)
    assert problem.remedy == "Did you mean 'shop/mails'?"


@pytest.mark.parametrize(
    "command", [("pause",), ("resume",), ("set", "rate=5"), ("purge", "--yes")]
)
def test_a_reason_that_is_too_long(node: ControlledNode, command: tuple[str, ...]) -> None:
    name, *rest = command
    done = queue_command(node, name, "shop/mails", *rest, "--reason", "x" * 501)
    assert isinstance(done.exception, InvalidArgument)
    assert str(done.exception) == "The reason has 501 characters. Write at most 500."
    assert not node.controls
    done = queue_command(node, "pause", "shop/mails", "--reason", "x" * 500)
    assert done.exit_code == 0


def test_settings_are_typed_as_people_type_them(node: ControlledNode) -> None:
    done = queue_command(
        node, "set", "shop/mails", "rate=2.5", "scaling.adaptive=off", "--unset",
        "scaling.partitions_max",
    )  # fmt: skip
    assert done.stdout == "shop/mails: its settings have version 7.\n"
    (asked,) = node.controls
    assert asked.settings == {"rate_per_second": 2.5, "scaling.adaptive": False}
    assert asked.unset == ["scaling.partitions_max"]
    assert read_settings(["rate=none", "scaling.partitions_max=8"], []) == (
        {"rate_per_second": None, "scaling.partitions_max": 8},
        [],
    )


@pytest.mark.parametrize(
    ("arguments", "unset", "kind", "said"),
    [
        (["rate"], [], InvalidArgument, "does not say a value"),
        (["rate=fast"], [], InvalidSetting, "rate_per_second cannot be 'fast'"),
        (["queries.policy=fast"], [], InvalidSetting, "queries.policy cannot be 'fast'"),
        (["rate=0"], [], InvalidSetting, "rate_per_second cannot be 0"),
        (["rate=none"], ["rate"], InvalidArgument, "both set and unset"),
        (["ratio=5"], [], UnknownSetting, "no live setting of a queue called 'ratio'"),
        ([], ["retention"], UnknownSetting, "called 'retention'"),
        ([], [], InvalidArgument, "Nothing says what to set"),
    ],
)
def test_settings_that_cannot_be_set(
    arguments: list[str], unset: list[str], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        read_settings(arguments, unset)


def test_list_and_describe_show_the_pause_and_the_settings(node: ControlledNode) -> None:
    mails = node.queue("shop/mails")
    node.queue("shop/other")
    assert "state" not in queue_command(node, "list").stdout
    live = EffectiveSetting(5.0, "live", "ana", 1_700_000_000.0, "calm")
    settings = {
        "rate_per_second": live,
        "scaling.adaptive": EffectiveSetting(value=True, source="default"),
        "scaling.partitions_max": EffectiveSetting(8, "settings"),
    }
    recently = Pause(by="ana", at=time.time(), reason="a bad release")
    controls = QueueControls(version=7, pause=recently, settings={"x": LiveSetting(value=1)})
    mails.changes[0] = {"controls": controls, "settings": settings}
    heading, first, second = queue_command(node, "list").stdout.splitlines()
    assert heading.split()[:2] == ["queue", "state"]
    assert first.split()[:2] == ["shop/mails", "paused"]
    assert "paused" not in second
    listed = {one["queue"]: one["paused"] for one in queue_json(node, "list")["queues"]}
    assert (listed["mails"]["by"], listed["other"]) == ("ana", None)
    shown = queue_command(node, "describe", "shop/mails").stdout
    for line in (
        "paused      for ",
        ", by ana: a bad release",
        "rate_per_second = 5 (set live by ana at 2023-11-14 22:13:20+00:00: calm)",
        "scaling.adaptive = on (the default)",
        "scaling.partitions_max = 8 (the node's settings)",
        "controls    version 7",
        "writable, paused",
    ):
        assert line in shown
    told = queue_json(node, "describe", "shop/mails")
    assert told["controls"]["version"] == 7
    assert told["settings"]["rate_per_second"]["source"] == "live"


# A real node


def asked(url: str, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
    return maitred_json("admin", "queue", *arguments, "--url", url)


def test_a_real_queue_is_paused_restarted_and_resumed() -> None:
    with running_node(shards=2) as node:
        with library.connect(node.url) as client:
            client.request(Add("shop", "mails", 1, 0, 0, 0, [b"\x90"] * 3))
        version = asked(node.url, "pause", "shop/mails", "--reason", "why")["controls"]["version"]
        again = maitred(
            "admin", "queue", "resume", "shop/mails", "--expect-version", "1", "--url", node.url
        )
        assert again.returncode == 2
        assert "[controls-conflict]" in again.stderr
        asked(node.url, "set", "shop/mails", "rate=7")
        told = asked(node.url, "describe", "shop/mails")
        assert told["controls"]["pause"]["reason"] == "why"
        assert told["controls"]["version"] > version
        assert told["settings"]["rate_per_second"]["value"] == 7.0
        assert asked(node.url, "resume", "shop/mails")["changed"]
        listed = json.loads(json.dumps(asked(node.url, "list")["queues"]))
        assert [one["paused"] for one in listed] == [None]


def test_the_help_of_set_names_every_setting() -> None:
    shown = maitred("admin", "queue", "set", "--help").stdout
    assert [name for name in SETTABLE if f"  {name} " not in shown] == []


def test_a_large_number_is_shown_as_it_can_be_set() -> None:
    one = EffectiveSetting(value=1_234_567, source="default")
    assert dict(told_of_settings({"queries.waiting": one})) == {
        "queries.waiting": "1234567 (the default)"
    }
