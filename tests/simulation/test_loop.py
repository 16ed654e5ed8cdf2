"""Virtual time, order, limits and determinism of the simulated loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.simulation.errors import Deadlock, NotSimulated, TooManyEvents, TooMuchTime
from maitred.simulation.loop import LoopLimits, SimulatedLoop
from maitred.simulation.world import World


@pytest.fixture
def loop() -> Any:  # noqa: ANN401 - a generator fixture
    loop = SimulatedLoop()
    yield loop
    loop.close()


def test_an_hour_takes_no_time(loop: SimulatedLoop) -> None:
    started = time.process_time()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600.0
    assert time.process_time() - started < 1.0


def test_ties_run_in_the_order_they_were_set(loop: SimulatedLoop) -> None:
    order: list[int] = []
    for number in range(100):
        loop.call_at(5.0, order.append, number)
    loop.run_until_complete(asyncio.sleep(6))
    assert order == list(range(100))


@given(st.lists(st.integers(min_value=0, max_value=5), max_size=40))
def test_timers_run_by_time_and_then_by_age(delays: list[int]) -> None:
    loop = SimulatedLoop()
    ran: list[tuple[int, int]] = []
    for number, delay in enumerate(delays):
        loop.call_later(delay, ran.append, (delay, number))
    loop.run_until_complete(asyncio.sleep(10))
    loop.close()
    assert ran == sorted(ran)
    assert len(ran) == len(delays)


def test_what_is_ready_does_not_starve_timers_that_are_due(loop: SimulatedLoop) -> None:
    order: list[str] = []

    def again(left: int) -> None:
        order.append("soon")
        if left:
            loop.call_soon(again, left - 1)

    loop.call_soon(again, 3)
    loop.call_later(0, order.append, "due")
    loop.run_until_complete(asyncio.sleep(1))
    assert order.index("due") < 3


def test_time_in_the_past_is_now(loop: SimulatedLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(10)
        moment = loop.create_future()
        loop.call_at(3.0, lambda: moment.set_result(loop.time()))
        return float(await moment)

    assert loop.run_until_complete(main()) == 10.0


def test_cancelled_timers_are_forgotten(loop: SimulatedLoop) -> None:
    async def main() -> None:
        for _ in range(50_000):
            loop.call_later(1e6, print).cancel()

    loop.run_until_complete(main())
    assert len(loop._timers) < 5_000
    assert loop.time() == 0.0


def test_a_deadlock_names_who_waits_and_where(loop: SimulatedLoop) -> None:
    async def inner() -> None:
        await loop.create_future()

    async def main() -> None:
        waiting = asyncio.create_task(inner(), name="patient")
        await waiting

    with pytest.raises(Deadlock) as caught:
        loop.run_until_complete(main())
    assert "patient" in str(caught.value)
    assert "test_loop.py" in str(caught.value)
    assert "inner" in str(caught.value)


def test_a_livelock_ends() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - spinning is the point
            await asyncio.sleep(0)

    with World(1, limits=LoopLimits(max_events=1_000)) as world, pytest.raises(TooManyEvents):
        world.run(spin())


def test_virtual_time_has_an_end_and_limits_count_from_each_run() -> None:
    with World(1, limits=LoopLimits(max_virtual_seconds=100.0)) as world:
        for _ in range(3):
            world.run(asyncio.sleep(99))
        with pytest.raises(TooMuchTime, match="100 virtual seconds"):
            world.run(asyncio.sleep(101))


def test_events_are_counted(loop: SimulatedLoop) -> None:
    for _ in range(10):
        loop.call_soon(int)
    loop.call_soon(int).cancel()
    loop.run_until_complete(asyncio.sleep(0))
    # Ten callbacks, two steps of the task, and the callback that stops the loop.
    assert loop.events == 13


def test_what_is_not_simulated_says_so(loop: SimulatedLoop) -> None:
    calls = [
        (loop.add_reader, (0, print)),
        (loop.add_signal_handler, (1, print)),
        (loop.subprocess_exec, (asyncio.SubprocessProtocol, "true")),
        (loop.create_datagram_endpoint, (asyncio.DatagramProtocol,)),
        (loop.start_tls, (None, None, None)),
        (loop.sock_recv, (None, 1)),
    ]
    for method, arguments in calls:
        with pytest.raises(NotSimulated, match="simulated loop has no") as caught:
            method(*arguments)  # type: ignore[operator]
        assert caught.value.code == "not-simulated"


def test_tls_and_sockets_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotSimulated, match="TLS"):
            await asyncio.open_connection("a", 1, ssl=True)
        with pytest.raises(NotSimulated, match="sockets"):
            await loop.create_server(asyncio.Protocol, sock=object())  # type: ignore[call-overload]

    with World(1) as world:
        process = world.host("a").spawn(main)
        world.run(process.wait())


def test_the_executor_runs_inline_as_an_event_of_its_own(loop: SimulatedLoop) -> None:
    order: list[str] = []

    async def main() -> None:
        future = loop.run_in_executor(None, order.append, "function")
        order.append("after the call")
        await future

    loop.run_until_complete(main())
    assert order == ["after the call", "function"]


def test_context_goes_from_task_to_task(loop: SimulatedLoop) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def child() -> str:
        return variable.get()

    async def main() -> str:
        variable.set("parent")
        return await asyncio.create_task(child())

    assert loop.run_until_complete(main()) == "parent"


def test_task_groups_cancel_in_order(loop: SimulatedLoop) -> None:
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cancelled.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(wait(number))
            await asyncio.sleep(1)
            raise ValueError

    with pytest.raises(ExceptionGroup):
        loop.run_until_complete(main())
    assert cancelled == list(range(50))


def test_async_generators_and_timeouts_work(loop: SimulatedLoop) -> None:
    async def ticks() -> Any:  # noqa: ANN401 - an asynchronous generator
        while True:
            yield loop.time()
            await asyncio.sleep(1)

    async def main() -> list[float]:
        seen = []
        try:
            async with asyncio.timeout(3.5):
                async for tick in ticks():
                    seen.append(tick)  # noqa: PERF401 - the loop is what is tested
        except TimeoutError:
            pass
        return seen

    assert loop.run_until_complete(main()) == [0.0, 1.0, 2.0, 3.0]


REPEATABLE = """
import sys
from maitred.simulation.scenarios import SCENARIOS
from maitred.simulation.soak import run_seed
for name, scenario in SCENARIOS.items():
    print(run_seed(scenario, 0, name=name))
"""


def test_runs_are_equal_whatever_the_hash_seed() -> None:
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", REPEATABLE],
        env={**os.environ, "PYTHONHASHSEED": other_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = io.StringIO()
    with redirect_stdout(here):
        exec(REPEATABLE, {})  # noqa: S102 - the same lines under the hash seed of this process
    assert here.getvalue() == there
    assert "FAILED" not in there


def test_different_seeds_are_different_runs() -> None:
    from maitred.simulation.scenarios import SCENARIOS
    from maitred.simulation.soak import run_seed

    prints = {run_seed(SCENARIOS["servers"], seed).fingerprint for seed in range(5)}
    assert len(prints) == 5


def test_a_loop_that_was_never_finished_goes_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while a loop is being made."""
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    SimulatedLoop.__new__(SimulatedLoop)
    gc.collect()
    assert complaints == []
