"""A worker's report of what runs takes a user's permits only for reservations made for both.

The attacker speaks the real protocol to real shards, and tries to fill the limit of another user,
or to empty his own. Whatever he reports, the victim has all of his permits.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import Overloaded, PermissionDenied
from maitred.protocol.queries import Allocated, Noted
from maitred.settings import QueryLimits, QuerySettings, Queue, User
from tests.node.in_process import in_a_loop, until
from tests.node.querying import GATEWAY, SECONDS, WORKER, Stage, stage
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import Reserved

HASHED = cheaply("s")
LIMIT = 2
COUNTED = QueryLimits(concurrent=LIMIT)
USERS = {
    "ann": User(secret=HASHED, permissions={"n": ["query"]}, queries=COUNTED),
    "bob": User(secret=HASHED, permissions={"n": ["query"]}, queries=COUNTED),
    "mallory": User(secret=HASHED, permissions={"evil": ["work", "query"]}),
    "worker": User(secret=HASHED, permissions={"n": ["work"]}),
    "greedy": User(secret=HASHED, permissions={"n": ["query", "work"]}, queries=COUNTED),
}
QUEUES = {"*": Queue(queries=QuerySettings(reservation_seconds=60.0, run_seconds=5.0))}
OTHER = b"other worker...."
RANDOM = [bytes([number]) * 16 for number in range(1, 9)]


class Room:
    """A node with a worker, and users who are counted."""

    def __init__(self, here: Stage, worker: AsyncClient) -> None:
        self.here = here
        self.worker = worker

    async def query(self, client: AsyncClient, session: bytes = WORKER) -> Reserved:
        """Ask for a slot; returns what the worker hears of the reservation."""
        offering = self.worker.hold(self.here.offer(session=session), SECONDS)
        answer = await client.hold(self.here.allocate(), SECONDS).answer()
        assert isinstance(answer, Allocated)
        reserved: Reserved
        (reserved,) = (await offering.answer()).reserved
        assert [one.token for one in answer.allocations] == [reserved.token]
        return reserved

    async def report(
        self,
        client: AsyncClient,
        user: str,
        has: Sequence[bytes] = (),
        **more: Any,  # noqa: ANN401 - of a report
    ) -> int:
        """Say that these run, or with `ended` that they are over; returns how many are refused."""
        namespace = more.pop("namespace", "n")
        message = self.here.running(user, has, **more)
        message.namespace = namespace
        noted = await client.request(message)
        assert isinstance(noted, Noted)
        return noted.refused

    def counted(self) -> int:
        shards: list[Any] = [*self.here.node.shards]
        return sum(shard._partitions.permits.statistics()["counted"] for shard in shards)

    async def victim_is_served(self, user: str = "ann", others: int = 0) -> None:
        """A user has all of his permits, no more than these, and gets each of them back."""
        client = await self.here.client(user, "s")
        given = [shown(await self.query(client)) for _ in range(LIMIT)]
        with pytest.raises(Overloaded, match="under way, as many as allowed"):
            await client.hold(self.here.allocate(), SECONDS).answer()
        assert await self.report(self.worker, user, ended=given) == 0
        await until(lambda: self.counted() == others)


@asynccontextmanager
async def room(directory: Path, shards: int) -> AsyncIterator[Room]:
    async with stage(directory, shards=shards, users=USERS, queues=QUEUES) as here:
        yield Room(here, await here.client("worker", "s"))


def shown(reserved: Reserved) -> bytes:
    """What the worker that has the reservation reports."""
    return reserved.token + reserved.proof


both = pytest.mark.parametrize("shards", [1, 2])


@both
@in_a_loop
async def test_random_tokens_of_another_namespace_take_nobodys_permits(
    tmp_path: Path, shards: int
) -> None:
    async with room(tmp_path, shards) as at:
        mallory = await at.here.client("mallory", "s")
        forged = [token + bytes([9]) * 22 for token in RANDOM]
        assert await at.report(mallory, "ann", forged, namespace="evil") == len(forged)
        # Nor with a worker's own session, nor with a proof of any other length, nor elsewhere.
        assert await at.report(mallory, "ann", forged, namespace="evil", session=OTHER) == 8
        with pytest.raises(PermissionDenied):
            await at.report(mallory, "ann", forged)
        assert at.counted() == 0
        await at.victim_is_served()
        assert sum(shard.errors["invalid-reservation"] for shard in at.here.node.shards) == 2


@both
@in_a_loop
async def test_a_worker_of_the_same_queue_cannot_make_reservations_up(
    tmp_path: Path, shards: int
) -> None:
    async with room(tmp_path, shards) as at:
        assert await at.report(at.worker, "ann", [one + bytes(22) for one in RANDOM]) == 8
        far = (2**48 - 1).to_bytes(6, "big") + bytes(16)  # a proof that never expires
        assert await at.report(at.worker, "ann", [one + far for one in RANDOM]) == 8
        assert at.counted() == 0
        await at.victim_is_served()


@both
@in_a_loop
async def test_a_proof_is_good_for_its_own_worker_user_queue_and_token_alone(
    tmp_path: Path, shards: int
) -> None:
    """As a shard sees it that has just been started, and remembers nothing of its own."""
    async with room(tmp_path, shards) as at:
        here = at.here
        token, other = RANDOM[:2]
        proof = here.proven(token, "ann")[16:]
        mallory = await here.client("mallory", "s")
        assert await at.report(at.worker, "bob", [token + proof]) == 1
        assert await at.report(at.worker, "ann", [token + proof], session=OTHER) == 1
        assert await at.report(at.worker, "ann", [token + proof], queue="other") == 1
        assert await at.report(at.worker, "ann", [other + proof]) == 1
        assert await at.report(mallory, "ann", [token + proof], namespace="evil") == 1
        later = bytes([proof[0] + 1]) + proof[1:]
        assert await at.report(at.worker, "ann", [token + later]) == 1
        assert await at.report(at.worker, "ann", [here.proven(token, "ann", seconds=-1)]) == 1
        assert at.counted() == 0
        await at.victim_is_served()
        assert await at.report(at.worker, "ann", [token + proof]) == 0
        await until(lambda: at.counted() == 1)


@both
@in_a_loop
async def test_a_reservation_that_was_reported_as_over_counts_never_again(
    tmp_path: Path, shards: int
) -> None:
    async with room(tmp_path, shards) as at:
        ann = await at.here.client("ann", "s")
        used = [shown(await at.query(ann)) for _ in range(LIMIT)]
        assert await at.report(at.worker, "ann", used) == 0
        assert await at.report(at.worker, "ann", ended=used) == 0
        assert await at.report(at.worker, "ann", used) == LIMIT
        # The same of reservations that the shard before this one had made.
        earlier = [at.here.proven(token, "ann") for token in RANDOM]
        assert await at.report(at.worker, "ann", ended=earlier) == 0
        assert await at.report(at.worker, "ann", earlier) == len(earlier)
        await until(lambda: at.counted() == 0)
        await at.victim_is_served()


@both
@in_a_loop
async def test_whoever_asked_knows_the_token_and_cannot_end_his_own_counting(
    tmp_path: Path, shards: int
) -> None:
    """He may even have `work` there: the proof was told to the worker alone."""
    async with room(tmp_path, shards) as at:
        greedy = await at.here.client("greedy", "s")
        given = [await at.query(greedy) for _ in range(LIMIT)]
        forged = [one.token + bytes(22) for one in given]
        assert await at.report(greedy, "greedy", ended=forged) == LIMIT
        assert await at.report(greedy, "greedy", ended=forged, session=GATEWAY) == LIMIT
        with pytest.raises(Overloaded, match="under way, as many as allowed"):
            await greedy.hold(at.here.allocate(), SECONDS).answer()
        # Nor can a user give up the permits of somebody else, or move them to him.
        assert await at.report(greedy, "ann", forged) == LIMIT
        await until(lambda: at.counted() == LIMIT)
        await at.victim_is_served(others=LIMIT)


@both
@in_a_loop
async def test_a_worker_holds_a_permit_no_longer_than_a_query_may_run(
    tmp_path: Path, shards: int
) -> None:
    async with room(tmp_path, shards) as at:
        ann = await at.here.client("ann", "s")
        used = [shown(await at.query(ann)) for _ in range(LIMIT)]
        for shard in at.here.node.shards:
            counting: Any = shard._partitions.permits  # type: ignore[union-attr]
            wall = counting._wall_clock
            counting._wall_clock = lambda wall=wall: wall() + 60.0 + 5.0 + 61.0
        assert await at.report(at.worker, "ann", used) == LIMIT


@both
@in_a_loop
async def test_a_request_that_claims_to_have_been_passed_on_is_counted_like_any_other(
    tmp_path: Path, shards: int
) -> None:
    """Shards pass requests on to each other, and only the first one counts them."""
    async with room(tmp_path, shards) as at:
        ann = await at.here.client("ann", "s")
        held = [shown(await at.query(ann)) for _ in range(LIMIT)]
        offering = at.worker.hold(at.here.offer(), SECONDS)
        for forged in ({"hops": 1}, {"hops": 1, "permits": RANDOM[:1]}, {"permits": RANDOM[:1]}):
            with pytest.raises(Overloaded, match="under way, as many as allowed"):
                await ann.hold(at.here.allocate(**forged), SECONDS).answer()
        offering.take_back()
        assert await at.report(at.worker, "ann", ended=held) == 0
        await until(lambda: at.counted() == 0)
