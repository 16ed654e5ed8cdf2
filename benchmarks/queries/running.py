"""Nodes, workers and clients for one run, each a process of its own, and what is known of them."""

from __future__ import annotations

import json
import select
import shlex
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tasks.processes import (
    ROOT,
    Command,
    Started,
    Unavailable,
    started,
    wait_for_port,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from benchmarks.measuring import Result

BIN = Path(sys.executable).parent
REQUIREMENTS = Path(__file__).parent / "requirements"
APP = "benchmarks.queries.peers.maitred:app"
PEERS = "benchmarks.queries.peers"
ANSWERED_WITHIN = 60
SHARE_OF_LINE = 150

Figures = dict[str, float]


@dataclass
class Section:
    """What one of the four came to."""

    results: list[Result] = field(default_factory=list)
    medians: dict[str, Figures] = field(default_factory=dict)
    """By who or what, then by figure."""
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Who did not take part, and why."""
    commands: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Node:
    """`maitred up`, with one shard and its gateway."""

    port: int
    http_port: int
    """The port of the HTTP API."""
    shard: int
    gateway: int
    """Their process ids."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Asker:
    """A client that was started, and does what it is told."""

    def __init__(self, process: Started) -> None:
        self.process = process
        self.pid = process.process.pid
        answered(process, ANSWERED_WITHIN)

    def tell(self, within: float = ANSWERED_WITHIN, **order: object) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise Unavailable(f"the client ended: {self.process.last_words()}") from None
        return answered(self.process, within)


def answered(process: Started, within: float) -> dict[str, Any]:
    """The next line that it says."""
    readable, _, _ = select.select([process.stdout], [], [], within)
    line = process.stdout.readline() if readable else ""
    if not line:
        how = "it ended" if readable else f"no answer within {within:g} s"
        raise Unavailable(f"{how}: {process.last_words()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


class Run:
    """Everything that one section has started; all of it ends with the block.

    With a `search_path` the processes import what is there instead of what is installed, and their
    commands are not printed.
    """

    def __init__(
        self,
        section: Section,
        *,
        quick: bool,
        rounds: int,
        search_path: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.section = section
        self.quick = quick
        self.rounds = rounds
        self.processes: list[Started] = []
        self._search_path = search_path
        self._environment = environment or {}
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def start(self, name: str, command: Command, *, pipes: bool = False) -> Started:
        self.told(command)
        path = self._search_path or str(ROOT)
        environment = {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", **self._environment}
        log = self.folder / f"{name}.log"
        process = self._stack.enter_context(started(command, log, environment, pipes=pipes))
        self.processes.append(process)
        return process

    def told(self, command: Command) -> None:
        """Print what is run, as one would type it."""
        line = shlex.join(str(word) for word in command)
        line = line.replace(f"{ROOT}/", "").replace(str(self.folder), "$TMP")
        self.section.commands.append(line)
        if self._search_path is None:
            print(f"  $ {line if len(line) <= SHARE_OF_LINE else line[:SHARE_OF_LINE] + ' ...'}")

    def node(self, *settings: str) -> Node:
        up: Command = [BIN / "maitred", "up", "--json", "--shards", "1", "--port", "0"]
        up += ["--data", self.folder / "data", "--log-level", "warning"]
        for setting in ("gateway.port=0", *settings):
            up += ["--set", setting]
        told = answered(self.start("node", up, pipes=True), ANSWERED_WITHIN)
        http_port = int(told["http"].rpartition(":")[2])
        return Node(told["port"], http_port, told["shards"][0]["pid"], told["gateway_pid"])

    def worker(self, node: Node, slots: int, *queues: str) -> Started:
        command: Command = [BIN / "maitred", "worker", APP, "--slots", str(slots)]
        command += ["--url", f"maitred://{node.address}", "--log-level", "warning"]
        for queue in queues:
            command += ["--queue", queue]
        return self.start(f"worker-{slots}", command)

    def server(self, peer: str, bin_: Path, port: int, *, listens: bool = True) -> Started:
        module = f"{PEERS}.{peer}"
        command: Command = [bin_ / "python", "-m", module, "server", str(port)]
        process = self.start(f"{peer}-server", command)
        if listens:
            wait_for_port(port, process)
        return process

    def client(self, peer: str, bin_: Path, address: str, *options: str) -> Asker:
        module = f"{PEERS}.{peer}" if "." not in peer else peer
        command: Command = [bin_ / "python", "-m", module, "client", address, *options]
        return Asker(self.start("-".join([peer, "client", *options]), command, pipes=True))


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have spent on the CPU, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Memory:
    """How far the memory of some processes grows from now on, at its highest."""

    def __init__(self, **pids: int) -> None:
        self._before = {}
        for name, pid in pids.items():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
            self._before[name] = (pid, _status(pid, "VmRSS"))

    def growth(self) -> Figures:
        """In MB, by name."""
        return {
            name: (_status(pid, "VmHWM") - before) / 1e6
            for name, (pid, before) in self._before.items()
        }


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise Unavailable(f"the kernel does not tell {name}")


def wait_for_word(process: Started, word: str, log: Path, within: float = 30) -> None:
    until = time.monotonic() + within
    while word not in log.read_text():
        if not process.alive or time.monotonic() > until:
            raise Unavailable(f"it did not start: {process.last_words()}")
        time.sleep(0.02)
