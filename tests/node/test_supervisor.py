"""Real nodes: they start, lose shards, stop, and end with a number that says how."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import maitred
from maitred.errors import MaitredError
from maitred.protocol import cql
from maitred.protocol.frames import HEADER, HEADER_BYTES
from tests.node import raw
from tests.node.nodes import RunningNode, is_alive, running_node, wait_until
from tests.node.test_source_ports import has_ipv6

if TYPE_CHECKING:
    from maitred.protocol.messages import ShardStatus

FAST = ("--set", "restarts.first_seconds=0.01", "--set", "restarts.longest_seconds=0.02")


def supported(host: str, port: int, source: int = 0) -> dict[str, list[str]]:
    """What the shard at the other end says of itself."""
    with closing(socket.create_connection((host, port), 30, (host, source))) as connection:
        connection.sendall(raw.options())
        file = connection.makefile("rb")
        *_, length = HEADER.unpack(file.read(HEADER_BYTES))
        return {key: list(value) for key, value in cql.decode_supported(file.read(length)).items()}


def shard_at(host: str, port: int, source: int = 0) -> int:
    return int(supported(host, port, source)["SCYLLA_SHARD"][0])


def free_source(host: str, shards: int, wanted: int, start: int) -> int:
    """A free port that picks that shard."""
    for port in range(start, start + 1_000):
        if port % shards == wanted:
            with socket.socket() as one:
                try:
                    one.bind((host, port))
                except OSError:
                    continue
                return port
    raise AssertionError("no port is free")


def status_of(node: RunningNode, shard: int) -> ShardStatus:
    """Asked at the shard's own port."""

    async def ask() -> ShardStatus:
        client = await raw.RawClient.open(node.shards[shard].port)
        try:
            await client.handshake()
            return raw.status_in(await client.ask(raw.status(shard)))
        finally:
            client.close()

    return asyncio.run(ask())


def assert_gone(node: RunningNode) -> None:
    """A process closes its files a moment before it is gone."""
    pids = [shard.pid for shard in node.shards]
    wait_until(lambda: not any(map(is_alive, pids)), "all shards have ended")


# Start and stop


def test_a_node_starts_serves_and_stops(tmp_path: Path) -> None:
    with running_node(shards=3, environment={"TMPDIR": str(tmp_path)}, interpreters=True) as node:
        assert [shard.port for shard in node.shards] == [node.port + 1 + n for n in range(3)]
        for shard in node.shards:
            told = supported(node.host, shard.port)
            assert told["SCYLLA_SHARD"] == [str(shard.number)]
            assert told["MAITRED_NODE"] == [node.ready["node"]]
            assert status_of(node, shard.number).pid == shard.pid
        assert shard_at(node.host, node.port) in {0, 1, 2}
        (sockets,) = tmp_path.iterdir()
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert node.stop(signal.SIGTERM) == 0
        assert_gone(node)
        assert node.events("stopped; everything is finished")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_reaches_all_processes_and_drains_once(number: int) -> None:
    """Ctrl-C, or the end of the terminal."""
    with running_node(interpreters=True) as node:
        os.kill(node.shards[0].pid, number)  # a shard does not care
        os.killpg(node.process.pid, number)
        assert node.wait() == 0
        assert len(node.events("stopping; finishing requests in flight")) == 1
        assert node.events("shard died") == []
        assert "Traceback" not in str(node.errors)


def test_a_signal_while_it_starts_stops_it(tmp_path: Path) -> None:
    with running_node(data=tmp_path, wait=False, interpreters=True) as node:
        lock = tmp_path / "lock"
        wait_until(lambda: lock.exists() and lock.read_text() != "", "the directory is taken")
        assert node.stop(signal.SIGTERM) == 0
        assert node.output.seen == []
        assert "Traceback" not in str(node.errors)


def test_the_identity_and_ports_come_back_with_the_node(tmp_path: Path) -> None:
    with running_node(data=tmp_path) as first:
        connection = socket.create_connection((first.host, first.port), 30)
        first.send(signal.SIGHUP)  # its terminal is gone: the same as SIGTERM
        with closing(connection):
            assert connection.recv(1) == b""  # the node closes first: its end lingers
        assert first.wait() == 0
    with running_node(data=tmp_path, port=first.port) as second:
        assert second.ready["node"] == first.ready["node"]
        assert second.port == first.port


def test_ipv6() -> None:
    if not has_ipv6():
        pytest.skip("NO IPv6 HERE: it was not tried")
    with running_node("--host", "::1") as node:
        assert node.url == f"maitred://[::1]:{node.port}"
        with maitred.connect(node.url) as client:
            assert client.echo("n", "q", b"six").payload == b"six"
        if node.source_port:
            for source in range(node.source_port + 100, node.source_port + 140):
                try:
                    shard = shard_at("::1", node.source_port, source)
                except OSError:
                    continue  # somebody else's
                assert shard == source % 2
        assert node.stop() == 0


