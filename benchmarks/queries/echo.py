"""100 bytes there and back: a query, against a bare echo, grpc.aio and NATS.

There are two bare echoes: one of raw bytes, 64 messages in one write, which nobody's calls can be
compared with, and one with an `await` a message as all the others have; the goal is about that one.

A query goes through more than the peers' calls do: a slot is asked for at the shard, reserved at
the worker, and then the worker is asked. Its goals say how much that may cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measuring import Result
from benchmarks.queries.running import (
    BIN,
    REQUIREMENTS,
    Figures,
    Run,
    Section,
    cpu_seconds,
    wait_for_word,
)
from benchmarks.tasks.environments import bin_of
from benchmarks.tasks.processes import Unavailable, free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.queries.running import Asker

OURS = "maitred"
BARE = "bare echo"
AWAITED = "bare echo, awaited"
GRPC = "grpc.aio"
NATS = "NATS"
MANY = 64
SLOTS = 64
SECONDS = 1.5
QUICK_SECONDS = 0.4

TIMES_GRPC = 5.0
TIMES_NATS = 1.0
TIMES_BARE_P50 = 3.5


@dataclass(frozen=True)
class Contender:
    client: Asker
    servers: dict[str, int]
    """Process ids by what they are."""

    def measure(self, in_flight: int, seconds: float) -> Figures:
        before = {name: cpu_seconds(pid) for name, pid in self.servers.items()}
        figures: Figures = self.client.tell(in_flight=in_flight, seconds=seconds)
        for name, pid in self.servers.items():
            spent = cpu_seconds(pid) - before[name]
            figures[f"{name} cpu us"] = spent / figures["answers"] * 1e6
        return figures


def _bare(run: Run) -> Contender:
    port = free_port()
    server = run.server("bare", BIN, port)
    return Contender(run.client("bare", BIN, f"127.0.0.1:{port}"), {"server": server.process.pid})


def _awaited(run: Run) -> Contender:
    port = free_port()
    server = run.server("bare", BIN, port)
    client = run.client("bare", BIN, f"127.0.0.1:{port}", "await")
    return Contender(client, {"server": server.process.pid})


def _grpc(run: Run) -> Contender:
    port = free_port()
    programs = bin_of("grpc", REQUIREMENTS)
    server = run.server("grpc", programs, port)
    client = run.client("grpc", programs, f"127.0.0.1:{port}")
    return Contender(client, {"server": server.process.pid})


def _nats(run: Run) -> Contender:
    port = free_port()
    programs = bin_of("jetstream")
    broker = run.start(
        "nats-broker", [programs / "nats-server", "--addr", "127.0.0.1", "--port", str(port)]
    )
    wait_for_port(port, broker)
    server = run.server("nats", programs, port, listens=False)
    wait_for_word(server, "ready", run.folder / "nats-server.log")
    client = run.client("nats", programs, f"127.0.0.1:{port}")
    return Contender(client, {"broker": broker.process.pid, "responder": server.process.pid})


def _ours(run: Run) -> Contender:
    node = run.node()
    worker = run.worker(node, SLOTS, "echo")
    client = run.client("maitred", BIN, node.address)
    return Contender(client, {"shard": node.shard, "worker": worker.process.pid})


CONTENDERS: dict[str, Callable[[Run], Contender]] = {
    BARE: _bare,
    AWAITED: _awaited,
    OURS: _ours,
    GRPC: _grpc,
    NATS: _nats,
}


def measure(run: Run) -> None:
    section, seconds = run.section, QUICK_SECONDS if run.quick else SECONDS
    taking_part: dict[str, Contender] = {}
    for name, start in CONTENDERS.items():
        try:
            taking_part[name] = start(run)
        except Unavailable as reason:
            section.absent[name] = str(reason)
            print(f"  {name}: ABSENT, {reason}")
    for number in range(run.rounds):
        for in_flight in (MANY, 1):
            for name, contender in taking_part.items():
                figures = contender.measure(in_flight, seconds)
                section.rounds.setdefault(key(name, in_flight), []).append(figures)
        print(f"  round {number + 1}: {_told(section, taking_part)}", flush=True)
    for of, rounds in section.rounds.items():
        section.medians[of] = {name: median(f[name] for f in rounds) for name in rounds[0]}
    section.results += _goals(section)


def key(name: str, in_flight: int) -> str:
    return f"{name}, {in_flight} in flight"


def _told(section: Section, taking_part: dict[str, Contender]) -> str:
    return "; ".join(
        f"{name} {section.rounds[key(name, MANY)][-1]['rate']:,.0f}/s, "
        f"p50 {section.rounds[key(name, 1)][-1]['p50 us']:.0f} us"
        for name in taking_part
    )


def _goals(section: Section) -> list[Result]:
    """Those whose peers, and we, took part."""
    medians = section.medians
    found = []
    for peer, in_flight, times in ((GRPC, MANY, TIMES_GRPC), (NATS, MANY, TIMES_NATS)):
        ours, theirs = medians.get(key(OURS, in_flight)), medians.get(key(peer, in_flight))
        if ours and theirs:
            found.append(
                Result(
                    f"echo, {in_flight} in flight, times {peer}'s queries/s",
                    ours["rate"] / theirs["rate"],
                    times,
                    at_least=True,
                    ours=f"ours {ours['rate']:,.0f}/s",
                    peer=f"{peer} {theirs['rate']:,.0f}/s",
                )
            )
    for peer, times in ((AWAITED, TIMES_BARE_P50), (NATS, TIMES_NATS)):
        ours, theirs = medians.get(key(OURS, 1)), medians.get(key(peer, 1))
        if ours and theirs:
            found.append(
                Result(
                    f"echo, 1 in flight, p50, times {peer}'s",
                    ours["p50 us"] / theirs["p50 us"],
                    times,
                    at_least=False,
                    ours=f"ours {ours['p50 us']:.0f} us",
                    peer=f"{peer} {theirs['p50 us']:.0f} us",
                )
            )
    return found
