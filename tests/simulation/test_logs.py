"""The logs of a node and its worker in virtual time: what is said when, and always the same."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

from maitred import App
from maitred.logs import logger
from maitred.settings import Log, Node, Queue, WorkerSettings
from maitred.simulation.scenarios.simulated_node import PORT, SimulatedNode
from maitred.simulation.store import SimulatedDisk
from maitred.simulation.world import World
from maitred.worker.worker import Worker


def night(seed: int) -> list[dict[str, Any]]:
    """Return the lines of a night in which handlers fail, a worker dies and returns, and the node
    is restarted."""
    stream = io.StringIO()
    with World(seed) as world:
        world.calm()
        node = SimulatedNode(
            world.host("node"),
            Node(queues={"*": Queue(lease_seconds=5.0)}),
            log_of(world, "node", stream),
            shards=2,
            random=world.random("node"),
            disk=SimulatedDisk(world.random("disk")),
        )
        url = f"maitred://{node.host.name}:{PORT}"
        worker_host, caller = world.host("worker"), world.host("caller")

        async def work(secret: bytes) -> None:
            app = App("shop", node=url, surroundings=worker_host.surroundings)

            @app.handler("charges")
            async def charge(order: int) -> None:
                raise ValueError(f"order {order} cannot be charged")

            @app.handler("naps")
            async def nap() -> None:
                await asyncio.Event().wait()

            client = (await app.session()).client
            settings = WorkerSettings(host=None)
            await Worker(
                client,
                list(app.handlers.values()),
                settings,
                "ant",
                worker_host.surroundings,
                log_of(world, "worker", stream),
                secret=secret,
            ).run()

        async def produce() -> None:
            app = App("shop", node=url, surroundings=caller.surroundings)

            @app.handler("charges", retries=2, backoff=10)
            async def charge(order: int) -> None: ...

            @app.handler("naps", retries=0)
            async def nap() -> None: ...

            await charge.enqueue(1)
            await nap.enqueue()
            await asyncio.sleep(10)
            await app.close()

        async def scenario() -> None:
            node.start()
            await asyncio.sleep(1)
            working = worker_host.spawn(work(bytes(16)), name="worker")
            await asyncio.sleep(1)
            await caller.spawn(produce(), name="caller").wait()
            working.kill()
            await asyncio.sleep(30)
            worker_host.spawn(work(bytes([1] * 16)), name="worker")
            await asyncio.sleep(60)
            await node.kill()
            await asyncio.sleep(20)
            node.start()
            await asyncio.sleep(30)

        world.run(scenario())
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def log_of(world: World, name: str, stream: io.StringIO) -> Any:  # noqa: ANN401 - a logger
    clock = world.host(name).surroundings.wall_clock
    return logger(Log(format="json"), stream, wall_clock=clock, host=name)


def test_a_night_reads_like_this_and_reads_the_same_twice() -> None:
    lines = night(1)
    assert lines == night(1)

    def said(event: str) -> list[dict[str, Any]]:
        return [line for line in lines if line["event"] == event]

    failed = said("a task failed")
    assert [(one["attempt"], one["next"], one.get("attempts_left")) for one in failed] == [
        (1, "retry", 2),
        (2, "retry", 1),
        (3, "dead letter", None),
    ]
    # The second worker has not seen the failure before, and shows its traceback once more.
    assert len([one for one in failed if "exception" in one]) == 2
    assert len({one["failure"] for one in failed}) == 1
    gone, back = said("a worker is gone"), said("a worker is back")
    for seen in (gone, back):  # a line of each shard that has a root of its queues
        queues = [queue for one in seen for queue in one["queues"]]
        assert sorted(queues) == ["shop/charges", "shop/naps"]
    assert all(one["away_seconds"] >= 30 for one in back)
    (ended,) = said("leases ended: their worker was not heard of")
    assert (ended["queue"], ended["worker"], ended["tasks"]) == ("naps", "ant", 1)
    dead = said("a task became a dead letter")
    assert {(one["queue"], one["error"]) for one in dead} == {
        ("charges", "ValueError"),
        ("naps", "lost"),
    }
    away, *_ = said("the node does not answer; trying again")
    (again,) = said("the node answers again")
    assert (away["level"], again["level"]) == ("warning", "info")
    assert 20 <= again["seconds"] < 25
