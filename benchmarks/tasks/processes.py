"""Processes that are started for a benchmark, each in a session of its own, and ended with it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
STARTED_WITHIN = 30
ENDED_WITHIN = 5
PAGE = os.sysconf("SC_PAGE_SIZE")

QUIET = range(10_000, 32_000)
"""Systems take the ports of outgoing connections from above these, Linux from 32,768 on."""

PORTS_TRIED = 20


Command = list[str | Path]


class Unavailable(Exception):
    """A peer cannot take part, and this is why."""


class Started:
    """A process and whatever it starts in turn."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def pids(self) -> list[int]:
        """Its session: itself, its children, their children."""
        return [pid for pid, fields in _stats() if int(fields[3]) == self.process.pid]

    def cpu_seconds(self) -> float:
        """What all of them have spent on the CPU, to the nanosecond."""
        return session_cpu_seconds((self.process.pid,))

    def memory_bytes(self) -> int:
        """What all of them have in memory."""
        pages = [int(fields[21]) for _, fields in _stats() if int(fields[3]) == self.process.pid]
        return sum(pages) * PAGE

    def last_words(self) -> str:
        """The last line that it has written, for the reason why something failed."""
        lines = self._log.read_text(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
        return words.replace(str(ROOT), ".")[-300:]

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDED_WITHIN)
            until = time.monotonic() + ENDED_WITHIN
            while self.pids() and time.monotonic() < until:
                time.sleep(0.02)
            if not self.pids():
                break


def session_cpu_seconds(sessions: Collection[int]) -> float:
    """The CPU time of all processes of these sessions that still run, in seconds."""
    spent = 0.0
    for pid, fields in _stats():
        if int(fields[3]) in sessions:
            with suppress(OSError):  # it has ended meanwhile
                spent += time.clock_gettime(_cpu_clock(pid))
    return spent


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, ended threads included: Linux's clock_getcpuclockid."""
    return ~pid << 3 | 2


def _stats() -> Iterator[tuple[int, list[str]]]:
    """The fields of /proc/<pid>/stat after the name: state, parent, group, session, ..."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = (folder / "stat").read_text()
                fields = stat.rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(folder.name), fields


@contextmanager
def started(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str], *, pipes: bool = False
) -> Iterator[Started]:
    """With `pipes` we talk to it over stdin and stdout; else both of its outputs are a log."""
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=log.parent,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{Path(command[0]).name} cannot be started: {error}") from None
    with process:
        it = Started(process, log)
        try:
            yield it
        finally:
            it.end()


def free_port() -> int:
    """A port that is free now. A port from which outgoing connections are made would be taken soon
    on a busy machine, so it is one below those."""
    for _ in range(PORTS_TRIED):
        port = random.choice(QUIET)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise Unavailable(f"none of {PORTS_TRIED} ports from {QUIET[0]} to {QUIET[-1]} is free")


def wait_for_port(port: int, server: Started) -> None:
    until = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < until:
        if not server.alive:
            raise Unavailable(f"the server ended at once: {server.last_words()}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise Unavailable(f"the server did not listen within {STARTED_WITHIN} s: {server.last_words()}")
