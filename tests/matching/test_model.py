"""A partition under everything at once: random operations, slow and failing commits, crashes.

The machine keeps its own books of what was promised to whom, and compares.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maitred.errors import (
    MaitredError,
    OutcomeUnknown,
    StoreUnavailable,
    TaskForgotten,
    Unavailable,
)
from maitred.matching.effects import Foreign
from maitred.matching.records import Terms
from maitred.protocol.tasks import Outcome
from maitred.settings import Forwarding
from tests.matching import listing
from tests.matching.driver import DONE, FAILED, Driver, Run, session_of

if TYPE_CHECKING:
    from tests.matching.driver import Asked

WORKERS = st.integers(1, 3)
PLACES = st.integers(0, 10**6)
LEASE = 10.0


class Books:
    """What the world outside believes."""

    def __init__(self) -> None:
        self.added: dict[int, Asked] = {}
        self.priority: dict[int, int] = {}
        self.plain: set[int] = set()
        """Never delayed, and so subject to first in, first out."""
        self.runs: dict[tuple[int, int, bytes], tuple[Run, float]] = {}
        """Attempts that a worker believes to have, and when their leases end."""
        self.first_given: dict[int, int] = {}
        self.out_of_order: set[int] = set()
        """Those that came back, or were away, or saw a crash."""
        self.finishing: dict[int, list[Asked]] = {}
        """Workers that said that they are done with a task."""
        self.asking: list[Asked] = []
        """Callers that cancel tasks or wait for their ends, and were not answered."""
        self.dropped: set[int] = set()
        """Dead letters that nobody wants."""


class PartitionMachine(RuleBasedStateMachine):
    """One partition, in the middle of a tree."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.seen = 0

    @initialize(
        number=st.sampled_from([0, 1]),
        buffer=st.sampled_from([2, 4, 10]),
        buffer_bytes=st.sampled_from([30, 1_000, 10**6]),
        memory_bytes=st.sampled_from([0, 100, 10**6]),
        segment=st.sampled_from([(3, 10**6), (1_000, 40), (1_000, 10**6)]),
        hold=st.sampled_from([0.0, 0.02, 5.0]),
        rate=st.sampled_from([None, None, 2.0]),
        seed=st.integers(0, 1000),
    )
    def begin(
        self,
        number: int,
        buffer: int,
        buffer_bytes: int,
        memory_bytes: int,
        segment: tuple[int, int],
        hold: float,
        rate: float | None,
        seed: int,
    ) -> None:
        limits: dict[str, Any] = {"SEGMENT_TASKS": segment[0], "SEGMENT_BYTES": segment[1]}
        self.patches = ExitStack()
        self.patches.enter_context(patch.multiple("maitred.matching.ledger", **limits))
        self.patches.enter_context(patch("maitred.matching.task_memory.FLOOR_BYTES", 20))
        self.driver = Driver(
            partition=number,
            buffer_tasks=buffer,
            buffer_bytes=buffer_bytes,
            memory_bytes=memory_bytes,
            hold_seconds=hold,
            rate_per_second=rate,
            lease_seconds=LEASE,
            memory_seconds=100.0,
            forwarding=Forwarding(tasks=2, offers=2),
        )
        self.driver.random = Random(seed)
        self.driver.auto_commit = False

    # Producers

    @rule(
        count=st.sampled_from([1, 2, 6, 15]),
        size=st.sampled_from([0, 1, 20, 300]),
        priority=st.sampled_from([0, 2, 2, 2, 4]),
        retries=st.integers(0, 2),
        retention=st.sampled_from([0.0, 60.0, 1000.0]),
        delay=st.sampled_from([0.0, 0.0, 0.0, 0.5, 30.0, 500.0]),
        expires=st.sampled_from([0.0, 0.0, 0.0, 5.0]),
        turn=st.booleans(),
    )
    def add(
        self,
        *,
        count: int,
        size: int,
        retries: int,
        retention: float,
        turn: bool,
        **how: Any,  # noqa: ANN401
    ) -> None:
        terms = Terms(retries, 1.0, 100.0, 0.0, retention)
        asked = self.driver.add([bytes(size)] * count, terms=terms, turn=turn, **how)
        for sequence in asked.sequences:
            self.books.added[sequence] = asked
            self.books.priority[sequence] = how["priority"]
            if not how["delay"]:
                self.books.plain.add(sequence)
        self.note()

    def _some_task(self, place: int) -> int | None:
        numbers = sorted(self.books.added)
        return numbers[-1 - place % min(len(numbers), 40)] if numbers else None

    @rule(place=PLACES)
    def revoke(self, place: int) -> None:
        sequence = self._some_task(place)
        if sequence is not None:
            was_over = sequence in self.driver.ended
            asked = self.driver.cancel(sequence)
            if asked.answered and isinstance(asked.value, StoreUnavailable):
                assert was_over == (sequence in self.driver.ended)
            self.books.asking.append(asked)
            self.note()

    @rule(place=PLACES)
    def wait(self, place: int) -> None:
        sequence = self._some_task(place)
        if sequence is not None and self.books.added[sequence].safe:
            self.books.asking.append(self.driver.wait_for(sequence))
            self.note()

    # Workers

    @rule(worker=WORKERS, slots=st.integers(1, 5), turn=st.booleans())
    def offer(self, *, worker: int, slots: int, turn: bool) -> None:
        self.driver.offer(worker, slots, seconds=20.0, turn=turn)
        self.note()

    @rule(place=PLACES)
    def withdraw(self, place: int) -> None:
        waiting = [one for one in self.driver.asked if one.offer and not one.answered]
        waiting = [one for one in waiting if not one.over]
        if waiting:
            one = waiting[place % len(waiting)]
            assert one.offer is not None
            self.books.out_of_order |= {task.sequence for task in one.offer.given}
            self.driver.withdraw(one)
            self.note()

    @rule(
        place=PLACES,
        how=st.sampled_from([DONE, DONE, DONE, *range(5)]),
        twice=st.booleans(),
    )
    def finish(self, *, place: int, how: int, twice: bool) -> None:
        runs = list(self.books.runs)
        if runs:
            key = runs[place % len(runs)]
            run = self.books.runs[key][0]
            if not twice:
                del self.books.runs[key]
            elif how != DONE:
                return
            self.books.out_of_order.add(run.sequence)
            asked = self.driver.finish(run, how=how)
            if how == DONE and not asked.late:
                self.books.finishing.setdefault(run.sequence, []).append(asked)
            self.note()

    @rule(worker=WORKERS, slots=st.integers(1, 8), how=st.sampled_from([DONE, DONE, FAILED]))
    def serve(self, worker: int, slots: int, how: int) -> None:
        """A worker that takes what there is, and is quick."""
        runs = [run for run in self.driver.take(worker, slots) if run.origin < 0]
        self.note()
        for run in runs:
            self.books.runs.pop((run.sequence, run.attempt, run.session), None)
            self.books.out_of_order.add(run.sequence)
        asked = self.driver.finish(*runs, how=how)
        for run in runs:
            if how == DONE and run.sequence not in asked.late:
                self.books.finishing.setdefault(run.sequence, []).append(asked)
        self.note()

    @rule(worker=WORKERS)
    def beat(self, worker: int) -> None:
        session = session_of(worker)
        mine = [run for run, _ in self.books.runs.values() if run.session == session]
        mine = [run for run in mine if run.origin < 0]
        asked = self.driver.beat(worker, mine)
        lost = set(asked.value[0]) if asked.answered else set()
        for run in mine:
            key = run.sequence, run.attempt, run.session
            if run.sequence in lost:
                del self.books.runs[key]
            elif (
                self.books.runs[key][1] > self.driver.now
                or run.sequence in self.driver.partition.own_tasks.tasks
            ):  # else its lease is over, and a task that is not read yet may have a later attempt
                self.books.runs[key] = run, self.driver.now + LEASE
        self.note()

    @rule(
        place=PLACES,
        attempt=st.integers(0, 4),
        how=st.integers(0, 4),
        forgery=st.sampled_from(["noise", "another worker's", "another task's", "another's turn"]),
    )
    def forge(self, place: int, attempt: int, how: int, forgery: str) -> None:
        """Somebody speaks of an attempt that was given to another worker, or to none."""
        sequence = self._some_task(place)
        runs = [run for run, _ in self.books.runs.values() if run.origin < 0]
        if sequence is None:
            return
        run = Run(sequence, attempt, session_of("thief"), proof=b"forged proof 16B")
        if runs and forgery != "noise":
            stolen = runs[place % len(runs)]
            proof = self.driver.proof_of(stolen)
            if forgery == "another worker's":
                run = replace(stolen, session=session_of("thief"), proof=proof)
            elif forgery == "another task's":
                run = replace(stolen, sequence=stolen.sequence + 1 + place, proof=proof)
            else:
                run = replace(stolen, attempt=stolen.attempt + 1 + attempt, proof=proof)
        partition = self.driver.partition
        before = self._standing()
        refused = partition.attempts.unproven
        finished = self.driver.finish(run, how=how, turn=False)
        assert (finished.refused, finished.late) == ([run.sequence], [])
        asked = self.driver.ask("heartbeat")
        running = [(run.sequence, run.attempt, self.driver.proof_of(run))]
        until, now = self.driver.now + 5.0, self.driver.now
        partition.attempts.heartbeat(run.session, "thief", running, asked, until, now)
        assert partition.attempts.unproven == refused + 2
        assert self._standing() == before
        self.driver.turn()
        assert asked.value == ([run.sequence], [])
        self.note()

    def _standing(self) -> object:
        """What a forged word could change."""
        partition = self.driver.partition
        tasks = [
            (task.sequence, task.state, task.attempt, task.holder, task.lease_until)
            for task in partition.own_tasks.tasks.values()
        ]
        return (
            tasks,
            dict(partition.attempts.claims),
            dict(partition.heartbeats.waiting),
            len(partition.worker_sightings.workers),
        )

    # The store

    @precondition(lambda self: self.driver.partition.ledger.under_way is None)
    @rule(anything=st.booleans())
    def commit_begins(self, *, anything: bool) -> None:
        self.driver.begin_commit(anything=anything)

    @precondition(lambda self: self.driver.partition.ledger.under_way is not None)
    @rule(fate=st.sampled_from(["written", "written", "written", "failed", "crash"]))
    def commit_ends(self, fate: str) -> None:
        if fate == "failed":
            self.driver.end_commit(StoreUnavailable("The disk is away."))
        elif fate == "crash":
            self.driver.write()
            self._crash()
        else:
            self.driver.end_commit()
        self.driver.turn()
        self.note()

    @precondition(lambda self: self.driver.partition.ledger.under_way is None)
    @rule()
    def look_at_store(self) -> None:
        self.driver.look_at_store()

    @rule(slow=st.booleans())
    def reads(self, *, slow: bool) -> None:
        self.driver.slow_reads = slow
        while self.driver.reads:
            self.driver.answer_read()
        self.driver.turn()
        self.note()

    @rule(slow=st.booleans())
    def lookups(self, *, slow: bool) -> None:
        self.driver.slow_lookups = slow
        while self.driver.lookups:
            self._lookup_arrives()

    @precondition(lambda self: self.driver.lookups)
    @rule(place=PLACES, failed=st.sampled_from([False, False, False, True]))
    def lookup_arrives(self, *, place: int, failed: bool) -> None:
        """In any order: look-ups do not wait for each other."""
        lookups = self.driver.lookups
        lookups.insert(0, lookups.pop(place % len(lookups)))
        self._lookup_arrives(StoreUnavailable("The disk is away.") if failed else None)

    def _lookup_arrives(self, problem: StoreUnavailable | None = None) -> None:
        self.driver.answer_lookup(problem)
        self.driver.turn()
        self.note()

    @rule(pauses=st.booleans())
    def control(self, *, pauses: bool) -> None:
        """An operator pauses or resumes the queue; the driver checks that nothing is handed out
        meanwhile."""
        if pauses:
            self.driver.pause()
        else:
            self.driver.resume()
        self.note()

    @rule()
    def crash(self) -> None:
        self._crash()
        self.driver.turn()
        self.note()

    def _crash(self) -> None:
        self.note()
        self.books.out_of_order |= set(self.books.added)
        for sequence, asked in list(self.books.added.items()):
            store = self.driver.store
            if not asked.safe and sequence not in store.unfinished() | store.dead.keys():
                # Nobody promised anything.
                del self.books.added[sequence]
        self.driver.crash()
        self.books.dropped &= self.books.added.keys() - self.driver.store.dead.keys()
        for sequence, status in self.driver.ended.items():
            if status == "failed" and sequence in self.books.added:
                self._left_a_trace(sequence)
        self.books.runs = {
            key: (run, self.driver.now + self.driver.settings.recovery_seconds)
            for key, (run, _) in self.books.runs.items()
        }

    @rule(is_answered=st.booleans(), parent_answers=st.booleans())
    def hand_over(self, *, is_answered: bool, parent_answers: bool) -> None:
        """Another process becomes the owner: the old one lets go in order."""
        driver = self.driver
        while driver.passed_tasks and parent_answers:
            self.books.out_of_order.add(driver.passed_tasks[0].sequence)
            driver.answer_task(None)
            self.note()
        waiting = [one for one in driver.asked if not one.answered and not one.over]
        until = {key: until - driver.now for key, (_, until) in self.books.runs.items()}
        self.books.out_of_order |= set(self.books.added)
        runs = self.books.runs
        driver.hand_over(is_answered=is_answered, seconds=0.1)
        self.note()
        assert all(one.answered for one in waiting), "a long poll stayed behind"
        for one in waiting:
            assert one.what != "add" or one.safe or isinstance(one.value, MaitredError)
        left = driver.settings.recovery_seconds
        self.books.runs = {
            key: (run, driver.now + min(until[key] - 0.1, inf if is_answered else left))
            for key, (run, _) in runs.items()
        }
        driver.turn()
        self.note()

    @rule(is_trusted=st.booleans())
    def lease(self, *, is_trusted: bool) -> None:
        """The lease of the owner's node ends, or is renewed."""
        self.driver.is_trusted = is_trusted
        self.driver.turn()
        self.note()

    def _left_a_trace(self, sequence: int) -> None:
        store = self.driver.store
        if self.books.added[sequence].safe and sequence not in self.books.dropped:
            assert sequence in store.unfinished() | store.dead.keys(), "a dead letter is lost"

    @rule(most=st.sampled_from([1, 3, 13, 1_000]))
    def list_tasks(self, most: int) -> None:
        """Operators see every task that is not over, once."""
        driver = self.driver
        partition = driver.partition
        found = listing.waiting(driver, most) + listing.delayed(driver, most)
        found += listing.running(driver, most)
        numbers = [one.task.sequence for one in found]
        assert len(numbers) == len(set(numbers)), "a task is listed twice"
        assert partition.own_tasks.tasks.keys() <= set(numbers)
        claimed = partition.attempts.claims.keys() & driver.store.unfinished()
        unseen = claimed - partition.own_tasks.tasks.keys()
        assert len(numbers) + len(unseen) >= partition.own_tasks.open_tasks
        assert len(numbers) <= partition.own_tasks.open_tasks
        for one in listing.ended(driver, most):
            assert one.task.sequence not in partition.own_tasks.tasks

    @rule(place=PLACES, retry=st.booleans())
    def dead_letters(self, *, place: int, retry: bool) -> None:
        letters = sorted(self.driver.store.dead)
        if letters:
            sequence = letters[place % len(letters)]
            if retry:
                # A person begins it anew, whatever a worker that was given up may still be at.
                self.books.out_of_order.add(sequence)
                runs = self.books.runs
                self.books.runs = {key: run for key, run in runs.items() if key[0] != sequence}
                self.driver.retry_dead(sequence)
            else:
                self.driver.drop_dead(sequence)
                self.books.dropped.add(sequence)
            self.note()

    # Time

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.pass_time(seconds)
        self.note()

    # The tree

    @precondition(lambda self: self.driver.passed_tasks)
    @rule(answer=st.sampled_from(["taken", "unwanted", "lost"]), worker=WORKERS)
    def parent_answers_task(self, answer: str, worker: int) -> None:
        self.books.out_of_order.add(self.driver.passed_tasks[0].sequence)
        if answer == "lost":
            self.driver.lose_task()
        else:
            task = self.driver.passed_tasks[0]
            over = task.sequence not in self.driver.partition.own_tasks.tasks
            # The parent gives it out within a second, which is less than the lease's margin.
            taken = answer == "taken" and not over and self.driver.is_trusted
            self.driver.answer_task(worker if taken else None)
        self.note()

    @precondition(lambda self: self.driver.passed_offers)
    @rule(found=st.booleans())
    def parent_answers_offer(self, *, found: bool) -> None:
        foreign = [Foreign(0, 7, 1, bytes(16), 0.0, b"foreign", 0.1)] if found else []
        self.driver.answer_offer(foreign)
        self.note()

    @rule(sequence=st.integers(1, 50))
    def child_visits(self, sequence: int) -> None:
        self.driver.visit(sequence, seconds=1.0)
        self.note()

    # What must be true

    def note(self) -> None:
        """What workers got goes into the books, and must be in order."""
        driver, books = self.driver, self.books
        # What is given in one turn is given at once.
        for run in sorted(driver.given[self.seen :], key=lambda run: (run.at, run.sequence)):
            if run.origin >= 0:
                continue
            assert run.sequence in books.added, "a task that nobody added, or that was refused"
            for asked in books.finishing.get(run.sequence, ()):
                assert not asked.safe or run.sequence in asked.late, (
                    "a task is given again though its worker heard it is done"
                )
            for other, until in books.runs.values():
                if other.sequence == run.sequence:
                    assert until <= run.at, "a task is with two workers"
            books.runs = {k: v for k, v in books.runs.items() if k[0] != run.sequence}
            key = run.sequence, run.attempt, run.session
            books.runs[key] = run, run.at + LEASE
            self._in_order(run)
        self.seen = len(driver.given)
        answered = [asked for asked in books.asking if asked.answered]
        books.asking = [asked for asked in books.asking if not asked.answered and not asked.over]
        for asked in answered:
            self._is_true(asked.sequences[0], asked.value)

    def _is_true(self, sequence: int, told: object) -> None:
        """What a caller heard of a task is so, and is on disk."""
        store, partition = self.driver.store, self.driver.partition
        is_open = sequence in store.unfinished() or sequence in partition.own_tasks.tasks
        if isinstance(told, Outcome):
            assert told.status == self.driver.ended.get(sequence, "failed")
            assert not is_open
        elif isinstance(told, TaskForgotten) or told in ("cancelled", "over"):
            assert not is_open, f"{sequence} is said to be over: {told}"
        else:
            assert told == "cancelling" or isinstance(told, Unavailable | OutcomeUnknown)

    def _in_order(self, run: Run) -> None:
        books, sequence = self.books, run.sequence
        if sequence in books.out_of_order or sequence not in books.plain or run.attempt > 1:
            return
        priority = books.priority[sequence]
        assert books.first_given.get(priority, -1) < sequence, "not first in, first out"
        books.first_given[priority] = sequence

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        if not hasattr(self, "driver"):
            return
        partition, store = self.driver.partition, self.driver.store
        kept = partition.own_tasks.tasks.keys() | store.unfinished()
        ends = self._ends()
        for sequence, asked in self.books.added.items():
            if asked.safe and sequence not in kept:
                assert sequence in ends, f"{sequence} was acknowledged and is nowhere"

    def _ends(self) -> set[int]:
        """Tasks of which it is known how they ended."""
        return self.driver.ended.keys() | self.driver.store.dead.keys()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        try:
            self._come_to_rest()
        finally:
            self.patches.close()

    def _come_to_rest(self) -> None:
        driver = self.driver
        driver.slow_reads = driver.slow_lookups = False
        driver.is_trusted = True
        driver.resume()
        while driver.reads:
            driver.answer_read()
        while driver.lookups:
            driver.answer_lookup()
        if driver.partition.ledger.under_way is not None:
            driver.end_commit()
        driver.auto_commit = True
        while driver.passed_tasks:
            driver.answer_task(None)
        while driver.passed_offers:
            driver.answer_offer()
        for _ in range(2_000):
            runs = self._serve()
            driver.finish(*[run for run in runs if run.origin < 0])
            if not runs:
                driver.pass_time(20.0)
            if not driver.partition.own_tasks.open_tasks:
                break
        driver.pass_time(100.0)
        while driver.passed_offers:
            driver.answer_offer()
        while driver.passed_tasks:
            driver.answer_task(None)
        self._at_rest()

    def _serve(self) -> list[Run]:
        driver = self.driver
        asked = driver.offer("last", slots=5)
        while driver.passed_tasks and not asked.answered:
            driver.answer_task(None)
        if not asked.answered:
            driver.pass_time(2.0)
        if not asked.answered:
            driver.withdraw(asked)
        while driver.passed_offers:
            driver.answer_offer()
        return list(asked.value) if asked.answered else []

    def _at_rest(self) -> None:
        driver = self.driver
        assert driver.partition.own_tasks.open_tasks == 0
        assert driver.partition.own_tasks.tasks == {}
        assert driver.store.empty
        assert driver.store.backlog == 0
        self.nothing_acknowledged_is_lost()
        for asked in driver.asked:
            assert asked.answered or asked.over, f"{asked.what} was never answered"
        assert not driver.partition.stored_tasks.is_searching
        assert not driver.partition.results.waiters
        assert driver.partition.offers.slots == 0
        assert driver.partition.tree.offers_away == driver.partition.tree.tasks_away == 0
        assert driver.partition.ack_level == driver.partition.read_level


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
