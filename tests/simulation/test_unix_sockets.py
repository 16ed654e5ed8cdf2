"""Unix sockets and shared ports between simulated processes: kills, crashes, faults, fortunes."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from tests.simulation.test_network import PORT, Far

from maitred.simulation.errors import NotSimulated
from maitred.simulation.faults import Faults
from maitred.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.simulation.process import Process

PATH = "/run/node/0"
FAULTLESS = Faults()


class Wire:
    """Two processes of host a, connected through a Unix socket."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.host("a")
        self.near, self.far = Far(), Far()
        self.client: Process
        self.server: Process

    async def up(self) -> None:
        self.server = self.host.spawn(self.serve, name="server")
        await asyncio.sleep(0)
        self.client = self.host.spawn(self._connect, name="client")
        await asyncio.sleep(1)
        assert self.far.transport is not None

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: self.far, PATH)
        await server.serve_forever()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.near, PATH)
        await loop.create_future()

    async def try_to_connect(self) -> type[BaseException] | None:
        async def attempt() -> type[BaseException] | None:
            try:
                _, writer = await asyncio.open_unix_connection(PATH)
            except OSError as error:
                return type(error)
            writer.close()
            return None

        result: type[BaseException] | None = await self.host.spawn(attempt).wait()
        return result


def on_a_wire(
    behaviour: Callable[[Wire], Awaitable[None]], faults: Faults | None = None, seed: int = 1
) -> World:
    async def main(wire: Wire) -> None:
        await wire.up()
        await behaviour(wire)

    with World(seed, faults=faults) as world:
        world.run(main(Wire(world)))
    return world


def test_a_path_is_a_file_of_one_host() -> None:
    async def connect() -> None:
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(PATH)

    async def behaviour(wire: Wire) -> None:
        assert await wire.try_to_connect() is None
        await wire.world.host("b").spawn(connect).wait()

    on_a_wire(behaviour)


def test_spellings_of_one_path() -> None:
    async def main() -> None:
        async with await asyncio.start_unix_server(_greet, "/run//x/../socket") as server:
            assert server.sockets[0].getsockname() == "/run//x/../socket"
            reader, writer = await asyncio.open_unix_connection("/run/socket")
            assert await reader.read() == b"hello"
            writer.close()

    with World(1) as world:
        world.run(world.host("a").spawn(main).wait())


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


def test_a_kill_ends_the_stream_and_leaves_the_file() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.near.transport.write(b"read")
        await asyncio.sleep(1)
        wire.server.kill()
        await asyncio.sleep(1)
        assert wire.far.received == b"read"
        assert wire.near.ended
        assert wire.near.lost == [None]
        assert wire.far.lost == []
        assert await wire.try_to_connect() is ConnectionRefusedError
        wire.host.spawn(wire.serve)  # the same path, at once
        await asyncio.sleep(1)
        assert await wire.try_to_connect() is None
        await asyncio.sleep(1)
        assert wire.world.network.connections == {}

    on_a_wire(behaviour)
    on_a_wire(behaviour, Faults(kill_orderly_probability=0.5))


@pytest.mark.parametrize("read", [False, True])
def test_a_kill_with_bytes_unread_resets_the_peer(read: bool) -> None:
    async def behaviour(wire: Wire) -> None:
        wire.far.transport.pause_reading()
        wire.near.transport.write(b"unread")
        if read:
            await asyncio.sleep(1)
        wire.server.kill()  # at once: the bytes are under way, and already in its socket
        await asyncio.sleep(1)
        assert not wire.near.ended
        assert wire.near.error == errno.ECONNRESET
        assert wire.world.network.connections == {}

    on_a_wire(behaviour)


def test_a_killed_client_ends_the_stream_too() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.near.transport.write(b"last words")
        wire.client.kill()
        wire.far.transport.write(b"to nobody")
        await asyncio.sleep(1)
        assert wire.far.error == errno.EPIPE
        assert wire.near.received == b""

    on_a_wire(behaviour)


