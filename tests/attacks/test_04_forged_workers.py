"""Nobody speaks in the name of another worker: many know its session, and nobody its secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.errors import PermissionDenied
from maitred.protocol.queries import Attended, Roster, WorkersFound
from maitred.settings import QuerySettings, Queue, User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import SECONDS, WORKER, Stage, stage, waits
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

HASHED = cheaply("s")
USERS = {
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
    "ann": User(secret=HASHED, permissions={"n": ["query"]}),
    "cook": User(secret=HASHED, permissions={"n": ["work"]}),
    "mallory": User(secret=HASHED, permissions={"n": ["work"], "evil": ["work", "query"]}),
}
PICKED = {"*": Queue(queries=QuerySettings(policy="adaptive"))}

HERE, THERE = "127.0.0.1:4000", "127.0.0.1:5000"


async def workers(here: Stage, boss: AsyncClient) -> dict[bytes, tuple[str, str, str]]:
    found = await boss.request(here.workers(), SECONDS)
    assert isinstance(found, WorkersFound)
    return {row.session: (row.worker, row.address, row.state) for row in found.workers}


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_nobody_attends_with_the_session_of_another_worker(
    tmp_path: Path, shards: int
) -> None:
    """He would take its passes, say where it is, and that it is offline."""
    async with stage(tmp_path, shards=shards, users=USERS, queues=PICKED) as here:
        boss, cook = await here.client("boss", "s"), await here.client("cook", "s")
        ann, mallory = await here.client("ann", "s"), await here.client("mallory", "s")
        await cook.request(here.attend(), SECONDS)
        attending = cook.hold(here.attend(), SECONDS)
        await waits(attending)
        forged = replace(here.attend("offline"), session=WORKER, worker="ant", address=THERE)
        first = await mallory.request(forged, SECONDS)
        assert isinstance(first, Attended)
        assert first.passes == []
        stolen = mallory.hold(forged, SECONDS)
        seen = await workers(here, boss)
        assert seen.pop(WORKER) == ("ant", HERE, "online")
        assert [state for _, _, state in seen.values()] == ["offline"]  # a worker of his own
        roster = await ann.request(here.subscribe(), SECONDS)
        assert isinstance(roster, Roster)
        assert [(one.session, one.address) for one in roster.members] == [(WORKER, HERE)]
        told = await attending.answer()
        assert [one.token for one in told.passes] == [one.token for one in roster.members]
        await waits(stolen)
        stolen.take_back()


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_nobody_without_the_permission_orders_a_worker_or_speaks_for_shards(
    tmp_path: Path, shards: int
) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        cook, ann = await here.client("cook", "s"), await here.client("ann", "s")
        mallory = await here.client("mallory", "s")
        await cook.request(here.attend(), SECONDS)
        for who in (cook, ann, mallory):
            for action in ("list", "offline", "online"):
                with pytest.raises(PermissionDenied, match="'read'"):
                    await who.request(here.workers(action, "ant"), SECONDS)
        attend = here.attend()
        for who, message in (
            (ann, attend),
            (mallory, replace(attend, namespace="shop")),
            (ann, here.offer()),
        ):
            with pytest.raises(PermissionDenied, match="'work'"):
                await who.request(message, SECONDS)


@in_a_loop
async def test_the_same_session_in_another_namespace_is_another_worker(tmp_path: Path) -> None:
    async with stage(tmp_path, users=USERS) as here:
        cook, mallory = await here.client("cook", "s"), await here.client("mallory", "s")
        boss = await here.client("boss", "s")
        await cook.request(here.attend(), SECONDS)
        offer = cook.hold(here.offer(2), SECONDS)
        partitions: Any = here.node.shard._partitions
        await until(lambda: any(one.partition.offers.slots for one in partitions.owned.values()))
        for message in (replace(here.attend("offline"), session=WORKER), here.offer(7)):
            mallory.hold(replace(message, namespace="evil"), SECONDS).tell(lambda _: None)
        await until(lambda: len(partitions.owned) == 2)
        assert await workers(here, boss) == {WORKER: ("ant", HERE, "online")}
        await waits(offer)
        offer.take_back()
