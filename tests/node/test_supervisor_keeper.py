"""One shard process and its keeper, when things go wrong that a whole node rarely shows."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from maitred.errors import CannotStart, InvalidSetting, ShardsKeepDying
from maitred.logs import silent
from maitred.node import child_process, keeper
from maitred.node.child_process import ProcessEnd
from maitred.node.held_ports import HeldPorts, resolve
from maitred.node.keeper import ChildState, Keeper
from maitred.node.shard_place import ShardPlace
from maitred.settings import Node, Restarts, Tls

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = Restarts(first_seconds=0.01, longest_seconds=0.01, give_up_after=3)
PATIENCE_SECONDS = 30.0


@pytest.fixture
def place() -> Iterator[ShardPlace]:
    with HeldPorts(resolve("127.0.0.1")) as held:
        port = held.block(0, 1)
        yield ShardPlace(UUID(int=1), 0, 1, "127.0.0.1", port, (port + 1,), ())


def kept(place: ShardPlace, settings: Node | None = None) -> Keeper:
    settings = settings or Node(restarts=FAST)
    return Keeper(place, settings, silent(), source_port_socket=None, inherited=())


def test_a_shard_that_hangs_is_killed_when_the_node_stops(
    place: ShardPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FAREWELL_SECONDS", 0.1)
    monkeypatch.setattr(keeper, "SLACK_SECONDS", 0.1)

    async def scenario() -> bool:
        shard = kept(place, Node(drain_seconds=0.1))
        await shard.start()
        os.kill(shard.pid, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await shard.stop()

    assert asyncio.run(scenario()) is False


def test_a_shard_that_does_not_get_ready_in_time(
    place: ShardPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "START_SECONDS", 0.001)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await kept(place).start()

    with pytest.raises(CannotStart, match=r"Shard 0 was not ready within 0.001 s."):
        asyncio.run(scenario())


@pytest.mark.parametrize("which", [0, 1])
def test_a_port_that_somebody_else_has_fails_the_first_start(place: ShardPlace, which: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        wrong = (
            ShardPlace(place.node, 0, 1, place.host, taken, place.own_ports, ())
            if which == 0
            else ShardPlace(place.node, 0, 1, place.host, place.port, (taken,), ())
        )
        with pytest.raises(CannotStart, match=f"{taken}.* is in use"):
            asyncio.run(kept(wrong).start())


def test_a_typed_error_of_the_shard_is_raised_as_it_is(place: ShardPlace) -> None:
    settings = Node(tls=Tls(certificate="nowhere.pem", key="nowhere.pem"))
    with pytest.raises(InvalidSetting, match=r"nowhere\.pem cannot be read"):
        asyncio.run(kept(place, settings).start())


def test_a_shard_that_says_nothing_before_it_ends(
    place: ShardPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "MODULE", "this")  # prints a poem, and ends
    with pytest.raises(CannotStart, match="Shard 0 ended with exit status 0 before it was ready"):
        asyncio.run(kept(place).start())


def test_a_shard_that_cannot_start_again_is_given_up_with_its_own_words(
    place: ShardPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started once; then its module is gone, as in an upgrade under its feet."""

    async def scenario() -> None:
        shard = kept(place)
        await shard.start()
        monkeypatch.setattr(child_process, "MODULE", "maitred.no_such_module")
        os.kill(shard.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await shard.keep()

    with pytest.raises(ShardsKeepDying, match=r"died 3 times .* ended with exit status 1\."):
        asyncio.run(scenario())


def test_a_system_that_has_nothing_left_for_a_process(
    place: ShardPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start says so; a later one is tried again, like any other death."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        shard = kept(place)
        await shard.start()
        os.kill(shard.pid, signal.SIGKILL)
        monkeypatch.setattr(socket, "socketpair", refuse)
        with pytest.raises(CannotStart, match="cannot be started: Too many open files"):
            await kept(place).start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await shard.keep()

    with pytest.raises(ShardsKeepDying, match=r"died 3 times .* Too many open files\."):
        asyncio.run(scenario())


def test_stopping_what_never_started_is_nothing(place: ShardPlace) -> None:
    assert asyncio.run(kept(place).stop()) is True


def test_a_killed_shard_may_be_stopped_and_killed_again(place: ShardPlace) -> None:
    """As when a second signal kills all processes while the first one still stops them."""

    async def scenario() -> None:
        shard = kept(place)
        await shard.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await shard.kill()
            assert shard.state is ChildState.ENDED
            assert await shard.stop() is True
            await shard.kill()

    asyncio.run(scenario())


def test_ends_in_words() -> None:
    assert str(ProcessEnd(0, None)) == "ended with exit status 0"
    assert str(ProcessEnd(-9, None)) == "was killed by SIGKILL (signal 9)"
    assert str(ProcessEnd(-99, None)) == "was killed by signal 99"
    assert (
        str(ProcessEnd(1, CannotStart("No.", remedy="Yes.")))
        == "ended with exit status 1: No. Yes."
    )
