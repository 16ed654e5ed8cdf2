"""Queues that operators pause and set live: at real nodes, and in a simulated cluster."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from maitred import App
from maitred.errors import (
    ClusterNotUpgraded,
    ControlsConflict,
    DeadlineExceeded,
    InvalidArgument,
    InvalidSetting,
    StoreUnavailable,
    UnknownQueue,
    UnknownSetting,
)
from maitred.matching.records import Terms
from maitred.node import caretaker
from maitred.protocol.tasks import (
    Add,
    ControlQueue,
    Describe,
    Offer,
    Offered,
    PartitionDescription,
    QueueControlled,
    Resize,
)
from maitred.settings import Scaling
from maitred.settings.live import SETTABLE
from tests.node.in_process import in_a_loop, until
from tests.node.members import Town, in_town
from tests.node.shops import shop
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.store.interface import Store
    from tests.store.engines import Engine

SECONDS = 20.0
SOON_SECONDS = 0.5
"""How long an offer waits that is to get nothing; it says so `ANSWER_EARLY_SECONDS` before."""
SESSION = b"a worker's own.."
PARTITIONS = 4
QUEUE = ("shop", "mails", 1)


def control(action: Any, queue: str = "mails", **fields: Any) -> ControlQueue:  # noqa: ANN401
    return ControlQueue("shop", queue, 1, 0, 0, action, **fields)


def add(partition: int = 0, queue: str = "mails", count: int = 1) -> Add:
    payloads = [b"\x90"] * count
    return Add("shop", queue, 1, partition, 0, 1, payloads, terms=Terms(retention=60.0))


def offer(partition: int = 0, queue: str = "mails", slots: int = 10) -> Offer:
    return Offer("shop", queue, 1, partition, 0, 1, SESSION, "worker", slots)


async def controlled(client: AsyncClient, action: str, **fields: Any) -> QueueControlled:  # noqa: ANN401
    answer = await client.request(control(action, **fields), SECONDS)
    assert isinstance(answer, QueueControlled)
    return answer


async def described(client: AsyncClient, partition: int = 0) -> PartitionDescription:
    answer = await client.request(Describe(*QUEUE, partition, 0), SECONDS)
    assert isinstance(answer, PartitionDescription)
    return answer


async def given(client: AsyncClient, partition: int = 0, seconds: float = SOON_SECONDS) -> int:
    """How many tasks a worker with ten slots gets there."""
    try:
        offered = await client.request(offer(partition), seconds)
    except DeadlineExceeded:  # a busy machine answers too late that it has nothing
        assert not (await described(client, partition)).running
        return 0
    assert isinstance(offered, Offered)
    return len(offered.tasks)


# At real nodes


@in_a_loop
async def test_a_pause_is_live_on_every_partition_and_survives_restarts(
    tmp_path: Path, engine: Engine
) -> None:
    async with shop(tmp_path, engine, shards=2, partitions=PARTITIONS) as one:
        async with one.client() as client:
            for partition in range(PARTITIONS):
                await client.request(add(partition), SECONDS)
            answer = await controlled(client, "pause", reason="a bad deployment")
            assert (answer.changed, answer.partitions, answer.told) == (True, 4, 4)
            assert [await given(client, at) for at in range(PARTITIONS)] == [0] * PARTITIONS
        for _ in range(2):
            assert await one.restart()
            async with one.client() as client:
                # Children are asked first: each has to ask the root before it hands anything out.
                for partition in reversed(range(PARTITIONS)):
                    assert await given(client, partition) == 0
                    told = await described(client, partition)
                    assert told.controls == answer.controls
        async with one.client() as client:
            await client.request(add(1), SECONDS)
            assert (await controlled(client, "resume")).told == PARTITIONS
            found = 0
            async with asyncio.timeout(SECONDS):
                while found < PARTITIONS + 1:
                    found += await given(client, 0, 1.0)
            assert [await given(client, at) for at in range(PARTITIONS)] == [0] * PARTITIONS


@in_a_loop
async def test_a_second_pause_changes_nothing_and_versions_decide(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await client.request(add(), SECONDS)
        first = await controlled(client, "pause", reason="one")
        again = await controlled(client, "pause", reason="two")
        assert not again.changed
        assert again.controls == first.controls
        assert not (await controlled(client, "show")).changed
        with pytest.raises(ControlsConflict, match=f"version {first.controls.version}, not 1"):
            await controlled(client, "resume", version=1)
        resumed = await controlled(client, "resume", version=first.controls.version)
        assert resumed.controls.pause is None
        assert not (await controlled(client, "resume")).changed


@in_a_loop
async def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), partitions=2) as one, one.client() as client:
        with pytest.raises(UnknownQueue):
            await controlled(client, "pause")
        assert not one.node.shard._partitions.owned, "asking makes no queue"  # type: ignore[union-attr]
        for partition in range(2):
            await client.request(add(partition), SECONDS)
        with pytest.raises(UnknownQueue) as unknown:
            await client.request(control("pause", "mial"), SECONDS)
        assert "mails" in str(unknown.value.remedy)
        with pytest.raises(InvalidArgument, match="partition 0"):
            await client.request(ControlQueue(*QUEUE, 1, 0, "pause"), SECONDS)
        with pytest.raises(UnknownSetting):
            await controlled(client, "set", settings={"retention": 5})
        with pytest.raises(UnknownSetting):
            await controlled(client, "set", unset=["retention"])
        with pytest.raises(InvalidSetting):
            await controlled(client, "set", settings={"rate_per_second": 5, "scaling.adaptive": 7})
        with pytest.raises(InvalidArgument):
            await controlled(client, "pause", reason="x" * 501)
        assert (await described(client)).controls.version == 0


@in_a_loop
async def test_settings_are_set_live_and_given_back(tmp_path: Path, engine: Engine) -> None:
    async with shop(tmp_path, engine, rate_per_second=1e9) as one:
        async with one.client() as client:
            await client.request(add(), SECONDS)
            told = (await described(client)).settings
            assert (told["rate_per_second"].value, told["rate_per_second"].source) == (
                1e9,
                "settings",
            )
            assert told["scaling.adaptive"].source == "default"
            changed = {"rate_per_second": 5, "scaling.adaptive": False}
            answer = await controlled(client, "set", settings=changed, reason="calm down")
            assert answer.changed
            again = await controlled(client, "set", unset=["scaling.partitions_max"])
            assert not again.changed
        assert await one.restart()
        async with one.client() as client:
            told = (await described(client)).settings
            rate = told["rate_per_second"]
            assert (rate.value, rate.source, rate.reason) == (5.0, "live", "calm down")
            assert rate.at > 1e9
            assert (await described(client)).rate_limit_per_second == 5.0
            await controlled(client, "set", unset=["rate_per_second", "scaling.adaptive"])
            told = (await described(client)).settings
            assert {one.source for one in told.values()} == {"settings", "default"}


@in_a_loop
async def test_a_program_of_the_release_before_is_told_no_words(
    tmp_path: Path, engine: Engine
) -> None:
    """It knows numbers and switches only, and refuses the whole answer for a word."""
    async with shop(tmp_path, engine) as one, one.client() as client:
        await client.request(add(), SECONDS)
        told = await described(client)
        assert {type(one.value) for one in told.settings.values()} <= {int, float, bool, type(None)}
        assert told.word_settings["queries.policy"].source == "default"
        assert told.all_settings.keys() == {*SETTABLE}


@in_a_loop
async def test_scaling_that_is_switched_off_live_stays_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that takes in more than its target gets more partitions, unless that is set off."""
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    scaling = Scaling(tasks_per_second=0.01, up_after_seconds=0.01, look_seconds=0.01)
    async with shop(tmp_path, Simulated(), scaling=scaling) as one, one.client() as client:
        await client.request(add(), SECONDS)
        await controlled(client, "set", settings={"scaling.partitions_max": 3})
        async with asyncio.timeout(SECONDS):
            while (await described(client)).counts.read < 3:
                await client.request(add(count=100), SECONDS)
        await controlled(client, "set", settings={"scaling.adaptive": False})
        await client.request(Resize(*QUEUE, 0, 0, 3, 3), SECONDS)
        await controlled(client, "set", settings={"scaling.partitions_max": 9})
        before = one.node.shard._partitions.owned  # type: ignore[union-attr]
        looks = [owned.tend_at for owned in before.values()]
        async with asyncio.timeout(SECONDS):
            while any(
                one.tend_at < at + 1.0 for one, at in zip(before.values(), looks, strict=True)
            ):
                await client.request(add(count=100), SECONDS)
        assert (await described(client)).counts.read == 3


