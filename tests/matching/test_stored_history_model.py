"""Stored histories under bursts of ends, slow commits, a store that is away, restarts and crashes.

Whatever happens, the tasks that are listed as over are the last `history.tasks` that ended, but for
those that have expired.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from maitred.matching.stored_history import HistoryReading
from maitred.settings import History
from tests.matching import listing
from tests.matching.driver import DONE, Driver
from tests.matching.test_stored_history import ANY_SIZE, rows

if TYPE_CHECKING:
    from maitred.matching.stored_history import HistoryWrite
    from tests.matching.driver import Run

BURSTS = st.integers(1, 30)
SECONDS = st.sampled_from([1, 3, 10, 70])
"""Whole seconds, so that nothing happens at the moment when a task expires."""


class HistoryMachine(RuleBasedStateMachine):
    """One partition with a stored history. It keeps its own book of what ended, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.book: list[tuple[int, float]] = []
        """The tasks that ended, and the moments of their ends on the wall clock."""
        self.written: set[int] = set()
        """The tasks of all rows that the store ever had."""

    @initialize(
        most=st.sampled_from([1, 2, 7, 25, 1_000]),
        seconds=st.sampled_from([4.5, 60.5, 3600.5]),
        row_tasks=st.sampled_from([1, 3, 1_000]),
        at_once=st.sampled_from([1, 1_000]),
    )
    def begin(self, most: int, seconds: float, row_tasks: int, at_once: int) -> None:
        for name, value in ("SEGMENT_TASKS", row_tasks), ("EXPIRED_AT_ONCE", at_once):
            self.patches.enter_context(patch(f"maitred.matching.stored_history.{name}", value))
        self.most, self.seconds, self.row_tasks = most, seconds, row_tasks
        history = History(tasks=most, seconds=seconds, stored=True)
        self.driver = Driver(history=history, hold_seconds=0.0, recovery_seconds=0.0)
        self.driver.auto_commit = False

    def teardown(self) -> None:
        self.patches.close()

    # Ends of tasks

    def take(self, tasks: int, *, are_stored: bool) -> list[Run]:
        """Have a worker take new tasks; those that are stored have an end that is to be written."""
        driver = self.driver
        driver.add(tasks)
        if are_stored or driver.partition.health.problem is not None:
            driver.commit()
        return driver.take("w", tasks)

    def end(self, runs: list[Run]) -> None:
        driver = self.driver
        driver.finish(*runs, how=DONE)
        self.book += [(run.sequence, driver.now + driver.wall) for run in runs]

    @rule(tasks=BURSTS, are_stored=st.booleans())
    def burst(self, tasks: int, *, are_stored: bool) -> None:
        if self.driver.partition.health.problem is not None:
            self.driver.commit()
        self.end(self.take(tasks, are_stored=are_stored))

    @rule()
    def commit(self) -> None:
        self.driver.commit()

    @rule(seconds=SECONDS)
    def wait(self, seconds: int) -> None:
        self.driver.pass_time(float(seconds))

    @rule()
    def forget_expired(self) -> None:
        self.driver.partition.ended_tasks.forget_expired(self.driver.now)

    # Writing

    def reach_store(self, write: HistoryWrite) -> None:
        self.driver.store.write(write.changes)
        self.written.update(task.sequence for task in write.tasks)

    @rule(
        outcome=st.sampled_from(["stored", "stored", "failed", "unknown", "unknown but stored"]),
        meanwhile=st.sampled_from([0, 0, 1, 10, 30]),
    )
    def write(self, outcome: str, meanwhile: int) -> None:
        """One commit of the history, while tasks end."""
        driver = self.driver
        history = driver.partition.stored_history
        if driver.partition.health.problem is not None:
            return
        taken = history.take(driver.now)
        if taken is None:
            return
        if meanwhile:
            self.burst(meanwhile, are_stored=False)
        if "stored" in outcome:
            self.reach_store(taken)
        if outcome == "stored":
            history.stored(taken)
        else:
            history.not_stored(taken, driver.now, maybe="unknown" in outcome)
            driver.look_at_store()

    @rule(tasks=BURSTS, seconds=SECONDS)
    def store_is_away(self, tasks: int, seconds: int) -> None:
        """The tasks that workers have end all the same."""
        driver = self.driver
        driver.commit()
        runs = self.take(tasks, are_stored=True)
        driver.fail_commit()
        self.end(runs)
        driver.partition.stored_history.wait(driver.now)
        driver.pass_time(float(seconds))

    # Restarts

    @rule(tasks=st.sampled_from([0, 0, 1, 30]))
    def restart_in_order(self, tasks: int) -> None:
        self.driver.commit()
        self.write_all()
        self.crash(tasks)

    def write_all(self) -> None:
        history = self.driver.partition.stored_history
        while (taken := history.take(self.driver.now)) is not None:
            self.reach_store(taken)
            history.stored(taken)
        assert not history.has_unstored
        lasting = {sequence for sequence, _ in self.book[-self.most :]}
        expired = {number for number, _ in self.book} - set(self.expected())
        assert lasting <= self.written | expired

    @rule(tasks=st.sampled_from([0, 0, 1, 30]))
    def crash(self, tasks: int) -> None:
        """Of what ended the next owner knows what was written, and what ends before it reads."""
        driver = self.driver
        driver.crash(down_seconds=1.0)
        self.book = [one for one in self.book if one[0] in self.written]
        if tasks:
            self.burst(tasks, are_stored=False)
        reading = HistoryReading()
        driver.partition.stored_history.read(rows(driver), reading, ANY_SIZE)
        driver.partition.stored_history.read_whole(reading, driver.now)

    # What must hold

    def expected(self) -> list[int]:
        wall_now = self.driver.now + self.driver.wall
        last = [
            (at, number) for number, at in self.book[-self.most :] if at + self.seconds > wall_now
        ]
        return [number for _, number in sorted(last, reverse=True)]

    @invariant()
    def the_last_that_ended_are_listed(self) -> None:
        if hasattr(self, "driver"):
            found = [one.task.sequence for one in listing.ended(self.driver, 1_000)]
            assert found == self.expected()

    @invariant()
    def memory_is_bounded_and_nothing_is_lost(self) -> None:
        if hasattr(self, "driver"):
            ended = self.driver.partition.ended_tasks
            assert len(ended.unstored) <= len(ended) <= self.most
            assert len(ended.row) <= self.row_tasks
            assert ended._memory.lost == 0


HistoryMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30)
test_histories = HistoryMachine.TestCase
