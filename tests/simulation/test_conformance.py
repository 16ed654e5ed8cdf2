"""The same code on real loopback sockets and in the simulation: both must behave alike.

Each behaviour is one coroutine; the fixture runs it on either. Nothing sleeps: what has to happen
is awaited, under one bound for all.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from maitred.simulation.world import World

ADDRESS = "127.0.0.1"
BOUND_SECONDS = 20.0

Run = Callable[[Coroutine[Any, Any, None]], None]


async def bounded(behaviour: Awaitable[None]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        await behaviour


def run_real(behaviour: Coroutine[Any, Any, None]) -> None:
    asyncio.run(bounded(behaviour))


def run_simulated(behaviour: Coroutine[Any, Any, None]) -> None:
    async def main(world: World) -> None:
        await world.host("a").spawn(bounded(behaviour), name="behaviour").wait()

    with World(seed=1) as world:
        world.run(main(world))


@pytest.fixture(params=[run_real, run_simulated], ids=["real", "simulated"])
def run(request: pytest.FixtureRequest) -> Run:
    return cast("Run", request.param)


class Recorder(asyncio.Protocol):
    """Writes down its callbacks, and lets a test wait for one."""

    def __init__(self, *, keep_open: bool = False, paused: bool = False) -> None:
        self.keep_open = keep_open
        self.paused = paused
        self.calls: list[str] = []
        self.received = bytearray()
        self.lost_with: Exception | None = None
        self.transport: asyncio.Transport
        self._changed = asyncio.Event()

    def _note(self, call: str) -> None:
        if not self.calls or self.calls[-1] != call or call == "connection_lost":
            self.calls.append(call)
        self._changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.paused:
            self.transport.pause_reading()
        self._note("connection_made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._note("data_received")

    def eof_received(self) -> bool:
        self._note("eof_received")
        return self.keep_open

    def pause_writing(self) -> None:
        self._note("pause_writing")

    def resume_writing(self) -> None:
        self._note("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self._note("connection_lost")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def called(self, call: str) -> None:
        await self.until(lambda: call in self.calls)

    async def got(self, data: bytes) -> None:
        await self.until(lambda: len(self.received) >= len(data))
        assert self.received == data


class Pair:
    """A server and one connection to it; both ends are recorders unless given."""

    def __init__(self, server_side: Recorder | None = None, client: Recorder | None = None) -> None:
        self.server_side = server_side or Recorder()
        self.client = client or Recorder()

    async def __aenter__(self) -> Pair:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: self.server_side, ADDRESS, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        await loop.create_connection(lambda: self.client, ADDRESS, self.port)
        await self.server_side.called("connection_made")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for end in (self.client, self.server_side):
            # Aborting once more after a flushed close fails inside asyncio 3.11.
            if "connection_lost" not in end.calls:
                end.transport.abort()
        for end in (self.client, self.server_side):
            await end.called("connection_lost")
            assert end.calls.count("connection_lost") == 1
        await self.server.wait_closed()


def test_bytes_go_both_ways_and_names_agree(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            pair.client.transport.write(b"ping")
            await pair.server_side.got(b"ping")
            pair.server_side.transport.writelines([b"po", bytearray(b"n"), memoryview(b"g")])
            await pair.client.got(b"pong")
            near, far = pair.client.transport, pair.server_side.transport
            assert near.get_extra_info("peername") == (ADDRESS, pair.port)
            assert near.get_extra_info("peername") == far.get_extra_info("sockname")
            assert near.get_extra_info("sockname") == far.get_extra_info("peername")
            assert near.get_extra_info("nothing", "default") == "default"
            assert near.can_write_eof()
            assert near.is_reading()

    run(behaviour())


def test_nobody_listens(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            pair.server.close()
            with pytest.raises(ConnectionRefusedError) as caught:
                await asyncio.get_running_loop().create_connection(Recorder, ADDRESS, pair.port)
            assert caught.value.errno == errno.ECONNREFUSED
            assert isinstance(caught.value, OSError)

    run(behaviour())


def test_unknown_name(run: Run) -> None:
    async def behaviour() -> None:
        with pytest.raises(socket.gaierror):
            await asyncio.open_connection("no-such-host.invalid", 1)

    run(behaviour())


def test_close_reaches_the_peer_as_end_of_stream(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            pair.client.transport.write(b"last words")
            pair.client.transport.close()
            assert pair.client.transport.is_closing()
            assert not pair.client.transport.is_reading()
            assert "connection_lost" not in pair.client.calls  # never from inside close()
            pair.client.transport.close()  # again, without harm
            await pair.client.called("connection_lost")
            assert pair.client.lost_with is None
            await pair.server_side.called("connection_lost")
            assert pair.server_side.received == b"last words"
            assert pair.server_side.lost_with is None
            assert pair.server_side.calls == [
                "connection_made",
                "data_received",
                "eof_received",
                "connection_lost",
            ]

    run(behaviour())


def test_abort_with_nothing_unread_is_an_end_of_stream(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            pair.client.transport.abort()
            await pair.client.called("connection_lost")
            assert pair.client.lost_with is None
            await pair.server_side.called("connection_lost")
            assert pair.server_side.lost_with is None
            assert "eof_received" in pair.server_side.calls

    run(behaviour())


def test_closing_with_bytes_unread_resets_the_peer(run: Run) -> None:
    async def behaviour() -> None:
        # The client has the bytes but does not read them; a second connection proves they are
        # there, since loopback keeps the order.
        async with Pair(client=Recorder(paused=True)) as pair:
            pair.server_side.transport.write(b"unread")
            async with Pair():
                pass
            pair.client.transport.abort()
            await pair.server_side.called("connection_lost")
            assert isinstance(pair.server_side.lost_with, ConnectionResetError)
            assert pair.server_side.lost_with.errno == errno.ECONNRESET
            assert "eof_received" not in pair.server_side.calls

    run(behaviour())


def test_half_close(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(keep_open=True)) as pair:
            pair.client.transport.write(b"question")
            pair.client.transport.write_eof()
            pair.client.transport.write_eof()  # again, without harm
            with pytest.raises(RuntimeError, match="write_eof"):
                pair.client.transport.write(b"more")
            await pair.server_side.called("eof_received")
            assert pair.server_side.received == b"question"
            pair.server_side.transport.write(b"answer")
            await pair.client.got(b"answer")
            assert "connection_lost" not in pair.server_side.calls
            pair.server_side.transport.close()
            await pair.client.called("connection_lost")
            assert pair.client.lost_with is None

    run(behaviour())


def test_writing_to_a_peer_that_has_closed_breaks_the_pipe(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(client=Recorder(keep_open=True)) as pair:
            pair.server_side.transport.close()
            await pair.client.called("eof_received")
            # The first write provokes the reset; a later one meets it.
            while "connection_lost" not in pair.client.calls:
                pair.client.transport.write(b"anybody?")
                await asyncio.sleep(0.001)
            assert isinstance(pair.client.lost_with, BrokenPipeError)
            pair.client.transport.write(b"ignored")

    run(behaviour())


def test_a_reset_is_not_noticed_before_the_next_write_or_read(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(client=Recorder(paused=True)) as pair:
            pair.client.transport.write(b"x")
            await pair.server_side.got(b"x")
            pair.server_side.transport.write(b"for you")
            pair.server_side.transport.pause_reading()
            pair.client.transport.write(b"unread")
            async with Pair():
                pass
            pair.server_side.transport.abort()
            await pair.server_side.called("connection_lost")
            async with Pair():
                pass
            assert "connection_lost" not in pair.client.calls
            pair.client.transport.resume_reading()
            await pair.client.called("connection_lost")
            assert isinstance(pair.client.lost_with, ConnectionResetError)
            assert pair.client.received == b"for you"

    run(behaviour())


def test_back_pressure(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(paused=True)) as pair:
            sent = 0
            block = bytes(range(256)) * 256
            while "pause_writing" not in pair.client.calls:
                pair.client.transport.write(block)
                sent += 1
            low, high = pair.client.transport.get_write_buffer_limits()
            assert (low, high) == (16 * 1024, 64 * 1024)
            assert pair.client.transport.get_write_buffer_size() > high
            assert pair.server_side.received == b""
            pair.server_side.transport.resume_reading()
            await pair.client.called("resume_writing")
            assert pair.client.transport.get_write_buffer_size() <= low
            await pair.server_side.got(block * sent)
            assert pair.client.calls == ["connection_made", "pause_writing", "resume_writing"]

    run(behaviour())


def test_close_sends_what_is_buffered_first(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(paused=True)) as pair:
            block = b"0123456789abcdef" * 4096
            sent = 0
            while pair.client.transport.get_write_buffer_size() == 0:
                pair.client.transport.write(block)
                sent += 1
            pair.client.transport.close()
            pair.server_side.transport.resume_reading()
            await pair.server_side.called("connection_lost")
            assert pair.server_side.received == block * sent
            await pair.client.called("connection_lost")
            assert pair.client.lost_with is None

    run(behaviour())


def test_write_eof_comes_after_what_is_buffered(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(paused=True)) as pair:
            block = b"0123456789abcdef" * 4096
            sent = 0
            while pair.client.transport.get_write_buffer_size() == 0:
                pair.client.transport.write(block)
                sent += 1
            pair.client.transport.write_eof()
            pair.server_side.transport.resume_reading()
            await pair.server_side.called("eof_received")
            assert pair.server_side.received == block * sent

    run(behaviour())


def test_write_buffer_limits(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(paused=True)) as pair:
            transport = pair.client.transport
            transport.set_write_buffer_limits(high=0)
            with pytest.raises(ValueError, match="must be >="):
                transport.set_write_buffer_limits(high=1, low=2)
            while transport.get_write_buffer_size() == 0:
                assert "pause_writing" not in pair.client.calls
                transport.write(b"x" * 65_536)
            assert pair.client.calls[-1] == "pause_writing"
            pair.server_side.transport.resume_reading()
            await pair.client.called("resume_writing")
            assert transport.get_write_buffer_size() == 0
            transport.set_write_buffer_limits(low=1000)
            assert transport.get_write_buffer_limits() == (1000, 4000)

    run(behaviour())


def test_only_bytes_can_be_written(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            with pytest.raises(TypeError, match="bytes-like"):
                pair.client.transport.write("text")  # type: ignore[arg-type]
            pair.client.transport.write(b"")
            pair.client.transport.write(memoryview(b"ok"))
            await pair.server_side.got(b"ok")

    run(behaviour())


def test_pause_and_resume_reading(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair(server_side=Recorder(paused=True)) as pair:
            pair.client.transport.write(b"early")
            pair.client.transport.close()
            async with Pair():
                pass
            assert pair.server_side.calls == ["connection_made"]
            assert not pair.server_side.transport.is_reading()
            pair.server_side.transport.resume_reading()
            pair.server_side.transport.resume_reading()  # again, without harm
            await pair.server_side.called("connection_lost")
            assert pair.server_side.received == b"early"

    run(behaviour())


def test_a_protocol_can_be_replaced(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            second = Recorder()
            pair.server_side.transport.set_protocol(second)
            assert pair.server_side.transport.get_protocol() is second
            pair.client.transport.write(b"for the second")
            await second.got(b"for the second")
            pair.client.transport.close()
            await second.called("connection_lost")
            assert pair.server_side.calls == ["connection_made"]
            pair.server_side.calls.append("connection_lost")  # not its own any more

    run(behaviour())


class Buffered(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.space = bytearray(7)
        self.received = bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert sizehint == -1
        return memoryview(self.space)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.space[:nbytes]

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(exc)


def test_buffered_protocol(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        protocol = Buffered()
        server = await loop.create_server(lambda: protocol, ADDRESS, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            transport, _ = await loop.create_connection(asyncio.Protocol, ADDRESS, port)
            transport.write(bytes(range(100)))
            transport.close()
            assert await protocol.done is None
            assert protocol.received == bytes(range(100))

    run(behaviour())


def test_a_failing_protocol_loses_its_connection(run: Run) -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError(data.decode())

    async def behaviour() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        async with Pair(server_side=Failing()) as pair:
            pair.client.transport.write(b"boom")
            await pair.server_side.called("connection_lost")
            assert isinstance(pair.server_side.lost_with, ValueError)
            await pair.client.called("connection_lost")
        loop.set_exception_handler(before)
        assert [str(context["exception"]) for context in reported] == ["boom"]
        assert reported[0]["protocol"] is pair.server_side

    run(behaviour())


def test_closing_a_server_keeps_its_connections(run: Run) -> None:
    async def behaviour() -> None:
        async with Pair() as pair:
            assert pair.server.is_serving()
            pair.server.close()
            assert not pair.server.is_serving()
            assert pair.server.sockets == ()
            pair.server.close()
            pair.client.transport.write(b"still here")
            await pair.server_side.got(b"still here")

    run(behaviour())


def test_an_address_in_use(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        async with Pair() as pair:
            with pytest.raises(OSError, match="address already in use") as caught:
                await loop.create_server(Recorder, ADDRESS, pair.port)
            assert caught.value.errno == errno.EADDRINUSE
        server = await loop.create_server(Recorder, ADDRESS, pair.port)  # free again
        server.close()
        await server.wait_closed()

    run(behaviour())


def test_an_address_of_another_machine(run: Run) -> None:
    async def behaviour() -> None:
        with pytest.raises(OSError, match="bind") as caught:
            await asyncio.get_running_loop().create_server(Recorder, "203.0.113.1", 0)
        # Since 3.13 asyncio tries every address, and then gives no number.
        assert caught.value.errno in (errno.EADDRNOTAVAIL, None)

    run(behaviour())


def test_reuse_port(run: Run) -> None:
    count = 40

    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        made: list[tuple[str, Recorder]] = []
        all_made = asyncio.Event()

        def factory(name: str) -> Callable[[], Recorder]:
            def make() -> Recorder:
                recorder = Recorder()
                made.append((name, recorder))
                if len(made) == count:
                    all_made.set()
                return recorder

            return make

        first = await loop.create_server(factory("first"), ADDRESS, 0, reuse_port=True)
        port = first.sockets[0].getsockname()[1]
        second = await loop.create_server(factory("second"), ADDRESS, port, reuse_port=True)
        async with first, second:
            clients = [
                (await loop.create_connection(Recorder, ADDRESS, port))[1] for _ in range(count)
            ]
            for client in clients:
                client.transport.close()
                await client.called("connection_lost")
            await all_made.wait()
            for _, recorder in made:
                await recorder.called("connection_lost")
        assert {name for name, _ in made} == {"first", "second"}

    run(behaviour())


def test_a_server_that_starts_later(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        recorder = Recorder()
        server = await loop.create_server(lambda: recorder, ADDRESS, 0, start_serving=False)
        port = server.sockets[0].getsockname()[1]
        assert not server.is_serving()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, ADDRESS, port)
        await server.start_serving()
        async with server:
            _, client = await loop.create_connection(Recorder, ADDRESS, port)
            client.transport.close()
            await recorder.called("connection_lost")

    run(behaviour())


def test_serve_forever_ends_by_cancelling(run: Run) -> None:
    async def behaviour() -> None:
        server = await asyncio.get_running_loop().create_server(Recorder, ADDRESS, 0)
        serving = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not server.is_serving()

    run(behaviour())


def test_nothing_to_connect_to_or_bind(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="specified"):
            await loop.create_connection(Recorder)
        with pytest.raises(ValueError, match="specified"):
            await loop.create_server(Recorder)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="ssl"):
            await loop.create_connection(Recorder, ADDRESS, 1, server_hostname="x")

    run(behaviour())


def test_a_source_port_of_ones_own(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        spare = await loop.create_server(Recorder, ADDRESS, 0)
        source = spare.sockets[0].getsockname()[1]
        recorder = Recorder()
        server = await loop.create_server(lambda: recorder, ADDRESS, 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(OSError, match="in use"):
                await loop.create_connection(Recorder, ADDRESS, port, local_addr=(ADDRESS, source))
            spare.close()
            await spare.wait_closed()
            _, client = await loop.create_connection(
                Recorder, ADDRESS, port, local_addr=(ADDRESS, source)
            )
            assert client.transport.get_extra_info("sockname") == (ADDRESS, source)
            client.transport.close()
            await recorder.called("connection_lost")
            assert recorder.transport.get_extra_info("peername") == (ADDRESS, source)

    run(behaviour())


async def answer_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()
    await writer.wait_closed()


def test_streams(run: Run) -> None:
    async def behaviour() -> None:
        async with await asyncio.start_server(answer_lines, ADDRESS, 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(ADDRESS, port)
            writer.write(b"one\ntwo\n")
            await writer.drain()
            assert await reader.readline() == b"ONE\n"
            assert await reader.readexactly(4) == b"TWO\n"
            assert writer.can_write_eof()
            writer.write(b"three")
            writer.write_eof()
            assert await reader.readuntil(b"E") == b"THRE"
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reader.readexactly(10)
            assert caught.value.partial == b"E"
            assert reader.at_eof()
            writer.close()
            await writer.wait_closed()

    run(behaviour())


def test_streams_with_much_data(run: Run) -> None:
    size = 3_000_000

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        total = 0
        while data := await reader.read(50_000):
            total += len(data)
        writer.write(b"%d" % total)
        writer.close()
        await writer.wait_closed()

    async def behaviour() -> None:
        async with await asyncio.start_server(sink, ADDRESS, 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(ADDRESS, port)
            for _ in range(3):
                writer.write(b"x" * (size // 3))
                await writer.drain()
            writer.write_eof()
            assert await reader.read() == b"%d" % size
            writer.close()
            await writer.wait_closed()

    run(behaviour())


def test_connecting_can_be_given_up(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        accepted: list[Recorder] = []
        arrived = asyncio.Event()

        def make() -> Recorder:
            accepted.append(Recorder())
            arrived.set()
            return accepted[-1]

        async with await loop.create_server(make, ADDRESS, 0) as server:
            port = server.sockets[0].getsockname()[1]
            attempt = asyncio.ensure_future(loop.create_connection(Recorder, ADDRESS, port))
            await asyncio.sleep(0)
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
            # Whatever the server saw of it came before this one.
            arrived.clear()
            _, client = await loop.create_connection(Recorder, ADDRESS, port)
            client.transport.write(b"next")
            client.transport.close()
            await client.called("connection_lost")
            await arrived.wait()
            for recorder in accepted:
                await recorder.called("connection_lost")

    run(behaviour())


def test_threads(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(sum, [1, 2, 3]) == 6
        assert await loop.run_in_executor(None, max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    run(behaviour())


def test_timers_keep_their_order(run: Run) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        done = asyncio.Event()
        loop.call_later(0.02, done.set)
        loop.call_later(0.01, order.append, "later")
        loop.call_later(0.001, order.append, "sooner")
        loop.call_soon(order.append, "soon")
        cancelled = loop.call_later(0.005, order.append, "cancelled")
        assert cancelled.when() > loop.time()
        cancelled.cancel()
        assert cancelled.cancelled()
        await done.wait()
        assert order == ["soon", "sooner", "later"]

    run(behaviour())
