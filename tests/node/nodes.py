"""Real nodes for tests: `maitred up` in processes of its own.

    with running_node(shards=2) as node:
        client = maitred.connect(node.url)

The node gets free ports and a directory that is removed at the end, and everything it started is
killed, whatever the test did to it.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.running import FORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.cli.forks import Forked

START_SECONDS = 60.0
"""On a machine that runs other tests at the same time."""

WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Look again and again until it holds; fails with `what` if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(LOOK_SECONDS)


def is_alive(pid: int) -> bool:
    """Is there such a process? One that is dead and not yet waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass(frozen=True)
class ShardOf:
    """A shard as it was when the node came up."""

    number: int
    pid: int
    port: int


@dataclass
class Lines:
    """What a process writes, line by line, as it comes."""

    seen: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def follow(self, stream: Any) -> None:  # noqa: ANN401 - a pipe
        for line in stream:
            with self.changed:
                self.seen.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, text: str, *, count: int = 1, seconds: float = WAIT_SECONDS) -> list[str]:
        """The lines with that text, as soon as there are so many."""

        def found() -> list[str]:
            return [line for line in self.seen if text in line]

        with self.changed:
            self.changed.wait_for(lambda: self.ended or len(found()) >= count, seconds)
            assert len(found()) >= count, f"no {text!r} in:\n" + "\n".join(self.seen)
            return found()

    def wait_for_end(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until everybody who could write has closed it."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended, seconds), "processes are left"

    def __str__(self) -> str:
        return "\n".join(self.seen)


@dataclass
class RunningNode:
    """A node that was started; if `ready` is empty, it has not come up (yet)."""

    process: Forked
    errors: Lines
    """Standard error: the log, as JSON lines."""
    output: Lines
    ready: dict[str, Any] = field(default_factory=dict)
    """What `--json` says when the node is up."""

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def host(self) -> str:
        return str(self.ready["host"])

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def data(self) -> Path:
        return Path(self.ready["data"])

    @property
    def source_port(self) -> int:
        """0 if it has none."""
        return int(self.ready["source_port"] or 0)

    @property
    def shards(self) -> list[ShardOf]:
        return [ShardOf(one["shard"], one["pid"], one["port"]) for one in self.ready["shards"]]

    def wait_until_up(self) -> None:
        """Wait for the line that says so."""
        with self.output.changed:
            self.output.changed.wait_for(
                lambda: self.output.ended or self.output.seen, START_SECONDS
            )
        assert self.output.seen, f"the node did not come up:\n{self.errors}"
        self.ready = json.loads(self.output.seen[0])

    def entries(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.errors.seen if line.startswith("{")]

    def events(self, event: str) -> list[dict[str, Any]]:
        """Entries of the log so far with that event."""
        return [entry for entry in self.entries() if entry["event"] == event]

    def wait_for_event(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """The same, as soon as there are so many."""
        self.errors.wait_for(f'"{event}"', count=count)
        return self.events(event)

    def send(self, number: int) -> None:
        """Send a signal to the supervisor only."""
        self.process.send_signal(number)

    def ctrl_c(self) -> None:
        """As a terminal does: SIGINT to every process of the command."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit status, when it and all that it started have ended."""
        status = self.process.wait(seconds)
        # Shards hold the other ends of the pipes, closed when the last of them is gone.
        self.errors.wait_for_end(seconds)
        self.output.wait_for_end(seconds)
        return status

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it and return its exit status."""
        self.send(number)
        return self.wait()


def _monitored_anywhere(port: int | None, arguments: tuple[str, ...]) -> list[str]:
    """Options for a node that is told its port: it would derive the port for monitoring from that,
    and another process may have it."""
    files = [Path(two).read_text() for one, two in pairwise(arguments) if one == "--config"]
    is_told = any("monitor" in text for text in (*arguments, *files))
    return [] if not port or is_told else ["--set", "monitor.port=0"]


@contextmanager
def running_node(
    *arguments: str,
    shards: int = 2,
    port: int | None = 0,
    data: Path | None = None,
    environment: Mapping[str, str] | None = None,
    wait: bool = True,
    gateway: bool = False,
    interpreters: bool = False,
) -> Iterator[RunningNode]:
    """`maitred up` in a session of its own; waits until it is up unless told not to.

    Without a port (None), nothing is said of ports and directory: the arguments, the environment or
    a file do. The node's working directory is a temporary one. Most tests need no gateway, which
    would be one more process to start, and connections of its own. With `interpreters`, shards and
    gateway are new interpreters instead of forks.
    """
    with tempfile.TemporaryDirectory(prefix="node-") as scratch:
        command = ["up", "--json"]
        if data is None and port is not None:
            data = Path(scratch) / "data"
        for option, value in (("--port", port), ("--data", data), ("--shards", shards or None)):
            if value is not None:
                command += [option, str(value)]
        if not gateway and "--example" not in arguments:
            command += ["--set", "gateway.enabled=false"]
        command += _monitored_anywhere(port, arguments)
        process = FORKS.start(
            *command,
            *arguments,
            # What it leaves behind when it is killed goes with the scratch directory.
            environment={**os.environ, "TMPDIR": scratch, **(environment or {})},
            directory=Path(scratch),
            interpreters=interpreters,
        )
        node = RunningNode(process, Lines(), Lines())
        readers = [
            threading.Thread(target=node.output.follow, args=(process.stdout,), daemon=True),
            threading.Thread(target=node.errors.follow, args=(process.stderr,), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            if wait:
                node.wait_until_up()
            yield node
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for reader in readers:
                reader.join(WAIT_SECONDS)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
