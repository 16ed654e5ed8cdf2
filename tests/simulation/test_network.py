"""What the simulated network does that loopback sockets cannot be made to do."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest

from maitred.errors import InvalidArgument
from maitred.simulation.faults import Faults
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.simulation.process import Process

PORT = 80


class Far(asyncio.Protocol):
    """Keeps what comes; one for each end."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.lost_at = 0.0
        self.ended = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces.append(data)

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.lost_at = asyncio.get_running_loop().time()

    @property
    def error(self) -> int | None:
        assert len(self.lost) == 1
        return getattr(self.lost[0], "errno", None)


class Line:
    """A server on host b and a client on host a, connected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.near, self.far = Far(), Far()
        self.client: Process
        self.server: Process

    async def up(self) -> None:
        self.server = self.world.host("b").spawn(self._serve, name="server")
        await asyncio.sleep(0)
        self.client = self.world.host("a").spawn(self._connect, name="client")
        await asyncio.sleep(1)
        assert self.far.transport is not None

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: self.far, None, PORT)
        await server.serve_forever()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.near, "b", PORT)
        await loop.create_future()


def on_a_line(
    behaviour: Callable[[Line], Awaitable[None]], faults: Faults | None = None, seed: int = 1
) -> World:
    async def main(line: Line) -> None:
        await line.up()
        await behaviour(line)

    with World(seed, faults=faults) as world:
        world.run(main(Line(world)))
    return world


def test_connecting_takes_a_round_trip() -> None:
    faults = Faults(delay_min_seconds=0.5, delay_max_seconds=0.5)

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Far, "b", PORT)
        assert loop.time() == 1.0

    with World(1, faults=faults) as world:
        world.host("b")
        world.run(world.host("a").spawn(connect).wait())


@pytest.mark.parametrize("target", ["b", "10.9.9.9"])
def test_connecting_to_silence_times_out(target: str) -> None:
    async def connect() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError) as caught:
            await loop.create_connection(Far, target, PORT)
        assert caught.value.errno == errno.ETIMEDOUT
        assert loop.time() == Faults().connect_timeout_seconds

    with World(1) as world:
        world.host("b").crash()
        world.run(world.host("a").spawn(connect).wait())


def test_connecting_succeeds_if_the_partition_heals_in_time() -> None:
    async def behaviour(line: Line) -> None:
        world = line.world
        world.network.partition("a", "b")
        attempt = world.host("a").spawn(_try_to_connect("b"))
        world.loop.call_later(4, world.network.heal)
        assert await attempt.wait()
        assert 5 < world.loop.time() < 1 + Faults().connect_timeout_seconds

    on_a_line(behaviour)


def test_a_kill_resets_peers_and_frees_the_port() -> None:
    async def behaviour(line: Line) -> None:
        line.server.kill()
        await asyncio.sleep(1)
        assert line.near.error == errno.ECONNRESET
        assert line.far.lost == []
        line.world.host("b").spawn(line._serve)  # the same port, at once
        await asyncio.sleep(1)
        assert await line.world.host("a").spawn(_try_to_connect("b")).wait()

    on_a_line(behaviour)


def test_a_kill_can_look_orderly() -> None:
    async def behaviour(line: Line) -> None:
        line.server.kill()
        await asyncio.sleep(1)
        assert line.near.ended
        assert line.near.lost == [None]

    on_a_line(behaviour, Faults(kill_orderly_probability=1.0))


def test_a_crash_is_silent_until_somebody_writes() -> None:
    async def behaviour(line: Line) -> None:
        line.world.host("b").crash()
        await asyncio.sleep(1000)
        assert line.near.lost == []
        line.near.transport.write(b"anybody?")
        await asyncio.sleep(1000)
        assert line.near.error == errno.ETIMEDOUT
        timeout = Faults().retransmission_timeout_seconds
        assert line.near.lost_at == pytest.approx(1001 + timeout)

    on_a_line(behaviour)


def test_bytes_under_way_to_a_crashed_host_time_out_too() -> None:
    async def behaviour(line: Line) -> None:
        line.near.transport.write(b"just now")
        line.world.host("b").crash()
        await asyncio.sleep(1000)
        assert line.near.error == errno.ETIMEDOUT
        assert line.far.received == b""

    on_a_line(behaviour)


def test_a_rebooted_host_resets_old_connections() -> None:
    async def behaviour(line: Line) -> None:
        host = line.world.host("b")
        host.crash()
        await asyncio.sleep(5)
        host.spawn(line._serve)
        await asyncio.sleep(5)
        assert line.near.lost == []
        line.near.transport.write(b"anybody?")
        await asyncio.sleep(1)
        assert line.near.error == errno.ECONNRESET

    on_a_line(behaviour)


def test_a_reboot_answers_what_was_written_meanwhile_with_a_reset() -> None:
    async def behaviour(line: Line) -> None:
        host = line.world.host("b")
        host.crash()
        line.near.transport.write(b"anybody?")
        await asyncio.sleep(5)
        host.spawn(line._serve)
        await asyncio.sleep(5)
        assert line.near.error == errno.ECONNRESET

    on_a_line(behaviour)


def test_a_partition_that_heals_loses_nothing() -> None:
    async def behaviour(line: Line) -> None:
        line.world.network.partition("a", "b")
        for part in (b"one ", b"two ", b"three"):
            line.near.transport.write(part)
            await asyncio.sleep(1)
        line.far.transport.write(b"answer")
        await asyncio.sleep(1)
        assert line.far.received == line.near.received == b""
        line.world.network.heal()
        await asyncio.sleep(Faults().retransmission_gap_max_seconds + 1)
        assert line.far.received == b"one two three"
        assert line.near.received == b"answer"
        assert line.near.lost == line.far.lost == []

    on_a_line(behaviour)


def test_what_is_written_between_healing_and_retransmission_does_not_time_out() -> None:
    async def behaviour(line: Line) -> None:
        line.world.network.partition("a", "b")
        line.near.transport.write(b"held, ")
        await asyncio.sleep(10)
        line.world.network.heal()
        # What was held goes out within two seconds; this joins it.
        line.near.transport.write(b"and joined")
        await asyncio.sleep(100)
        assert line.far.received == b"held, and joined"
        assert not line.near.lost

    on_a_line(behaviour)


def test_a_partition_that_does_not_heal_fails_both_writers() -> None:
    async def behaviour(line: Line) -> None:
        line.world.network.partition("a", "b")
        line.near.transport.write(b"lost")
        line.far.transport.write(b"lost")
        await asyncio.sleep(100)
        assert line.near.error == line.far.error == errno.ETIMEDOUT
        line.world.network.heal()
        await asyncio.sleep(100)
        assert line.far.received == line.near.received == b""

    on_a_line(behaviour)


def test_partitions_are_between_groups_only() -> None:
    async def serve() -> None:
        async with await asyncio.start_server(_drop, None, PORT) as server:
            await server.serve_forever()

    async def driver(world: World) -> None:
        a, b, c = (world.host(name, group=group) for name, group in ("al", "br", "cr"))
        for host in (b, c):
            host.spawn(serve)
        await asyncio.sleep(0.1)
        world.network.partition("l", "r")
        for source, target, reachable in ((b, c, True), (a, b, False), (c, a, False)):
            attempt = source.spawn(_try_to_connect(target.name))
            assert await attempt.wait() is reachable
        world.network.heal()
        assert await a.spawn(_try_to_connect("b")).wait()

    with World(1) as world:
        world.run(driver(world))


async def _drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _try_to_connect(name: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(name, PORT)
    except TimeoutError:
        return False
    writer.close()
    return True


def test_a_lost_acknowledgement_fails_a_writer_whose_bytes_arrived() -> None:
    async def behaviour(line: Line) -> None:
        line.world.network.block("b", "a")
        line.near.transport.write(b"arrives")
        await asyncio.sleep(100)
        assert line.far.received == b"arrives"
        assert line.far.lost == []
        assert line.near.error == errno.ETIMEDOUT

    on_a_line(behaviour)


@pytest.mark.parametrize(("heals", "error"), [(True, errno.ECONNRESET), (False, errno.ETIMEDOUT)])
def test_a_kill_behind_a_partition_is_learnt_after_it(*, heals: bool, error: int) -> None:
    async def behaviour(line: Line) -> None:
        line.near.transport.write(b"under way")
        line.world.network.partition("a", "b")
        line.server.kill()  # its reset gets lost
        await asyncio.sleep(5)
        assert line.near.lost == []
        if heals:
            line.world.network.heal()
        await asyncio.sleep(100)
        assert line.near.error == error

    on_a_line(behaviour)


@pytest.mark.parametrize(("heals", "error"), [(True, errno.ECONNRESET), (False, errno.ETIMEDOUT)])
def test_a_cut_that_one_end_cannot_hear_of(*, heals: bool, error: int) -> None:
    async def behaviour(line: Line) -> None:
        line.world.network.block("b", "a")
        line.near.transport.write(b"lost")
        await asyncio.sleep(5)
        assert line.far.error == errno.ECONNRESET
        assert line.near.lost == []
        if heals:
            line.world.calm()
        await asyncio.sleep(100)
        assert line.near.error == error

    on_a_line(behaviour, Faults(cut_probability=1.0))


def test_a_cut_resets_both_ends() -> None:
    async def behaviour(line: Line) -> None:
        line.near.transport.write(b"lost")
        await asyncio.sleep(1)
        assert line.near.error == line.far.error == errno.ECONNRESET
        assert line.far.received == b""

    on_a_line(behaviour, Faults(cut_probability=1.0))


@pytest.mark.parametrize("both", [0.0, 1.0])
def test_half_open_is_silence_then_a_timeout_of_the_writer(both: float) -> None:
    async def behaviour(line: Line) -> None:
        line.near.transport.write(b"lost")
        await asyncio.sleep(1)
        line.world.calm()  # which does not repair it
        line.far.transport.write(b"the other way")
        await asyncio.sleep(100)
        assert line.far.received == b""
        assert line.near.error == errno.ETIMEDOUT
        assert bytes(line.near.received) == (b"" if both else b"the other way")
        assert line.far.error == errno.ETIMEDOUT

    on_a_line(behaviour, Faults(half_open_probability=1.0, half_open_both_probability=both))


def test_refused_although_somebody_listens() -> None:
    async def main(world: World) -> None:
        line = Line(world)
        world.host("b").spawn(line._serve)
        await asyncio.sleep(1)
        with pytest.raises(ConnectionRefusedError):
            await world.host("a").spawn(_try_to_connect("b")).wait()

    with World(1, faults=Faults(refuse_probability=1.0)) as world:
        world.run(main(world))


def test_deliveries_are_split_and_joined_but_never_mixed() -> None:
    async def behaviour(line: Line) -> None:
        sent = bytearray()
        for number in range(200):
            part = bytes([number % 256]) * (number + 1)
            sent += part
            line.near.transport.write(part)
            if number % 3:
                await asyncio.sleep(0.001)
        await asyncio.sleep(10)
        assert line.far.received == sent
        sizes = {len(piece) for piece in line.far.pieces}
        assert sizes - set(range(1, 201)), "no two writes were joined"
        assert len(line.far.pieces) > 140, "no write was split"

    on_a_line(
        behaviour,
        Faults(split_probability=0.5, spike_probability=0.1, spike_seconds=0.01),
    )


def test_spikes_delay_one_connection_past_another() -> None:
    async def behaviour(line: Line) -> None:
        arrivals = []
        for _ in range(50):
            line.far.received.clear()
            started = line.world.loop.time()
            line.near.transport.write(b"x")
            while not line.far.received:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.001)
            arrivals.append(line.world.loop.time() - started)
        assert min(arrivals) < 0.01
        assert 0.1 < max(arrivals) < 0.3

    on_a_line(behaviour, Faults(spike_probability=0.3, spike_seconds=0.25))


def test_back_pressure_fills_the_window_then_the_buffer() -> None:
    window = 10_000

    async def behaviour(line: Line) -> None:
        line.far.transport.pause_reading()
        line.near.transport.write(b"x" * 15_000)
        assert line.near.transport.get_write_buffer_size() == 5_000
        await asyncio.sleep(10)
        assert line.near.transport.get_write_buffer_size() == 5_000
        assert line.far.received == b""
        line.far.transport.resume_reading()
        await asyncio.sleep(10)
        assert line.near.transport.get_write_buffer_size() == 0
        assert len(line.far.received) == 15_000

    on_a_line(behaviour, Faults(window_bytes=window))


def test_a_window_update_lost_in_a_partition_comes_after_it() -> None:
    async def behaviour(line: Line) -> None:
        line.far.transport.pause_reading()
        line.near.transport.write(b"x" * 15_000)
        await asyncio.sleep(1)
        line.world.network.partition("a", "b")
        line.far.transport.resume_reading()
        await asyncio.sleep(5)
        assert len(line.far.received) == 10_000
        line.world.network.heal()
        await asyncio.sleep(5)
        assert len(line.far.received) == 15_000
        assert line.near.lost == []

    on_a_line(behaviour, Faults(window_bytes=10_000))


def test_calm_switches_all_faults_off() -> None:
    async def behaviour(line: Line) -> None:
        line.world.calm()
        line.world.network.partition("a", "b")
        line.world.calm()
        for _ in range(500):
            line.near.transport.write(b"x")
            await asyncio.sleep(0.01)
        assert len(line.far.received) == 500
        assert line.near.lost == []

    stormy = Faults.stormy()
    assert stormy.calm().cut_probability == stormy.calm().split_probability == 0.0
    assert stormy.calm().delay_max_seconds == stormy.delay_max_seconds
    on_a_line(behaviour, Faults(cut_probability=0.5, spike_probability=0.5), seed=3)


def test_faults_are_checked() -> None:
    for wrong in (
        {"cut_probability": 1.5},
        {"spike_seconds": -1.0},
        {"delay_min_seconds": 2.0, "delay_max_seconds": 1.0},
        {"window_bytes": 0},
        {"connect_retry_seconds": 0.0},
    ):
        with pytest.raises(InvalidArgument):
            Faults(**wrong)


def test_reuse_port_places_connections_among_servers() -> None:
    accepted = {"one": 0, "two": 0, "three": 0}

    async def serve(name: str) -> None:
        def factory() -> Far:
            accepted[name] += 1
            return Far()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, None, PORT, reuse_port=True)
        await server.serve_forever()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(60):
            await loop.create_connection(Far, "b", PORT)

    async def driver(world: World) -> None:
        processes = [world.host("b").spawn(serve(name), name=name) for name in accepted]
        await asyncio.sleep(0.1)
        keep = world.host("a").spawn(_and_stay(connect))
        await asyncio.sleep(1)
        assert min(accepted.values()) >= 10
        assert sum(accepted.values()) == 60
        processes[0].kill()
        before = accepted["one"]
        await world.host("c").spawn(connect).wait()
        assert accepted["one"] == before
        assert not keep.dead

    with World(1) as world:
        world.run(driver(world))


async def _and_stay(main: Callable[[], Awaitable[None]]) -> None:
    await main()
    await asyncio.get_running_loop().create_future()


def test_connections_are_forgotten_when_they_are_over() -> None:
    async def behaviour(line: Line) -> None:
        assert len(line.world.network.connections) == 1
        line.near.transport.close()
        await asyncio.sleep(1)
        assert line.world.network.connections == {}
        assert line.world.host("a").ports_in_use == {}

    on_a_line(behaviour)


def test_other_hosts_keep_their_fortunes() -> None:
    """What one connection meets does not depend on who else is there."""

    def arrivals(*others: str) -> list[bytes]:
        pieces: list[bytes] = []

        async def behaviour(line: Line) -> None:
            for name in others:
                line.world.host(name).spawn(_try_to_connect("b"))
            for _ in range(20):
                line.near.transport.write(bytes(100))
                await asyncio.sleep(0.1)
            pieces.extend(line.far.pieces)

        on_a_line(behaviour, Faults(split_probability=0.5))
        return pieces

    assert arrivals() == arrivals("c", "d")


def test_nothing_is_delivered_after_a_reset() -> None:
    """A cut reaches the server before it reads; the client, not told yet, goes on writing."""
    received: list[bytes] = []
    lost: list[Exception | None] = []

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

        def connection_lost(self, exc: Exception | None) -> None:
            lost.append(exc)

    # The handshake's last packet is slow, and what follows it quick: all arrive at once.
    with World(1, faults=Faults(delay_min_seconds=1.0, delay_max_seconds=1.0)) as world:

        class Client(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.WriteTransport)
                world.network.faults = Faults(cut_probability=1.0)
                transport.write(b"cut off")
                world.network.faults = Faults()
                transport.write(b"out of order")

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            async with await loop.create_server(Server, None, 1) as server:
                await server.serve_forever()

        async def connect() -> None:
            await asyncio.get_running_loop().create_connection(Client, "server", 1)
            await asyncio.sleep(5)

        async def story() -> None:
            world.host("server").spawn(serve)
            await asyncio.sleep(1)
            await world.host("client").spawn(connect).wait()

        world.run(story())
    assert received == []
    assert [type(error) for error in lost] == [ConnectionResetError]
