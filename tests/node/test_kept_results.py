"""Results outlive a node that stops in order, and an id tells what became of its task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from maitred import logs
from maitred.errors import TaskForgotten, UnknownTask
from maitred.matching.records import SEQUENCES_PER_RANGE, PartitionKey, Terms
from maitred.node import partitions as node_partitions
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    Await,
    DeadLetters,
    End,
    Failure,
    Finish,
    Offer,
    Offered,
    Outcome,
    Revoke,
    Revoked,
)
from maitred.routing.gradual import GradualChange
from maitred.routing.homes import Homes
from maitred.settings import Node, Queue, Scaling
from maitred.simulation.hosts import EPOCH_SECONDS
from maitred.simulation.scenarios.people import Guest
from maitred.simulation.scenarios.simulated_node import SimulatedNode
from maitred.simulation.soak import LIMITS
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.world import World
from tests.node.in_process import in_a_loop, until
from tests.node.raw import echo
from tests.node.shops import shop
from tests.store.engines import Simulated

if TYPE_CHECKING:
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from tests.store.engines import Engine

SECONDS = 20.0
SESSION = b"a worker's own.."


async def ended(
    client: AsyncClient,
    *bodies: object,
    how: int = DONE,
    terms: Terms = Terms(retries=0),  # noqa: B008 - frozen
    partition: int = 0,
) -> list[int]:
    """Add a task for each body and have a worker end it; the sequence numbers."""
    where = ("shop", "mails", 1, partition, 0)
    payloads = [b"\x90"] * len(bodies)
    added = await client.request(Add(*where, 0, payloads, terms=terms), SECONDS)
    assert isinstance(added, Added)
    left = len(bodies)
    while left:
        offered = await client.request(Offer(*where, 0, SESSION, "worker", left), SECONDS)
        assert isinstance(offered, Offered)
        ends = [
            End(
                one.sequence,
                one.attempt,
                one.proof,
                how,
                msgpack.encode(bodies[one.sequence - added.first]),
            )
            for one in offered.tasks
        ]
        await client.request(Finish(*where, SESSION, ends), SECONDS)
        left -= len(ends)
    return list(range(added.first, added.first + len(bodies)))


async def outcome(client: AsyncClient, sequence: int, partition: int = 0) -> Outcome:
    found = await client.request(Await("shop", "mails", 1, partition, 0, sequence), SECONDS)
    assert isinstance(found, Outcome)
    return found


@in_a_loop
async def test_a_restart_in_order_keeps_every_result(
    tmp_path: Path,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_partitions, "KEPT_AT_ONCE", 30)  # several portions
    async with shop(tmp_path, engine) as one:
        async with one.client() as client:
            numbers = await ended(client, *range(100))
            long = await ended(client, "long", terms=Terms(retention=3600.0))
            none = await ended(client, "none", terms=Terms(retention=0.0))
        for _ in range(2):  # what was kept once is kept again
            assert await one.restart()
            async with one.client() as client:
                told = [await outcome(client, number) for number in numbers + long]
                assert [msgpack.decode(each.body) for each in told] == [*range(100), "long"]
                assert {each.status for each in told} == {"done"}
                assert await client.request(
                    Revoke("shop", "mails", 1, 0, 0, numbers[0]), SECONDS
                ) == Revoked("over")
                with pytest.raises(TaskForgotten):
                    await outcome(client, none[0])


@in_a_loop
async def test_a_drain_that_times_out_keeps_results_as_well(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), drain_seconds=0.05) as one:
        never = asyncio.Event()
        one.node.hold_until(never.wait)
        async with one.client() as client:
            numbers = await ended(client, 1, 2, 3)
            raw = await one.node.ready(0)
            raw.write(echo("held", stream=1, hold=1))
            await until(lambda: one.node.shard.in_flight > 0)
        assert not await one.restart(), "the drain was not timed out"
        async with one.client() as client:
            assert [(await outcome(client, n)).status for n in numbers] == ["done"] * 3


@in_a_loop
async def test_results_that_cannot_be_written_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    engine = Simulated()
    async with shop(tmp_path, engine) as one:
        async with one.client() as client:
            await ended(client, 1, 2, 3)
        engine.disk.fail_for(3600.0)
        assert await one.restart()
        engine.disk.calm()
        said = [fields for _, event, fields in one.node.log.lines if event == "results not kept"]
        assert [fields["results"] for fields in said] == [3]


@in_a_loop
async def test_an_id_tells_a_forgotten_task_from_one_that_never_was(tmp_path: Path) -> None:
    async with shop(tmp_path, Simulated(), results_kept=1) as one:
        async with one.client() as client:
            first, second = await ended(client, 1, 2)
            assert (await outcome(client, second)).status == "done"
            with pytest.raises(TaskForgotten, match=f"shop/mails/0/{first} is over") as told:
                await outcome(client, first)
            assert told.value.remedy is not None
            for never in (second + 1, 2**62, SEQUENCES_PER_RANGE - 1, 0):
                with pytest.raises(UnknownTask, match=f"shop/mails/0/{never} does not exist"):
                    await outcome(client, never)
                with pytest.raises(UnknownTask):
                    await client.request(Revoke("shop", "mails", 1, 0, 0, never), SECONDS)
        assert await one.restart()
        async with one.client() as client:
            assert (await outcome(client, second)).status == "done"
            with pytest.raises(TaskForgotten, match=f"shop/mails/0/{first} "):
                await outcome(client, first)
            with pytest.raises(TaskForgotten):
                await client.request(Revoke("shop", "mails", 1, 0, 0, first), SECONDS)
            with pytest.raises(UnknownTask):
                await outcome(client, first + 5 * SEQUENCES_PER_RANGE)


@in_a_loop
async def test_a_dead_letter_tells_that_its_task_failed_for_as_long_as_it_stays(
    tmp_path: Path,
) -> None:
    terms = Terms(retries=0, retention=0.0)
    async with shop(tmp_path, Simulated()) as one:
        failure = Failure("ValueError", "no", "")
        async with one.client() as client:
            (number,) = await ended(client, failure, how=FAILED, terms=terms)
            told = await outcome(client, number)
            assert (told.status, told.attempts) == ("failed", 1)
            assert msgpack.decode(told.body, type=Failure) == failure
            await client.request(DeadLetters("shop", "mails", 1, 0, 0, "drop", [number]), SECONDS)
            with pytest.raises(TaskForgotten):
                await outcome(client, number)


def test_a_partition_that_moves_to_another_shard_takes_its_results_along() -> None:
    """A change of `spread_batch` gives it another home while the node runs."""
    moves_at = EPOCH_SECONDS + 100.0
    change: dict[str, int | float | str] = {
        "old": 0,
        "new": 2,
        "start": moves_at,
        "end": moves_at,
    }
    homes = Homes(4, spread_batch=GradualChange.parse(change, int))
    address = ("shop", "mails", 1, 1)
    before, after = (homes.home(address, moves_at + offset).shard for offset in (-1.0, 1.0))
    assert before != after
    queue = Queue(partitions=2, scaling=Scaling(adaptive=False))
    settings = Node(queues={"*": queue}, spread_batch=change)

    async def use(guest: Guest, running: SimulatedNode, loop: asyncio.AbstractEventLoop) -> None:
        client = await guest.connected(guest.app_of("shop"))
        early = await ended(client, "early", partition=1, terms=Terms(retention=59.0))
        assert owner(running) == [before]
        await asyncio.sleep(50.0 - loop.time())
        late = await ended(client, "before", partition=1)
        await asyncio.sleep(99.9 - loop.time())
        last = await ended(client, "at the last moment", partition=1)
        await asyncio.sleep(101.0 - loop.time())
        assert (await outcome(client, last[0], 1)).status == "done"
        assert after in owner(running)
        assert (await outcome(client, late[0], 1)).status == "done"
        with pytest.raises(TaskForgotten):
            await outcome(client, early[0], 1)
        await client.close()

    def owner(running: SimulatedNode) -> list[int]:
        return [
            number
            for number, shard in running.running.items()
            if shard._partitions is not None and PartitionKey(*address) in shard._partitions.owned
        ]

    with World(1, limits=LIMITS) as world:
        world.calm()

        async def main() -> None:
            host = world.host("node")
            disk = SimulatedDisk(world.random("disk"))
            running = SimulatedNode(
                host, settings, logs.silent(), shards=4, random=world.random("node"), disk=disk
            )
            running.start()
            guest = Guest(world.host("client"), host)
            await guest.host.spawn(use(guest, running, asyncio.get_running_loop())).wait()

        world.run(main())
