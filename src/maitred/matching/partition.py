"""A partition: tasks and offers meet here. Pure: time comes in, effects go out.

Every method takes the loop's time and leaves what is to be done in `effects`; whoever drives the
partition carries that out and calls `look` at the latest when `next_look` says. What has to be
written is in the `ledger`; whoever drives it commits batches and reports with `committed`,
`not_committed`.

Tasks are seated in the order of their priorities and, within one, in the order in which they came.
A task whose attempt failed or whose worker was lost comes back later and joins the end of its line.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import msgpack

from maitred.errors import MaitredError, OutcomeUnknown
from maitred.matching.backlog import Backlog
from maitred.matching.effects import (
    Beat,
    Ended,
    Foreign,
    Give,
    GiveBack,
    NothingFor,
    PassOffer,
    PassTask,
    Read,
    ReadLater,
    RecallOffer,
    Settle,
    Tell,
    VisitorTaken,
    VisitorUnwanted,
    encode_ended,
)
from maitred.matching.later import LaterTasks
from maitred.matching.ledger import Ledger
from maitred.matching.limits import Limiter
from maitred.matching.measures import Rate, Waits
from maitred.matching.offers import Offer, Offers
from maitred.matching.outcomes import Outcomes
from maitred.matching.records import SEQUENCES_PER_RANGE, decode_record, decode_records
from maitred.matching.task import (
    AWAY,
    COME_BACK,
    DUE,
    END,
    GIVEN,
    OVER,
    PARKED,
    PASS_ON,
    POSTPONE,
    READY,
    TAKEN,
    UNPARK,
    WAITING,
    SegmentState,
    Task,
    Ticket,
)
from maitred.routing.tree import parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maitred.balancing.interface import RandomSource
    from maitred.matching.effects import Effect, EndStatus
    from maitred.matching.records import (
        Acquired,
        Dead,
        Later,
        PartitionKey,
        Record,
        Segment,
        Terms,
    )
    from maitred.matching.task import Token
    from maitred.routing.counts import PartitionCounts
    from maitred.settings import Queue

VISIT_SECONDS = 1.0
"""How long a task waits at the parent for an offer before it is asked again where it is at home."""

STORE_RETRY_SECONDS = 0.25
"""Before what could not be written is tried again."""

RUN_KEPT = 0.9
"""Of the mean run time, at each new one."""

TIMERS_SWEPT_AT = 1_000
"""So many timers that may have nobody waiting are kept before they are looked through."""

LOST = msgpack.encode(("lost", "Its worker was not heard of any more.", ""))
"""The failure of an attempt whose worker is gone, as workers put theirs."""


class HeldBeat:
    """A heartbeat that waits for news."""

    __slots__ = ("session", "token")

    def __init__(self, token: Token, session: bytes) -> None:
        self.token = token
        self.session = session


Waiting = Offer | Task | HeldBeat
Revocation = Literal["cancelled", "cancelling", "over"]


class Partition:
    """One partition, as its owner has it."""

    def __init__(
        self,
        key: PartitionKey,
        acquired: Acquired,
        counts: PartitionCounts,
        settings: Queue,
        random: RandomSource,
        now: float,
        wall: float,
    ) -> None:
        self.key = key
        self.settings = settings
        self.counts = counts
        self.effects: list[Effect] = []
        self.first_sequence = acquired.range_id * SEQUENCES_PER_RANGE
        self.next_sequence = self.first_sequence
        self.ledger = Ledger(key, acquired.range_id, acquired.backlog)
        self.ledger.wall = wall
        stored = acquired.backlog > 0
        self.backlog = Backlog(settings.buffer_tasks, self.first_sequence, stored=stored)
        self.later = LaterTasks(settings.buffer_tasks, stored=stored)
        self.offers = Offers()
        self.outcomes = Outcomes(settings.results_kept, settings.results_bytes)
        self.tasks: dict[int, Task] = {}
        """Ours, in memory and not over."""
        self.leases: OrderedDict[int, Task] = OrderedDict()
        """Those with a worker, in the order in which their leases end."""
        self.open_tasks = acquired.backlog
        """Ours that are not over, in memory or not."""
        self.recovering_until = (
            now + settings.recovery_seconds if stored and not acquired.clean else -inf
        )
        self.store_problem: MaitredError | None = None
        """Why nothing can be written now."""
        self.parent = parent(key.partition, settings.forwarding.children)
        self.offers_away = 0
        self.tasks_away = 0
        self.added = Rate(now)
        self.finished = Rate(now)
        self.waits = Waits()
        self.failed = self.lost = self.matched_at_once = self.never_written = 0
        self.passed_tasks = self.passed_offers = 0
        self._random = random
        self._waiters: dict[int, list[Token]] = {}
        self._claims: dict[int, tuple[bytes, str, int, float]] = {}
        """Tasks that are in the store alone and that a worker says it is running."""
        self._beats: dict[bytes, HeldBeat] = {}
        self.workers: dict[bytes, tuple[str, float]] = {}
        """Names and when they were heard of, by session."""
        self._touched_unread: dict[int, tuple[SegmentState, set[int]]] = {}
        self._timers: list[tuple[float, int, Waiting]] = []
        self._timers_swept_at = TIMERS_SWEPT_AT
        self._timer_count = 0
        self._run_seconds = 0.0
        forwarding = settings.forwarding
        self._pass_limit = Limiter(
            forwarding.tasks_per_second,
            max(forwarding.tasks, forwarding.tasks_per_second / 10),
            now,
        )
        self._ends = (self._done, self._failed, self._returned, self._timed_out, self._stopped)
        """By how an attempt ended, as the wire counts it."""
        self._limit: Limiter | None = None
        self.set_counts(counts, now)

    # Counts

    def set_counts(self, counts: PartitionCounts, now: float) -> None:
        """Newer counts are in force."""
        self.counts = counts
        rate = self.settings.rate_per_second
        if rate is None:
            return
        share = rate / counts.read
        if self._limit is None:
            self._limit = Limiter(share, share / 10, now)
        else:
            self._limit.change(share, share / 10, now)

    @property
    def writable(self) -> bool:
        return self.counts.writable(self.key.partition)

    @property
    def drained(self) -> bool:
        """Read-only and empty: nothing was taken in that is not over."""
        return not self.writable and not self.open_tasks

    @property
    def waiting(self) -> int:
        """Tasks that are not over and not with a worker."""
        return self.open_tasks - len(self.leases)

    @property
    def recovering(self) -> bool:
        return self.recovering_until > -inf

    # Producers

    def add(
        self,
        payloads: Sequence[bytes],
        *,
        token: Token,
        now: float,
        priority: int,
        terms: Terms,
        delay: float = 0.0,
        expires: float = 0.0,
    ) -> int:
        """Take the tasks in; the number of the first. The token is settled when all are safe."""
        first = self.next_sequence
        self.next_sequence = first + len(payloads)
        ticket = Ticket(token, len(payloads))
        self.open_tasks += len(payloads)
        self.added.count(len(payloads), now)
        state = WAITING if delay else PARKED if self.backlog.parks(priority) else READY
        at_once = self.offers.slots
        for sequence, payload in enumerate(payloads, first):
            task = Task(sequence, priority, terms, payload, now, state, ticket)
            if expires:
                task.expires = now + expires
            self.tasks[sequence] = task
            if state is READY:
                self.ledger.add(task)
                self.backlog.push(task)
            elif state is PARKED:
                self.ledger.add(task)
                self.backlog.park(task)
            else:
                task.due = task.ready = now + delay
                self.ledger.postpone(task, None, now)
                self.later.add(task)
        if state is READY:
            self._seat(now)
            self.matched_at_once += at_once - self.offers.slots
            # Workers of other partitions may be free: then the parent knows, and soon.
            if self.parent is not None and 0 < self.backlog.ready <= len(payloads):
                until = now + self.settings.hold_seconds
                for sequence in range(first, self.next_sequence):
                    task = self.tasks[sequence]
                    if task.state is READY:
                        self.ledger.hold(task, until)
        if self.store_problem is not None:
            self._refuse_unwritable(now)
        return first

    def _refuse_unwritable(self, now: float) -> None:
        """While nothing can be written, only what a worker has already got is taken."""
        for task in list(self.ledger.fresh.values()):
            if task.state is not GIVEN:
                self._refuse(task)
        self._seat(now)

    def _refuse(self, task: Task) -> None:
        """It was never acknowledged, and never will be."""
        ticket, task.ticket = task.ticket, None
        if task.state is READY:
            self.backlog.left(task)
        elif task.state is PARKED:
            self.backlog.unparked(task)
        task.state = OVER
        self.ledger.fresh.pop(task.sequence, None)
        self.ledger.held.pop(task.sequence, None)
        self.ledger.pending.later.pop(task.sequence, None)
        self.tasks.pop(task.sequence, None)
        self.open_tasks -= 1
        if ticket is not None:
            if ticket.problem is None:
                ticket.problem = self.store_problem
            self._part_refused(ticket)

    def _part_refused(self, ticket: Ticket) -> None:
        ticket.left -= 1
        if not ticket.left:
            self._settle(ticket)

    def _part_safe(self, ticket: Ticket) -> None:
        ticket.left -= 1
        ticket.done += 1
        if not ticket.left:
            self._settle(ticket)

    def _settle(self, ticket: Ticket) -> None:
        if ticket.done and ticket.problem is not None:
            ticket.problem = OutcomeUnknown(
                f"{ticket.done} tasks of the batch were taken, the others were not: "
                f"{ticket.problem}"
            )
        self.effects.append(Settle(ticket))

    def wait_for(self, sequence: int, token: Token, now: float) -> bool:
        """Tell the token when the task is over; False if we know nothing of it."""
        ended = self.outcomes.get(sequence, now)
        if ended is not None:
            self.effects.append(Tell(token, ended))
        elif sequence in self.tasks:
            self._waiters.setdefault(sequence, []).append(token)
        else:
            return False
        return True

    def wait_for_stored(self, sequence: int, token: Token) -> None:
        """The same for a task that is in the store alone."""
        self._waiters.setdefault(sequence, []).append(token)

    def wait_no_more(self, sequence: int, token: Token) -> None:
        waiting = self._waiters.get(sequence)
        if waiting is not None and token in waiting:
            waiting.remove(token)
            if not waiting:
                del self._waiters[sequence]

    def waiters(self) -> list[Token]:
        """Everybody who waits for the end of a task."""
        return [token for waiting in self._waiters.values() for token in waiting]

    def revoke(self, sequence: int, now: float) -> Revocation | None:
        """Cancel it: "cancelled", "cancelling" or "over"; None if we know nothing of it."""
        task = self.tasks.get(sequence)
        if task is None:
            return "over" if self.outcomes.get(sequence, now) is not None else None
        if task.state is GIVEN or task.state is AWAY:
            task.revoked = True
            self._tell_worker(task)
            return "cancelling"
        self._end(task, "cancelled", b"", None, now)
        return "cancelled"

    def _tell_worker(self, task: Task) -> None:
        held = self._beats.pop(task.session, None)
        if held is not None:
            self.effects.append(Beat(held.token, [], [task.sequence]))

    # Workers

    def offer(self, offer: Offer, until: float, now: float) -> None:
        """A worker has free slots; it hears of tasks for them, or that the time is up."""
        self._heard(offer.session, offer.worker, now)
        self.offers.add(offer)
        self._set_timer(until, offer)
        self._seat(now)

    def withdraw(self, offer: Offer, now: float) -> None:
        """Nobody waits for the answer any more. Tasks that were on their way come back."""
        if not self.offers.close(offer):
            return
        if offer.away:
            self.effects.append(RecallOffer(offer))
        for task in offer.given:
            self._come_back(task)
        offer.given = []
        self._seat(now)

    def finish(
        self, ends: Iterable[tuple[int, int, int, bytes]], token: Token, now: float
    ) -> tuple[Ticket, list[tuple[int, int, int, bytes]]]:
        """Attempts are over: (sequence, attempt, how, body). Returns those that we know nothing of.

        The ticket is settled when everything is safe; the caller takes one part of it off with
        `release`, when it has looked for the unknown ones in the store.
        """
        ticket = Ticket(token, 1)
        unknown = []
        tasks = self.tasks
        for end in ends:
            sequence, attempt, how, body = end
            task = tasks.get(sequence)
            if task is None or not self._finished(task, attempt, how, body, ticket, now):
                unknown.append(end)
        self._seat(now)
        return ticket, unknown

    def release(self, ticket: Ticket) -> None:
        self._part_safe(ticket)

    def _finished(
        self, task: Task, attempt: int, how: int, body: bytes, ticket: Ticket | None, now: float
    ) -> bool:
        """False: it comes too late to count."""
        if task.state is not GIVEN or attempt != task.attempt + 1:
            if how == 0 and task.state is not GIVEN:
                # Given up for lost, or given out before a crash: done is done all the same.
                self._end(task, "done", body, ticket, now)
                return True
            if task.state is not READY or attempt != task.attempt + 1:
                return False
            self.backlog.left(task)
            task.state = GIVEN
        self.leases.pop(task.sequence, None)
        self._ends[how](task, body, ticket, now)
        return True

    def _done(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self._end(task, "done", body, ticket, now)

    def _failed(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        self._try_again(task, "failed", body, ticket, now)

    def _timed_out(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        self.failed += 1
        self._try_again(task, "timed-out", body, ticket, now)

    def _returned(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:  # noqa: ARG002
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
        else:
            self._come_back(task)

    def _stopped(self, task: Task, body: bytes, ticket: Ticket | None, now: float) -> None:
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
        else:
            self._try_again(task, "failed", body, ticket, now)

    def _come_back(self, task: Task) -> None:
        """Nobody began it: it stands where it stood."""
        if task.origin >= 0 or not task.moves(COME_BACK):
            return
        self.leases.pop(task.sequence, None)
        task.session = b""
        self.ledger.hurry(task)
        self.backlog.push_front(task)

    def _try_again(
        self, task: Task, reason: str, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """An attempt came to nothing: later again, or never."""
        if task.revoked:
            self._end(task, "cancelled", b"", ticket, now)
            return
        task.attempt += 1
        task.failure = body
        task.session = b""
        terms = task.terms
        if task.attempt > terms.retries:
            self.ledger.bury(task, reason, now)
            self._end(task, "failed", body, ticket, now)
            return
        task.moves(POSTPONE)
        backoff = min(terms.backoff_first * 2.0 ** min(task.attempt - 1, 60), terms.backoff_longest)
        task.due = task.ready = now + backoff * (0.5 + 0.5 * self._random.random())
        self.ledger.postpone(task, ticket, now)
        self.later.add(task)

    def _end(
        self, task: Task, status: EndStatus, body: bytes, ticket: Ticket | None, now: float
    ) -> None:
        """It is over, however."""
        state = task.state
        if not task.moves(END):
            return
        sequence = task.sequence
        if state is READY:
            self.backlog.left(task)
        elif state is PARKED:
            self.backlog.unparked(task)
        elif state is GIVEN:
            self.leases.pop(sequence, None)
            self._run_seconds += (1 - RUN_KEPT) * (now - task.given_at - self._run_seconds)
        del self.tasks[sequence]
        self.open_tasks -= 1
        self.finished.count(1, now)
        if not (task.stored or task.writing or sequence in self.ledger.pending.later):
            self.never_written += 1
        self.ledger.remove(task, ticket, now)
        retention = task.terms.retention
        ended = Ended(status, task.attempt + (status == "done"), body, now + retention)
        self._remember(sequence, ended, retention, now)
        if task.ticket is not None:
            self._part_safe(task.ticket)
            task.ticket = None

    def _remember(self, sequence: int, ended: Ended, retention: float, now: float) -> None:
        if self._waiters:
            for token in self._waiters.pop(sequence, ()):
                self.effects.append(Tell(token, ended))
        if retention:
            self.outcomes.put(sequence, ended)
            if retention > self.settings.memory_seconds:
                self.ledger.keep_result(sequence, retention, encode_ended(ended[:3]), now)

    def heartbeat(
        self,
        session: bytes,
        worker: str,
        running: Iterable[tuple[int, int]],
        token: Token,
        until: float,
        now: float,
    ) -> None:
        """These run still. The token hears of news, or that there are none until then."""
        self._heard(session, worker, now)
        lost: list[int] = []
        revoked: list[int] = []
        lease_until = now + self.settings.lease_seconds
        for sequence, attempt in running:
            task = self.tasks.get(sequence)
            if task is None:
                if not self._claimed(sequence, session, worker, attempt, lease_until):
                    lost.append(sequence)
                continue
            if (
                task.state is READY
                and attempt == task.attempt + 1
                and sequence < self.first_sequence
            ):
                # Given out by whoever owned this partition before us.
                self.backlog.left(task)
                self._lease(task, session, worker, now)
            if (
                task.state is not GIVEN
                or attempt != task.attempt + 1
                or task.session not in (session, b"")
            ):
                lost.append(sequence)
            else:
                task.session = session
                task.worker = worker
                task.lease_until = lease_until
                self.leases.move_to_end(sequence)
                if task.revoked:
                    revoked.append(sequence)
        earlier = self._beats.pop(session, None)
        if earlier is not None:
            self.effects.append(Beat(earlier.token, [], []))
        if lost or revoked:
            self.effects.append(Beat(token, lost, revoked))
        else:
            held = HeldBeat(token, session)
            self._beats[session] = held
            self._set_timer(until, held)

    def beat_no_more(self, session: bytes, token: Token) -> None:
        """Nobody waits for the answer."""
        held = self._beats.get(session)
        if held is not None and held.token is token:
            del self._beats[session]

    def _claimed(
        self, sequence: int, session: bytes, worker: str, attempt: int, until: float
    ) -> bool:
        """Whether the store may have it, so that it is theirs when it is read."""
        old = sequence < self.first_sequence
        unread = self.backlog.unread or self.later.known_until < inf
        if not (old and unread):
            return False
        self._claims[sequence] = (session, worker, attempt, until)
        return True

    def _heard(self, session: bytes, worker: str, now: float) -> None:
        self.workers[session] = (worker, now)

    # Meeting

    def _seat(self, now: float) -> None:
        """As many tasks as there are offers, in the order of both."""
        backlog, offers = self.backlog, self.offers
        if not backlog.ready or not offers.slots or self.recovering:
            return
        limit = self._limit
        while backlog.ready and offers.slots:
            if limit is not None and not limit.allows(now):
                return
            task = backlog.pop()
            if task.expires and now >= task.expires:
                backlog.push_front(task)
                self._end(task, "expired", b"", None, now)
                continue
            offer = offers.take(task)
            if task.origin >= 0:
                task.state = OVER
                task.session = offer.session
                self.effects.append(VisitorTaken(task, offer.session, offer.worker))
                continue
            if limit is not None:
                limit.count()
            self.waits.count(now - task.ready)
            self._lease(task, offer.session, offer.worker, now)

    def _lease(self, task: Task, session: bytes, worker: str, now: float) -> None:
        task.state = GIVEN
        task.session = session
        task.worker = worker
        settings = self.settings
        task.given_at = now
        task.lease_until = now + settings.lease_seconds
        self.leases[task.sequence] = task
        if self._run_seconds <= settings.hold_seconds and not task.stored:
            self.ledger.hold(task, now + settings.hold_seconds)

    def flush(self, now: float) -> None:
        """Answer the offers that got something; once a turn, so that it goes out together."""
        for offer in self.offers.answerable():
            if self.offers.close(offer):
                if offer.away:
                    self.effects.append(RecallOffer(offer))
                ours = [task for task in offer.given if task.origin < 0]
                foreign = [
                    Foreign(
                        task.origin,
                        task.sequence,
                        task.attempt,
                        task.terms.timeout,
                        task.payload,
                        now - task.ready,
                    )
                    for task in offer.given
                    if task.origin >= 0
                ]
                self.effects.append(Give(offer, ours, foreign))

    # The tree

    def offer_answered(self, offer: Offer, found: list[Foreign], now: float) -> None:
        """What the parent had for an offer that was passed on; nothing, if it was not reached."""
        self.offers_away -= 1
        was_away, offer.away = offer.away, False
        if not found:
            self._pass_on(now)
            return
        if was_away and offer.open and not offer.given:
            self.offers.close(offer)
            self.effects.append(Give(offer, [], found))
            return
        for task in found:
            self.effects.append(GiveBack(task, offer.session))

    def task_answered(self, task: Task, session: bytes, worker: str, now: float) -> None:
        """Who has a task that was passed on; nobody, if the session is empty."""
        self.tasks_away -= 1
        if task.origin >= 0:
            self._visitor_answered(task, session, worker, now)
            return
        if session and task.state is AWAY:
            self.waits.count(now - task.ready)
            self._lease(task, session, worker, now)
            if task.revoked:
                self._tell_worker(task)
        elif task.state is AWAY:
            if task.revoked:
                self._end(task, "cancelled", b"", None, now)
            else:
                self._come_back(task)
        self._seat(now)

    def task_lost(self, task: Task, now: float) -> None:
        """Nobody knows whether the parent gave it to somebody: whoever has it will say so."""
        self.tasks_away -= 1
        if task.origin >= 0:
            if task.state is AWAY:
                task.state = OVER
                self.effects.append(VisitorUnwanted(task))
        elif task.moves(TAKEN):
            self._lease(task, b"", "", now)

    def visit(self, task: Task, until: float, now: float) -> None:
        """A child's task looks for an offer here; it hears `VisitorTaken` or `VisitorUnwanted`."""
        self.backlog.push(task)
        self._set_timer(until, task)
        self._seat(now)

    def visit_no_more(self, task: Task) -> None:
        """The child has given up, or is gone."""
        if task.state is READY:
            self.backlog.left(task)
        if task.state is not OVER:
            task.state = OVER

    def _visitor_answered(self, task: Task, session: bytes, worker: str, now: float) -> None:
        if task.state is not AWAY:
            return
        if session:
            task.state = OVER
            self.effects.append(VisitorTaken(task, session, worker))
        else:
            task.state = READY
            self.backlog.push_front(task)
            self._seat(now)

    def _pass_on(self, now: float) -> float:
        """What waited long enough goes up the tree; returns when more will have."""
        if self.parent is None or self.recovering:
            return inf
        limits = self.settings.forwarding
        if self.offers.slots:
            if self.backlog.ready:
                return inf  # held up by the rate limit, at home as anywhere
            for offer in self.offers.waiting():
                if offer.away or offer.given:
                    continue
                if self.offers_away >= limits.offers:
                    return inf
                if now < offer.since + limits.offer_wait_seconds:
                    return offer.since + limits.offer_wait_seconds
                offer.away = True
                self.offers_away += 1
                self.passed_offers += 1
                self.effects.append(PassOffer(offer))
            return inf
        while self.tasks_away < limits.tasks:
            task = self.backlog.first()
            if task is None:
                return inf
            if now < task.ready + limits.task_wait_seconds:
                return task.ready + limits.task_wait_seconds
            if not self._pass_limit.allows(now):
                return self._pass_limit.next_at(now)
            if self._limit is not None and task.origin < 0:
                if not self._limit.allows(now):
                    return self._limit.next_at(now)
                self._limit.count()
            self._pass_limit.count()
            self.backlog.pop()
            task.moves(PASS_ON)
            self.tasks_away += 1
            self.passed_tasks += 1
            self.effects.append(PassTask(task))
        return inf

    # The store

    def segments_read(
        self,
        found: Iterable[tuple[Segment, frozenset[int]]],
        reading: Read,
        now: float,
        *,
        all_of_it: bool,
    ) -> None:
        """What a `Read` has found."""
        last_first = None
        for segment, marks in found:
            last_first = segment.first
            state, gone = self._touched_unread.pop(segment.first, (None, set()))
            if state is None:
                left = segment.tasks - len(marks)
                state = SegmentState(segment.priority, segment.first, segment.last, left)
            for record in decode_records(segment.body):
                if record.sequence in marks or record.sequence in gone:
                    continue
                task = self._recalled(record, now)
                task.segment = state
                self._take_in(task, now)
        for task in self.backlog.was_read(reading.reading, last_first, all_of_it=all_of_it):
            self._unpark(task)
        self._seat(now)

    def _recalled(self, record: Record, now: float) -> Task:
        wall = self.ledger.wall
        task = Task(
            record.sequence,
            record.priority,
            record.terms,
            record.payload,
            record.added_at - wall,
            READY,
        )
        task.attempt = record.attempt
        task.failure = record.failure
        task.expires = record.expires_at - wall if record.expires_at else 0.0
        # A wall clock that was set back must not make it look as if it came from the future.
        task.added = task.ready = min(task.added, now)
        return task

    def _take_in(self, task: Task, now: float) -> None:
        """A task that was read waits in its line, unless a worker said that it runs it."""
        self.tasks[task.sequence] = task
        claim = self._claims.pop(task.sequence, None)
        if claim is not None and claim[2] == task.attempt + 1 and claim[3] > now:
            self._lease(task, claim[0], claim[1], now)
        else:
            self.backlog.push(task)

    def _unpark(self, task: Task) -> None:
        if task.moves(UNPARK):
            self.backlog.push(task)

    def later_read(
        self, found: Sequence[Later], before: float, now: float, *, all_of_it: bool
    ) -> None:
        """What a `ReadLater` has found."""
        wall = self.ledger.wall
        for later in found:
            if later.sequence in self.tasks:
                continue
            task = self._recalled(decode_record(later.body), now)
            task.later_stored = True
            task.due = task.ready = later.due - wall
            claim = self._claims.pop(task.sequence, None)
            self.tasks[task.sequence] = task
            if claim is not None and claim[2] == task.attempt + 1 and claim[3] > now:
                self._lease(task, claim[0], claim[1], now)
                continue
            task.state = WAITING
            if not self.later.add(task):
                del self.tasks[task.sequence]
        last = found[-1].due - wall if found else before
        self.later.was_read(before, last, all_of_it=all_of_it)
        self._become_due(now)
        self._seat(now)

    def read_failed(self, read: Read | ReadLater) -> None:
        """It is asked for again."""
        if isinstance(read, Read):
            self.backlog.read_failed(read.reading)
        else:
            self.later.reading = False

    def committed(self, now: float) -> None:
        """The batch that was taken is on disk."""
        self.store_problem = None
        batch = self.ledger.committed(now)
        for state, members in batch.written:
            parked = False
            for task in members:
                if task.ticket is not None:
                    self._part_safe(task.ticket)
                    task.ticket = None
                if task.state is PARKED:
                    parked = True
                    self.tasks.pop(task.sequence, None)
            if parked or members[0].state is PARKED:
                self._parked_stored(state, members)
        for task, _ in batch.pending.later.values():
            if task.ticket is not None:
                self._part_safe(task.ticket)
                task.ticket = None
        for ticket in batch.pending.tickets:
            self._part_safe(ticket)
        for task in self.later.shrink():
            self.tasks.pop(task.sequence, None)

    def _parked_stored(self, state: SegmentState, members: list[Task]) -> None:
        """Those that are still parked are in the store alone; those that are over stay gone."""
        self.backlog.parked_stored(state.priority, state.first, members)
        over = {task.sequence for task in members if task.state is OVER}
        if over:
            self._touched_unread[state.first] = (state, over)

    def not_committed(self, problem: MaitredError, now: float) -> None:
        """Nothing of the batch was written: those who wait with new tasks are told."""
        self.store_problem = problem
        batch = self.ledger.failed(now, now + STORE_RETRY_SECONDS)
        for _, members in batch.written:
            for task in members:
                if task.state is GIVEN or task.state is AWAY:
                    task.hold_until = now + STORE_RETRY_SECONDS
                    self.ledger.held[task.sequence] = task
                elif task.state is not OVER:
                    self._refuse(task)
        for task, _ in list(self.ledger.pending.later.values()):
            if task.ticket is not None and task.state is WAITING:
                self._refuse(task)
        self._refuse_unwritable(now)

    def revoke_stored(
        self, segment: Segment, marks: frozenset[int], sequence: int, now: float
    ) -> bool:
        """Cancel a task that is in the store alone, in this segment."""
        return self._end_stored(segment, marks, sequence, "cancelled", b"", None, now)

    def finish_stored(
        self,
        segment: Segment,
        marks: frozenset[int],
        end: tuple[int, int, int, bytes],
        ticket: Ticket,
        now: float,
    ) -> bool:
        """An attempt at a task that is in the store alone is over; only done counts."""
        sequence, _, how, body = end
        return how == 0 and self._end_stored(segment, marks, sequence, "done", body, ticket, now)

    def _end_stored(
        self,
        segment: Segment,
        marks: frozenset[int],
        sequence: int,
        status: EndStatus,
        body: bytes,
        ticket: Ticket | None,
        now: float,
    ) -> bool:
        record = next(
            (one for one in decode_records(segment.body) if one.sequence == sequence), None
        )
        if record is None or sequence in marks or sequence in self.tasks:
            return False
        state, gone = self._touched_unread.get(segment.first, (None, set()))
        if sequence in gone:
            return False
        if state is None:
            left = segment.tasks - len(marks)
            state = SegmentState(segment.priority, segment.first, segment.last, left)
        gone.add(sequence)
        self._touched_unread[segment.first] = (state, gone)
        self.ledger.remove_unread(state, sequence, ticket, now)
        if not state.left:
            del self._touched_unread[segment.first]
        self.open_tasks -= 1
        self.finished.count(1, now)
        retention = record.terms.retention
        ended = Ended(status, record.attempt + (status == "done"), body, now + retention)
        self._remember(sequence, ended, retention, now)
        self._claims.pop(sequence, None)
        return True

    def recall_later(self, later: Later, now: float) -> Task:
        """Bring a task that waits in the store alone into memory."""
        task = self.tasks.get(later.sequence)
        if task is None:
            task = self._recalled(decode_record(later.body), now)
            task.later_stored = True
            task.due = task.ready = later.due - self.ledger.wall
            task.state = WAITING
            self.tasks[task.sequence] = task
        return task

    def retry_dead(self, dead: Dead, ticket: Ticket, now: float) -> None:
        """A dead letter is a task again, under its old number and with all its attempts."""
        task = self._recalled(decode_record(dead.body), now)
        task.attempt = 0
        task.expires = 0.0
        task.due = task.ready = now
        task.state = WAITING
        self.tasks[task.sequence] = task
        self.outcomes.forget(task.sequence)
        self.open_tasks += 1
        self.ledger.postpone(task, ticket, now)
        self.ledger.forget_dead(task.sequence, None, now)
        self.later.add(task)

    def drop_dead(self, sequence: int, ticket: Ticket, now: float) -> None:
        """It is gone for good."""
        self.ledger.forget_dead(sequence, ticket, now)

    def finish_again(self, end: tuple[int, int, int, bytes], ticket: Ticket, now: float) -> bool:
        """One that was unknown to `finish`, and is in memory now; False: too late to count."""
        sequence, attempt, how, body = end
        task = self.tasks.get(sequence)
        return task is not None and self._finished(task, attempt, how, body, ticket, now)

    def is_in(self, segment: Segment, sequence: int) -> bool:
        """Whether the segment has this task, not only its number's neighbours."""
        _, gone = self._touched_unread.get(segment.first, (None, ()))
        if sequence in gone:
            return False
        return any(record.sequence == sequence for record in decode_records(segment.body))

    # How it is

    @property
    def state_name(self) -> Literal["writable", "read-only", "drained"]:
        return "writable" if self.writable else "read-only" if self.open_tasks else "drained"

    @property
    def read_level(self) -> int:
        """The highest number that was given out."""
        return self.next_sequence - 1

    @property
    def ack_level(self) -> int:
        """Everything up to this one is over: all there is, if it equals the read level."""
        if not self.open_tasks:
            return self.read_level
        lowest = min(self.tasks, default=self.next_sequence)
        for line in self.backlog.lines:
            if line.known > line.cursor:
                lowest = min(lowest, line.cursor + 1)
        return min(lowest, self.next_sequence) - 1

    def backlog_age(self, now: float) -> float:
        """Since when the first task that waits could have been run."""
        first = self.backlog.first()
        return max(0.0, now - first.ready) if first is not None else 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is lost by letting go of it."""
        return not (
            self.tasks
            or self.backlog.ready
            or self.offers.slots
            or self._waiters
            or self._beats
            or self.ledger.pending
            or self.ledger.under_way
            or len(self.outcomes)
        )

    # The end

    def stop_waiting(self) -> None:
        """Nothing more will be given out: offers and heartbeats are answered."""
        for offer in list(self.offers.waiting()):
            if not offer.given:
                self._offer_time_is_up(offer)
        for held in list(self._beats.values()):
            self._beat_time_is_up(held)

    def leave(self) -> tuple[list[Token], list[Ticket]]:
        """Everybody who waits for an answer: whoever drives this will not give one any more."""
        tokens: list[Token] = [offer.token[0] for offer in self.offers.waiting()]
        tokens += [held.token for held in self._beats.values()]
        tokens += [token for waiting in self._waiters.values() for token in waiting]
        tickets = {task.ticket: None for task in self.tasks.values() if task.ticket is not None}
        for pending in self.ledger.all_pending():
            tickets.update(dict.fromkeys(pending.tickets))
        return tokens, list(tickets)

    # Time

    def look(self, now: float) -> float:
        """Do what is due; returns when to look again, at the latest."""
        if self.recovering and now >= self.recovering_until:
            self.recovering_until = -inf
        self._leases_end(now)
        self._become_due(now)
        self._timers_ring(now)
        self._seat(now)
        wanted = self.backlog.wanted()
        while wanted is not None:
            self.effects.append(Read(wanted))
            wanted = self.backlog.wanted()
        if not self.ledger.stored and self.ledger.under_way is None and not self.later.reading:
            self.later.known_until = inf  # the store has nothing at all
        before = self.later.read_wanted(now)
        if before:
            self.effects.append(ReadLater(before, self.settings.buffer_tasks))
        return self._next_look(now, self._pass_on(now))

    def _next_look(self, now: float, passing: float) -> float:
        at = min(passing, self._next_due(), self.later.read_wanted_at())
        if self.recovering:
            at = min(at, self.recovering_until)
        if self.leases:
            at = min(at, next(iter(self.leases.values())).lease_until)
        if self._timers:
            at = min(at, self._timers[0][0])
        if self._limit is not None and self.backlog.ready and self.offers.slots:
            at = min(at, self._limit.next_at(now))
        return max(at, now)

    def _leases_end(self, now: float) -> None:
        leases = self.leases
        while leases:
            task = next(iter(leases.values()))
            if task.lease_until > now:
                break
            del leases[task.sequence]
            self.lost += 1
            self._try_again(task, "lost", LOST, None, now)
        for sequence in [one for one, claim in self._claims.items() if claim[3] <= now]:
            del self._claims[sequence]

    def _become_due(self, now: float) -> None:
        later = self.later
        while later.next_due() <= now:
            task = later.peek()
            if not self.backlog.room(task.priority):
                return
            later.pop()
            task.moves(DUE)
            task.ready = now
            self.backlog.push(task)

    def _next_due(self) -> float:
        """When there is something to do about those who wait for their time."""
        at = self.later.next_due()
        # Without room for it, nothing: room comes with an event, and every event is a look.
        return inf if at < inf and not self.backlog.room(self.later.peek().priority) else at

    def _timers_ring(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, waiting = heappop(timers)
            if isinstance(waiting, Offer):
                self._offer_time_is_up(waiting)
            elif isinstance(waiting, HeldBeat):
                self._beat_time_is_up(waiting)
            else:
                self._visit_time_is_up(waiting)

    def _beat_time_is_up(self, held: HeldBeat) -> None:
        if self._beats.get(held.session) is held:
            del self._beats[held.session]
            self.effects.append(Beat(held.token, [], []))

    def _offer_time_is_up(self, offer: Offer) -> None:
        if offer.open and not offer.given:
            self.offers.close(offer)
            if offer.away:
                self.effects.append(RecallOffer(offer))
            self.effects.append(NothingFor(offer))

    def _visit_time_is_up(self, task: Task) -> None:
        if task.state is READY:
            self.backlog.left(task)
            task.state = OVER
            self.effects.append(VisitorUnwanted(task))

    def _set_timer(self, at: float, waiting: Waiting) -> None:
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, waiting))
        if len(self._timers) > self._timers_swept_at:
            # Most who wait are served long before: their timers go in bulk.
            self._timers = [one for one in self._timers if self._waits(one[2])]
            heapify(self._timers)
            self._timers_swept_at = 2 * len(self._timers) + TIMERS_SWEPT_AT

    def _waits(self, waiting: Waiting) -> bool:
        if isinstance(waiting, Offer):
            return waiting.open
        if isinstance(waiting, HeldBeat):
            return self._beats.get(waiting.session) is waiting
        return waiting.state is not OVER