@in_a_loop
async def test_a_pause_that_cannot_be_written_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await client.request(add(), SECONDS)
        (store,) = one.stores
        with no_commits(store, monkeypatch):
            with pytest.raises(DeadlineExceeded):
                await client.request(control("pause"), SOON_SECONDS)
            assert (await described(client)).controls.pause is None
        (owned,) = one.node.shard._partitions.owned.values()  # type: ignore[union-attr]
        await until(lambda: owned.partition.hand_out.is_paused)
        assert await given(client) == 0


@in_a_loop
async def test_two_changes_beside_a_root_that_is_nearly_let_go_both_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path, Simulated()) as one, one.client() as client:
        await client.request(add(), SECONDS)
        (store,) = one.stores
        partitions = one.node.shard._partitions
        assert partitions is not None
        (owned,) = partitions.owned.values()
        looks_after = caretaker.Caretaker(partitions)

        async def finds_it_in_use(_owned: object) -> None:
            """Stands for a commit during which the root came into use again."""

        with monkeypatch.context() as patched:
            patched.setattr(partitions, "let_go", finds_it_in_use)
            patched.setattr(type(owned.partition), "idle", True)
            with no_commits(store, monkeypatch):
                pause = asyncio.create_task(looks_after.controls.control(owned, control("pause")))
                await until(lambda: bool(owned.partition.ledger.pending))
                await looks_after._let_go_if_idle(owned, float("inf"))
                message = control("set", settings={"rate_per_second": 5})
                change = asyncio.create_task(looks_after.controls.control(owned, message))
                await asyncio.sleep(0)
        assert (await pause).changed
        assert (await change).changed
        assert owned.partition.controls.pause is not None
        assert "rate_per_second" in owned.partition.controls.settings


