"""Shards keep the last hour of their queues, and a client adds it up: in a simulated cluster, and
at real nodes with users."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.client.queue_states import QueuePages
from maitred.client.series import gather_series
from maitred.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    UnknownRequest,
)
from maitred.matching.queue_meter import RECENT_STEPS
from maitred.matching.records import Terms
from maitred.metrics.points import NAMES, STEP_SECONDS, STEPS
from maitred.protocol.queue_overview import SERIES_STEPS_MAX, SeriesShown, ShowSeries
from maitred.protocol.tasks import DONE, FAILED, Add, End, Finish, Given, Offer
from maitred.security.users import GATEWAY as GATEWAY_USER
from maitred.settings import User
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import GATEWAY_SECRET, in_a_loop, node
from tests.node.members import Town, in_town
from tests.node.town_client import TownClient
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.client.series import GatheredSeries
    from tests.node.members import TownShard

SESSION = b"a worker's own.."
SECONDS = 20.0


def add(queue: str, count: int = 1, retries: int = 0) -> Add:
    terms = Terms(retention=60.0, retries=retries)
    return Add("shop", queue, 1, 0, 0, 1, [b"\x90"] * count, terms=terms)


async def given(town: Town, queue: str, slots: int) -> list[Given]:
    offered = await town.ask(Offer("shop", queue, 1, 0, 0, 1, SESSION, "worker", slots))
    tasks: list[Given] = offered.tasks
    return tasks


async def finish(town: Town, queue: str, tasks: list[Given], status: Any = DONE) -> None:  # noqa: ANN401
    ends = [End(one.sequence, one.attempt, one.proof, status, b"\xc3") for one in tasks]
    await town.ask(Finish("shop", queue, 1, 0, 0, SESSION, ends))


async def next_step(town: Town) -> None:
    """Until all shards have sampled the step."""
    await asyncio.sleep(STEP_SECONDS - town.wall_clock() % STEP_SECONDS + 1)


def numbers(found: GatheredSeries, name: str) -> list[float]:
    """Return what is known."""
    return [number for number in found.points[name] if number is not None]


def test_what_happened_in_each_step_is_told_ten_seconds_later() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        client = TownClient(town)
        await next_step(town)
        await town.ask(add(queue, 5))
        tasks = await given(town, queue, 3)
        await next_step(town)
        await finish(town, queue, tasks[:1])
        await finish(town, queue, tasks[1:], FAILED)
        await next_step(town)
        await next_step(town)
        found = await gather_series(client, namespace="shop", queue=queue, seconds=30)
        points = found.points
        assert found.step_seconds == STEP_SECONDS
        assert found.start == town.wall_clock() // STEP_SECONDS * STEP_SECONDS - 30
        assert found.unreachable == []
        assert points.keys() == {*NAMES, "wait_p50", "wait_p99"}
        assert points["added"] == [5, 0, 0]
        assert points["ended"] == [0, 3, 0]
        assert points["failed"] == [0, 2, 0]
        assert points["dead"] == [0, 2, 0]
        assert points["backlog"] == [2, 2, 2]
        assert points["running"] == [3, 0, 0]
        waits = points["wait_p50"]
        assert waits[0] is not None
        assert 0 < waits[0] < 0.1
        assert waits[1] is waits[2] is None
        # All of the namespace, and everything, are the same here.
        for more in ({"namespace": "shop"}, {}, {"within": ["other", "shop"]}):
            assert (await gather_series(client, seconds=30, **more)).points == points
        nothing = await gather_series(client, within=["other"], seconds=30)
        assert nothing.points["added"] == [None] * 3

    in_town(main)


def test_failures_count_as_recent_for_five_to_ten_minutes() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        pages = QueuePages(TownClient(town))

        async def recent() -> tuple[int, int]:
            (state,) = (await pages.named([("shop", queue)])).values()
            return state.recent_failed, state.recent_ended

        await town.ask(add(queue, 2))
        await finish(town, queue, await given(town, queue, 2), FAILED)
        assert await recent() == (2, 2)
        half = RECENT_STEPS * STEP_SECONDS
        await asyncio.sleep(half - STEP_SECONDS)
        assert await recent() == (2, 2)
        await asyncio.sleep(half + 2 * STEP_SECONDS)
        assert await recent() == (0, 0)

    in_town(main)


def test_the_past_of_a_queue_stays_where_it_was_and_the_sum_has_all() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        client = TownClient(town)
        await next_step(town)
        for _ in range(3):
            await town.ask(add(queue, 4))
            await finish(town, queue, await given(town, queue, 1))
            await next_step(town)
        await town.ask(add(queue, 1))  # in the step in which it moves
        town.states(a="draining")
        await finish(town, queue, await given(town, queue, 2))
        (old,) = town.of("a")
        assert town.owner(queue) is not old
        await town.until(lambda: (queue, 0) not in old.holds)
        await next_step(town)
        await town.ask(add(queue, 7))
        await next_step(town)
        found = await gather_series(client, namespace="shop", queue=queue, seconds=50)
        assert found.points["added"] == [4, 4, 4, 1, 7]
        assert found.points["ended"] == [1, 1, 1, 2, 0]
        assert found.points["backlog"] == [3, 6, 9, 8, 15]
        # Each of the two has its part.
        parts = [_told(shard, queue) for shard in (old, town.owner(queue))]
        assert [sum(part.columns["added"]) for part in parts] == [13, 7]
        # A node that does not answer is named, and its part is missing.
        client.silent["a"] = DeadlineExceeded("It did not answer in time.")
        found = await gather_series(client, namespace="shop", queue=queue, seconds=50)
        assert [one.address for one in found.unreachable] == ["a"]
        assert sum(numbers(found, "added")) == 7
        client.silent |= dict.fromkeys("bc", UnknownRequest("An older release."))
        with pytest.raises(DeadlineExceeded):
            await gather_series(client)

    in_town(main)


def _told(shard: TownShard, queue: str) -> SeriesShown:
    message = ShowSeries(0, 0, "shop", queue)
    answer = shard.handlers[message.opcode](message)
    assert isinstance(answer, SeriesShown)
    return answer


def test_slots_on_offer_are_seen_and_an_hour_is_kept() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        client = TownClient(town)
        message = Offer("shop", queue, 1, 0, 0, 1, SESSION, "worker", 6)
        town.begin(message, seconds=60.0)
        await next_step(town)
        await next_step(town)
        found = await gather_series(client, namespace="shop", queue=queue, seconds=10)
        assert found.points["slots_free"] == [6]
        await town.ask(add(queue))
        await asyncio.sleep((STEPS + 5) * STEP_SECONDS)
        found = await gather_series(client)
        assert len(found.points["added"]) == STEPS == SERIES_STEPS_MAX
        assert numbers(found, "added") == [0] * STEPS
        assert numbers(found, "slots_free") == [0] * STEPS

    in_town(main)


def test_a_shard_that_stood_still_samples_again_and_counts_nothing_twice() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        (shard,) = town.of("a")
        await next_step(town)
        await town.ask(add(queue, 2))
        series: Any = shard._parts["series"]
        # Another sample within the step: it belongs to the next one.
        before = _told(shard, queue).last
        await series.sample(before)
        await series.sample(before)
        assert _told(shard, queue).last == before
        await next_step(town)
        found = _told(shard, queue)
        assert sum(found.columns["added"]) == 2
        assert found.last == before + 1

    in_town(main)


USERS = {
    "root": User(secret=cheaply("root"), permissions={"*": ["admin"]}),
    "anna": User(secret=cheaply("anna"), permissions={"shop": ["read"]}),
    "otto": User(secret=cheaply("otto"), permissions={"shop": ["operate"], "office": ["read"]}),
    "paul": User(secret=cheaply("paul"), permissions={"shop": ["produce", "work", "query"]}),
}


@in_a_loop
async def test_who_may_see_the_series_of_which_namespace(tmp_path: Path) -> None:
    async with node(tmp_path, users=USERS, shards=2) as running:
        stores = [await open_sqlite(tmp_path / "data", number) for number in range(2)]
        for shard, store in zip(running.shards, stores, strict=True):
            shard.keep_tasks(store)
        seen: list[list[str] | None] = []
        for shard in running.shards:
            _listen(shard, seen)

        async def ask(user: str, secret: str = "", **what: Any) -> list[list[str] | None]:  # noqa: ANN401
            """Return the namespaces within which the shards looked."""
            seen.clear()
            address = f"maitred://{user}:{secret or user}@127.0.0.1:{running.port}"
            async with maitred.connect(address, close_seconds=0.1) as client:
                await _gathered(client, **what)
            return seen.copy()

        try:
            assert await ask("root") == [None, None]
            assert await ask("anna") == [["shop"]] * 2
            # What a caller says of itself counts for nothing.
            assert await ask("anna", within=["shop", "office"]) == [["shop"]] * 2
            assert await ask("anna", namespace="shop") == [["shop"]] * 2
            assert [{*(one or ())} for one in await ask("otto")] == [{"office", "shop"}] * 2
            # The node's own gateway says what its caller may read.
            gateway = (GATEWAY_USER, GATEWAY_SECRET)
            assert await ask(*gateway, within=["office"]) == [["office"]] * 2
            assert await ask(*gateway) == [None, None]
            with pytest.raises(PermissionDenied):
                await ask(*gateway, within=["office"], namespace="shop")
            for user, what in (
                ("anna", {"namespace": "office"}),
                ("anna", {"namespace": "office", "queue": "mails"}),
                ("paul", {}),
                ("paul", {"namespace": "shop"}),
            ):
                with pytest.raises(PermissionDenied):
                    await ask(user, **what)
            with pytest.raises(InvalidArgument, match="namespace"):
                await ask("root", queue="mails")
        finally:
            for shard in running.shards:
                shard.close()
            for store in stores:
                await store.close()


def _listen(shard: Any, seen: list[list[str] | None]) -> None:  # noqa: ANN401
    opcode = ShowSeries.opcode
    real = shard.handlers[opcode]

    def listen(message: ShowSeries) -> Any:  # noqa: ANN401
        seen.append(message.within)
        return real(message)

    shard.handlers[opcode] = listen


async def _gathered(client: AsyncClient, **what: Any) -> GatheredSeries:  # noqa: ANN401
    return await gather_series(client, timeout=SECONDS, **what)
