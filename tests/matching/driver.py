"""One partition under the node's own driver: virtual time, a model store, answers on record.

A test says when a commit ends and how, when a read is answered, and when the process dies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from maitred.errors import (
    ConnectionLost,
    MaitredError,
    NotOwner,
    StorageQuotaExceeded,
    StoreUnavailable,
    TaskForgotten,
    UnknownTask,
)
from maitred.matching import effects
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.attendance import Attendance
from maitred.matching.controls import (
    Pause,
    QueueControls,
    decode_controls,
    encode_controls,
)
from maitred.matching.partition import Partition
from maitred.matching.quotas import Quota
from maitred.matching.records import TASK_BYTES, PartitionKey, Terms
from maitred.matching.running_attempts import Inheritance
from maitred.matching.slots import SlotRequest, WaitingOffer
from maitred.matching.task import GIVEN, READY, QueueTask, Ticket
from maitred.matching.task_history import EndedTasks, no_history
from maitred.matching.task_memory import TaskMemory
from maitred.matching.task_searches import StoredRows
from maitred.node.owned import Owned
from maitred.node.partition_driver import PartitionDriver
from maitred.protocol.queries import Allocated, Allocation
from maitred.protocol.tasks import Finish, Forwarded, Given, Heard, Offered, Revoked
from maitred.routing.counts import PartitionCounts
from maitred.settings import Queue
from tests.matching.model_store import ModelStore
from tests.matching.recorded_shell import Question, RecordedShell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from maitred.matching.effects import Foreign
    from maitred.matching.records import Damaged
    from maitred.matching.running_attempts import RunningAttempt
    from maitred.matching.subscribers import IssuedPass
    from maitred.matching.task_ends import Ended
    from maitred.matching.task_searches import TaskSearch
    from maitred.protocol.tasks import Reserved

DONE, FAILED, RETURNED, TIMED_OUT, STOPPED = range(5)
"""How an attempt ended, as the wire counts it."""

SIGNING_KEY = bytes(range(32))
WALL = 1_700_000_000.3
TERMS = Terms(retries=3, backoff_first=1.0, backoff_longest=300.0, retention=60.0)

RESTLESS_ROUNDS = 1_000
"""Rounds at one moment after which a partition counts as never coming to rest. Dozens of tasks that
expire together and are read back one by one from a small memory take several rounds each."""


@dataclass(eq=False)
class Asked:
    """A request that waits for an answer; gets exactly one, unless it is taken back.

    Takes the driver's answers as a deferred reply does, and those to a ticket as a call.
    """

    driver: Driver
    what: str
    sequences: list[int] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    over: bool = False
    """Taken back, or its partition is gone: no answer is wanted."""
    offer: WaitingOffer | None = None
    wanted: SlotRequest | None = None
    reserved: list[bytes] = field(default_factory=list)
    passes: list[IssuedPass] = field(default_factory=list)
    best: float | None = None
    session: bytes = b""
    slots: int = 0

    def __call__(self, _owned: Owned, problem: MaitredError | None) -> None:
        self.answer(problem)

    def refuse(self, problem: MaitredError) -> None:
        self.answer(problem)

    def answer(self, message: object) -> None:
        answer = self.driver.plain(self, message)
        assert not self.answers, f"{self.what} is answered twice: {self.answers}, {answer}"
        assert not self.over, f"{self.what} is answered after it was withdrawn"
        self.answers.append(answer)

    @property
    def answered(self) -> bool:
        return bool(self.answers)

    @property
    def value(self) -> Any:  # noqa: ANN401
        assert self.answers, f"{self.what} is not answered"
        return self.answers[0]

    @property
    def safe(self) -> bool:
        return self.answers == [None]


@dataclass(frozen=True)
class Run:
    """A task at a worker."""

    sequence: int
    attempt: int
    session: bytes
    payload: bytes = b""
    at: float = 0.0
    origin: int = -1
    proof: bytes = b""
    """Empty: what an owner of the partition would have given for it."""


def _quota_exceeded(quota: Quota) -> MaitredError:
    return StorageQuotaExceeded(f"{quota.tasks} tasks, {quota.bytes} bytes")


def session_of(worker: int | str) -> bytes:
    return str(worker).encode().ljust(16, b".")


def _token(one: Allocation | Reserved | bytes) -> bytes:
    """Return the token of a slot; the slots that a test has a parent give are tokens only."""
    return one if isinstance(one, bytes) else one.token


def _give(owned: Owned, effect: effects.Give, give: Callable[[Owned, effects.Give], None]) -> None:
    given = len(effect.tasks) + len(effect.foreign)
    assert given + len(effect.reserved) + len(effect.reserved_above) > 0
    give(owned, effect)


class Driver:
    """A partition, the node's driver, and the model of all else: store, parent, callers, time."""

    def __init__(
        self,
        *,
        partition: int = 0,
        counts: PartitionCounts | None = None,
        now: float = 1000.0,
        quota: tuple[float, float] = (inf, inf),
        memory_bytes: float = inf,
        store: ModelStore | None = None,
        **settings: object,
    ) -> None:
        settings.setdefault("recovery_seconds", 3.0)
        self.settings = Queue(**settings)  # type: ignore[arg-type]
        self.key = PartitionKey("shop", "mails", 1, partition)
        self.counts = counts or PartitionCounts(partition + 1, partition + 1, 1)
        self.store = ModelStore() if store is None else store
        self.now = now
        self.wall = WALL - now
        self.random = Random(7)
        self.asked: list[Asked] = []
        self.ended: dict[int, str] = {}
        """Tasks that are over, and how, as the partition says."""
        self.given: list[Run] = []
        """Everything that was ever given to a worker, in order."""
        self.auto_commit = True
        """Whether changes that are due are committed at once."""
        self.checking = True
        self.visitors: dict[QueueTask, Asked] = {}
        self.allocated: list[tuple[bytes, bytes]] = []
        """Every slot that a query got: the reservation, and whose."""
        self.recalled_offers: list[WaitingOffer] = []
        self.recalled_tasks: list[QueueTask] = []
        self.unproven: list[effects.Unproven] = []
        self.not_kept: list[effects.NotKept] = []
        self.set_aside: list[Damaged] = []
        self.lookups: list[tuple[TaskSearch, StoredRows]] = []
        """Look-ups whose rows were read and have not arrived, if they are slow."""
        self.slow_lookups = False
        self.memory_bytes = memory_bytes
        """The memory budget for waiting tasks of the shard."""
        self.quota_of = quota
        """Tasks and bytes that may be stored."""
        self.is_trusted = True
        """Whether the lease of the owner's node lasts."""
        self.is_paused = False
        """Whether an operator has paused the queue."""
        self.shell = RecordedShell(lambda: self.now, self.store, self._recalled)
        self.ended_tasks: EndedTasks | None = None
        """The tasks that ended, if a process that loads the partition again still has them."""
        self.partition = self._load()

    def _load(self, inheritance: Inheritance | None = None) -> Partition:
        acquired = self.store.acquire()
        self.memory = TaskMemory(self.memory_bytes)
        self.quota = Quota(*self.quota_of, self.store.use(), _quota_exceeded)
        partition = Partition(
            self.key,
            acquired,
            self.counts,
            self.settings,
            random=self.random,
            loaded_at=self.now,
            wall=self.wall,
            secret=self.random.randbytes,
            signing_key=SIGNING_KEY,
            quotas=(self.quota,),
            memory=self.memory,
            is_trusted=lambda: self.is_trusted,
            is_clustered=True,
            inheritance=inheritance,
            controls=decode_controls(acquired.controls, acquired.range_id),
            ended_tasks=no_history() if self.ended_tasks is None else self.ended_tasks,
        )
        self.is_paused = partition.controls.pause is not None
        remember = partition.results.remember

        def over(sequence: int, ended: Ended, now: float) -> None:
            self.ended[sequence] = ended.status
            remember(sequence, ended, now)

        partition.results.remember = over  # type: ignore[method-assign]
        take = partition.offers.take

        def checked(task: QueueTask) -> WaitingOffer:
            is_new = task.origin >= 0 or not (task.writing or task.sequence in self.store)
            assert is_new or self.is_trusted, "another owner may have it"
            assert not self.is_paused, "a paused queue hands out a task"
            return take(task)

        partition.offers.take = checked  # type: ignore[method-assign]
        self._drive(partition)
        return partition

    def _drive(self, partition: Partition) -> None:
        """Give the partition to the driver, with these of its effects on record."""
        self.driving = driving = PartitionDriver(self.shell, store=self.shell, writer=self.shell)
        give = driving._carry_out[effects.Give]
        driving.on_effect(effects.Give, lambda owned, effect: _give(owned, effect, give))
        driving.on_effect(effects.AnswerAttend, lambda _, effect: self._answer_attend(effect))
        driving.on_effect(effects.AnswerSubscribe, lambda _, effect: effect.token.answer(effect))
        driving.on_effect(effects.Unproven, lambda _, effect: self.unproven.append(effect))
        driving.on_effect(effects.NotKept, lambda _, effect: self.not_kept.append(effect))
        driving.on_effect(effects.LookUp, lambda _, effect: self._look_up(effect))
        driving.on_effect(effects.SetAside, lambda _, effect: self.set_aside.append(effect.row))
        self.owned = driving.owned[self.key] = Owned(partition, self.now)

    # Turns and time

    def turn(self) -> None:
        """End a turn of the loop: do everything that is due."""
        self.driving.touch(self.owned)
        for _ in range(RESTLESS_ROUNDS):
            busy = self.shell.loop.run()
            if self.auto_commit and self._wants_commit() <= self.now:
                busy |= self.begin_commit()
                if self.partition.ledger.under_way is not None:
                    self.end_commit()
                self.driving.touch(self.owned)
            if not busy:
                self.check()
                return
        raise AssertionError("it never comes to rest")

    @property
    def next_look(self) -> float:
        """When the partition wants to be looked at, if nothing happens before."""
        return self.shell.loop.next_at

    def check(self) -> None:
        """Check what must hold for a partition between any two turns."""
        if not self.checking:
            return
        partition = self.partition
        tasks = partition.own_tasks.tasks
        assert not partition.effects
        assert all(task is tasks[task.sequence] for task in partition.own_tasks.leases.values())
        assert all(
            (task.state is GIVEN) == (number in partition.own_tasks.leases)
            for number, task in tasks.items()
        )
        waiting = [task for task in partition.backlog.waiting() if task.origin < 0]
        assert len(waiting) == sum(task.state is READY for task in tasks.values())
        assert all(task is tasks[task.sequence] and task.state is READY for task in waiting)
        for line in partition.backlog.lines:
            assert line.bytes == sum(len(task.payload) for task in line)
        waiting_bytes = sum(line.bytes for line in partition.backlog.lines) + partition.later.bytes
        assert self.memory.used == waiting_bytes
        alone = (
            self.store.unfinished() - tasks.keys()
            if partition.own_tasks.open_tasks > len(tasks)
            else ()
        )
        assert len(tasks) <= partition.own_tasks.open_tasks <= len(tasks) + len(alone)
        lines = partition.allocator.lines
        assert lines.slots == sum(one.slots for one in lines.waiting())
        assert lines.slots_away == sum(one.slots for one in lines.away)
        assert lines.total == sum(lines.users.values())
        assert partition.offers.slots == sum(one.slots for one in partition.offers.waiting())
        leases = [task.lease_until for task in partition.own_tasks.leases.values()]
        assert leases == sorted(leases)
        self._check_quota()

    def _check_quota(self) -> None:
        """Check that the quota never counts less than there is, between two looks."""
        quota, ledger, stored = self.quota, self.partition.ledger, self.store.use()
        before = quota.tasks, quota.bytes
        quota.recount()
        open_tasks = self.partition.own_tasks.open_tasks + len(self.store.dead)
        assert quota.tasks >= open_tasks
        assert quota.bytes >= stored.bytes
        if ledger.under_way is None:  # else the store may have it though nobody has heard
            unwritten = ledger.unwritten()
            assert quota.tasks >= stored.tasks + unwritten.tasks
            assert quota.bytes >= stored.bytes + unwritten.bytes
            if not ledger.pending:
                new = [task for task in self.partition.own_tasks.tasks.values() if not task.stored]
                assert unwritten.tasks == len(new)
                assert unwritten.bytes == sum(
                    len(task.payload) + len(task.failure) + len(task.past) + TASK_BYTES
                    for task in new
                )
                assert stored.tasks + unwritten.tasks == open_tasks
        quota.tasks, quota.bytes = before

    def look_at_store(self) -> None:
        """Read the stored sums, as a shard does once a second."""
        self.quota.look_begins()
        self.quota.look_ended(self.store.use())
        unwritten = self.partition.ledger.unwritten()
        assert (self.quota.tasks, self.quota.bytes) == self.store.use().plus(unwritten)

    def _wants_commit(self) -> float:
        return self.partition.ledger.wanted_at(self.settings.finish_seconds)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with everything that happens by itself meanwhile."""
        until = self.now + seconds
        self.turn()
        at_once = 0
        for _ in range(100_000):
            at = self.next_look
            if self.auto_commit:
                at = min(at, self._wants_commit())
            if at > until:
                break
            at_once = 0 if at > self.now else at_once + 1
            assert at_once < RESTLESS_ROUNDS, "it looks again and again at one moment"
            self.now = max(self.now, at)
            self.shell.loop.ring()
            self.turn()
            if at == until:
                break
        else:
            raise AssertionError("it never comes to rest")
        self.now = until
        self.turn()

    # The store

    def begin_commit(self, *, anything: bool = False, clean: bool = False) -> bool:
        batch = self.partition.ledger.take(self.now, anything=anything)
        if batch is not None:
            batch.changes.clean = clean and self.partition.unattended
        return batch is not None

    def write(self) -> None:
        """Write the batch under way to the disk, without telling the partition."""
        batch = self.partition.ledger.under_way
        assert batch is not None
        self.store.write(batch.changes)

    def heard_of_commit(self) -> None:
        self.partition.store_replies.committed(self.now)
        assert self.partition.ledger.stored == len(self.store)

    def end_commit(self, problem: MaitredError | None = None) -> None:
        if problem is not None:
            self.partition.store_replies.not_committed(problem, self.now)
            return
        self.write()
        self.heard_of_commit()

    def commit(self) -> None:
        """One whole commit of everything, now."""
        if self.begin_commit(anything=True):
            self.end_commit()
        self.turn()

    def fail_commit(self) -> MaitredError:
        problem = StoreUnavailable("The disk is away.")
        self.begin_commit(anything=True)
        self.end_commit(problem)
        self.turn()
        return problem

    @property
    def slow_reads(self) -> bool:
        """Whether reads of the store arrive when the test says so, instead of at once."""
        return self.shell.slow_reads

    @slow_reads.setter
    def slow_reads(self, slow: bool) -> None:
        self.shell.slow_reads = slow

    @property
    def reads(self) -> int:
        """How many slow reads have not arrived."""
        return len(self.shell.reads)

    def answer_read(self) -> None:
        """The oldest read arrives, with what there was when it was asked."""
        self.shell.answer_read()

    def reads_arrive(self) -> None:
        """Have all reads of the backlog arrive, and those to come at once."""
        self.slow_reads = False
        while self.reads:
            self.answer_read()
        self.turn()

    def crash(self, down_seconds: float = 1.0, inheritance: Inheritance | None = None) -> None:
        """The process dies; another one starts from what was written. Its clock starts anew."""
        for asked in self.asked:
            if not asked.answered:
                asked.over = True
        wall_now = self.now + self.wall + down_seconds
        self.shell.restart()
        self.lookups = []
        self.recalled_offers, self.visitors = [], {}
        self.now += 333.0
        self.wall = wall_now - self.now
        self.partition = self._load(inheritance)

    def pause(self) -> None:
        self._control(self.partition.controls.paused(Pause(), self.partition.ledger.range_id))

    def resume(self) -> None:
        self._control(self.partition.controls.resumed(self.partition.ledger.range_id))

    def _control(self, controls: QueueControls) -> None:
        """Have the root's controls written, and keep to them."""
        if controls is self.partition.controls:
            return
        self.partition.ledger.keep_controls(encode_controls(controls), None, self.now)
        self.is_paused = controls.pause is not None
        self.partition.set_controls(controls, self.now)
        self.turn()

    def hand_over(self, *, is_answered: bool = True, seconds: float = 0.1) -> list[RunningAttempt]:
        """Let another process be the owner. The old one persists everything and lets go, and
        perhaps its answer arrives; return the attempts that run then."""
        if self.partition.ledger.under_way is not None:
            self.end_commit()
        self.partition.begin_leaving(NotOwner("It moves."))
        self.turn()
        self.partition.tree.lose_all_away(self.now)
        self.turn()
        while self.partition.results.keep_in_store(self.now, 5, 1_000) or not (
            self.partition.is_written
        ):
            self.begin_commit(anything=True, clean=True)
            self.end_commit()
            self.turn()
        running = self.partition.attempts.running(self.now)
        is_complete = not self.partition.own_tasks.recovering
        self.begin_commit(anything=True, clean=True)
        self.end_commit()
        self.driving.drop(self.owned, NotOwner("It moved."))
        told = None
        if is_answered:
            told = Inheritance(running, is_complete, self.now + 333.0 + seconds)
        self.crash(seconds, told)
        return running

    def leave(self) -> None:
        """Stop in order, and start again."""
        self.partition.stop_waiting()
        self.turn()
        if self.begin_commit(anything=True, clean=True):
            self.end_commit()
        self.turn()
        self.crash()

    # Requests

    def ask(self, what: str, **details: Any) -> Asked:  # noqa: ANN401
        asked = Asked(self, what, **details)
        self.asked.append(asked)
        return asked

    def add(
        self,
        payloads: int | Sequence[bytes] = 1,
        *,
        priority: int = 2,
        terms: Terms = TERMS,
        delay: float = 0.0,
        expires: float = 0.0,
        turn: bool = True,
        traces: bytes | Sequence[bytes] = b"",
    ) -> Asked:
        asked = self.ask("add")
        if isinstance(payloads, int):
            payloads = [b"%d" % number for number in range(payloads)]
        first = self.partition.intake.add(
            payloads,
            token=asked,
            now=self.now,
            priority=priority,
            terms=terms,
            delay=delay,
            expires=expires,
            traces=traces,
        )
        asked.sequences = list(range(first, first + len(payloads)))
        if turn:
            self.turn()
        return asked

    def offer(
        self, worker: int | str = 1, slots: int = 1, seconds: float = 60.0, *, turn: bool = True
    ) -> Asked:
        session = session_of(worker)
        asked = self.ask("offer", session=session, slots=slots)
        asked.offer = WaitingOffer((asked, 0), session, f"worker {worker}", slots, self.now)
        self.partition.matcher.offer(asked.offer, self.now + seconds, self.now)
        if turn:
            self.turn()
        return asked

    def want(
        self,
        slots: int = 1,
        *,
        user: str = "",
        priority: int = 2,
        waited: float = 0.0,
        seconds: float = 30.0,
        user_waiting: int | None = None,
        do_not_queue: bool = False,
        turn: bool = True,
    ) -> Asked:
        asked = self.ask("want", slots=slots)
        since, until = self.now - waited, self.now + seconds
        wanted = SlotRequest((asked, 0), session_of("gateway"), user, slots, since, until, priority)
        wanted.do_not_queue = do_not_queue
        asked.wanted = wanted
        self.partition.allocator.request(wanted, self.now, user_waiting)
        if turn:
            self.turn()
        return asked

    def want_no_more(self, asked: Asked, *, turn: bool = True) -> None:
        assert asked.wanted is not None
        asked.over = True
        self.partition.allocator.withdraw(asked.wanted)
        if turn:
            self.turn()

    def answer_wanted(self, outcome: list[Any] | MaitredError) -> None:
        """Have the parent answer the first slot request that went there."""
        told = outcome if isinstance(outcome, MaitredError) else Allocated(outcome)
        self.parent_answers(self.passed_wanted[0], told)
        self.turn()

    def attend(
        self,
        worker: int | str = 1,
        seconds: float = 5.0,
        *,
        state: Any = "online",  # noqa: ANN401 - one of three words
        good: float = 1.0,
        turn: bool = True,
    ) -> Asked:
        if session_of(worker) not in self.partition.presence.workers:
            self._attend(worker, seconds, state, good)  # is answered at once
        asked = self._attend(worker, seconds, state, good)
        if turn:
            self.turn()
        return asked

    def _attend(
        self,
        worker: int | str,
        seconds: float,
        state: Any,  # noqa: ANN401
        good: float,
    ) -> Asked:
        asked = self.ask("attend", session=session_of(worker))
        told = Attendance(
            asked.session,
            f"worker {worker}",
            "host:1",
            8,
            0,
            state,
            self.now,
            asked,
            self.now + seconds,
            good=good,
        )
        self.partition.subscriptions.attend(told, self.now)
        return asked

    def attend_no_more(self, asked: Asked) -> None:
        asked.over = True
        self.partition.subscriptions.attend_no_more(asked.session, asked, self.now)
        self.turn()

    def subscribe(
        self,
        gateway: str = "gateway",
        version: int = 0,
        *,
        user: str = "",
        seconds: float = 30.0,
        turn: bool = True,
    ) -> Asked:
        session = session_of(gateway)
        asked = self.ask("subscribe", session=session)
        until = self.now + seconds
        self.partition.subscriptions.subscribe(session, user, version, asked, until, self.now)
        if turn:
            self.turn()
        return asked

    def subscribe_no_more(self, asked: Asked, user: str = "") -> None:
        asked.over = True
        self.partition.subscriptions.subscribe_no_more(asked.session, user, asked, self.now)
        self.turn()

    def withdraw(self, asked: Asked, *, turn: bool = True) -> None:
        assert asked.offer is not None
        asked.over = True
        self.partition.matcher.withdraw(asked.offer, self.now)
        if turn:
            self.turn()

    def take(self, worker: int | str = 1, slots: int = 1) -> list[Run]:
        """Return the tasks that a worker gets at once; its offer does not keep waiting."""
        asked = self.offer(worker, slots)
        if not asked.answered:
            self.withdraw(asked)
            return []
        return list(asked.value)

    def take_one(self, worker: int | str = 1) -> Run:
        (run,) = self.take(worker)
        return run

    def beat(
        self,
        worker: int | str,
        runs: Sequence[Run] = (),
        seconds: float = 5.0,
        *,
        turn: bool = True,
    ) -> Asked:
        asked = self.ask("heartbeat")
        session = session_of(worker)
        running = [(run.sequence, run.attempt, self.proof_of(run)) for run in runs]
        self.partition.attempts.heartbeat(
            session, f"worker {worker}", running, asked, self.now + seconds, self.now
        )
        if turn:
            self.turn()
        return asked

    def finish(self, *runs: Run, how: int = DONE, body: bytes = b"", turn: bool = True) -> Asked:
        """Ends of attempts that one worker was given."""
        asked = self.ask("finish")
        session = runs[0].session if runs else b""
        assert all(run.session == session for run in runs)
        ends = [(run.sequence, run.attempt, how, body, self.proof_of(run)) for run in runs]
        stored_tasks = self.partition.stored_tasks
        asked.refused, asked.late, _ = stored_tasks.finish(ends, asked, self.now, session)
        if turn:
            self.turn()
        return asked

    def proof_of(self, run: Run) -> bytes:
        """Return the proof that the worker was given, or that any owner would have given to it."""
        if run.proof:
            return run.proof
        signer = AttemptProofs(SIGNING_KEY, self.key)
        return signer.issue(run.sequence, run.attempt, run.session)

    def _look_up(self, effect: effects.LookUp) -> None:
        self.lookups.append((effect.search, self.rows_of(effect.search)))
        if not self.slow_lookups:
            self.answer_lookup()

    def answer_lookup(self, problem: MaitredError | None = None) -> None:
        """Have the rows of the oldest look-up arrive, as they were when it was asked."""
        search, rows = self.lookups.pop(0)
        if problem is None:
            self.partition.stored_tasks.found(search, rows, self.now)
        else:
            self.partition.stored_tasks.not_read(search, problem, self.now)

    def rows_of(self, search: TaskSearch) -> StoredRows:
        """Return the rows that the shell would read now."""
        sequence, store = search.sequence, self.store
        for found in store.around(sequence):
            if self.partition.stored_tasks.unread.record(*found, sequence) is not None:
                return StoredRows(segment=found)
        later = store.later.get(sequence)
        if later is not None or not search.wants_end:
            return StoredRows(later=later)
        damaged = [row for row in store.damaged.values() if row.first <= sequence <= row.last]
        result = store.results.get(sequence)
        return StoredRows(result=result, dead=store.dead.get(sequence), damaged=damaged)

    def cancel(self, sequence: int, *, turn: bool = True) -> Asked:
        asked = self.ask("cancel", sequences=[sequence])
        try:
            self.partition.stored_tasks.revoke(sequence, asked, self.now)
        except MaitredError as problem:
            asked.answer(problem)
        if turn:
            self.turn()
        return asked

    def revoke(self, sequence: int) -> str | None:
        """Cancel; return what the caller hears when it is on disk. None: the task is not known."""
        asked = self.cancel(sequence)
        decided = asked.answers + [
            answer.state if isinstance(answer, effects.TellRevoked) else answer.problem
            for pending in self.partition.ledger.all_pending()
            for answer in pending.answers
            if answer.token is asked and not isinstance(answer, effects.Tell)
        ]
        if isinstance(decided[0], UnknownTask | TaskForgotten):
            return None
        if isinstance(decided[0], MaitredError):
            raise decided[0]
        return str(decided[0])

    def wait_for(self, sequence: int, *, turn: bool = True) -> Asked:
        asked = self.ask("await", sequences=[sequence])
        try:
            if not self.partition.results.wait_for(sequence, asked, self.now):
                self.partition.stored_tasks.wait_for(sequence, asked)
        except MaitredError as problem:
            asked.answer(problem)
        if turn:
            self.turn()
        return asked

    def outcome(self, sequence: int) -> Ended | None:
        return self.partition.results.outcomes.get(sequence, self.now)

    def retry_dead(self, sequence: int) -> Asked:
        asked = self.ask("retry dead")
        ticket = Ticket(asked, 1)
        self.partition.store_replies.retry_dead(self.store.dead[sequence], ticket, self.now)
        self.partition.tickets.release(ticket)
        self.turn()
        return asked

    def drop_dead(self, sequence: int) -> Asked:
        asked = self.ask("drop dead")
        ticket = Ticket(asked, 1)
        self.partition.ledger.forget_dead(sequence, ticket, self.now)
        self.partition.tickets.release(ticket)
        self.turn()
        return asked

    # The tree

    def visit(self, sequence: int, *, origin: int = 5, seconds: float = 1.0) -> QueueTask:
        """A child's task comes to look for an offer."""
        task = QueueTask(sequence, 2, TERMS, b"visitor", self.now, READY, ready=self.now)
        task.origin = origin
        task.attempt = 1
        asked = self.ask("visit")
        task.visit = (asked, 0)
        self.visitors[task] = asked
        self.partition.tree.visit(task, self.now + seconds, self.now)
        self.turn()
        return task

    @property
    def passed_offers(self) -> list[WaitingOffer]:
        """Offers that the parent has not answered, the oldest first."""
        return [one for one in self.owned.asked if isinstance(one, WaitingOffer)]

    @property
    def passed_tasks(self) -> list[QueueTask]:
        return [one for one in self.owned.asked if isinstance(one, QueueTask)]

    @property
    def passed_wanted(self) -> list[SlotRequest]:
        return [one for one in self.owned.asked if isinstance(one, SlotRequest)]

    @property
    def given_back(self) -> list[Finish]:
        """The requests that returned tasks to their owners, because they came too late."""
        return [one for one in self.shell.asked if isinstance(one, Finish)]

    def _recalled(self, question: Question) -> None:
        for about, asked in self.owned.asked.items():
            if asked is question and isinstance(about, WaitingOffer):
                self.recalled_offers.append(about)
            elif asked is question and isinstance(about, QueueTask):
                self.recalled_tasks.append(about)

    def parent_answers(self, about: object, outcome: Struct | MaitredError) -> None:
        question = self.owned.asked[about]
        assert isinstance(question, Question)
        question.done(outcome)

    def answer_offer(
        self, found: Sequence[Foreign] = (), reserved: Sequence[Any] = ()
    ) -> WaitingOffer:
        """Have the parent answer the oldest offer that was passed on to it."""
        offer = self.passed_offers[0]
        given = [Given(*one) for one in found]
        self.parent_answers(offer, Offered(given, 0.0, 0, 0.0, None, list(reserved)))
        self.turn()
        return offer

    def answer_task(self, worker: int | str | None) -> QueueTask:
        """Have the parent answer for the oldest task: a worker has it, or none."""
        task = self.passed_tasks[0]
        session = b"" if worker is None else session_of(worker)
        self.parent_answers(task, Forwarded(session, f"worker {worker}"))
        if session:
            self.given.append(Run(task.sequence, task.attempt + 1, session, task.payload, self.now))
        self.turn()
        return task

    def lose_task(self) -> QueueTask:
        task = self.passed_tasks[0]
        self.parent_answers(task, ConnectionLost("The parent is gone."))
        self.turn()
        return task

    # Answers

    def plain(self, asked: Asked, message: object) -> object:
        """Return an answer of the driver in the form in which tests compare it."""
        if isinstance(message, Offered):
            return self._given(asked, message)
        if isinstance(message, Allocated):
            return self._allocated(asked, message)
        if isinstance(message, Heard):
            return message.lost, message.revoked
        if isinstance(message, Forwarded):
            return message.holder or None
        if isinstance(message, Revoked):
            return message.state
        if isinstance(message, ConnectionLost) and asked.what == "visit":
            return "lost"
        return message

    def _given(self, asked: Asked, message: Offered) -> list[Run]:
        own = self.key.partition
        runs = [
            Run(
                one.sequence,
                one.attempt,
                asked.session,
                one.payload,
                self.now,
                -1 if one.partition == own else one.partition,
                one.proof,
            )
            for one in message.tasks
        ]
        asked.reserved = [_token(one) for one in message.reserved]
        assert len(runs) + len(asked.reserved) <= asked.slots
        self.given += runs
        return runs

    def _allocated(self, asked: Asked, message: Allocated) -> list[bytes]:
        given: Sequence[Allocation | bytes] = message.allocations
        self.allocated += [(one.token, one.session) for one in given if isinstance(one, Allocation)]
        slots = [_token(one) for one in given]
        assert 0 < len(slots) <= asked.slots
        return slots

    def _answer_attend(self, effect: effects.AnswerAttend) -> None:
        effect.token.passes = list(effect.passes)
        effect.token.best = effect.best
        effect.token.answer(effect.order)
