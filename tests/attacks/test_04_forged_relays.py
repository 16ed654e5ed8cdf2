"""Relaying with made-up tokens keeps nobody else's queries from being relayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.errors import Overloaded, PermissionDenied
from maitred.node import relays
from maitred.protocol.frames import Opcode
from maitred.protocol.queries import Fetched, Relayed
from maitred.settings import User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import SECONDS, stage
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

HASHED = cheaply("s")
USERS = {
    "ann": User(secret=HASHED, permissions={"n": ["query"]}),
    "cook": User(secret=HASHED, permissions={"n": ["work"]}),
    "mallory": User(secret=HASHED, permissions={"evil": ["query", "work"]}),
}
TOKEN = b"t" * 16


@in_a_loop
async def test_a_namespace_fills_its_own_share_of_the_relays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "RELAYS_MAX", 8)
    async with stage(tmp_path, users=USERS) as here:
        ann, cook = await here.client("ann", "s"), await here.client("cook", "s")
        mallory = await here.client("mallory", "s")
        forged = [
            replace(message, namespace="evil")
            for number in range(4)
            for message in (here.fetch(bytes([number]) * 16),)
        ]
        for message in forged:
            mallory.hold(message, SECONDS).tell(lambda _: None)
        shard: Any = here.node.shard
        table = shard.holders[Opcode.FETCH].__self__._table
        await until(lambda: len(table) == 4)
        more = replace(here.relay(b"m" * 16, query=b"x"), namespace="evil")
        with pytest.raises(Overloaded, match="'evil' already"):
            await mallory.hold(more, SECONDS).answer()
        # The others still are relayed, and nobody fetches or answers them in their stead.
        relayed = ann.hold(here.relay(TOKEN, query=b"a query"), SECONDS)
        await until(lambda: len(table) == 5)
        stolen = mallory.hold(replace(here.fetch(TOKEN), namespace="evil"), SECONDS)
        with pytest.raises(Overloaded):
            await stolen.answer()
        with pytest.raises(PermissionDenied):
            await mallory.request(here.fetch(TOKEN), SECONDS)
        with pytest.raises(PermissionDenied):
            await mallory.request(here.deliver(TOKEN, 0, b"forged", more=False), SECONDS)
        assert await cook.request(here.fetch(TOKEN), SECONDS) == Fetched(b"a query")
        cook.hold(here.deliver(TOKEN, 0, b"an answer", more=False), SECONDS).tell(lambda _: None)
        answer = await relayed.answer()
        assert isinstance(answer, Relayed)
        assert answer.body == b"an answer"
        await until(lambda: len(table) == 4)
