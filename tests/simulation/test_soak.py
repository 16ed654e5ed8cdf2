"""Many seeds of every scenario; and proof that a soak finds what is broken, and replays it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
from typing import TYPE_CHECKING

import pytest
from tests.node.in_process import instances

from maitred.errors import InvalidArgument, UnknownAlgorithm
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios import SCENARIOS
from maitred.simulation.soak import RunOutcome, run_seed, run_seed_proved, scenario_named, soak
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK = 3
SEEDS = {
    "streams": 12,
    "connections": 12,
    "backpressure": 12,
    "servers": 12,
    "membership": 6,
    "nodes": 6,
    "tasks": 3,
    "many-queues": 3,
    "queries": 3,
    "cluster": 3,
    "cluster-queries": 3,
}
"""The last five are large; each kind of trouble of theirs has seeds of its own in its own tests.
`make soak` has a thousand of each."""


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param(
            name, chunk * CHUNK, id=f"{name}-seeds-{chunk * CHUNK}-to-{(chunk + 1) * CHUNK - 1}"
        )
        for name, seeds in SEEDS.items()
        for chunk in range(seeds // CHUNK)
    ],
)
def test_scenario(name: str, first: int) -> None:
    gc.collect()
    worlds = instances(World)
    report = soak({name: SCENARIOS[name]}, range(first, first + CHUNK))
    assert report.ok, str(report)
    assert report.runs == CHUNK
    gc.collect()
    assert instances(World) == worlds, "worlds stay in memory after their end"


def test_every_scenario_is_soaked() -> None:
    assert set(SEEDS) == set(SCENARIOS)


async def broken(world: World) -> None:
    """Counts on each delivery being one whole write, as naive code does."""
    received: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(100))
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(handle, None, 1) as server:
            await server.serve_forever()

    async def send() -> None:
        _, writer = await asyncio.open_connection("server", 1)
        writer.write(b"a whole message")
        await writer.drain()
        await asyncio.sleep(1)
        writer.close()

    world.host("server").spawn(serve)
    await asyncio.sleep(0.1)
    for _ in range(10):
        process = world.host("client").spawn(send)
        await asyncio.wait([asyncio.ensure_future(_quietly(process.wait()))])
    if any(message not in (b"", b"a whole message") for message in received):
        raise Violation(f"Only a part came: {received}")


async def _quietly(awaitable: object) -> None:
    with contextlib.suppress(OSError):
        await awaitable  # type: ignore[misc]


def test_a_broken_scenario_is_caught_and_replays_exactly() -> None:
    seen: list[RunOutcome] = []
    report = soak({"broken": broken}, range(20), seen.append)
    assert [outcome.seed for outcome in seen] == list(range(20))
    assert report.failures
    assert not report.ok
    for failure in report.failures:
        assert failure.replayed is True
        assert "Violation: Only a part came" in str(failure.error)
        assert f"maitred simulate soak --scenario broken --seed {failure.seed}" in str(report)
        again = run_seed(broken, failure.seed)
        assert (again.error, again.fingerprint) == (failure.error, failure.fingerprint)


async def unrepeatable(world: World) -> None:
    await asyncio.sleep(random.random())
    raise Violation(f"at {world.loop.time()}")


def test_a_failure_that_does_not_replay_is_said_loudly() -> None:
    outcome = run_seed_proved(unrepeatable, 1)
    assert outcome.replayed is False
    assert "DID NOT REPLAY" in str(outcome)


async def deadlocked(world: World) -> None:
    await world.loop.create_future()


async def unhandled(world: World) -> None:
    world.loop.call_soon(lambda: {"a": 1}["b"])
    await asyncio.sleep(1)


@pytest.mark.parametrize(("scenario", "error"), [(deadlocked, "Deadlock"), (unhandled, "KeyError")])
def test_hangs_and_swallowed_errors_are_failures(scenario: object, error: str) -> None:
    outcome = run_seed_proved(scenario, 1)  # type: ignore[arg-type]
    assert not outcome.ok
    assert outcome.replayed
    assert error in str(outcome.error)


def test_worker_processes_give_the_same_outcomes_in_order() -> None:
    scenarios = {"servers": SCENARIOS["servers"]}
    alone: list[RunOutcome] = []
    together: list[RunOutcome] = []
    soak(scenarios, range(20), alone.append)
    soak(scenarios, itertools.islice(itertools.count(), 20), together.append, workers=2)
    assert alone == together
    with pytest.raises(InvalidArgument):
        soak(scenarios, range(1), workers=0)


def test_unknown_scenarios_are_refused_by_name() -> None:
    assert scenario_named("streams", SCENARIOS) is SCENARIOS["streams"]
    with pytest.raises(UnknownAlgorithm, match="streams"):
        scenario_named("stream", SCENARIOS)


async def forgetful(world: World) -> None:
    """Leaves async generators behind in cycles that only the garbage collector finds."""

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)

    for _ in range(300):
        left_behind: list[object] = [numbers()]
        left_behind.append(left_behind)
        await anext(left_behind[0])  # type: ignore[call-overload]
        await asyncio.sleep(0.01)
    world.trace.note(b"end", 0)


def test_the_garbage_collector_decides_nothing() -> None:
    # Before each run the process has allocated something else.
    outcomes = []
    for size in (1, 500, 250):
        ballast = [[] for _ in range(size)]  # type: ignore[var-annotated]
        outcomes.append(run_seed(forgetful, 1))
        del ballast
    assert len({(outcome.fingerprint, outcome.virtual_seconds) for outcome in outcomes}) == 1
    assert gc.isenabled()
