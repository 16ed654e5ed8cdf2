"""What the processes of one host share, Unix sockets and ports, on real kernels and simulated.

As in test_conformance each behaviour is one coroutine; here uvloop runs it too.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from tests.simulation.test_conformance import (
    ADDRESS,
    Recorder,
    answer_lines,
    bounded,
    run_real,
    run_simulated,
)

Run = Callable[[Coroutine[Any, Any, None]], None]

REMOVED_ON_CLOSE = sys.version_info >= (3, 13)


def run_uvloop(behaviour: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded(behaviour))


@pytest.fixture(params=[run_real, run_uvloop, run_simulated], ids=["real", "uvloop", "simulated"])
def run(request: pytest.FixtureRequest) -> Run:
    return cast("Run", request.param)


@pytest.fixture
def path() -> Iterator[str]:
    # Not tmp_path, which may be longer than the address of a socket.
    with tempfile.TemporaryDirectory(prefix="maitred-") as directory:
        yield f"{directory}/socket"


class Pair:
    """A server on a path and one connection to it."""

    def __init__(
        self, path: str, server_side: Recorder | None = None, client: Recorder | None = None
    ) -> None:
        self.path = path
        self.server_side = server_side or Recorder()
        self.client = client or Recorder()

    async def __aenter__(self) -> Pair:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_unix_server(lambda: self.server_side, self.path)
        await loop.create_unix_connection(lambda: self.client, self.path)
        await self.server_side.called("connection_made")
        for end in (self.client, self.server_side):
            if end.paused and end.transport.is_reading():  # uvloop reads after connection_made
                end.transport.pause_reading()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for end in (self.client, self.server_side):
            if "connection_lost" not in end.calls:
                end.transport.abort()
        for end in (self.client, self.server_side):
            await end.called("connection_lost")
            assert end.calls.count("connection_lost") == 1
        await self.server.wait_closed()


async def closed(server: asyncio.Server) -> None:
    server.close()
    await server.wait_closed()


async def visit(path: str, recorder: Recorder) -> None:
    """Connect and close; the recorder is the server's side."""
    _, client = await asyncio.get_running_loop().create_unix_connection(Recorder, path)
    client.transport.close()
    await client.called("connection_lost")
    await recorder.called("connection_lost")


def test_bytes_go_both_ways_and_names_agree(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path) as pair:
            pair.client.transport.write(b"ping")
            await pair.server_side.got(b"ping")
            pair.server_side.transport.writelines([b"po", b"ng"])
            await pair.client.got(b"pong")
            near, far = pair.client.transport, pair.server_side.transport
            assert near.get_extra_info("peername") == path
            assert near.get_extra_info("sockname") == ""
            assert far.get_extra_info("sockname") == path
            assert far.get_extra_info("peername") == ""
            assert pair.server.sockets[0].getsockname() == path
            assert near.can_write_eof()
            assert pair.server.is_serving()

    run(behaviour())


def test_there_is_no_such_file(run: Run, path: str) -> None:
    async def behaviour() -> None:
        with pytest.raises(FileNotFoundError) as caught:
            await asyncio.get_running_loop().create_unix_connection(Recorder, path)
        assert caught.value.errno == errno.ENOENT

    run(behaviour())


