"""A measured limit beside others who want the CPUs: simulated, with a loop that is really late.

The loop's time is virtual, and whatever keeps the loop from running moves it on: a handler that
computes or blocks, threads that hold the GIL, or other processes. Only the CPU times tell which.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from maitred.app.attempt import Attempt
from maitred.settings import WorkerSettings
from maitred.simulation.loop import SimulatedLoop
from maitred.surroundings import CpuTimes, cpu_times
from maitred.worker.capacity import TICK_SECONDS, Capacity
from maitred.worker.limit_report import (
    QUIET_SECONDS,
    SENTENCES,
    SETTLED_SECONDS,
    STARVED_SECONDS,
    LimitReport,
    explain,
)
from maitred.worker.statistics import WorkerStatistics
from tests.node.in_process import RecordedLog

if TYPE_CHECKING:
    from collections.abc import Coroutine

SLOTS = 64
SCHEDULING = Path("/proc/thread-self/schedstat")
WAY_SECONDS = 0.005
"""For the end of a task to reach the node, and the next task to come."""


class Nowhere:
    name = "q"
    partition = 0


class StarvedMachine:
    """One worker's loop, kept as full as the limit allows."""

    def __init__(self, *, tells: bool = True, measured: bool = True, seed: int = 1) -> None:
        self.loop = SimulatedLoop()
        self.thread = self.process = self.kept_waiting = 0.0
        self.tells = tells
        """Whether the system tells how long a thread was kept waiting."""
        self.measured = measured
        """Whether the CPU times are looked at."""
        self.random = Random(seed)
        self.statistics = WorkerStatistics(SLOTS)
        self.log = RecordedLog()
        self.done = 0
        self.lowest = SLOTS

    def times(self) -> CpuTimes:
        return CpuTimes(self.thread, self.process, self.kept_waiting if self.tells else None)

    # What makes the loop late

    def compute(self, seconds: float) -> None:
        """A handler computes on the loop."""
        self.loop.now += seconds
        self.thread += seconds
        self.process += seconds

    def block(self, seconds: float) -> None:
        """A handler sleeps on the loop."""
        self.loop.now += seconds

    def wait_for_the_gil(self, seconds: float) -> None:
        """The worker's threads compute, and the loop has to wait."""
        self.loop.now += seconds
        self.process += seconds

    def starve(self, seconds: float) -> None:
        """Other processes have the CPUs."""
        self.loop.now += seconds
        self.kept_waiting += seconds

    # A run

    def run(self, main: Coroutine[None, None, None]) -> None:
        async def guarded() -> None:
            self.capacity = Capacity(
                WorkerSettings(slots=SLOTS),
                self.statistics,
                lambda: None,
                self.log,
                self.times if self.measured else None,
            )
            self.attempts = [asyncio.create_task(self._attempts()) for _ in range(SLOTS)]
            await main
            for task in self.attempts:
                task.cancel()
            self.capacity.stop()

        asyncio.set_event_loop(None)
        self.loop.run_until_complete(guarded())
        self.loop.close()

    async def _attempts(self) -> None:
        """One slot: a task, the way there and back, the next one."""
        capacity, statistics = self.capacity, self.statistics
        while True:
            await asyncio.sleep(WAY_SECONDS)
            if statistics.busy >= min(capacity.limit, SLOTS):
                continue
            statistics.busy += 1
            attempt = Attempt(Nowhere(), (0, 1))
            capacity.begun(attempt, self.loop.time())
            await asyncio.sleep(0.0)
            self.handler()
            capacity.ended(attempt, capacity.loop.time(), good=True)
            statistics.busy -= 1
            self.done += 1
            self.lowest = min(self.lowest, capacity.limit)

    def handler(self) -> None:
        self.compute(0.0001)

    async def others(self, seconds: float) -> None:
        """Other processes have the CPUs nine tenths of the time, in turns of up to 0.3 s."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await asyncio.sleep(0.02)
            self.starve(self.random.uniform(0.06, 0.3))

    async def alone(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("seed", "tells"), [(0, True), (1, False), (2, True)])
def test_a_starved_machine_is_no_small_one(seed: int, tells: bool) -> None:
    machine = StarvedMachine(seed=seed, tells=tells)
    machine.run(machine.others(15.0))
    assert machine.lowest == SLOTS, "it never fell, however late the loop was"
    assert machine.capacity.reason == "starved"
    assert machine.log.events("warning") == [SENTENCES["starved"]]
    assert machine.statistics.starved_seconds > 10.0


def test_without_the_cpu_times_it_was_taken_for_one() -> None:
    """What happened before they were looked at: so the simulation above can fail."""
    machine = StarvedMachine(measured=False)
    machine.run(machine.others(15.0))
    assert machine.lowest < SLOTS / 4


@pytest.mark.parametrize(
    ("how", "reason"),
    [("compute", "busy-loop"), ("block", "blocked-loop"), ("wait_for_the_gil", "busy-threads")],
)
def test_a_line_of_its_own_lowers_the_limit_and_the_worker_says_why(how: str, reason: str) -> None:
    machine = StarvedMachine()
    late = getattr(machine, how)
    machine.handler = lambda: late(0.005)  # type: ignore[method-assign]
    machine.run(machine.alone(15.0))
    assert machine.capacity.limit < SLOTS / 2
    assert machine.capacity.reason == reason
    (line,) = [fields for level, _, fields in machine.log.lines if level == "warning"]
    assert (line["reason"], line["slots"]) == (reason, SLOTS)
    assert line["limit"] < SLOTS
    assert line["remedy"]


def test_a_line_of_its_own_is_seen_on_a_starved_machine_as_well() -> None:
    machine = StarvedMachine()
    machine.handler = lambda: machine.compute(0.01)  # type: ignore[method-assign]
    machine.run(machine.others(15.0))
    assert machine.capacity.limit < SLOTS / 2
    assert machine.capacity.reason == "busy-loop"


def test_a_limit_that_fell_is_back_soon_after_its_cause_though_the_machine_is_starved() -> None:
    machine = StarvedMachine()
    cost = 0.02
    machine.handler = lambda: machine.compute(cost)  # type: ignore[method-assign]

    async def main() -> None:
        nonlocal cost
        await machine.alone(10.0)
        assert machine.capacity.limit < SLOTS / 2
        cost = 0.0001
        await machine.others(15.0)
        assert machine.capacity.limit > 0.75 * SLOTS, "as many as are wanted at a time"
        assert machine.capacity.reason == "starved"

    machine.run(main())


# Pure


def times(thread: float, process: float, kept_waiting: float | None = 0.0) -> CpuTimes:
    return CpuTimes(thread, process, kept_waiting)


def test_what_other_threads_of_the_worker_computed_is_not_stolen() -> None:
    """Sixteen threads that let go of the GIL fill two CPUs, and the loop has to wait for one."""
    found = explain(0.1, 0.15, times(0.0, 0.0), times(0.01, 0.3, 0.12), on_loop=True)
    assert (found.own_seconds, found.stolen_seconds) == (0.1, 0.0)
    assert found.cause == "busy-threads"


def test_stolen_time_is_never_more_than_there_was() -> None:
    found = explain(0.1, 0.15, times(0.0, 0.0), times(0.0, 0.0, 9.0), on_loop=True)
    assert (found.own_seconds, found.stolen_seconds) == (0.0, 0.15)


def test_what_blocks_is_a_thread_if_no_handler_is_on_the_loop() -> None:
    idle = times(0.0, 0.0)
    assert explain(0.1, 0.15, idle, idle, on_loop=True).cause == "blocked-loop"
    assert explain(0.1, 0.15, idle, idle, on_loop=False).cause == "busy-threads"


def test_this_system_tells_cpu_times() -> None:
    before = cpu_times()
    sum(range(200_000))
    after = cpu_times()
    assert after.thread > before.thread
    assert after.process > before.process


def kept_waiting() -> float:
    """What the system says of the calling thread, in seconds."""
    return int(SCHEDULING.read_text().split()[1]) / 1e9


@pytest.mark.skipif(not SCHEDULING.exists(), reason="the system does not tell")
def test_each_thread_is_told_its_own_cpu_times() -> None:
    found = []

    def ask() -> None:
        least = kept_waiting()
        told = cpu_times()
        assert told.kept_waiting is not None
        found.append((told.thread, least <= told.kept_waiting <= kept_waiting()))

    sum(range(200_000))
    ask()
    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    (ours, _), *others = found
    assert all(right for _, right in found)
    assert len(others) == 2
    assert max(theirs for theirs, _ in others) < ours


@pytest.mark.skipif(not SCHEDULING.exists(), reason="the system does not tell")
def test_a_forked_process_is_told_its_own_cpu_times() -> None:
    cpu_times()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        told = cpu_times().kept_waiting
        os.write(writer, b"own" if told is not None and told <= kept_waiting() else b"others'")
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 100)
    os.close(reader)
    os.close(writer)
    assert said == b"own"


def test_the_usual_reason_is_said_once_and_single_windows_change_nothing() -> None:
    report = LimitReport()
    said = []
    now = 0.0
    long = 400
    for cause in (["waiting", "slots"] * long) + ["waiting"] * long + ["unused"] * long:
        now += TICK_SECONDS
        reason = report.look(cause, now)  # type: ignore[arg-type]
        if reason is not None:
            said.append((now, reason))
    assert [reason for _, reason in said] == ["waiting", "unused"]
    assert said[0][0] > 2 * long * TICK_SECONDS, "half of the time is not usual"
    assert said[1][0] - said[0][0] > QUIET_SECONDS


@pytest.mark.parametrize("seed", range(2))
def test_reasons_that_change_all_the_time_are_bounded_lines(seed: int) -> None:
    report, random = LimitReport(), Random(seed)
    lines, now = 0, 0.0
    for _ in range(1_000):
        cause = random.choice(["waiting", "slots", "late", "unused", "knee"])
        for _ in range(random.randrange(100)):
            now += TICK_SECONDS
            lines += report.look(cause, now) is not None  # type: ignore[arg-type]
    assert 0 < lines <= now / QUIET_SECONDS


def test_a_moment_without_a_cpu_is_no_starved_machine() -> None:
    report = LimitReport()
    for _ in range(200):
        report.stolen(0.0, TICK_SECONDS)
    report.stolen(0.2, 0.25)
    assert reason_at(report, 1.0) == "slots"
    now = 1.0
    while now < 1.0 + SETTLED_SECONDS + STARVED_SECONDS:
        now += 0.25
        report.stolen(0.2, 0.25)
        report.look("slots", now)
    assert reason_at(report, now) == "starved"


def reason_at(report: LimitReport, now: float) -> str:
    report.look("slots", now)
    return report.reason