def test_shards_have_all_the_files_they_may_and_a_name() -> None:
    if not Path("/proc/self/limits").exists():
        pytest.skip("NO /proc HERE: limits and names were not tried")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with running_node("--set", "limits.connections=2147483647", interpreters=True) as node:
            for shard in node.shards:
                limits = Path(f"/proc/{shard.pid}/limits").read_text()
                (files,) = [line for line in limits.splitlines() if "open files" in line]
                assert files.split()[3:5] == [str(hard)] * 2
                assert Path(f"/proc/{shard.pid}/comm").read_text() == f"maitred/{shard.number}\n"
            (warning,) = [entry for entry in node.entries() if entry["level"] == "warning"]
            assert warning["files"] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Two nodes


def test_a_second_node_finds_directory_and_ports_taken(tmp_path: Path) -> None:
    with running_node(data=tmp_path) as node:
        with running_node(data=tmp_path, wait=False) as other:
            assert other.wait() == 1
            said = str(other.errors)
            assert f"process {node.process.pid}." in said
            assert "[cannot-start]" in said
        for port, owner in ((node.port, "which all shards share"), (node.port + 1, "shard 0's")):
            with running_node(port=port, wait=False) as other:
                assert other.wait() == 1
                said = str(other.errors)
                # The second one's shared port is the first one's shard.
                assert f"Port {port} on 127.0.0.1, " in said, owner
                assert "is in use. [cannot-start]" in said
        with maitred.connect(node.url) as client:
            assert client.echo("n", "q", b"still here").payload == b"still here"


# Shards that die


def test_a_killed_shard_comes_back_while_the_others_serve() -> None:
    with running_node(*FAST, shards=3, interpreters=True) as node:
        stopped = threading.Event()
        failures: list[Exception] = []
        answers = 0

        def keep_asking() -> None:
            nonlocal answers
            while not stopped.is_set():
                try:
                    assert shard_at(node.host, node.shards[0].port) == 0
                    answers += 1
                except Exception as problem:  # noqa: BLE001 - told below
                    failures.append(problem)
                    return

        asking = threading.Thread(target=keep_asking)
        asking.start()
        os.kill(node.shards[1].pid, signal.SIGKILL)
        (died,) = node.wait_for_event("shard died")
        assert died["reason"] == "was killed by SIGKILL (signal 9)"
        (again,) = node.wait_for_event("shard ready again")
        stopped.set()
        asking.join()
        assert not failures
        assert answers > 1
        assert again["pid"] not in {shard.pid for shard in node.shards}
        status = status_of(node, 1)
        assert (status.pid, status.restarts) == (again["pid"], 1)
        assert status_of(node, 0).restarts == 0
        assert node.stop() == 0


def test_a_shard_that_is_told_to_stop_by_somebody_else_comes_back() -> None:
    with running_node(*FAST) as node:
        os.kill(node.shards[0].pid, signal.SIGTERM)
        (died,) = node.wait_for_event("shard died")
        assert died["reason"] == "ended with exit status 0"
        node.wait_for_event("shard ready again")
        assert shard_at(node.host, node.shards[0].port) == 0


def test_source_ports_are_right_also_after_a_restart_and_wait_meanwhile() -> None:
    # A pause that leaves time to knock while nobody is in.
    with running_node("--set", "restarts.first_seconds=0.5", shards=3, interpreters=True) as node:
        if not node.source_port:
            pytest.skip("NO SOURCE PORTS HERE: they were not tried")
        assert supported(node.host, node.port)["SCYLLA_SHARD_AWARE_PORT"] == [str(node.source_port)]
        start = node.source_port + 100
        os.kill(node.shards[1].pid, signal.SIGKILL)
        node.wait_for_event("shard died")
        # Accepted by the kernel now, answered by the successor.
        assert shard_at(node.host, node.source_port, free_source(node.host, 3, 1, start)) == 1
        node.wait_for_event("shard ready again")
        for wanted in (0, 1, 2) * 3:
            start = free_source(node.host, 3, wanted, start + 3)
            assert shard_at(node.host, node.source_port, start) == wanted


def test_a_shard_that_keeps_dying_takes_the_node_down() -> None:
    with running_node(*FAST, "--set", "restarts.give_up_after=3") as node:
        pid = node.shards[1].pid
        for time in range(3):
            os.kill(pid, signal.SIGKILL)
            if time < 2:
                pid = node.wait_for_event("shard ready again", time + 1)[-1]["pid"]
        assert node.wait() == 3
        assert_gone(node)
        said = str(node.errors)
        assert "Shard 1 keeps dying: it died 3 times within" in said
        assert "The last time it was killed by SIGKILL (signal 9). [shards-keep-dying]" in said
        assert "Traceback" not in said


def test_a_signal_in_the_pause_before_a_restart_is_obeyed() -> None:
    with running_node("--set", "restarts.first_seconds=5") as node:
        os.kill(node.shards[1].pid, signal.SIGKILL)
        node.wait_for_event("shard died")
        assert node.stop() == 0


