"""What the supervisor makes of settings that change, and of processes that do not answer."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from maitred.errors import InvalidSetting
from maitred.logs import silent
from maitred.node import keeper
from maitred.node.held_ports import HeldPorts, resolve
from maitred.node.keeper import Keeper
from maitred.node.node_reload import NodeReload, SettingsFile, SettingsSource
from maitred.node.shard_place import ShardPlace
from maitred.protocol.access import PartState, ProcessState
from maitred.settings import Node, User
from tests.node.in_process import RecordedLog
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

ALICE, BOB = User(secret=cheaply("a")), User(secret=cheaply("b"))


class Written:
    """Settings that somebody edits."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.problem: InvalidSetting | None = None

    def load(self) -> Node:
        if self.problem is not None:
            raise self.problem
        return self.node


def test_only_users_count_and_the_rest_is_named() -> None:
    written = Written(Node(users={"alice": ALICE}))
    file = SettingsFile(written.node, SettingsSource(written.load))
    assert file.reload() == ({"alice": ALICE}, PartState("settings", "unchanged"))
    written.node = Node(users={"bob": BOB}, port=5, drain_seconds=1)
    users, state = file.reload()
    assert (users, state.state) == ({"bob": BOB}, "changed")
    assert "port, drain_seconds" in state.remark
    users, state = file.reload()
    assert (users, state.state) == ({"bob": BOB}, "unchanged")
    assert "port, drain_seconds" in state.remark, "as long as it is so"


def test_settings_that_cannot_be_used_change_nothing() -> None:
    written = Written(Node(users={"alice": ALICE}))
    file = SettingsFile(written.node, SettingsSource(written.load))
    written.problem = InvalidSetting("It is broken.")
    assert file.reload() == (None, PartState("settings", "failed", "It is broken."))


@pytest.mark.parametrize("users", [{}, {"alice": ALICE}])
def test_a_node_neither_gets_its_first_users_nor_loses_its_last(users: dict[str, User]) -> None:
    """A shard that is started again would let everybody in, or nobody whom the others know."""
    file = SettingsFile(Node(users=users), SettingsSource(lambda: Node(users=others)))
    others = {} if users else {"alice": ALICE}
    found, state = file.reload()
    assert (found, state.state) == (None, "failed")
    assert "Restart" in state.remark


def test_a_file_is_read_when_it_has_not_changed_since_the_last_look(tmp_path: Path) -> None:
    path = tmp_path / "maitred.toml"
    path.write_text("")
    file = SettingsFile(Node(), SettingsSource(Node, str(path)))
    assert not file.has_changed()
    path.write_text("port = 5")
    assert [file.has_changed() for _ in range(3)] == [False, True, True]
    file.reload()
    assert not file.has_changed()


def test_reloads_take_turns_and_all_processes_are_told() -> None:
    log = RecordedLog()
    written = Written(Node(users={"alice": ALICE}))
    told: list[dict[str, User] | None] = []

    class Process:
        async def reload(self, users: dict[str, User] | None) -> ProcessState:
            told.append(users)
            await asyncio.sleep(0)
            return ProcessState("shard", [PartState("users", "unchanged")])

    async def scenario() -> list[ProcessState]:
        file = SettingsFile(written.node, SettingsSource(written.load))
        reloading = NodeReload(file, lambda: [Process(), Process()], log)
        heard: asyncio.Future[list[ProcessState]] = asyncio.get_running_loop().create_future()
        reloading.wanted(heard.set_result)
        written.node = Node(users={"bob": BOB})
        first, second = await asyncio.gather(heard, reloading.reload())
        assert first[0].process == second[0].process == "node"
        assert told == [{"bob": BOB}] * 4
        written.problem = InvalidSetting("It is broken.")
        return await reloading.reload()

    states = asyncio.run(scenario())
    assert states[0] == ProcessState("node", [PartState("settings", "failed", "It is broken.")])
    assert told[-2:] == [None, None]
    assert log.events("error") == ["settings not read again; the old state stays"]


def test_a_process_that_hangs_or_has_died_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RELOAD_SECONDS", 0.2)

    async def scenario(place: ShardPlace) -> None:
        settings = Node(data=str(tmp_path))
        kept = Keeper(place, settings, silent(), source_port_socket=None, inherited=())
        [part] = (await kept.reload(None)).parts
        assert (part.state, "being started" in part.remark) == ("unchanged", True)
        await kept.start()
        try:
            os.kill(kept.pid, signal.SIGSTOP)
            state = await kept.reload(None)
            assert state.process == "shard 0"
            assert [part.state for part in state.parts] == ["failed"]
            monkeypatch.setattr(keeper, "RELOAD_SECONDS", 30.0)
            reloading = asyncio.create_task(kept.reload(None))
            await asyncio.sleep(0)
            os.kill(kept.pid, signal.SIGKILL)
            [part] = (await reloading).parts
            assert (part.state, "died" in part.remark) == ("unchanged", True)
        finally:
            await kept.kill()

    with HeldPorts(resolve("127.0.0.1")) as held:
        port = held.block(0, 1)
        asyncio.run(scenario(ShardPlace(UUID(int=1), 0, 1, "127.0.0.1", port, (port + 1,), ())))