@contextmanager
def no_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have all commits fail."""

    async def fails(_group: object) -> list[Any]:
        raise StoreUnavailable("The disk is away.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", fails)
        yield


@in_a_loop
async def test_result_says_that_the_queue_is_paused(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated()) as one:
        app = App("shop", node=f"maitred://127.0.0.1:{one.node.port}")

        @app.handler("mails")
        async def mails() -> None: ...

        async with app, one.client() as client:
            task = await mails.enqueue()
            with pytest.raises(DeadlineExceeded) as late:
                await task.result(timeout=0.1)
            assert "paused" not in str(late.value)
            await controlled(client, "pause", reason="secret")
            with pytest.raises(
                DeadlineExceeded, match=r"its queue has been paused for \d+ s"
            ) as late:
                await task.result(timeout=0.1)
            assert "secret" not in str(late.value)
            await controlled(client, "resume")
            assert await given(client) == 1


# In a cluster


def paused(town: Town, queue: str, partition: int = 0) -> bool:
    """Whether the owner of the partition has it paused."""
    owned = town.owner(queue, partition).partitions.owned
    (found,) = [one for key, one in owned.items() if key[1:] == (queue, 1, partition)]
    return found.partition.hand_out.is_paused


def queue_of_two_nodes(town: Town) -> str:
    """Return a queue whose root is at the node a, and whose partition 1 is at b."""
    return next(
        one
        for one in map("q{}".format, range(1_000))
        if town.owner(one).place.host == "a" and town.owner(one, 1).place.host == "b"
    )


async def nothing_given(town: Town, queue: str, partition: int = 0) -> bool:
    offered = await town.begin(offer(partition, queue), seconds=5.0)
    return isinstance(offered, Offered) and not offered.tasks


def test_a_pause_moves_with_its_partitions() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        for partition in range(3):
            await town.ask(add(partition, queue))
        answer = await town.ask(control("pause", queue))
        assert (answer.partitions, answer.told) == (3, 3)
        town.states(a="draining")
        for partition in range(3):
            assert await nothing_given(town, queue, partition)
            assert paused(town, queue, partition)
        town.states(a="active", b="draining", c="draining")
        for partition in range(3):
            assert await nothing_given(town, queue, partition)
        assert (await town.ask(control("resume", queue))).changed
        assert len((await town.ask(offer(0, queue))).tasks) >= 1

    in_town(main, partitions=3)


def test_a_pause_survives_the_death_of_its_node() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(0, queue))
        await town.ask(control("pause", queue))
        town.kill("a")
        town.states(a="dead")
        assert await nothing_given(town, queue)
        assert paused(town, queue)

    in_town(main)


@pytest.mark.parametrize("milliseconds", [*range(12), 15, 20, 30])
def test_a_root_that_dies_at_any_step_leaves_a_whole_record(milliseconds: int) -> None:
    """A pause that was acknowledged holds at every next owner; one that was not holds at all
    partitions or at none."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        for partition in range(3):
            await town.ask(add(partition, queue))
        answer = town.begin(control("pause", queue))
        await asyncio.sleep(milliseconds * 0.001)
        acknowledged = answer.done() and isinstance(answer.result(), QueueControlled)
        town.kill("a")
        town.states(a="dead")
        await asyncio.sleep(20.0)  # the caretaker of the next root looks
        for partition in range(3):
            await town.ask(Describe("shop", queue, 1, partition, 0))
        found = {paused(town, queue, partition) for partition in range(3)}
        assert len(found) == 1
        if acknowledged:
            assert found == {True}

    in_town(main, partitions=3)