def test_a_closed_server_leaves_its_file_until_3_13(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        await closed(await loop.create_unix_server(Recorder, path))
        expected = FileNotFoundError if REMOVED_ON_CLOSE else ConnectionRefusedError
        with pytest.raises(expected):
            await loop.create_unix_connection(Recorder, path)

    run(behaviour())


def test_a_path_can_be_bound_again(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        await closed(await loop.create_unix_server(Recorder, path))
        recorder = Recorder()
        server = await loop.create_unix_server(lambda: recorder, path)
        await visit(path, recorder)
        await closed(server)

    run(behaviour())


def test_a_path_in_use_is_taken_over(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        second = Recorder()
        async with Pair(path) as pair:
            server = await loop.create_unix_server(lambda: second, path)
            assert pair.server.is_serving()  # where nobody finds it
            pair.client.transport.write(b"still connected")
            await pair.server_side.got(b"still connected")
        await visit(path, second)  # closing the first took nothing from the second
        await closed(server)

    run(behaviour())


def test_a_server_that_starts_later(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        recorder = Recorder()
        server = await loop.create_unix_server(lambda: recorder, path, start_serving=False)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_unix_connection(Recorder, path)
        await server.start_serving()
        await visit(path, recorder)
        await closed(server)

    run(behaviour())


@pytest.mark.parametrize("kind", [Path, str.encode])
def test_kinds_of_paths(run: Run, path: str, kind: Callable[[str], Any]) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        recorder = Recorder()
        server = await loop.create_unix_server(lambda: recorder, kind(path))
        await visit(kind(path), recorder)
        assert server.sockets[0].getsockname() == path
        await closed(server)

    run(behaviour())


def test_paths_that_cannot_be(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="specified"):
            await loop.create_unix_connection(Recorder)
        with pytest.raises(ValueError, match="specified"):
            await loop.create_unix_server(Recorder)
        with pytest.raises(OSError, match="too long"):
            await loop.create_unix_server(Recorder, path.ljust(108, "x"))
        await closed(await loop.create_unix_server(Recorder, path.ljust(107, "x")))
        with pytest.raises(ValueError, match="ssl"):
            await loop.create_unix_connection(Recorder, path, server_hostname="x")

    run(behaviour())


def test_close_reaches_the_peer_as_end_of_stream(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path) as pair:
            pair.client.transport.write(b"last words")
            pair.client.transport.close()
            await pair.server_side.called("connection_lost")
            assert pair.server_side.received == b"last words"
            assert pair.server_side.lost_with is None
            assert pair.server_side.calls[-2:] == ["eof_received", "connection_lost"]

    run(behaviour())


def test_closing_with_bytes_unread_resets_the_peer(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path, client=Recorder(paused=True)) as pair:
            pair.server_side.transport.write(b"unread")
            await asyncio.sleep(0)  # uvloop writes at the end of a turn
            pair.client.transport.abort()
            await pair.server_side.called("connection_lost")
            assert isinstance(pair.server_side.lost_with, ConnectionResetError)
            assert pair.server_side.lost_with.errno == errno.ECONNRESET
            assert "eof_received" not in pair.server_side.calls

    run(behaviour())


def test_half_close(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path, server_side=Recorder(keep_open=True)) as pair:
            pair.client.transport.write(b"question")
            pair.client.transport.write_eof()
            await pair.server_side.called("eof_received")
            assert pair.server_side.received == b"question"
            pair.server_side.transport.write(b"answer")
            await pair.client.got(b"answer")
            pair.server_side.transport.close()
            await pair.client.called("connection_lost")
            assert pair.client.lost_with is None

    run(behaviour())


def test_the_first_write_to_a_peer_that_has_closed_breaks_the_pipe(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path, client=Recorder(keep_open=True)) as pair:
            pair.server_side.transport.close()
            await pair.client.called("eof_received")
            pair.client.transport.write(b"anybody?")
            await pair.client.called("connection_lost")
            assert isinstance(pair.client.lost_with, BrokenPipeError)

    run(behaviour())


def test_ending_the_stream_does_not_mind_a_peer_that_is_gone(run: Run, path: str) -> None:
    async def behaviour() -> None:
        both = Recorder(paused=True), Recorder(paused=True)
        async with Pair(path, *both) as pair:
            pair.client.transport.write(b"unread")
            await asyncio.sleep(0)
            pair.server_side.transport.abort()
            await pair.server_side.called("connection_lost")
            await asyncio.sleep(0.001)
            pair.client.transport.write_eof()  # over TCP asyncio raises ENOTCONN
            pair.client.transport.resume_reading()
            await pair.client.called("connection_lost")
            assert isinstance(pair.client.lost_with, ConnectionResetError)

    run(behaviour())


def test_back_pressure(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with Pair(path, server_side=Recorder(paused=True)) as pair:
            block = bytes(range(256)) * 256
            sent = 0
            while "pause_writing" not in pair.client.calls:
                pair.client.transport.write(block)
                sent += 1
                await asyncio.sleep(0)
            assert pair.server_side.received == b""
            pair.server_side.transport.resume_reading()
            await pair.client.called("resume_writing")
            await pair.server_side.got(block * sent)

    run(behaviour())


@pytest.mark.parametrize("paused", [False, True])
def test_a_writer_with_a_full_buffer_learns_that_its_peer_is_gone(
    run: Run,
    path: str,
    paused: bool,
) -> None:
    async def behaviour() -> None:
        pair = Pair(path, server_side=Recorder(paused=True), client=Recorder(paused=paused))
        async with pair:
            while "pause_writing" not in pair.client.calls:
                pair.client.transport.write(bytes(65_536))
                await asyncio.sleep(0)
            pair.server_side.transport.abort()
            await pair.client.called("connection_lost")
            # Who reads, reads the reset; who only writes finds the pipe broken.
            expected = BrokenPipeError if paused else ConnectionResetError
            assert isinstance(pair.client.lost_with, expected)

    run(behaviour())


def test_connecting_can_be_given_up(run: Run, path: str) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        accepted: list[Recorder] = []

        def make() -> Recorder:
            accepted.append(Recorder())
            return accepted[-1]

        server = await loop.create_unix_server(make, path)
        attempt = asyncio.ensure_future(loop.create_unix_connection(Recorder, path))
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        reader, writer = await asyncio.open_unix_connection(path)
        writer.close()
        assert await reader.read() == b""
        for recorder in accepted:  # whatever it saw of the first one came before the second
            await recorder.called("connection_lost")
            assert recorder.lost_with is None
        await closed(server)

    run(behaviour())


def test_streams(run: Run, path: str) -> None:
    async def behaviour() -> None:
        async with await asyncio.start_unix_server(answer_lines, path):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"one\ntwo\n")
            await writer.drain()
            assert await reader.readline() == b"ONE\n"
            assert await reader.readexactly(4) == b"TWO\n"
            writer.write(b"three")
            writer.write_eof()
            assert await reader.read() == b"THREE"
            writer.close()
            await writer.wait_closed()

    run(behaviour())


# Ports that are shared


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_port_is_shared_only_if_all_want_it(
    run: Run,
    first: bool,
    second: bool,
) -> None:
    async def behaviour() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recorder, ADDRESS, 0, reuse_port=first)
        port = server.sockets[0].getsockname()[1]
        for address in (ADDRESS, "0.0.0.0"):  # noqa: S104 - it is not bound
            with pytest.raises(OSError, match="address already in use") as caught:
                await loop.create_server(Recorder, address, port, reuse_port=second)
            assert caught.value.errno == errno.EADDRINUSE
        await closed(server)
        await closed(await loop.create_server(Recorder, ADDRESS, port, reuse_port=second))

    run(behaviour())


class Counting:
    """A server that counts its connections and closes them."""

    def __init__(self) -> None:
        self.count = 0

    async def start(self, address: str, port: int) -> int:
        self.server = await asyncio.start_server(self._take, address, port, reuse_port=True)
        return cast("int", self.server.sockets[0].getsockname()[1])

    async def _take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        writer.close()
        await writer.wait_closed()


async def knock(port: int, times: int) -> None:
    for _ in range(times):
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


def test_port_0_is_a_port_of_ones_own_that_others_may_join(run: Run) -> None:
    async def behaviour() -> None:
        one, two, three = Counting(), Counting(), Counting()
        port = await one.start(ADDRESS, 0)
        assert await two.start(ADDRESS, 0) != port
        assert await three.start(ADDRESS, port) == port
        await knock(port, 40)
        assert one.count + three.count == 40
        assert min(one.count, three.count) > 0
        assert two.count == 0
        for counting in (one, two, three):
            await closed(counting.server)

    run(behaviour())


def test_who_closes_gets_nothing_more(run: Run) -> None:
    async def behaviour() -> None:
        one, two = Counting(), Counting()
        port = await one.start(ADDRESS, 0)
        await two.start(ADDRESS, port)
        await closed(one.server)
        await knock(port, 20)
        assert (one.count, two.count) == (0, 20)
        await one.start(ADDRESS, port)
        await knock(port, 40)
        assert one.count > 0
        await closed(one.server)
        await closed(two.server)
        with pytest.raises(ConnectionRefusedError):
            await knock(port, 1)

    run(behaviour())


def test_the_very_address_goes_before_all_addresses(run: Run) -> None:
    async def behaviour() -> None:
        every, very = Counting(), Counting()
        port = await every.start("0.0.0.0", 0)  # noqa: S104 - nobody else knows the port
        await very.start(ADDRESS, port)
        await knock(port, 20)
        assert (every.count, very.count) == (0, 20)
        await closed(very.server)
        await knock(port, 5)
        assert every.count == 5
        await closed(every.server)

    run(behaviour())