def test_shards_of_a_killed_supervisor_end(tmp_path: Path) -> None:
    temporary, data = tmp_path / "t", tmp_path / "d"
    temporary.mkdir()
    with running_node(data=data, environment={"TMPDIR": str(temporary)}, interpreters=True) as node:
        node.process.kill()
        node.wait()  # until the last process has closed the log
        assert_gone(node)
        assert len(node.events("the supervisor has ended; stopping")) == 2
        assert list(temporary.iterdir()) == []
    with running_node(data=data, port=node.port) as again:
        assert again.ready["node"] == node.ready["node"]


def test_the_directory_is_taken_until_the_last_shard_of_a_killed_node_is_done(
    tmp_path: Path,
) -> None:
    with running_node(data=tmp_path, shards=1) as node:
        os.kill(node.shards[0].pid, signal.SIGSTOP)  # it has much to finish
        node.process.kill()
        node.process.wait()
        with running_node(data=tmp_path, shards=1, wait=False) as early:
            assert early.wait() == 1
            assert "is gone, but its shards still finish" in str(early.errors)
        os.kill(node.shards[0].pid, signal.SIGCONT)
        node.errors.wait_for_end()
        assert_gone(node)
    with running_node(data=tmp_path, shards=1) as again:
        assert again.ready["node"] == node.ready["node"]


# Work under way when the node stops


async def _echo_while_stopping(
    node: RunningNode, hold_milliseconds: int, signals: tuple[int, ...]
) -> bytes | MaitredError | None:
    """Stop the node while an echo is held; what the caller gets (None: the line was cut)."""
    client = await raw.RawClient.open(node.shards[0].port)
    watcher = await (await raw.RawClient.open(node.shards[0].port)).handshake()
    try:
        await client.handshake()
        client.write(raw.echo("q", b"held", hold=hold_milliseconds))
        while raw.status_in(await watcher.ask(raw.status(0))).in_flight == 0:
            pass
        for number, one in enumerate(signals):
            node.send(one)
            if number == 0:
                await asyncio.to_thread(
                    node.wait_for_event, "stopping; finishing requests in flight"
                )
        watcher.close()
        frame = await client.frame()
        return raw.error_in(frame) if frame.opcode == 0 else raw.echoed_in(frame).payload
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        client.close()
        watcher.close()


def test_what_is_under_way_is_finished() -> None:
    with running_node(shards=1) as node:
        answer = asyncio.run(_echo_while_stopping(node, 400, (signal.SIGTERM,)))
        assert answer == b"held"
        assert node.wait() == 0
        with socket.socket() as late, pytest.raises(ConnectionRefusedError):
            late.connect((node.host, node.port))


def test_what_takes_too_long_is_cut_off_and_said() -> None:
    with running_node("--drain-seconds", "0.2", shards=1) as node:
        answer = asyncio.run(_echo_while_stopping(node, 60_000, (signal.SIGTERM,)))
        assert isinstance(answer, MaitredError)
        assert answer.code == "cut-off"
        assert node.wait() == 4
        assert node.events("stopped; some work was cut off")


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGTERM, signal.SIGINT, 130), (signal.SIGINT, signal.SIGTERM, 143)],
    ids=["INT", "TERM"],
)
def test_a_second_signal_ends_it_at_once(first: int, second: int, status: int) -> None:
    with running_node("--drain-seconds", "600", shards=1) as node:
        answer = asyncio.run(_echo_while_stopping(node, 60_000, (first, second)))
        assert answer is None
        assert node.wait() == status
        assert_gone(node)
        assert "Traceback" not in str(node.errors)


def is_refused(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(30)
        return one.connect_ex((host, port)) == errno.ECONNREFUSED


def test_a_stopping_node_refuses_connections_on_every_port() -> None:
    async def scenario(node: RunningNode) -> None:
        client = await (await raw.RawClient.open(node.port)).handshake()
        try:
            client.write(raw.echo("q", hold=60_000))
            assert raw.status_in(await client.ask(raw.status(0, stream=1))).state == "serving"
            node.send(signal.SIGTERM)
            ports = {node.port, node.source_port, *(shard.port for shard in node.shards)} - {0}
            for port in ports:
                await asyncio.to_thread(
                    wait_until, partial(is_refused, node.host, port), f"port {port} refuses"
                )
            assert node.process.poll() is None  # it refuses because it stops, not as it is gone
        finally:
            client.close()

    with running_node("--drain-seconds", "600") as node:
        asyncio.run(scenario(node))


# Where the log goes


def test_every_line_of_the_log_is_json() -> None:
    with running_node("--log-level", "debug") as node:
        os.kill(node.shards[1].pid, signal.SIGKILL)
        node.wait_for_event("shard ready again")
        assert node.stop() == 0
        for line in node.errors.seen:
            assert {"timestamp", "level", "event"} <= set(json.loads(line))


@pytest.mark.parametrize("number", range(3))
def test_an_idle_node_cuts_nothing_off_when_everybody_is_told(number: int) -> None:  # noqa: ARG001
    """Service managers and `timeout` signal the whole group: shards may be first to stop."""
    with running_node(shards=2) as node:
        os.killpg(node.process.pid, signal.SIGTERM)
        assert node.wait() == 0
        assert "cut off" not in str(node.errors)
