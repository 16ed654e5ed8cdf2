"""A limit to what is under way: what gateways, workers and shards say about it, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import Overloaded, PermissionDenied, Unavailable
from maitred.node import shard_permits
from maitred.node.shard_permits import ROOM_SECONDS
from maitred.protocol.queries import Allocate, Allocated, Count
from maitred.settings import Limits, QueryLimits, QuerySettings, Queue, User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, Stage, stage, waits
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

HASHED = cheaply("s")
USERS = {
    "ann": User(
        secret=HASHED, permissions={"n": ["query"]}, queries=QueryLimits(concurrent=2, waiting=1)
    ),
    "slow": User(
        secret=HASHED,
        permissions={"n": ["query"]},
        queries=QueryLimits(concurrent=9, rate_per_second=1),
    ),
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
}
ONE = {"*": Queue(queries=QuerySettings(concurrent=1))}


def offer(here: Stage, client: AsyncClient) -> None:
    """Slots of a worker, whatever becomes of them."""
    client.hold(here.offer(9), SECONDS).tell(lambda _: None)


async def allocated(here: Stage, client: AsyncClient, slots: int, **more: Any) -> Allocated:  # noqa: ANN401
    answer = await client.hold(here.allocate(slots, **more), SECONDS).answer()
    assert isinstance(answer, Allocated)
    return answer


def under_way(here: Stage) -> int:
    shards: list[Any] = [*here.node.shards]
    return sum(shard._partitions.permits.statistics()["counted"] for shard in shards)


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_the_word_of_the_end_may_be_late(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_permits, "ROOM_SECONDS", SECONDS)  # for those who are to get it
    async with stage(tmp_path, shards=shards, queues=ONE) as here:
        client = await here.client()
        offering = client.hold(here.offer(4), SECONDS)
        await here.loaded()
        (given,) = (await allocated(here, client, 3)).allocations
        (told,) = (await offering.answer()).reserved
        assert told.token == given.token
        assert told.proof
        assert told.again_seconds == 0
        offer(here, client)
        second = client.hold(here.allocate(), SECONDS)
        await waits(second)
        await client.request(here.running(ended=[told.token + told.proof]))
        assert len((await second.answer()).allocations) == 1
        monkeypatch.undo()
        third = client.hold(here.allocate(), SECONDS)
        before = client._loop.time()
        with pytest.raises(Overloaded, match=r"The queue n/q\d+ has 1 queries under way, as many"):
            await third.answer()
        assert client._loop.time() - before >= ROOM_SECONDS * 0.9


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_those_who_wait_for_room_get_it_in_their_order(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_permits, "ROOM_SECONDS", SECONDS)  # what counts is who is first
    async with stage(tmp_path, shards=shards, queues=ONE) as here:
        client = await here.client()
        offering = client.hold(here.offer(9), SECONDS)
        await here.loaded()
        await allocated(here, client, 1)
        asked = [client.hold(here.allocate(), SECONDS) for _ in range(3)]
        for number in (0, 2):
            (told,) = (await offering.answer()).reserved
            offering = client.hold(here.offer(9), SECONDS)
            await waits(asked[number])
            if not number:
                asked[1].take_back()
            await client.request(here.running(ended=[told.token + told.proof]))
            assert len((await asked[number].answer()).allocations) == 1
        (told,) = (await offering.answer()).reserved
        await client.request(here.running(ended=[told.token + told.proof]))
        await until(lambda: under_way(here) == 0)


@in_a_loop
async def test_a_reservation_that_is_spoken_of_counts(tmp_path: Path) -> None:
    """Whoever made it: a shard that was started again has not."""
    async with stage(tmp_path, shards=2, queues=ONE) as here:
        client = await here.client()
        offer(here, client)
        await here.loaded()
        token = here.proven(b"t" * 16)
        await client.request(here.running(has=[token]))
        await client.request(here.running(has=[token]))
        with pytest.raises(Overloaded):
            await allocated(here, client, 1)
        assert under_way(here) == 1
        await client.request(here.running(ended=[token]))
        assert len((await allocated(here, client, 1)).allocations) == 1


@in_a_loop
async def test_nothing_is_counted_where_there_is_no_limit(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        client = await here.client()
        offer(here, client)
        await here.loaded()
        await client.request(here.running(has=[here.proven(b"t" * 16)]))
        assert len((await allocated(here, client, 5)).allocations) == 5
        assert under_way(here) == 0


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_who_is_refused_for_something_else_is_not_counted(
    tmp_path: Path, shards: int
) -> None:
    """Too many wait, or too many a second, or nobody is free."""
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        boss = await here.client("boss", "s")
        ann, slow = await here.client("ann", "s"), await here.client("slow", "s")
        boss.hold(here.attend(), SECONDS).tell(lambda _: None)
        await here.loaded()
        waiting = ann.hold(here.allocate(), SECONDS)
        await until(lambda: under_way(here) == 1)
        with pytest.raises(Overloaded, match="wait for a worker already"):
            await allocated(here, ann, 1)
        await until(lambda: under_way(here) == 1)
        waiting.take_back()
        await until(lambda: under_way(here) == 0)
        with pytest.raises(Overloaded, match="not to wait"):
            await allocated(here, slow, 1, do_not_queue=True)
        with pytest.raises(Overloaded, match="a second"):
            await allocated(here, slow, 1)
        await until(lambda: under_way(here) == 0)


@in_a_loop
async def test_only_shards_count_and_only_workers_say_what_runs(tmp_path: Path) -> None:
    async with stage(tmp_path, shards=2, users=USERS) as here:
        ann, boss = await here.client("ann", "s"), await here.client("boss", "s")
        for message in (
            Count(0, 0, {"ann": [b"p" * 16]}),
            here.running("ann", [here.proven(b"t" * 16, "ann")]),
        ):
            with pytest.raises(PermissionDenied):
                await ann.request(message)
        with pytest.raises(PermissionDenied):
            await boss.request(Count(0, 0, {"ann": [b"p" * 16]}))
        # Nor does a client say that somebody else has counted its queries.
        offer(here, boss)
        await here.loaded()
        given = await allocated(here, ann, 3, permits=[b"p" * 16] * 3)
        assert len(given.allocations) == 2


@in_a_loop
async def test_a_shard_that_was_started_again_does_not_know_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path, queues=ONE) as here:
        client = await here.client()
        offer(here, client)
        await here.loaded()
        partitions: Any = here.node.shard._partitions
        partitions.permits._knows_at = client._loop.time() + 60
        with pytest.raises(Unavailable, match="has just been started"):
            await allocated(here, client, 1)


@in_a_loop
async def test_more_than_fits_into_a_frame(tmp_path: Path) -> None:
    """It is said in portions, from the shard that reserves to the one that counts."""
    many = {"*": Queue(queries=QuerySettings(concurrent=400))}
    async with stage(tmp_path, shards=2, queues=many, limits=Limits(frame_bytes=4_096)) as here:
        shard: Any = here.node.shard
        here.queue = next(
            name
            for name in (f"q{number}" for number in range(100))
            if shard.owner_of(Allocate("n", name, 1, 0, 0, 0, GATEWAY)) == 1
            and shard._partitions.permits.counter_of(f"/n/{name}") == 0
        )
        client = await here.client()
        tokens = [here.proven(number.to_bytes(16, "big")) for number in range(400)]
        for start in range(0, 400, 50):
            await client.request(here.running(has=tokens[start : start + 50]))
        await until(lambda: under_way(here) == 400)
        heard = shard.received_forwarded
        reserving: Any = here.node.shards[1]._partitions
        reserving.permits._speak(shard.loop.time())
        await until(lambda: shard.received_forwarded >= heard + 50)
        offer(here, client)
        await here.loaded()
        with pytest.raises(Overloaded, match="has 400 queries"):
            await allocated(here, client, 1)
        for start in (0, 50):
            await client.request(here.running(ended=tokens[start : start + 50]))
        given = await allocated(here, client, 50)
        assert 0 < len(given.allocations) <= 9
        await until(lambda: under_way(here) == 300 + len(given.allocations))


@in_a_loop
async def test_who_is_counted_does_not_pick_the_workers_himself(tmp_path: Path) -> None:
    queues = {
        "*": Queue(queries=QuerySettings(policy="adaptive")),
        "n/few": Queue(queries=QuerySettings(policy="adaptive", concurrent=1)),
    }
    async with stage(tmp_path, users=USERS, queues=queues) as here:
        ann, boss = await here.client("ann", "s"), await here.client("boss", "s")
        policies = []
        for queue in (here.queue, "few"):
            here.queue = queue
            await boss.request(here.attend())
            for who in (ann, boss):
                roster: Any = await who.request(here.subscribe())
                policies.append(roster.policy)
        assert policies == ["idle", "adaptive", "idle", "idle"]
