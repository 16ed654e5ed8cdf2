"""A partition: what it holds, who waits for it, and how it is."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappush
from math import inf
from typing import TYPE_CHECKING, Literal

from maitred.balancing.workers.doubt import Doubts
from maitred.errors import InternalError, MaitredError, OutcomeUnknown
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.backlog import Backlog
from maitred.matching.effects import (
    Ended,
    NotKept,
    RefuseToTell,
    Settle,
    Tell,
    encode_ended,
)
from maitred.matching.later import LaterTasks
from maitred.matching.ledger import Ledger
from maitred.matching.limits import Limiter
from maitred.matching.measures import Rate, Waits
from maitred.matching.offers import Offer, Offers
from maitred.matching.outcomes import Outcomes
from maitred.matching.presence import Attendance, Presence
from maitred.matching.queries import Wanted, WantedLines
from maitred.matching.records import SEQUENCES_PER_RANGE, TASK_BYTES
from maitred.matching.rosters import Subscriber
from maitred.matching.shared_supplies import SharedSupplies
from maitred.matching.signatures import SIGNATURES_ROW, QueueSignatures
from maitred.matching.task import (
    OVER,
    SegmentState,
    Task,
    Ticket,
)
from maitred.matching.task_memory import TaskMemory
from maitred.routing.tree import parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.balancing.interface import RandomSource
    from maitred.matching.effects import Effect
    from maitred.matching.quotas import Quota
    from maitred.matching.records import (
        Acquired,
        Damaged,
        DamagedKind,
        PartitionKey,
        Record,
        Segment,
    )
    from maitred.matching.reservation_proofs import ReservationProofs
    from maitred.matching.task import Token
    from maitred.routing.counts import PartitionCounts
    from maitred.settings import Queue

WORKERS_SECONDS = 300.0
"""How long a worker is remembered that is not heard of any more."""

TIMERS_SWEPT_AT = 1_000
"""So many timers that may have nobody waiting are kept before they are looked through."""

UNSAFE_SECONDS = 2.0
"""While the store cannot be written, a producer whose task is at a worker hears after this time
that the outcome is unknown, unless the worker was faster. So long a store may also take for a
commit before it counts as away. A disk that others use, or a database server that writes a
checkpoint, holds a commit up for some hundred milliseconds; a producer that is told to wait longer
runs into its own deadline (10 s) without being told why."""

WORKERS_KEPT = 10_000
"""No more workers are remembered than this, whoever says to be another one each time."""


class HeldBeat:
    """A heartbeat that waits for news."""

    __slots__ = ("holder", "token")

    def __init__(self, token: Token, holder: bytes) -> None:
        self.token = token
        self.holder = holder


class Told:
    """An end that was told of a task that is not in memory: it counts as soon as the task is, even
    if whoever looks for the task in the store has not found it yet."""

    __slots__ = ("counts", "end", "holder", "ticket")

    def __init__(self, end: tuple[int, int, int, bytes], holder: bytes, ticket: Ticket) -> None:
        self.end = end
        """Sequence, attempt, how, body."""
        self.holder = holder
        """Has proved that it was given the attempt."""
        self.ticket = ticket
        self.counts: bool | None = None
        """Whether it does, or comes too late; as long as nobody knows, None."""


Waiting = Offer | Task | HeldBeat | Wanted | Attendance | Subscriber


def _no_secrets(_: int) -> bytes:
    raise InternalError("Nobody said where this partition's secrets come from.")


class Core:
    """The state that all the rest works on."""

    def __init__(
        self,
        key: PartitionKey,
        acquired: Acquired,
        counts: PartitionCounts,
        settings: Queue,
        random: RandomSource,
        now: float,
        wall: float,
        secret: Callable[[int], bytes] = _no_secrets,
        *,
        signing_key: bytes,
        quotas: tuple[Quota, ...] = (),
        memory: TaskMemory | None = None,
        supplies: SharedSupplies | None = None,
    ) -> None:
        self.key = key
        self._signing_key = signing_key
        self._attempt_proofs = AttemptProofs(signing_key, key)
        self._reservation_proofs: ReservationProofs | None = None
        """Made for the first reservation that is counted."""
        self.settings = settings
        self.counts = counts
        self.effects: list[Effect] = []
        self.first_sequence = acquired.range_id * SEQUENCES_PER_RANGE
        self.next_sequence = self.first_sequence
        self.ledger = Ledger(key, acquired.range_id, acquired.backlog)
        self.ledger.wall = wall
        self.quotas = quotas
        """Quotas of stored tasks; each of them has to have room for a new task."""
        for quota in quotas:
            quota.join(self.ledger)
        stored = acquired.backlog > 0
        memory = memory or TaskMemory()
        buffer = settings.buffer_tasks, settings.buffer_bytes
        self.backlog = Backlog(*buffer, self.first_sequence, memory, stored=stored)
        self.later = LaterTasks(*buffer, memory, stored=stored)
        self.offers = Offers(key, supplies or SharedSupplies())
        self.doubts: Doubts[bytes, bytes] = Doubts()
        """Workers, by session, that refused slots they had offered."""
        self._suspected: OrderedDict[bytes, float] = OrderedDict()
        """Sessions of workers that were suspected within `SUSPECT_SECONDS`, and when."""
        self.wanted = WantedLines()
        self.presence = Presence(now, self.first_sequence, settings.queries.pass_seconds)
        self._doubted_until = inf
        """When a worker may be believed again whose shared slots were passed over."""
        self.signatures = QueueSignatures(settings.signatures_seconds)
        self._rosters_at = inf
        """When a gateway hears of workers that came too soon after others."""
        self.secret = secret
        self._tokens: list[bytes] = []
        """Secrets that were made in advance."""
        self.outcomes = Outcomes(settings.results_kept, settings.results_bytes)
        self.memory_seconds = settings.memory_seconds
        """Results that are kept for longer than this are written to the store when the task ends.
        0 while the partition is about to move to another shard."""
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
        self._unsafe_until = inf
        """When the next producer hears that the outcome is unknown, while nothing can be
        written."""
        self.parent = parent(key.partition, settings.forwarding.children)
        self.offers_away = 0
        self.tasks_away = 0
        self.away: dict[int, Task] = {}
        """Ours among them, in the order in which they went."""
        self._home_by = -inf
        """Those that were called home are waited for until then, so that nobody overtakes them."""
        self._stay_until_max = -inf
        """Where there are offers at home, tasks need not go away at once; but then they do."""
        self._back_early: set[int] = set()
        """Tasks that were given back before the parent said that anybody had them."""
        self._offers_rest_until = -inf
        """The parent had no ear for an offer: so long none is passed on."""
        self._tasks_rest_until = -inf
        """The same for tasks."""
        self.added = Rate(now)
        self.finished = Rate(now)
        self.allocated = Rate(now)
        """Slots that were given to queries here."""
        self.waits = Waits()
        self.failed = self.lost = self.matched_at_once = self.never_written = 0
        self.unproven = 0
        """Attempts that callers spoke of without proving that they were given them."""
        self.not_kept = 0
        """Results that stayed in memory and failures that were cut, since a quota had no room."""
        self.passed_tasks = self.passed_offers = 0
        self._random = random
        self._waiters: dict[int, list[Token]] = {}
        self._claims: OrderedDict[int, tuple[bytes, str, int, float]] = OrderedDict()
        """Tasks that are in the store alone and that a worker says it is running, in the order in
        which the claims end."""
        self._told: dict[int, list[Told]] = {}
        """Ends of tasks that are in the store alone, by task; they are being looked for."""
        self._beats: dict[bytes, HeldBeat] = {}
        """Heartbeats that wait for news, by the holder of the attempts."""
        self.workers: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Names and when they were heard of, by session; the one that was heard of last, last."""
        self._touched_unread: dict[int, tuple[SegmentState, set[int]]] = {}
        """Segments that are in the store alone, and tasks of them that are over, by their first."""
        self._aside: dict[tuple[DamagedKind, int], Damaged] = {}
        """Rows that were set aside since the partition was loaded, without their bodies."""
        self._opened: tuple[Segment, dict[int, Record]] | None = None
        """The last segment that somebody asked for a task of, and what is in it."""
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

    # Those who wait for an answer

    def release(self, ticket: Ticket) -> None:
        """Its own part, which holds no task, is over."""
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

    def _part_unknown(self, ticket: Ticket, sentence: str) -> None:
        """An attempt at its task began, and the store does not have the task."""
        ticket.problem = OutcomeUnknown(sentence)
        self._part_refused(ticket)

    def _settle(self, ticket: Ticket) -> None:
        if ticket.told:
            return
        if ticket.done and ticket.problem is not None:
            ticket.problem = OutcomeUnknown(
                f"{ticket.done} tasks of the batch were taken, the others were not: "
                f"{ticket.problem}"
            )
        self.effects.append(Settle(ticket))

    def _answer_unsafe(self, now: float) -> None:
        """Nothing can be written: tell the producers that waited long enough for their task, which
        is at a worker or in a commit that is not answered, that the outcome is unknown."""
        next_at = inf
        for task in self.tasks.values():
            ticket = task.ticket
            if ticket is None or ticket.told:
                continue
            until = task.added + UNSAFE_SECONDS
            if until > now:
                next_at = min(next_at, until)
                continue
            where = "A worker has the task" if task.may_have_begun else "The task may be written"
            ticket.problem = OutcomeUnknown(f"{where}, and the store does not confirm it.")
            ticket.told = True
            self.effects.append(Settle(ticket))
        self._unsafe_until = next_at

    def _remember(self, sequence: int, ended: Ended, now: float) -> None:
        if self._waiters:
            for token in self._waiters.pop(sequence, ()):
                self._tell(sequence, token, ended)
        if ended.until > now:
            self.outcomes.put(sequence, ended)
            if ended.stored:
                self._keep_result(sequence, ended, now)

    def _tell(self, sequence: int, token: Token, ended: Ended) -> None:
        """Tell what became of a task when that is on disk: if the owner and the worker were lost
        before, the task would go on, and might end otherwise. While the store cannot be written the
        caller hears why."""
        if self.store_problem is not None and self.ledger.is_ending(sequence):
            self.effects.append(RefuseToTell(token, self.store_problem))
        elif not self.ledger.tell_when_written(sequence, token, ended):
            self.effects.append(Tell(token, ended))

    def _keep_result(self, sequence: int, ended: Ended, now: float) -> None:
        body = encode_ended((ended.status, ended.attempts, ended.body))
        self.ledger.keep_result(sequence, ended.until - now, body, now)

    def _is_stored(self, sequence: int, body: bytes, now: float) -> bool:
        """Return whether the store keeps the result of a task that ends now, which is to be kept
        for longer than `memory_seconds`. It stays in memory if a quota has no room for it."""
        if self._take_room(TASK_BYTES + len(body), now):
            return True
        self._count_not_kept("result", sequence, len(body))
        return False

    def _take_room(self, size: int, now: float) -> bool:
        """Return whether all quotas have room for so many bytes, and count them if so."""
        if not all(quota.has_room(size, now) for quota in self.quotas):
            return False
        for quota in self.quotas:
            quota.bytes += size
        return True

    def _count_not_kept(self, what: Literal["result", "failure"], sequence: int, size: int) -> None:
        self.not_kept += 1
        self.effects.append(NotKept(what, sequence, size))

    def announce(self, signature: bytes, now: float) -> None:
        """A worker that attends has a handler with this signature."""
        self.signatures.announce(signature, now + self.ledger.wall)
        self.keep_signatures(now)

    def keep_signatures(self, now: float) -> None:
        """Have the signatures written with the next commit, if they have changed or aged."""
        row = self.signatures.due(now + self.ledger.wall)
        if row is not None:
            self.ledger.keep_result(SIGNATURES_ROW, self.signatures.row_seconds, row, now)

    def served_seconds_ago(self, now: float) -> float | None:
        """Return since when no worker serves the queue, 0 while one does; None: none is known."""
        if self.presence.anybody or self.offers.any_free:
            return 0.0
        heard = [now - at for _, at in self.workers.values()]
        seen = self.signatures.last_seen(now + self.ledger.wall)
        if seen is not None:
            heard.append(now + self.ledger.wall - seen)
        return max(0.0, min(heard)) if heard else None

    def _heard(self, session: bytes, worker: str, now: float) -> None:
        self.presence.spoke(session, now)
        workers = self.workers
        workers[session] = (worker, now)
        workers.move_to_end(session)
        oldest = next(iter(workers.values()))
        if now - oldest[1] > WORKERS_SECONDS or len(workers) > WORKERS_KEPT:
            workers.popitem(last=False)

    def _set_timer(self, at: float, waiting: Waiting) -> None:
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, waiting))
        if len(self._timers) > self._timers_swept_at:
            # Most who wait are served long before: their timers go in bulk.
            self._timers = [one for one in self._timers if self._waits(one[2])]
            heapify(self._timers)
            self._timers_swept_at = 2 * len(self._timers) + TIMERS_SWEPT_AT

    def _waits(self, waiting: Waiting) -> bool:
        if isinstance(waiting, Offer | Wanted):
            return waiting.is_open
        if isinstance(waiting, Attendance):
            return self.presence.workers.get(waiting.session) is waiting
        if isinstance(waiting, Subscriber):
            return self.presence.rosters.subscribers.get(waiting.key) is waiting
        if isinstance(waiting, HeldBeat):
            return self._beats.get(waiting.holder) is waiting
        return waiting.state is not OVER

    def forget(self, now: float) -> None:
        """What is past its time: results that nobody fetched, workers that are gone."""
        self.outcomes.forget_expired(now)
        self._opened = None
        workers = self.workers
        while workers and now - next(iter(workers.values()))[1] > WORKERS_SECONDS:
            workers.popitem(last=False)

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
        if self.open_tasks > len(self.tasks):
            if self.later.known_until < inf:
                return 0  # which ones wait in the store for their time, nobody knows
            for line in self.backlog.lines:
                if line.known > line.cursor:
                    lowest = min(lowest, line.cursor + 1)
        return min(lowest, self.next_sequence) - 1

    def backlog_age(self, now: float) -> float:
        """Since when the first task that waits could have been run."""
        first = self.backlog.first()
        return max(0.0, now - first.ready) if first is not None else 0.0

    @property
    def unattended(self) -> bool:
        """Whether no worker can be at any task of ours: the next owner need not wait for one.

        While we wait for workers ourselves, we know of none, but there may be some.
        """
        return not (self.leases or self.recovering or self.tasks_away or self._claims or self._told)

    @property
    def idle(self) -> bool:
        """Whether nothing is lost by letting go of it."""
        return not (
            self.open_tasks
            or self.backlog.ready
            or self.offers.slots
            or self.offers.aside
            or self.offers.sets
            or self.wanted.total
            or self.presence.workers
            or self.presence.rosters.held
            or self._waiters
            or self._beats
            or self.ledger.pending
            or self.ledger.under_way
            or len(self.outcomes)
        )
