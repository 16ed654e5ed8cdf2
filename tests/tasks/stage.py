"""A node, workers and producers, all of them real processes, and all of them to be killed.

with Stage(tmp_path) as stage:
    stage.start_node(shards=2)
    worker = stage.start_worker()
    ...
    stage.kill_node()
    stage.start_node(shards=2)     # where it was
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from maitred.errors import ConnectionLost, Unavailable
from maitred.protocol.tasks import Describe, PartitionDescription
from maitred.routing.names import TASKS
from tests.cli.running import FORKS, maitred_json
from tests.node.nodes import WAIT_SECONDS, Lines, RunningNode, running_node, wait_until
from tests.tasks.journal import Journal
from tests.tasks.shop import JOURNAL_VARIABLE, app

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from tests.cli.forks import Forked

ROOT = Path(__file__).parent.parent.parent
READY = "worker is ready"


@dataclass
class Child:
    """A worker or a producer."""

    process: subprocess.Popen[str] | Forked
    errors: Lines = field(default_factory=Lines)
    output: Lines = field(default_factory=Lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """At once, and whatever it was doing."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = WAIT_SECONDS) -> int:
        """As a service manager does; its exit status."""
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not stop:\n{self.errors}") from None


class Stage:
    """Everything that one test starts; ended with it."""

    def __init__(self, directory: Path, settings: str = "", *, store: str | None = None) -> None:
        self.directory = directory
        self.settings = directory / "node.toml"
        """Of every node."""
        self.settings.write_text(settings)
        self.store = store
        self.journal = Journal(directory / "journal")
        self.acknowledged_path = directory / "acknowledged"
        self.workers: list[Child] = []
        self.port = 0
        self._things = ExitStack()
        self._node_stack = ExitStack()
        self._node: RunningNode | None = None
        self._producers = 0

    def __enter__(self) -> Self:
        self._things.enter_context(self._node_stack)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        app.sync.close()
        self._things.__exit__(kind, error, traceback)

    # The node

    @property
    def node(self) -> RunningNode:
        assert self._node is not None
        return self._node

    @property
    def url(self) -> str:
        return f"maitred://127.0.0.1:{self.port}"

    def start_node(
        self,
        shards: int = 2,
        *,
        gateway: bool = False,
        interpreters: bool = False,
        **environment: str,
    ) -> RunningNode:
        """At the same place each time."""
        if self.store is not None:
            environment["MAITRED_STORE"] = self.store
        self._node = self._node_stack.enter_context(
            running_node(
                "--config",
                str(self.settings),
                shards=shards,
                port=self.port,
                data=self.directory / "data",
                environment=environment,
                gateway=gateway,
                interpreters=interpreters,
            )
        )
        self.port = self._node.port
        app.node = self.url
        return self._node

    def kill_node(self) -> None:
        """The supervisor and all shards, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.node.process.pid, signal.SIGKILL)
        self.node_has_ended()

    def stop_node(self) -> int:
        self.node.send(signal.SIGTERM)
        return self.node_has_ended()

    def node_has_ended(self) -> int:
        """Wait until it has; its exit status."""
        status = self.node.wait()
        app.sync.close()  # the next request connects at once, and need not wait for its turn
        self._node_stack.close()
        return status

    # Who uses it

    def start_worker(self, *options: str, wait: bool = True, app: str = "shop:app") -> Child:
        command = ["worker", f"tests.tasks.{app}", "--log-format", "json", *options]
        worker = self._followed(
            FORKS.start(
                *command, environment=self._environment(), directory=ROOT, own_session=False
            )
        )
        self.workers.append(worker)
        if wait:
            worker.errors.wait_for(READY)
        return worker

    def start_producer(self) -> Child:
        """It runs until it is stopped."""
        self._producers += 1
        command = [sys.executable, "-m", "tests.tasks.producer", str(self._producers)]
        return self._started([*command, str(self.acknowledged_path)])

    def start_relay(self, host: str) -> Child:
        """A second way to this node, at another host."""
        ports = [self.port, *(shard.port for shard in self.node.shards)]
        command = [sys.executable, "-m", "tests.tasks.relay", host, *map(str, ports)]
        relay = self._started(command)
        relay.output.wait_for("ready")
        return relay

    def acknowledged(self) -> set[int]:
        """What producers were told is safe."""
        if not self.acknowledged_path.exists():
            return set()
        text = self.acknowledged_path.read_text()
        return {int(line) for line in text[: text.rfind("\n") + 1].split()}

    def wait_for_ended(self, count: int) -> None:
        """Until so many tasks have run to their end."""
        wait_until(lambda: len(self.journal.ended()) >= count, f"{count} tasks have ended")

    def wait_for_more(self, count: int) -> None:
        """The same, from now on."""
        self.wait_for_ended(len(self.journal.ended()) + count)

    # People

    def admin(self, *arguments: str) -> Any:  # noqa: ANN401 - whatever it prints
        """`maitred admin queue ... --json`"""
        return maitred_json("admin", "queue", *arguments, "--url", self.url)

    def partitions(self, queue: str) -> list[PartitionDescription]:
        """How they are; waits for a shard that is being started again."""

        async def ask() -> list[PartitionDescription]:
            client = (await app.session()).client

            async def one(number: int) -> PartitionDescription:
                deadline = time.monotonic() + WAIT_SECONDS
                while True:
                    try:
                        answer = await client.request(Describe("shop", queue, TASKS, number, 0))
                        return cast("PartitionDescription", answer)
                    except (ConnectionLost, Unavailable):
                        if time.monotonic() > deadline:
                            raise

            root = await one(0)
            return [root, *[await one(number) for number in range(1, root.counts.read)]]

        return app.sync.run(ask)

    def measured(self, queue: str, what: str) -> int:
        """Of all partitions together."""
        return int(sum(getattr(one, what) for one in self.partitions(queue)))

    def open_tasks(self, queue: str) -> int:
        """Those that are not over, as the node sees it."""
        return sum(one.backlog + one.running for one in self.partitions(queue))

    def _started(self, command: list[str]) -> Child:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self._environment(),
        )
        return self._followed(process)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "MAITRED_URL": self.url,
            JOURNAL_VARIABLE: str(self.journal.path),
        }

    def _followed(self, process: subprocess.Popen[str] | Forked) -> Child:
        child = Child(process)
        readers = []
        for lines, stream in ((child.errors, process.stderr), (child.output, process.stdout)):
            reader = threading.Thread(target=lines.follow, args=(stream,), daemon=True)
            reader.start()
            readers.append((reader, stream))

        def end() -> None:
            process.kill()
            process.wait()
            for reader, stream in readers:
                reader.join(WAIT_SECONDS)
                if stream is not None:
                    stream.close()

        self._things.callback(end)
        return child
