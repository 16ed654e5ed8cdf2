"""Simulated processes and hosts: how they start, die, and tell the time."""

from __future__ import annotations

import asyncio
import gc
import inspect
from typing import Any

import pytest

from maitred.errors import DuplicateHost, InvalidArgument, UnknownHost
from maitred.simulation.errors import NoProcess, ProcessKilled, UnhandledErrors
from maitred.simulation.faults import Faults
from maitred.simulation.hosts import EPOCH_SECONDS
from maitred.simulation.process import current_process
from maitred.simulation.world import World


def test_tasks_belong_to_the_process_that_made_them() -> None:
    seen: list[str] = []

    async def child() -> None:
        seen.append(current_process().name)

    async def main() -> None:
        await asyncio.create_task(child())
        asyncio.get_running_loop().call_later(1, lambda: seen.append(current_process().name))
        await asyncio.sleep(2)

    with World(1) as world:
        one = world.host("a").spawn(main, name="one")
        two = world.host("a").spawn(main(), name="two")
        world.run(asyncio.wait_for(_all(one.wait(), two.wait()), 10))
    assert seen == ["one", "two", "one", "two"]


async def _all(*awaitables: Any) -> None:  # noqa: ANN401
    await asyncio.gather(*awaitables)


def test_a_task_that_is_created_while_the_world_ends_is_closed_too() -> None:
    created: list[asyncio.Task[None]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(100)
        finally:
            created.append(loop.create_task(asyncio.sleep(1)))

    with World(1) as world:
        world.host("a").spawn(main, name="one")
        world.run(asyncio.sleep(1))
    (late,) = created
    coroutine = late.get_coro()
    assert inspect.iscoroutine(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_there_is_no_network_outside_a_process() -> None:
    async def main() -> None:
        with pytest.raises(NoProcess, match=r"host\.spawn"):
            await asyncio.open_connection("a", 1)

    with World(1) as world:
        world.run(main())


def test_a_kill_runs_nothing_more_not_even_finally() -> None:
    trail: list[str] = []

    async def worker() -> None:
        try:
            trail.append("started")
            await asyncio.sleep(10)
            trail.append("woke")
        finally:
            trail.append("finally")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, trail.append, "timer")
        loop.call_soon(trail.append, "soon")
        async with asyncio.TaskGroup() as group:
            group.create_task(worker())

    async def driver(world: World) -> list[str]:
        process = world.host("a").spawn(main)
        await asyncio.sleep(1)
        process.kill()
        process.kill()  # again, without harm
        assert process.dead
        with pytest.raises(ProcessKilled):
            await process.wait()
        gc.collect()
        await asyncio.sleep(100)
        return list(trail)

    with World(1) as world:
        assert world.run(driver(world)) == ["soon", "started"]


def test_a_process_can_kill_itself() -> None:
    trail: list[str] = []

    async def main() -> None:
        current = current_process()
        current.kill()
        trail.append("the rest of the step")
        with pytest.raises(NoProcess, match="dead"):
            await asyncio.start_server(lambda _reader, _writer: None, None, 1)
        await asyncio.sleep(0)
        trail.append("never")

    async def driver(world: World) -> None:
        with pytest.raises(ProcessKilled):
            await world.host("a").spawn(main).wait()
        await asyncio.sleep(1)
        assert world.host("a").listeners == {}

    with World(1) as world:
        world.run(driver(world))
    assert trail == ["the rest of the step"]


def test_a_cancelled_main_ends_its_process_and_not_who_waits_for_it() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    async def driver(world: World) -> None:
        with pytest.raises(ProcessKilled, match="cancelled"):
            await world.host("a").spawn(main).wait()

    with World(1) as world:
        world.run(driver(world))


def test_a_process_ends_with_its_main() -> None:
    trail: list[str] = []

    async def background() -> None:
        await asyncio.sleep(5)
        trail.append("too late")

    async def main() -> str:
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        assert not task.done()
        return "result"

    async def driver(world: World) -> None:
        process = world.host("a").spawn(main)
        assert await process.wait() == "result"
        await asyncio.sleep(10)

    with World(1) as world:
        world.run(driver(world))
    assert trail == []


def test_a_failing_process_fails_the_run_unless_somebody_waits() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    async def waits(world: World) -> None:
        with pytest.raises(ValueError, match="broken"):
            await world.host("a").spawn(main).wait()

    async def does_not(world: World) -> None:
        world.host("a").spawn(main)
        await asyncio.sleep(2)

    with World(1) as world:
        world.run(waits(world))
        with pytest.raises(UnhandledErrors, match="broken"):
            world.run(does_not(world))
        world.failures.clear()


def test_what_nobody_handles_fails_the_run() -> None:
    async def callback(world: World) -> None:
        world.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledErrors, match="ZeroDivisionError"), World(1) as world:
        world.run(callback(world))


def test_an_exception_in_a_forgotten_task_is_found_at_the_end() -> None:
    async def fail() -> None:
        raise ValueError("forgotten")

    async def main(tasks: list[asyncio.Task[None]]) -> None:
        tasks.append(asyncio.create_task(fail()))
        await asyncio.sleep(1)

    kept: list[asyncio.Task[None]] = []
    world = World(1)
    world.run(main(kept))
    with pytest.raises(UnhandledErrors, match="forgotten"):
        world.close()


