"""Item 12: an identity to act as (SASL's authzid) is refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maitred.protocol.frames import REQUEST, Opcode, encode_frame
from maitred.protocol.notation import blob
from maitred.settings import User
from tests.node.in_process import in_a_loop, node
from tests.node.raw import credentials, error_in, startup
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

USERS = {
    "alice": User(secret=cheaply("wonder"), permissions={"*": ["admin"]}),
    "bob": User(secret=cheaply("builder"), permissions={"site": ["query"]}),
}


def acting(identity: bytes) -> bytes:
    body = blob(identity + b"\0alice\0wonder")
    return encode_frame(REQUEST, 0, 3, Opcode.AUTH_RESPONSE, body)


@pytest.mark.parametrize("identity", [b"bob", b"nobody", b"alice ", b"ALICE", b" "])
@in_a_loop
async def test_nobody_acts_as_somebody_else(identity: bytes, tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await running.open()
        assert (await client.ask(startup())).opcode == Opcode.AUTHENTICATE
        answer = await client.ask(acting(identity))
        problem = error_in(answer)
        assert (answer.stream, problem.code) == (3, "permission-denied")
        assert problem.remedy
        assert running.shard.errors["permission-denied"] == 1
        # Nothing was verified, and the connection is nobody's yet.
        assert not running.shard.authenticator.outcomes
        assert (await client.ask(credentials("alice", "wonder"))).opcode == Opcode.AUTH_SUCCESS


@in_a_loop
async def test_an_identity_that_is_not_text(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await running.open()
        await client.ask(startup())
        assert error_in(await client.ask(acting(b"\xff"))).code == "protocol-violation"


@in_a_loop
async def test_a_user_may_say_who_they_are_twice(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS) as running:
        client = await running.open()
        await client.ask(startup())
        assert (await client.ask(acting(b"alice"))).opcode == Opcode.AUTH_SUCCESS