def test_a_client_killed_before_it_knows_that_it_is_connected() -> None:
    async def connect() -> None:
        await asyncio.open_unix_connection(PATH)

    async def behaviour(wire: Wire) -> None:
        wire.far = Far()
        client = wire.host.spawn(connect)
        await asyncio.sleep(FAULTLESS.loopback_delay_seconds)
        assert len(client.unclaimed) == 1
        client.kill()
        await asyncio.sleep(1)
        assert wire.far.ended
        assert wire.far.lost == [None]
        assert len(wire.world.network.connections) == 1

    on_a_wire(behaviour)


def test_who_waits_to_be_accepted_is_reset_by_a_kill() -> None:
    lost: list[Far] = []

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        _, far = await loop.create_unix_connection(Far, PATH)
        lost.append(far)
        await loop.create_future()

    async def behaviour(wire: Wire) -> None:
        wire.host.spawn(connect)
        await asyncio.sleep(FAULTLESS.loopback_delay_seconds)
        wire.server.kill()
        await asyncio.sleep(1)
        assert lost[0].error == errno.ECONNRESET
        assert wire.world.network.connections == {}

    on_a_wire(behaviour)


def test_a_crash_leaves_the_file_and_no_connection() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.near.transport.write(b"lost")
        wire.host.crash()
        await asyncio.sleep(60)
        assert wire.near.lost == wire.far.lost == []
        assert wire.world.network.connections == {}
        assert await wire.try_to_connect() is ConnectionRefusedError  # it has power again
        wire.host.spawn(wire.serve)
        await asyncio.sleep(1)
        assert await wire.try_to_connect() is None

    on_a_wire(behaviour)


def test_a_crash_and_a_reboot_at_once() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.near.transport.write(b"lost")
        wire.host.crash()
        assert await wire.try_to_connect() is ConnectionRefusedError
        await asyncio.sleep(60)
        assert wire.world.network.connections == {}
        assert wire.far.received == b""

    on_a_wire(behaviour)


@pytest.mark.parametrize("cleanup_socket", [False, True])
def test_closing_removes_the_file_if_asked_to(cleanup_socket: bool) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        first, second = [
            await loop.create_unix_server(Far, PATH, cleanup_socket=cleanup_socket)
            for _ in range(2)
        ]
        first.close()  # the file is the second one's
        await loop.create_unix_connection(Far, PATH)
        second.close()
        with pytest.raises(FileNotFoundError if cleanup_socket else ConnectionRefusedError):
            await loop.create_unix_connection(Far, PATH)

    with World(1) as world:
        world.run(world.host("a").spawn(main).wait())


def test_a_process_that_ends_does_not_clean_up() -> None:
    async def serve() -> None:
        loop: Any = asyncio.get_running_loop()
        await loop.create_unix_server(Far, PATH, cleanup_socket=True)

    async def connect() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(PATH)

    async def main(world: World) -> None:
        await world.host("a").spawn(serve).wait()
        await world.host("a").spawn(connect).wait()

    with World(1) as world:
        world.run(main(world))


def test_no_fault_of_the_network_strikes_but_bytes_come_in_pieces() -> None:
    async def behaviour(wire: Wire) -> None:
        network = wire.world.network
        network.partition("a", "b")
        network.block("b", "a")
        for number in range(100):
            wire.near.transport.write(b"%09d\n" % number)
            wire.far.transport.write(b"x")
            await asyncio.sleep(0.01)
        assert wire.far.received == b"".join(b"%09d\n" % number for number in range(100))
        assert wire.near.received == b"x" * 100
        assert len(wire.far.pieces) > 100
        assert wire.near.lost == wire.far.lost == []

    async def main(wire: Wire) -> None:
        wire.world.host("b")
        await wire.up()
        await behaviour(wire)

    faults = Faults(
        cut_probability=0.5,
        half_open_probability=0.5,
        refuse_probability=1.0,
        split_probability=0.5,
    )
    with World(1, faults=faults) as world:
        world.run(main(Wire(world)))


def test_a_slow_reader_stops_the_writer() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.far.transport.pause_reading()
        wire.near.transport.write(bytes(10_000))
        assert wire.near.transport.get_write_buffer_size() == 10_000 - 1_000
        wire.far.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(wire.far.received) == 10_000

    on_a_wire(behaviour, Faults(window_bytes=1_000))


