"""How connections end when more than one thing goes wrong: nobody waits for ever, nothing leaks."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import sys
from typing import TYPE_CHECKING

import pytest
from tests.simulation.test_network import Far, Line, on_a_line

from maitred.simulation.connection import SimulatedConnection
from maitred.simulation.errors import ProcessFailed, UnhandledErrors
from maitred.simulation.faults import Faults
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_WINDOW = Faults(window_bytes=1_000)
LONG_SECONDS = 100_000.0


def released(world: World) -> bool:
    return not world.network.connections and not any(
        host.ports_in_use for host in world.network.hosts.values()
    )


@pytest.mark.parametrize("how", ["close", "abort", "kill", "nothing"])
def test_an_end_that_was_asked_for_while_bytes_were_buffered_is_sent(how: str) -> None:
    async def behaviour(line: Line) -> None:
        assert line.near.transport is not None
        line.near.transport.write(b"x" * 50_000)
        line.near.transport.write_eof()
        if how == "kill":
            line.client.kill()
        elif how != "nothing":
            getattr(line.near.transport, how)()
        await asyncio.sleep(LONG_SECONDS)
        assert line.far.lost == [None]
        assert released(line.world)

    on_a_line(behaviour, Faults(window_bytes=1_000, kill_orderly_probability=1.0))


async def _fill(line: Line) -> None:
    """The reader pauses; the writer fills the window and buffers more."""
    assert line.near.transport is not None
    assert line.far.transport is not None
    line.far.transport.pause_reading()
    line.near.transport.write(b"x" * 5_000)
    await asyncio.sleep(1)
    assert line.near.transport.get_write_buffer_size() == 4_000


def _crash(line: Line) -> None:
    line.world.host("b").crash()


def _partition(line: Line) -> None:
    line.world.network.partition("a", "b")


def _half_open(line: Line) -> None:
    (connection,) = line.world.network.connections.values()
    assert isinstance(connection, SimulatedConnection)
    line.world.network.faults = Faults(window_bytes=1_000, half_open_both_probability=1.0)
    connection.outgoing._go_silent()


@pytest.mark.parametrize("fault", [_crash, _partition, _half_open])
def test_a_writer_with_a_full_window_gives_up_on_silence(fault: Callable[[Line], None]) -> None:
    async def behaviour(line: Line) -> None:
        await _fill(line)
        fault(line)
        await asyncio.sleep(LONG_SECONDS)
        assert line.near.error == errno.ETIMEDOUT

    on_a_line(behaviour, SMALL_WINDOW)


def test_a_writer_with_a_full_window_hears_of_a_kill_behind_a_partition() -> None:
    async def behaviour(line: Line) -> None:
        await _fill(line)
        line.world.network.partition("a", "b")
        line.server.kill()
        await asyncio.sleep(5)
        line.world.network.heal()
        await asyncio.sleep(LONG_SECONDS)
        assert line.near.error == errno.ECONNRESET
        assert released(line.world)

    on_a_line(behaviour, SMALL_WINDOW)


def test_a_reset_that_is_not_noticed_is_told_again() -> None:
    """A cut that the sender can't hear of, while the receiver has paused reading."""

    async def behaviour(line: Line) -> None:
        assert line.near.transport is not None
        assert line.far.transport is not None
        line.far.transport.pause_reading()
        line.world.network.block("b", "a")
        line.world.network.faults = Faults(cut_probability=1.0)
        line.near.transport.write(b"cut")
        line.world.network.faults = Faults()
        await asyncio.sleep(1)
        line.world.calm()
        line.near.transport.write(b"more")
        await asyncio.sleep(LONG_SECONDS)
        assert line.near.error == errno.ECONNRESET

    on_a_line(behaviour)


def test_an_end_for_a_socket_that_is_no_more_is_answered() -> None:
    async def behaviour(line: Line) -> None:
        assert line.near.transport is not None
        line.world.host("b").crash()
        line.world.host("b").spawn(asyncio.sleep(LONG_SECONDS))
        line.near.transport.write_eof()
        await asyncio.sleep(LONG_SECONDS / 2)
        assert line.near.error == errno.ECONNRESET

    on_a_line(behaviour)


def test_nothing_crosses_a_partition_that_came_back_at_once() -> None:
    async def behaviour(line: Line) -> None:
        assert line.near.transport is not None
        line.world.network.partition("a", "b")
        line.near.transport.write(b"held")
        await asyncio.sleep(5)
        line.world.network.heal()
        line.world.network.partition("a", "b")
        await asyncio.sleep(10)
        assert line.far.received == b""
        line.world.network.heal()
        await asyncio.sleep(10)
        assert line.far.received == b"held"

    on_a_line(behaviour)


SLOW = Faults(delay_min_seconds=0.5, delay_max_seconds=0.5)


