"""One peer, started, measured and ended: one server, one producer, one worker.

The order is what makes it short: what is enqueued without a worker is the backlog that the worker
then drains; that says how many tasks the run from end to end can have in the time there is; and by
then everybody is warm.
"""

from __future__ import annotations

import json
import select
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tasks.processes import (
    ROOT,
    Started,
    Unavailable,
    free_port,
    started,
    wait_for_port,
)
from benchmarks.tasks.producing import URL
from benchmarks.tasks.recording import RECORD, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.tasks.lineup import Peer
    from benchmarks.tasks.processes import Command

RATE = 100
"""Tasks a second while latency is measured: next to no load."""

STALLED = 30
"""Seconds without a single task, after which a peer is given up."""

STARTS_TRIED = 5
"""Another program may take a port between the moment it is found free and the server's start."""

ANSWERED_WITHIN = 120
"""Seconds for anything that the producer is told to do."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Budget:
    """Seconds for each measure of one session, and the most tasks for one."""

    enqueue: float = 1.5
    end_to_end: float = 4
    latency: float = 4
    backlog: int = 100_000


class Session:
    """Processes of one peer, and what they are asked to do."""

    def __init__(
        self,
        stack: ExitStack,
        peer: Peer,
        folder: Path,
        search_path: str = str(ROOT),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stack = stack
        self._peer = peer
        self._folder = folder
        self._next = 0
        programs = peer.bin()
        self._environment = {
            "PYTHONPATH": search_path,
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        self._server, port = self._start_server()
        self._environment[URL] = f"{peer.scheme}://127.0.0.1:{port}"
        command: Command = [programs / "python", "-m", "benchmarks.tasks.producing", peer.module]
        self._producer = stack.enter_context(
            started(command, folder / "producer.log", self._environment, pipes=True)
        )
        self.many: str = self._answer()["many"]
        self._record = Record.create(folder / "record")
        stack.callback(self._record.close)
        self._worker: Started | None = None
        self._programs = programs

    def _start_server(self) -> tuple[Started, int]:
        """Start the server at a free port, and at another one if that, or the next one to it, which
        a node needs as well, was taken in the meantime."""
        for left in reversed(range(STARTS_TRIED)):
            port = free_port()
            data = self._folder / f"data-{port}"
            data.mkdir(exist_ok=True)
            server = self._start("server", self._peer.server(port, data))
            try:
                wait_for_port(port, server)
            except Unavailable:
                if not left or server.alive:
                    raise
            else:
                return server, port
        raise AssertionError

    def _start(self, name: str, command: Sequence[str | Path], **more: str) -> Started:
        log = self._folder / f"{name}.log"
        return self._stack.enter_context(started(command, log, {**self._environment, **more}))

    @property
    def served_by(self) -> list[Started]:
        """The server and the worker, if it was started."""
        return [self._server, *([self._worker] if self._worker else [])]

    # The producer

    def _answer(self) -> dict[str, Any]:
        heard, _, _ = select.select([self._producer.stdout], [], [], ANSWERED_WITHIN)
        if not heard:
            raise Unavailable(f"the producer did not answer within {ANSWERED_WITHIN} s")
        line = self._producer.stdout.readline()
        if not line:
            raise Unavailable(f"the producer failed: {self._producer.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ask(self, do: str, **order: float) -> int:
        """Let the producer begin; the number of its first task."""
        first = self._next
        line = json.dumps({"do": do, "first": first, **order})
        self._producer.stdin.write(line + "\n")
        self._producer.stdin.flush()
        return first

    def _burst(self, most: int, seconds: float, *, each: bool = False) -> Figures:
        self._ask("burst", most=most, seconds=seconds, each=each)
        answer = self._answer()
        self._next += answer["tasks"]
        return answer

    # The worker

    def _wait(self, first: int, tasks: int) -> list[tuple[int, int]]:
        """Until the handler of each was called: when each was sent and called."""
        times, moved = self._record.times(first, tasks), time.monotonic()
        while len(times) < tasks:
            time.sleep(0.02)
            # A look at the last one is cheap; to count them all, on cores that others need, is not.
            if not self._record.is_called(first + tasks - 1) and time.monotonic() - moved < 1:
                continue
            before, times = len(times), self._record.times(first, tasks)
            if len(times) > before:
                moved = time.monotonic()
            elif time.monotonic() - moved > STALLED:
                words = self._worker.last_words() if self._worker else ""
                raise Unavailable(
                    f"{tasks - len(times):,} of {tasks:,} tasks were not run within {STALLED} s of "
                    f"the last one: {words}"
                )
        return times

    def start_worker(self) -> None:
        record = {RECORD: str(self._folder / "record")}
        self._worker = self._start("worker", self._peer.worker(self._programs), **record)

    # What is measured

    def enqueue_and_drain(self, budget: Budget) -> Figures:
        """No worker runs until all is enqueued."""
        self._burst(500, 1)
        each = self._burst(budget.backlog // 2, budget.enqueue, each=True)
        many = self._burst(budget.backlog - self._next, budget.enqueue)
        memory = self._server.memory_bytes()
        self.start_worker()
        called = sorted(called for _, called in self._wait(0, self._next))
        return {
            "enqueue, 64 in flight": each["tasks"] / each["seconds"],
            "enqueue": max(many["tasks"] / many["seconds"], each["tasks"] / each["seconds"]),
            "backlog": self._next,
            "drain": (len(called) - 1) / (called[-1] - called[0]) * 1e9,
            "memory after drain": self._server.memory_bytes() / memory,
        }

    def end_to_end(self, tasks: int, *, each: bool = False) -> Figures:
        """From the first that is enqueued to the last handler; CPU of all processes."""
        assert self._worker is not None
        before = self._server.cpu_seconds() + self._worker.cpu_seconds()
        first = self._next
        produced = self._burst(tasks, ANSWERED_WITHIN / 2, each=each)
        if produced["tasks"] < tasks:
            raise Unavailable(f"{tasks:,} tasks were not enqueued within {ANSWERED_WITHIN / 2:g} s")
        times = self._wait(first, tasks)
        spent = self._server.cpu_seconds() + self._worker.cpu_seconds() - before
        seconds = (max(called for _, called in times) - min(sent for sent, _ in times)) / 1e9
        return {
            "end to end": tasks / seconds,
            "tasks": tasks,
            "cpu us": (spent + produced["cpu"]) / tasks * 1e6,
        }

    def latency(self, seconds: float) -> Figures:
        """From just before the call that enqueues to the handler's first line."""
        tasks = int(RATE * seconds)
        first = self._ask("paced", tasks=tasks, rate=RATE)
        self._answer()
        self._next += tasks
        waited = sorted((called - sent) / 1e6 for sent, called in self._wait(first, tasks))
        return {"p50 ms": waited[tasks // 2], "p99 ms": waited[tasks * 99 // 100]}


def measure(peer: Peer, budget: Budget) -> tuple[Figures, str]:
    """All figures of one session, and how it enqueued many."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        session = Session(stack, peer, Path(folder))
        figures = session.enqueue_and_drain(budget)
        expected = min(figures["drain"], figures["enqueue"])
        tasks = int(min(max(expected * budget.end_to_end, 1_000), budget.backlog))
        figures |= session.end_to_end(tasks)
        figures |= session.latency(budget.latency)
        return figures, session.many