def test_a_writer_with_more_to_say_learns_that_its_peer_read_all_and_closed() -> None:
    async def behaviour(wire: Wire) -> None:
        wire.near.transport.pause_reading()
        wire.far.transport.pause_reading()
        wire.near.transport.write(bytes(1_500))
        await asyncio.sleep(1)
        wire.far.transport.resume_reading()
        await asyncio.sleep(0)
        wire.far.transport.close()
        await asyncio.sleep(1)
        assert len(wire.far.received) == 1_000
        assert wire.near.error == errno.EPIPE

    on_a_wire(behaviour, Faults(window_bytes=1_000))


def test_what_is_refused() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        for method in (loop.create_unix_connection, loop.create_unix_server):
            with pytest.raises(NotSimulated, match="TLS"):
                await method(Far, PATH, ssl=object())
            with pytest.raises(NotSimulated, match="sockets") as caught:
                await method(Far, sock=object())
            assert "path" in str(caught.value.remedy)
            for path in ("\0abstract", b"\0abstract", ""):
                with pytest.raises(NotSimulated, match="with a path"):
                    await method(Far, path)
            with pytest.raises(TypeError):
                await method(Far, 1)

    with World(1) as world:
        world.run(world.host("a").spawn(main).wait())


def test_equal_seeds_give_equal_runs_over_unix_sockets() -> None:
    def run(seed: int) -> tuple[str, list[bytes]]:
        pieces: list[bytes] = []

        async def behaviour(wire: Wire) -> None:
            for _ in range(20):
                wire.near.transport.write(bytes(100))
                await asyncio.sleep(0.1)
            pieces.extend(wire.far.pieces)

        world = on_a_wire(behaviour, Faults(split_probability=0.5), seed)
        return world.fingerprint(), pieces

    assert run(1) == run(1)
    assert run(1) != run(2)


# Shared ports


def _placements(seed: int, *, kill: bool = False) -> list[str]:
    """Which of three processes got each of 60 connections; one may die after the first 30."""
    placed: list[str] = []

    async def serve(name: str) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _note(name), None, PORT, reuse_port=True)
        await server.serve_forever()

    def _note(name: str) -> Far:
        placed.append(name)
        return Far()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(30):
            transport, _ = await loop.create_connection(Far, "b", PORT)
            transport.close()
        await asyncio.sleep(1)

    async def main(world: World) -> None:
        processes = [world.host("b").spawn(serve(name), name=name) for name in "xyz"]
        await asyncio.sleep(0.1)
        await world.host("a").spawn(connect).wait()
        if kill:
            processes[1].kill()
        await world.host("a").spawn(connect).wait()

    with World(seed) as world:
        world.run(main(world))
    assert len(placed) == 60
    return placed


def test_placement_is_random_and_the_seeds_alone() -> None:
    first = _placements(1)
    assert first == _placements(1)
    assert first != _placements(2)
    assert all(first.count(name) >= 10 for name in "xyz")


def test_only_the_living_get_connections() -> None:
    placed = _placements(1, kill=True)
    assert placed[:30] == _placements(1)[:30]
    assert set(placed[:30]) == {"x", "y", "z"}
    assert set(placed[30:]) == {"x", "z"}


def test_who_waits_at_a_killed_sharer_is_reset_and_not_moved() -> None:
    """As on Linux without tcp_migrate_req: the queue of a listener dies with it."""
    accepted: list[str] = []
    clients: list[Far] = []

    async def serve(name: str) -> None:
        def factory() -> Far:
            accepted.append(name)
            return Far()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, None, PORT, reuse_port=True)
        await server.serve_forever()

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        _, far = await loop.create_connection(Far, "localhost", PORT)
        clients.append(far)
        await loop.create_future()

    async def main(world: World) -> None:
        host = world.host("b")
        processes = [host.spawn(serve(name), name=name) for name in ("dies", "lives")]
        await asyncio.sleep(0.1)
        for _ in range(20):
            host.spawn(connect)
        await asyncio.sleep(2 * FAULTLESS.loopback_delay_seconds)
        processes[0].kill()
        await asyncio.sleep(1)
        reset = [far for far in clients if far.lost]
        assert len(clients) == 20
        assert 0 < len(reset) < 20
        assert all(far.error == errno.ECONNRESET for far in reset)
        assert accepted == ["lives"] * (20 - len(reset))

    with World(1) as world:
        world.run(main(world))
