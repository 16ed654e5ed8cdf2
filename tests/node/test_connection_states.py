"""The states of a connection and of a child process: by their tables, and in no other way."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from maitred.errors import InternalError
from maitred.logs import silent
from maitred.node.connection_states import CONNECTION_TABLE, ConnectionEvent, ConnectionState
from maitred.node.keeper import CHILD_TABLE, ChildEvent, ChildState, Keeper
from maitred.node.shard_place import ShardPlace
from maitred.protocol.frames import Opcode
from maitred.settings import Limits, Node, User
from tests.node.in_process import in_a_loop, node, until
from tests.node.raw import credentials, echo, error_in, startup
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from maitred.security.directory import Identity
    from maitred.security.source import Source
    from maitred.states import StateTable

USERS = {"alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]})}


def unlisted(table: StateTable[Any, Any], events: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Pairs of state and event that the table does not have."""
    pairs = product(table.transitions, events)
    return [(state, event) for state, event in pairs if event not in table.transitions[state]]


@pytest.mark.parametrize(("state", "event"), unlisted(CHILD_TABLE, ChildEvent))
def test_a_child_process_refuses_an_event_out_of_place(
    state: ChildState, event: ChildEvent
) -> None:
    place = ShardPlace(UUID(int=1), 0, 1, "127.0.0.1", 1, (2,), ())
    keeper = Keeper(place, Node(), silent(), source_port_socket=None, inherited=())
    keeper.state = state
    with pytest.raises(InternalError, match=r"A child process that is .* got the event"):
        keeper._happen(event)
    assert keeper.state is state


@in_a_loop
async def test_a_connection_refuses_an_event_out_of_place(tmp_path: Path) -> None:
    async with node(tmp_path) as running:
        client = await running.open()
        await until(lambda: len(running.shard.connections) == 1)
        (connection,) = running.shard.connections
        for state, event in unlisted(CONNECTION_TABLE, ConnectionEvent):
            connection.state = state
            with pytest.raises(InternalError, match=r"A connection that is .* got the event"):
                connection.happen(event)
            assert connection.state is state
        connection.state = ConnectionState.FRESH
        await client.lives()


@in_a_loop
async def test_a_connection_tells_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await running.open()
        await until(lambda: len(running.shard.connections) == 1)
        (connection,) = running.shard.connections
        assert repr(connection) == "<NodeConnection of a client: FRESH, 0 in flight>"
        assert (await client.ask(startup())).opcode == Opcode.AUTHENTICATE
        assert connection.state is ConnectionState.AUTHENTICATING
        verify, may_verify = running.shard.authenticator.authenticate, asyncio.Event()

        async def authenticate(user: str, secret: str, source: Source) -> Identity:
            await may_verify.wait()
            return await verify(user, secret, source)

        monkeypatch.setattr(running.shard.authenticator, "authenticate", authenticate)
        client.write(credentials("alice", "wonder"))
        await until(lambda: connection.state is ConnectionState.VERIFYING)
        again = await client.ask(credentials("alice", "wonder", 5))
        assert "out of place while the connection is VERIFYING" in error_in(again).sentence
        may_verify.set()
        assert (await client.frame()).opcode == Opcode.AUTH_SUCCESS
        assert repr(connection) == "<NodeConnection of alice: READY, 0 in flight>"
        client.close()
        await until(lambda: connection.state is ConnectionState.CLOSED)


@in_a_loop
async def test_a_closing_connection_holds_no_part_of_a_frame(tmp_path: Path) -> None:
    """Others need not wait for its memory until it is gone: its peer may take its time."""
    async with node(tmp_path, limits=Limits(partial_bytes=50_000)) as running:
        client = await running.ready()
        (connection,) = running.shard.connections
        client.write(echo("q", bytes(60_000))[:51_000])
        await until(lambda: connection.state is ConnectionState.CLOSING)
        assert running.shard.partial_bytes == 0
        assert connection in running.shard.connections