def test_killing_leaves_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    async def chatter() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(handle, None, 1)
        _, writer = await asyncio.open_connection("localhost", 1)
        writer.write(b"x")
        asyncio.create_task(asyncio.sleep(5))  # noqa: RUF006 - it dies with the process
        async with server:
            await server.serve_forever()

    async def driver(world: World) -> None:
        processes = [world.host(name).spawn(chatter) for name in "abc"]
        await asyncio.sleep(1)
        processes[0].kill()
        world.host("b").crash()
        await asyncio.sleep(1)

    with World(1) as world:
        world.run(driver(world))
    del world
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_wall_clocks_can_be_wrong_and_jump() -> None:
    async def driver(world: World) -> None:
        a, b = world.host("a"), world.host("b")
        b.clock_skew_seconds = -3.0
        await asyncio.sleep(10)
        assert a.surroundings.wall_clock() == EPOCH_SECONDS + 10
        assert b.surroundings.wall_clock() == EPOCH_SECONDS + 7
        b.clock_skew_seconds += 60
        assert b.surroundings.wall_clock() == EPOCH_SECONDS + 67
        assert world.loop.time() == 10

    with World(1) as world:
        world.run(driver(world))


def test_randomness_is_stable_by_name() -> None:
    with World(1) as world, World(1) as other, World(2) as third:
        other.host("another")
        first = world.host("a").surroundings.random.random()
        assert first == other.host("a").surroundings.random.random()
        assert first != third.host("a").surroundings.random.random()
        assert world.random("x").random() == other.random("x").random()
        assert world.random("x").random() != world.random("y").random()


def test_hosts_have_names_and_addresses() -> None:
    async def lookup() -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo("b", 80)
        assert found[0][4] == ("10.0.0.2", 80)
        assert await loop.getnameinfo(("10.0.0.2", 80)) == ("b", "80")

    with World(1) as world:
        a = world.host("a", group="left")
        world.host("b")
        assert world.host("a") is a
        assert a.address == "10.0.0.1"
        with pytest.raises(DuplicateHost):
            world.network.add_host("a", "left")
        with pytest.raises(InvalidArgument):
            world.host("10.0.0.9")
        with pytest.raises(UnknownHost):
            world.network.partition("left", "nowhere")
        world.run(a.spawn(lookup).wait())


def test_nothing_of_a_paused_process_runs_and_nothing_of_it_is_lost() -> None:
    trail: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def note(due: float) -> None:
            trail.append(f"{due} at {loop.time()}")

        for moment in (3.0, 2.0, 9.0):
            loop.call_at(moment, note, moment)
        loop.call_at(4.0, trail.append, "cancelled").cancel()
        await asyncio.sleep(5.0)
        trail.append(f"slept until {loop.time()}")
        await asyncio.sleep(10.0)
        trail.append(f"ended at {loop.time()}")

    async def driver(world: World) -> None:
        process = world.host("a").spawn(main)
        await asyncio.sleep(1.0)
        process.pause()
        process.pause()  # again, without harm
        await asyncio.sleep(6.0)
        assert not trail
        process.resume()
        process.resume()
        await process.wait()
        process.pause()
        assert not process.paused, "it is dead"

    with World(1) as world:
        world.run(driver(world))
    assert trail == ["2.0 at 7.0", "3.0 at 7.0", "slept until 7.0", "9.0 at 9.0", "ended at 17.0"]


def test_a_paused_process_can_be_killed() -> None:
    trail: list[str] = []

    async def main() -> None:
        await asyncio.sleep(2.0)
        trail.append("woke")

    async def driver(world: World) -> None:
        process = world.host("a").spawn(main)
        await asyncio.sleep(1.0)
        process.pause()
        await asyncio.sleep(2.0)
        process.kill()
        process.resume()
        with pytest.raises(ProcessKilled):
            await process.wait()
        await asyncio.sleep(5.0)

    with World(1) as world:
        world.run(driver(world))
    assert not trail


@pytest.mark.parametrize("window", [100, 100_000])
def test_a_paused_host_takes_connections_and_bytes_and_answers_when_it_is_resumed(
    window: int,
) -> None:
    answers: list[tuple[bytes, float]] = []

    async def serve() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line)
            writer.close()

        server = await asyncio.start_server(answer, None, 80)
        await server.serve_forever()

    async def ask(text: bytes) -> None:
        reader, writer = await asyncio.open_connection("a", 80)
        await asyncio.sleep(1.0)
        writer.write(text + b"\n")
        answers.append((await reader.readline(), asyncio.get_running_loop().time()))
        writer.close()

    async def driver(world: World) -> None:
        host = world.host("a")
        host.spawn(serve)
        early = world.host("b").spawn(ask(b"early" * 50))
        await asyncio.sleep(0.5)
        host.pause()
        late = world.host("c").spawn(ask(b"late" * 50))
        await asyncio.sleep(10.0)
        assert not answers
        host.resume()
        await early.wait()
        await late.wait()

    with World(1, faults=Faults(window_bytes=window)) as world:
        world.run(driver(world))
    assert {text[:4] for text, _ in answers} == {b"earl", b"late"}
    assert all(10.5 <= moment < 10.6 for _, moment in answers)


def test_a_resumed_process_sends_what_its_window_had_no_room_for() -> None:
    received: list[int] = []

    async def serve() -> None:
        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1.5)  # the window is full, and the sender is paused
            while data := await reader.read(1_000):
                received.append(len(data))
            writer.close()

        server = await asyncio.start_server(swallow, None, 80, limit=50)
        await server.serve_forever()

    async def send() -> None:
        _, writer = await asyncio.open_connection("a", 80)
        writer.write(bytes(5_000))
        await asyncio.sleep(5.0)
        writer.close()

    async def driver(world: World) -> None:
        world.host("a").spawn(serve)
        sending = world.host("b").spawn(send)
        await asyncio.sleep(1.0)
        sending.pause()
        await asyncio.sleep(2.0)
        assert 0 < sum(received) < 1_000
        sending.resume()
        await sending.wait()
        await asyncio.sleep(1.0)

    with World(1, faults=Faults(window_bytes=100)) as world:
        world.run(driver(world))
    assert sum(received) == 5_000