def test_a_cancelled_connect_stays_cancelled_though_it_is_refused_in_that_instant() -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(asyncio.Protocol, "b", 81))
        await asyncio.sleep(0)
        loop.call_later(1.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    with World(1, faults=SLOW) as world:
        world.host("b")
        assert world.run(world.host("a").spawn(main).wait())


def test_a_client_killed_in_the_instant_it_is_connected_leaves_nothing_behind() -> None:
    far = Far()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: far, None, 80) as server:
            await server.serve_forever()

    async def connect() -> None:
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, "b", 80)

    async def story(world: World) -> None:
        world.host("b").spawn(serve)
        await asyncio.sleep(1)
        client = world.host("a").spawn(connect)
        await asyncio.sleep(0)
        world.loop.call_later(1.0, client.kill)
        await asyncio.sleep(LONG_SECONDS)
        assert released(world)

    with World(1, faults=SLOW) as world:
        world.run(story(world))
    assert len(far.lost) == (1 if far.transport is not None else 0)


@pytest.mark.parametrize("reboots", [True, False], ids=["reboots", "stays down"])
def test_a_host_that_crashes_before_it_accepts_leaves_no_client_waiting(*, reboots: bool) -> None:
    near = Far()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(asyncio.Protocol, None, 80) as server:
            await server.serve_forever()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: near, "b", 80)
        near.transport.write(b"x" * 5_000)
        await loop.create_future()

    async def story(world: World) -> None:
        world.host("b").spawn(serve)
        await asyncio.sleep(1)
        world.host("a").spawn(connect)
        await asyncio.sleep(1.2)  # connected after 1 s, accepted after 1.5 s
        assert near.transport is not None
        world.host("b").crash()
        await asyncio.sleep(3)
        if reboots:
            world.host("b").spawn(serve)
        await asyncio.sleep(LONG_SECONDS)
        assert near.error == (errno.ECONNRESET if reboots else errno.ETIMEDOUT)
        assert released(world)

    slow_and_small = Faults(delay_min_seconds=0.5, delay_max_seconds=0.5, window_bytes=1_000)
    with World(1, faults=slow_and_small) as world:
        world.run(story(world))


def test_each_connection_from_one_port_has_fortunes_of_its_own() -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(asyncio.Protocol, None, 80) as server:
            await server.serve_forever()

    async def connect() -> set[str]:
        loop = asyncio.get_running_loop()
        seen = set()
        for _ in range(30):
            try:
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, "b", 80, local_addr=("a", 5_000)
                )
            except ConnectionRefusedError:
                seen.add("refused")
            else:
                seen.add("accepted")
                transport.close()
            await asyncio.sleep(1)
        return seen

    async def story(world: World) -> set[str]:
        world.host("b").spawn(serve)
        await asyncio.sleep(1)
        seen: set[str] = await world.host("a").spawn(connect).wait()
        return seen

    with World(1, faults=Faults(refuse_probability=0.5)) as world:
        assert world.run(story(world)) == {"refused", "accepted"}


def test_a_task_that_failed_unseen_fails_the_run_though_its_process_has_ended() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        assert task.done()

    def run() -> None:
        with World(1) as world:
            world.run(world.host("a").spawn(main).wait())

    with pytest.raises(UnhandledErrors, match="unseen"):
        run()


def test_an_exception_handler_of_one_process_hears_of_its_own_errors_only() -> None:
    heard: list[str] = []

    async def careful() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
        loop.call_soon(lambda: int("mine"))
        await asyncio.sleep(5)

    async def careless() -> None:
        asyncio.get_running_loop().call_soon(lambda: int("theirs"))
        await asyncio.sleep(1)

    async def story(world: World) -> None:
        world.host("a").spawn(careful)
        await asyncio.sleep(1)
        await world.host("b").spawn(careless).wait()

    def run() -> None:
        with World(1) as world:
            world.run(story(world))

    with pytest.raises(UnhandledErrors, match="theirs") as caught:
        run()
    assert "mine" not in str(caught.value)
    assert len(heard) == 1


@pytest.mark.parametrize("code", [None, 0, 3])
def test_exit_ends_a_process_and_not_the_world(code: int | None) -> None:
    async def leave() -> None:
        sys.exit(code)

    async def story(world: World) -> str:
        process = world.host("a").spawn(leave)
        if code:
            with pytest.raises(ProcessFailed, match="exited with 3"):
                await process.wait()
        else:
            await process.wait()
        await asyncio.sleep(1)
        return "went on"

    with World(1) as world:
        assert world.run(story(world)) == "went on"


def test_processes_share_no_context() -> None:
    secret: contextvars.ContextVar[str] = contextvars.ContextVar("secret", default="nothing")

    async def look() -> str:
        return secret.get()

    async def story(world: World) -> str:
        secret.set("the driver's")
        found: str = await world.host("a").spawn(look).wait()
        return found

    with World(1) as world:
        assert world.run(story(world)) == "nothing"
