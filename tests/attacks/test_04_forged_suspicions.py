"""What gateways say of workers takes nobody's workers down: SUSPECT, with refusals and without.

Each `query` user may be a gateway, and one tenant's word must not cost another one his workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from maitred.balancing.workers.doubt import GOOD_ENOUGH, GOOD_SECONDS
from maitred.errors import PermissionDenied
from maitred.matching.presence import SUSPECT_SECONDS
from maitred.protocol.queries import Attended, Suspected
from maitred.settings import QueryLimits, User
from tests.matching.driver import Driver, session_of
from tests.node.in_process import in_a_loop, until
from tests.node.querying import SECONDS, Stage, stage, waits
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient

HASHED = cheaply("s")
USERS = {
    "ann": User(secret=HASHED, permissions={"n": ["query"]}),
    "mallory": User(secret=HASHED, permissions={"evil": ["query", "work"]}),
    "cook": User(secret=HASHED, permissions={"n": ["work"]}),
    "guest": User(
        secret=HASHED, permissions={"n": ["query"]}, queries=QueryLimits(queues=["n/other"])
    ),
}


def slots(here: Stage) -> int:
    shards: list[Any] = [*here.node.shards]
    return sum(
        owned.partition.offers.slots
        for shard in shards
        for owned in shard._partitions.owned.values()
        if owned.key.namespace == "n"
    )


async def suspects(here: Stage, client: AsyncClient) -> int:
    answer = await client.request(here.suspect(), SECONDS)
    assert isinstance(answer, Suspected)
    return answer.offers


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_nobody_suspects_workers_of_queues_that_he_may_not_ask(
    tmp_path: Path, shards: int
) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        cook, mallory = await here.client("cook", "s"), await here.client("mallory", "s")
        guest = await here.client("guest", "s")
        offer = cook.hold(here.offer(4), SECONDS)
        await until(lambda: slots(here) == 4)
        for attacker, why in ((mallory, "lacks the permission"), (guest, "may not query")):
            with pytest.raises(PermissionDenied, match=why):
                await attacker.request(here.suspect(), SECONDS)
            refused = replace(here.suspect(), refused=[b"t" * 16])
            with pytest.raises(PermissionDenied, match=why):
                await attacker.request(refused, SECONDS)
        # In his own namespace he may say what he likes of the same worker: nothing comes of it.
        mallory.hold(replace(here.offer(4), namespace="evil"), SECONDS).tell(lambda _: None)
        await mallory.request(replace(here.suspect(), namespace="evil"), SECONDS)
        await waits(offer)
        offer.tell(lambda _: None)
        assert slots(here) == 4


@pytest.mark.parametrize("shards", [1, 2])
@in_a_loop
async def test_a_worker_that_lives_is_not_suspected_again_and_again(
    tmp_path: Path, shards: int
) -> None:
    async with stage(tmp_path, shards=shards, users=USERS) as here:
        cook, ann = await here.client("cook", "s"), await here.client("ann", "s")
        await cook.request(here.attend(), SECONDS)  # the first is answered at once
        attending = cook.hold(here.attend(), SECONDS)
        offer = cook.hold(here.offer(4), SECONDS)
        await until(lambda: slots(here) == 4)
        assert await suspects(here, ann) == 1
        # It hears so at once, whether it has slots on offer or not, and comes back.
        assert (await offer.answer()).tasks == []
        assert await attending.answer() == Attended(best=0.0)
        cook.hold(here.offer(4), SECONDS).tell(lambda _: None)
        await until(lambda: slots(here) == 4)
        shard: Any = here.node.shards[-1]
        (owned,) = shard._partitions.owned.values()
        suspected = owned.partition.worker_sightings.suspected
        for session in suspected:  # however slow this machine is
            suspected[session] += 1_000.0
        for _ in range(20):
            assert await suspects(here, ann) == 0
        assert slots(here) == 4
        for session in suspected:
            suspected[session] -= 1_000.0 + SUSPECT_SECONDS
        assert await suspects(here, ann) == 1


def refuse(driver: Driver, user: str) -> bool:
    """The user gets a slot of worker 1 and says that it was refused; False if he gets none."""
    driver.offer(1)
    query = driver.want(user=user)
    if not query.answered:
        driver.want_no_more(query)
        return False
    driver.partition.allocator.slots_refused(query.value, driver.now)
    driver.turn()
    return True


def test_refusals_that_one_user_alone_meets_are_not_believed() -> None:
    """The liar takes half of a worker's slots, and says of each that the worker refused it."""
    driver = Driver()
    for worker in (1, 2):
        driver.attend(worker, 1_000.0)
    doubted = 0
    for _ in range(20 * GOOD_ENOUGH):
        refuse(driver, "liar")
        driver.offer(1)
        query = driver.want(user="honest")
        driver.pass_time(2 * GOOD_SECONDS)
        if not query.answered:
            doubted += 1
            driver.want_no_more(query)
    assert not doubted
    for _ in range(100):
        refuse(driver, "liar")
    assert driver.partition.allocator.doubts.room(session_of(1), 2, driver.now) > 1
    # If others meet the same, the worker is the one who is not believed.
    for user in ("honest", "another") * 20:
        refuse(driver, user)
    assert driver.partition.allocator.doubts.room(session_of(1), 2, driver.now) == 0
