"""A node against a bare echo with the same frames and payload: `python -m benchmarks.node`.

The node is the real one, started as a user starts it; the load comes from this process, over
loopback. Rounds of both sides alternate, and each side's figure is its best round.

CPU time is what the kernel has counted for the processes themselves: on two busy cores it is worth
more than the clock on the wall. What two cores cannot show is how throughput grows with cores:
load generator and shards share them. What can be shown is that nothing grows with the number of
shards: the CPU time of a request is the same with 1, 2 and 4.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import uvloop

import maitred
from benchmarks import bare_echo
from benchmarks.measuring import Result, report
from maitred.routing import QueueId
from maitred.routing.homes import Homes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAYLOAD = b"x" * 100
IN_FLIGHT = 64
REQUESTS = 10_000
ONE_BY_ONE = 800
ROUNDS = 25
QUEUE = "orders"
IDLE_CONNECTIONS = 5_000
KIB = 1024


@dataclass(frozen=True)
class Process:
    """A server that was started for this benchmark."""

    port: int
    own_ports: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()


@contextmanager
def node(shards: int) -> Iterator[Process]:
    """`maitred up`, as a user starts it."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "maitred", "up", "--json", "--port", "0"]
        command += ["--shards", str(shards), "--data", data, "--log-level", "warning"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
            try:
                assert process.stdout is not None
                told = json.loads(process.stdout.readline())
                shards_told = told["shards"]
                yield Process(
                    told["port"],
                    tuple(shard["port"] for shard in shards_told),
                    tuple(shard["pid"] for shard in shards_told),
                )
                process.terminate()
                process.wait(timeout=30)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def bare() -> Iterator[Process]:
    """The bare echo, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bare_echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Process(int(process.stdout.readline()), pids=(process.pid,))
        finally:
            process.kill()


@contextmanager
def pinned(*servers: Process, apart: bool) -> Iterator[None]:
    """This process and the servers on one core, or this one on a core of its own.

    Left to itself the kernel moves them about, and waking somebody on another core costs more than
    an echo: which of the peers had the luck would decide. For requests a second each has a core;
    for a single request, which only ever runs in one place, one core is the stricter measure.
    """
    cores = sorted(os.sched_getaffinity(0))
    theirs = cores[1:2] if apart and len(cores) > 1 else cores[:1]
    os.sched_setaffinity(0, cores[:1])
    for pid in [pid for server in servers for pid in server.pids]:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), theirs)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def cpu_seconds(pids: Sequence[int]) -> float:
    """What the processes have spent on the CPU, to the nanosecond."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def targets_of(shard: int, shards: int, count: int = 8) -> list[tuple[str, int]]:
    """Partitions that live on that shard."""
    homes = Homes(shards)
    found = []
    for partition in range(10_000):
        if homes.home(("shop", QUEUE, 1, partition), 0.0).shard == shard:
            found.append((QUEUE, partition))
            if len(found) == count:
                break
    assert QueueId("shop", QUEUE, 1)
    return found


# One shard against the bare echo


def lean_rate(port: int, *, handshake: bool) -> float:
    seconds, _ = uvloop.run(
        bare_echo.load(
            port,
            targets_of(0, 1),
            payload=PAYLOAD,
            in_flight=IN_FLIGHT,
            total=REQUESTS,
            handshake=handshake,
        )
    )
    return REQUESTS / seconds


def lean_latency(port: int, *, handshake: bool) -> float:
    _, latencies = uvloop.run(
        bare_echo.load(
            port,
            targets_of(0, 1),
            payload=PAYLOAD,
            in_flight=1,
            total=ONE_BY_ONE,
            handshake=handshake,
        )
    )
    return median(latencies)


Ask = Callable[[str, int], Awaitable[object]]


async def _awaited_rate(ask: Ask) -> float:
    """Requests a second by so many tasks, each of which waits for its answers one by one."""
    left = REQUESTS

    async def work(partition: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await ask(QUEUE, partition)

    started = time.perf_counter()
    await asyncio.gather(*[work(number % 8) for number in range(IN_FLIGHT)])
    return REQUESTS / (time.perf_counter() - started)


async def _awaited_latency(ask: Ask) -> float:
    latencies = []
    for _ in range(ONE_BY_ONE):
        started = time.perf_counter()
        await ask(QUEUE, 0)
        latencies.append(time.perf_counter() - started)
    return median(latencies)


Measure = Callable[[Ask], Coroutine[Any, Any, float]]


async def with_our_client(port: int, measure: Measure) -> float:
    async with maitred.connect(f"maitred://127.0.0.1:{port}") as client:

        def ask(queue: str, partition: int) -> Awaitable[object]:
            return client.echo("shop", queue, PAYLOAD, partition=partition)

        return await measure(ask)


async def with_bare_client(port: int, measure: Measure) -> float:
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(
        lambda: bare_echo.Client(PAYLOAD), "127.0.0.1", port
    )
    measured = await measure(client.echo)
    transport.close()
    return measured


def against_bare() -> list[Result]:
    """A shard under the same load as a bare echo; then both ends, with an `await` a request."""
    rate = dict.fromkeys(("bare", "node", "bare client", "our client"), 0.0)
    p50 = dict.fromkeys(rate, 1.0)
    with bare() as peer, node(1) as ours:
        with pinned(peer, ours, apart=True):
            for _ in range(ROUNDS):
                for name, measured in (
                    ("bare", lean_rate(peer.port, handshake=False)),
                    ("node", lean_rate(ours.port, handshake=True)),
                    ("bare client", uvloop.run(with_bare_client(peer.port, _awaited_rate))),
                    ("our client", uvloop.run(with_our_client(ours.port, _awaited_rate))),
                ):
                    rate[name] = max(rate[name], measured)
        with pinned(peer, ours, apart=False):
            for _ in range(ROUNDS):
                for name, measured in (
                    ("bare", lean_latency(peer.port, handshake=False)),
                    ("node", lean_latency(ours.port, handshake=True)),
                    ("bare client", uvloop.run(with_bare_client(peer.port, _awaited_latency))),
                    ("our client", uvloop.run(with_our_client(ours.port, _awaited_latency))),
                ):
                    p50[name] = min(p50[name], measured)
    return [
        *_compared("one shard", "node", "bare", rate, p50),
        *_compared("one shard and our client", "our client", "bare client", rate, p50),
    ]


def _compared(
    what: str, ours: str, peer: str, rate: dict[str, float], p50: dict[str, float]
) -> list[Result]:
    both = " (both ends, an await a request)" if "client" in ours else ""
    # The goals are a shard's. Our client also keeps deadlines, finds its way and counts; there the
    # numbers are bounds beyond which something is wrong.
    share, times = (0.4, 2.0) if both else (0.6, 1.4)
    return [
        Result(
            f"{what}, {IN_FLIGHT} in flight, share of the bare echo's requests/s{both}",
            rate[ours] / rate[peer],
            share,
            at_least=True,
            ours=f"ours {rate[ours]:,.0f}/s",
            peer=f"bare echo {rate[peer]:,.0f}/s",
        ),
        Result(
            f"{what}, 1 in flight, p50, times the bare echo's{both}",
            p50[ours] / p50[peer],
            times,
            at_least=False,
            ours=f"ours {p50[ours] * 1e6:.0f} us",
            peer=f"bare echo {p50[peer] * 1e6:.0f} us",
        ),
    ]


# CPU per request


def cpu_per_request(server: Process, shard: int, owner: int) -> float:
    """CPU of all shards for a request that arrives at `shard` and belongs to `owner`."""
    before = cpu_seconds(server.pids)
    uvloop.run(
        bare_echo.load(
            server.own_ports[shard],
            targets_of(owner, len(server.pids)),
            payload=PAYLOAD,
            in_flight=IN_FLIGHT,
            total=REQUESTS,
            handshake=True,
        )
    )
    return (cpu_seconds(server.pids) - before) / REQUESTS


def misrouted() -> list[Result]:
    with node(2) as server:
        routed, wrong = [], []
        for _ in range(ROUNDS):
            routed.append(cpu_per_request(server, 0, 0))
            wrong.append(cpu_per_request(server, 0, 1))
    ours, theirs = min(routed), min(wrong)
    return [
        Result(
            "CPU of a misrouted request, times that of a routed one (what shard-awareness saves)",
            theirs / ours,
            1,
            at_least=True,
            ours=f"misrouted {theirs * 1e6:.1f} us, all shards together",
            peer=f"routed {ours * 1e6:.1f} us",
        )
    ]


def nothing_grows() -> list[Result]:
    """The same load on one shard after another; whoever shared something would pay for it."""
    best: dict[tuple[int, int], float] = {}
    with node(1) as one, node(2) as two, node(4) as four:
        for _ in range(ROUNDS):
            for server in (one, two, four):
                shards = len(server.pids)
                for shard in range(shards):
                    spent = cpu_per_request(server, shard, shard)
                    best[shards, shard] = min(best.get((shards, shard), 1.0), spent)
    mean = {
        shards: sum(best[shards, shard] for shard in range(shards)) / shards for shards in (1, 2, 4)
    }
    return [
        Result(
            f"CPU of a request with {shards} shards, times that with one",
            mean[shards] / mean[1],
            1.1,
            at_least=False,
            ours=f"{mean[shards] * 1e6:.2f} us, all shards together",
            peer=f"one shard {mean[1] * 1e6:.2f} us",
        )
        for shards in (2, 4)
    ]


# Idle connections


async def _idle(port: int, pid: int) -> float:
    # The first hundred pay for what is allocated once.
    waiting = await asyncio.gather(*[_ready_connection(port) for _ in range(100)])
    before = memory_bytes(pid)
    for _ in range(IDLE_CONNECTIONS // 100):
        waiting += await asyncio.gather(*[_ready_connection(port) for _ in range(100)])
    cost = (memory_bytes(pid) - before) / IDLE_CONNECTIONS
    for transport in waiting:
        transport.abort()
    return cost


async def _ready_connection(port: int) -> asyncio.WriteTransport:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(
        lambda: bare_echo.Load([(QUEUE, 0)], PAYLOAD, 1, 1), "127.0.0.1", port
    )
    protocol.shake_hands()
    await protocol.ready
    protocol.done.add_done_callback(lambda done: done.exception())
    return transport


def idle_connections() -> list[Result]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with node(1) as server:
        cost = uvloop.run(_idle(server.port, server.pids[0]))
    return [
        Result(
            f"memory of an idle connection, of {IDLE_CONNECTIONS:,}, in KiB",
            cost / KIB,
            20,
            at_least=False,
            ours=f"{cost:,.0f} bytes each",
            peer="the goal is 20 KiB",
        )
    ]


# Between shards


def between_shards() -> list[Result]:
    """A Unix socket against loopback TCP, with nothing but the bare echo at both ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "echo")
        command = [sys.executable, "-m", "benchmarks.bare_echo", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            best: dict[tuple[str, int], float] = {}
            with pinned(Process(port, pids=(server.pid,)), apart=True):
                for _ in range(ROUNDS):
                    for in_flight, total in ((1, ONE_BY_ONE), (IN_FLIGHT, REQUESTS)):
                        for kind, where in (("Unix", path), ("TCP", port)):
                            before = cpu_seconds([server.pid, os.getpid()])
                            uvloop.run(_load_over(where, in_flight, total))
                            spent = (cpu_seconds([server.pid, os.getpid()]) - before) / total
                            best[kind, in_flight] = min(best.get((kind, in_flight), 1.0), spent)
            server.kill()
    return [
        Result(
            f"between shards, {in_flight} in flight: CPU of both ends over a Unix socket, "
            "times loopback TCP",
            best["Unix", in_flight] / best["TCP", in_flight],
            1,
            at_least=False,
            ours=f"Unix {best['Unix', in_flight] * 1e6:.1f} us",
            peer=f"TCP {best['TCP', in_flight] * 1e6:.1f} us",
        )
        for in_flight in (1, IN_FLIGHT)
    ]


async def _load_over(where: str | int, in_flight: int, total: int) -> None:
    loop = asyncio.get_running_loop()

    def load() -> bare_echo.Load:
        return bare_echo.Load([(QUEUE, 0)], PAYLOAD, in_flight, total)

    if isinstance(where, str):
        transport, protocol = await loop.create_unix_connection(load, where)
    else:
        transport, protocol = await loop.create_connection(load, "127.0.0.1", where)
    protocol.start()
    await protocol.done
    transport.close()


def measure() -> list[Result]:
    return [
        *against_bare(),
        *misrouted(),
        *nothing_grows(),
        *idle_connections(),
        *between_shards(),
    ]


if __name__ == "__main__":
    report("node", measure())
