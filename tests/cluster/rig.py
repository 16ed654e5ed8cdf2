"""A cluster of real nodes with workers and producers, all of them processes that can be killed.

    with Rig(directory, store=store) as rig:
        rig.start_nodes(3)
        rig.start_worker()
        producer = rig.start_producer(rate=50, kinds={"result": 1})
        rig.nodes[0].kill()
        rig.wait_for_members(2)

On `Loopback` the nodes are forks of one process that has imported everything, which makes tests
short. In namespaces, and with `afresh`, they are new interpreters, as users start them; so are
those with a `program`, the environment of an interpreter that finds other code (`programs.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from tests.cli.running import FORKS, MAITRED
from tests.cluster.ledger import LEDGER_VARIABLE, Book, Ledger
from tests.cluster.network import FIRST_NODE, USERS, Loopback
from tests.cluster.producer import Orders
from tests.cluster.shop import QUEUES_VARIABLE
from tests.node.nodes import START_SECONDS, Lines, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import IO, Self

    from tests.cli.forks import Forked
    from tests.cluster.network import Host, Network

ROOT = Path(__file__).parent.parent.parent
PORT = 4747
"""The port of each node in a namespace of its own."""
WAIT_SECONDS = 60.0
"""The longest wait for anything. It decides no verdict but that something never happens."""


class Log(Lines):
    """What a process writes, kept in a file as well."""

    path: Path

    def follow(self, stream: IO[str]) -> None:
        def kept() -> Any:  # noqa: ANN401 - a generator of lines
            with self.path.open("a") as file:
                for line in stream:
                    file.write(line)
                    file.flush()
                    yield line

        super().follow(kept())


@dataclass
class Child:
    """A process of a rig."""

    process: subprocess.Popen[str] | Forked
    errors: Log
    output: Log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def signal_all(self, number: int) -> None:
        """Send a signal to it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self, seconds: float = WAIT_SECONDS) -> int:
        """As a service manager does; its exit status."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} did not stop:\n{self.errors}") from None

    def kill(self) -> None:
        """It and all that it started."""
        self.signal_all(signal.SIGKILL)
        self.process.wait()


class RigNode:
    """A node of a rig: a place where a node runs, again and again."""

    def __init__(self, rig: Rig, number: int) -> None:
        self._rig = rig
        self.number = number
        self.host = rig.network.host(FIRST_NODE + number)
        self.port = PORT if self.host.namespace else 0
        self.child: Child | None = None
        self.ready: dict[str, Any] = {}
        """What `maitred up --json` said."""

    @property
    def address(self) -> str:
        """The node's name in views."""
        return f"{self.host.address}:{self.port}"

    @property
    def url(self) -> str:
        return f"maitred://{self.address}"

    @property
    def running(self) -> Child:
        assert self.child is not None, f"node {self.number} was not started"
        return self.child

    @property
    def log(self) -> Log:
        return self.running.errors

    def start(
        self,
        *options: str,
        wait: bool = True,
        as_json: bool = True,
        gateway: bool = False,
        store: str | None = None,
        program: Mapping[str, str] | None = None,
    ) -> None:
        """Where it was the last time."""
        rig = self._rig
        self.ready = {}
        words = ["up", *["--json"] * as_json, "--store", store or rig.store,
                 "--host", self.host.address, "--port", str(self.port), "--shards", str(rig.shards),
                 "--data", str(rig.directory / f"node-{self.number}"),
                 "--config", str(rig.settings), "--log-format", "json", *options]  # fmt: skip
        if not gateway:
            words += ["--set", "gateway.enabled=false"]
        if program is None:  # else a node derives it from its own, and another process may have it
            words += ["--set", "monitor.port=0"]
        self.child = rig.maitred(f"node-{self.number}", self.host, words, program)
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait for the line that `--json` prints once the node serves."""
        output = self.running.output
        with output.changed:
            output.changed.wait_for(lambda: output.ended or output.seen, START_SECONDS)
        assert output.seen, f"node {self.number} did not come up:\n{self.log}"
        self.ready = json.loads(output.seen[0])
        self.port = int(self.ready["port"])

    def kill(self) -> None:
        """The supervisor and all its processes, at once."""
        self.running.kill()

    def kill_supervisor(self) -> None:
        """The supervisor alone; its shards notice and end."""
        os.kill(self.running.pid, signal.SIGKILL)
        self.running.process.wait()
        self.log.wait_for_end(WAIT_SECONDS)

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        self.running.signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.signal_all(signal.SIGCONT)

    def drain(self) -> int:
        """As a service manager stops it; its exit status."""
        status = self.running.stop()
        self.log.wait_for_end(WAIT_SECONDS)
        return status

    def events(self, event: str) -> list[dict[str, Any]]:
        """The entries of its log so far with this event."""
        entries = [json.loads(line) for line in self.log.seen if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]


@dataclass
class Rig:
    """Everything that one run starts; ended with it."""

    directory: Path
    store: str
    network: Network = field(default_factory=Loopback)
    shards: int = 1
    queues: int = 6
    node_settings: str = ""
    nearby: str = ""
    """Where this process reaches the store; empty: where the nodes do."""
    worker_options: tuple[str, ...] = ("--slots", "8")
    afresh: bool = False

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.settings = self.directory / "node.toml"
        self.settings.write_text(self.node_settings)
        self.ledger = Ledger(self.directory / "ledger")
        self.book = Book(self.ledger.directory, "rig")
        self.nodes: list[RigNode] = []
        self.workers: list[Child] = []
        self._workers = 0
        self._producers = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    # Nodes

    @property
    def users(self) -> Host:
        """The host of workers, producers and people."""
        return self.network.host(USERS)

    @property
    def url(self) -> str:
        """With all nodes."""
        return "maitred://" + ",".join(node.address for node in self.nodes)

    def start_nodes(
        self, count: int, *options: str, program: Mapping[str, str] | None = None
    ) -> None:
        """All at once; wait until all are up and see each other."""
        fresh = [RigNode(self, len(self.nodes) + number) for number in range(count)]
        self.nodes += fresh
        for node in fresh:
            node.start(*options, wait=False, program=program)
        for node in fresh:
            node.wait_until_up()
        self.wait_for_members(len(self.nodes))

    def admin(self, *words: str, node: RigNode | None = None) -> Any:  # noqa: ANN401 - its JSON
        """`maitred admin ... --json`; None if no node answers it now."""
        url = self.url if node is None else node.url
        child = self.maitred("admin", self.users, ["admin", *words, "--json", "--url", url])
        child.process.wait(WAIT_SECONDS)
        child.output.wait_for_end()
        text = str(child.output)
        # The status tells of trouble, such as a late heartbeat, and the answer is there.
        return json.loads(text) if text else None

    def members(self, node: RigNode | None = None) -> dict[str, dict[str, Any]]:
        """The members by address: as `maitred admin cluster` tells them that asks this node, or as
        the table in the database has them. Empty if nobody answers."""
        if node is None:
            return asyncio.run(self._stored_members())
        told = self.admin("cluster", node=node)
        return {} if told is None else {one["address"]: one for one in told["members"]}

    async def _stored_members(self) -> dict[str, dict[str, Any]]:
        try:
            connection = await asyncpg.connect(self.nearby or self.store, timeout=WAIT_SECONDS)
        except (OSError, asyncpg.PostgresError):  # it fails over
            return {}
        try:
            rows = await connection.fetch(
                "SELECT host, port, id, state FROM maitred.members WHERE state <> 'dead'"
            )
        finally:
            await connection.close()
        return {f"{row['host']}:{row['port']}": dict(row) for row in rows}

    def wait_for_members(self, active: int, *, node: RigNode | None = None) -> None:
        """Wait until the cluster has so many active members, and no others."""

        def found() -> bool:
            states = [one["state"] for one in self.members(node).values()]
            return states == ["active"] * active

        wait_until(found, f"{active} active members; now {self.members(node)}", WAIT_SECONDS)

    # Their users

    def start_worker(
        self,
        *options: str,
        url: str = "",
        wait: bool = True,
        program: Mapping[str, str] | None = None,
    ) -> Child:
        """A worker for all queues."""
        self._workers += 1
        words = ["worker", "tests.cluster.shop:app", "--log-format", "json"]
        words += options or self.worker_options
        name = f"worker-{self._workers}"
        url = url or self.url
        worker = self.maitred(name, self.users, words, program, MAITRED_URL=url)
        self.workers.append(worker)
        if wait:
            worker.errors.wait_for("worker is ready", seconds=WAIT_SECONDS)
        return worker

    def start_producer(self, url: str = "", **orders: Any) -> Child:  # noqa: ANN401 - of `Orders`
        """It runs until it is stopped."""
        self._producers += 1
        told = msgspec.json.encode(
            msgspec.convert({"number": self._producers, **orders}, Orders)
        ).decode()
        command = [sys.executable, "-m", "tests.cluster.producer", told]
        name = f"producer-{self._producers}"
        producer = self.program(name, self.users, command, MAITRED_URL=url or self.url)
        producer.output.wait_for("ready", seconds=WAIT_SECONDS)
        return producer

    def wait_for_acknowledged(self, count: int) -> None:
        """Until producers were told of so many tasks that they are safe."""
        wait_until(
            lambda: len(self.ledger.acknowledged) >= count,
            f"{count} tasks were acknowledged",
            WAIT_SECONDS,
        )

    def start_watcher(self) -> Child:
        """It writes down the views of all shards, and the owners of all partitions."""
        ports = [
            f"{node.host.address}:{shard['port']}"
            for node in self.nodes
            for shard in node.ready["shards"]
        ]
        command = [sys.executable, "-m", "tests.cluster.watcher", self.nearby or self.store, *ports]
        watcher = self.program("watcher", self.users, command)
        watcher.output.wait_for("ready", seconds=WAIT_SECONDS)
        return watcher

    # Processes

    def maitred(
        self,
        name: str,
        host: Host,
        words: list[str],
        program: Mapping[str, str] | None = None,
        **environment: str,
    ) -> Child:
        """Start the command `maitred` with these words."""
        if host.namespace is not None or self.afresh or program is not None:
            more = {**environment, **(program or {})}
            return self.program(name, host, [str(MAITRED), *words], **more)
        return self._followed(
            name,
            FORKS.start(*words, environment=self._environment(environment), directory=ROOT),
        )

    def program(self, name: str, host: Host, command: list[str], **environment: str) -> Child:
        """Start any command."""
        return self._followed(
            name,
            subprocess.Popen(
                host.command(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=self._environment(environment),
                start_new_session=True,
            ),
        )

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "TMPDIR": str(self.directory),
            LEDGER_VARIABLE: str(self.ledger.directory),
            QUEUES_VARIABLE: str(self.queues),
            **more,
        }

    def _followed(self, name: str, process: subprocess.Popen[str] | Forked) -> Child:
        child = Child(process, Log(), Log())
        readers = []
        for log, stream, kind in (
            (child.errors, process.stderr, "log"),
            (child.output, process.stdout, "out"),
        ):
            log.path = self.directory / f"{name}.{kind}"
            reader = threading.Thread(target=log.follow, args=(stream,), daemon=True)
            reader.start()
            readers.append((reader, stream))

        def end() -> None:
            child.signal_all(signal.SIGKILL)
            process.wait()
            for reader, stream in readers:
                reader.join(WAIT_SECONDS)
                if stream is not None:
                    stream.close()

        self._stack.callback(end)
        return child