def test_a_pause_that_the_database_lost_is_written_again() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(0, queue))
        standby = town.disk.contents.copy()
        await town.ask(control("pause", queue))
        town.disk.fail_over(standby, 0.1)
        await asyncio.sleep(5.0)
        assert await nothing_given(town, queue)
        town.kill("a")
        town.states(a="dead")
        assert await nothing_given(town, queue)
        assert paused(town, queue)

    in_town(main)


def test_a_root_takes_over_the_pause_that_only_another_partition_has() -> None:
    """The database lost it, and with it the root's node."""

    async def main(town: Town) -> None:
        queue = queue_of_two_nodes(town)
        for partition in range(2):
            await town.ask(add(partition, queue))
        standby = town.disk.contents.copy()
        await town.ask(control("pause", queue))
        town.kill("a")
        town.disk.fail_over(standby, 0.1)
        town.states(a="dead")
        await town.until(lambda: town.owner(queue).partitions.owned != {}, 60.0)
        await asyncio.sleep(30.0)
        await town.ask(Describe("shop", queue, 1, 0, 0))
        assert {paused(town, queue, partition) for partition in range(2)} == {True}

    in_town(main, partitions=2)


def test_a_removed_partition_with_tasks_learns_of_pause_and_resume() -> None:
    """The root tells only the partitions that its counts name; the others ask."""

    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        for partition in range(2):
            await town.ask(add(partition, queue))
        await town.ask(Resize("shop", queue, 1, 0, 0, 1, 1, force=True))
        assert (await town.ask(control("pause", queue))).partitions == 1
        await town.until(lambda: paused(town, queue, 1), 60.0)
        assert await nothing_given(town, queue)
        assert (await town.ask(control("resume", queue))).partitions == 1
        assert paused(town, queue, 1)
        await town.until(lambda: not paused(town, queue, 1), 60.0)
        assert len((await town.ask(offer(0, queue))).tasks) == 2

    in_town(main, partitions=2)


def test_a_root_takes_over_the_pause_that_only_a_removed_partition_has() -> None:
    async def main(town: Town) -> None:
        queue = queue_of_two_nodes(town)
        for partition in range(2):
            await town.ask(add(partition, queue))
        await town.ask(Resize("shop", queue, 1, 0, 0, 1, 1, force=True))
        standby = town.disk.contents.copy()
        await town.ask(control("pause", queue))
        await town.until(lambda: paused(town, queue, 1), 60.0)
        town.kill("a")
        town.disk.fail_over(standby, 0.1)
        town.states(a="dead")
        await asyncio.sleep(30.0)
        await town.ask(Describe("shop", queue, 1, 0, 0))
        assert {paused(town, queue, partition) for partition in range(2)} == {True}

    in_town(main, partitions=2)


def test_a_cluster_with_an_older_node_refuses_to_pause() -> None:
    async def main(town: Town) -> None:
        queue = town.queue_of("a")
        await town.ask(add(0, queue))
        town.members["b"] = structs.replace(town.members["b"], versions=(1, 2))
        town.states()
        with pytest.raises(ClusterNotUpgraded):
            await town.ask(control("pause", queue))
        assert not paused(town, queue)
        assert not (await town.ask(control("resume", queue))).changed

    in_town(main)


def test_a_partition_that_did_not_answer_is_told_later() -> None:
    async def main(town: Town) -> None:
        queue = queue_of_two_nodes(town)
        for partition in range(2):
            await town.ask(add(partition, queue))
        (shard,) = town.of("b")
        shard.is_frozen = True
        answer = await town.ask(control("pause", queue))
        assert (answer.partitions, answer.told) == (2, 1)
        shard.is_frozen = False
        await town.until(lambda: paused(town, queue, 1))

    in_town(main, partitions=2)
