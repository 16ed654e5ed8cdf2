"""A partition: matches tasks and queries with offers. It has no clock and does no I/O.

A partition is made of parts, which its callers use directly:

| part | called for | job |
|---|---|---|
| `intake` | producers | adds and cancels tasks |
| `results` | callers that wait for the end of a task | keeps results, answers waiting callers |
| `matcher` | workers with free slots | gives slots to queries, then to tasks |
| `stored_tasks` | requests that name a task | finishes, cancels, awaits tasks, in memory or not |
| `attempts`, `heartbeats` | workers that run tasks | ends attempts, renews leases |
| `allocator` | gateways with queries | reserves free slots |
| `subscriptions` | workers that attend, gateways that subscribe | answers with passes and rosters |
| `tree` | the parent partition and the children | moves tasks and offers up and down |
| `store_replies`, `damaged_rows` | the shell | takes in what was read and committed |
| `purge` | operators | drops tasks that wait |
| `lists` | operators | lists tasks, and finds one |
| `own_tasks` | the other parts | every change of a task: lease, retry, end |

Methods take the loop's time and append effects to `effects`. The shell that drives the partition
carries the effects out, and calls `look` no later than the last `look` said. The `ledger` has the
changes to persist; the shell commits them in batches and reports with `store_replies.committed`
and `not_committed`.

Tasks are matched in the order of their priorities and, within one, in the order in which they came.
A task whose attempt failed or whose worker was lost comes back later and joins the end of its line.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from maitred.errors import OutcomeUnknown
from maitred.matching.allocator import Allocator
from maitred.matching.attempt_proofs import session_of
from maitred.matching.attempts import Attempts
from maitred.matching.controls import effective
from maitred.matching.damaged_rows import SetAsideRows
from maitred.matching.heartbeats import Heartbeats
from maitred.matching.matcher import Matcher
from maitred.matching.partition_state import PartitionState
from maitred.matching.purge import QueuePurge
from maitred.matching.signatures import SIGNATURES_ROW, QueueSignatures
from maitred.matching.store_replies import StoreReplies
from maitred.matching.stored_tasks import StoredTasks
from maitred.matching.subscriptions import Subscriptions
from maitred.matching.task_intake import TaskIntake
from maitred.matching.task_lists import TaskLists
from maitred.matching.task_results import TaskResults
from maitred.matching.task_transitions import OwnTasks
from maitred.matching.tree_forwarding import TreeForwarding

if TYPE_CHECKING:
    from maitred.errors import MaitredError
    from maitred.matching.controls import QueueControls
    from maitred.matching.effects import Effect
    from maitred.matching.task import QueueTask, Ticket, Token
    from maitred.routing.counts import PartitionCounts


class Partition(PartitionState):
    """One partition, as its owner has it: the state, and the parts that work on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.signatures = QueueSignatures(self.settings.signatures_seconds)
        self.heartbeats = heartbeats = Heartbeats(self)
        self.subscriptions = Subscriptions(self)
        self.allocator = allocator = Allocator(self)
        self.results = results = TaskResults(self)
        self.own_tasks = own_tasks = OwnTasks(self, results)
        self.matcher = matcher = Matcher(self, allocator, own_tasks)
        self.intake = intake = TaskIntake(
            self,
            own_tasks=own_tasks,
            matcher=matcher,
            allocator=allocator,
            results=results,
            heartbeats=heartbeats,
        )
        self.attempts = attempts = Attempts(self, own_tasks, matcher, heartbeats)
        self.tree = TreeForwarding(
            self,
            own_tasks=own_tasks,
            matcher=matcher,
            allocator=allocator,
            heartbeats=heartbeats,
        )
        self.damaged_rows = damaged_rows = SetAsideRows(self, own_tasks)
        self.store_replies = store_replies = StoreReplies(
            self,
            own_tasks=own_tasks,
            matcher=matcher,
            attempts=attempts,
            damaged_rows=damaged_rows,
            results=results,
        )
        self.purge = QueuePurge(self, own_tasks, store_replies, results)
        self.lists = lists = TaskLists(self, attempts)
        self.stored_tasks = StoredTasks(
            self,
            own_tasks=own_tasks,
            intake=intake,
            results=results,
            attempts=attempts,
            store_replies=store_replies,
            damaged_rows=damaged_rows,
            lists=lists,
        )

    def __repr__(self) -> str:
        namespace, queue, _, number = self.key
        return (
            f"<Partition {namespace}/{queue}/{number}: {self.state_name}, "
            f"{self.own_tasks.open_tasks} tasks, {len(self.own_tasks.leases)} running, "
            f"{self.offers.slots} free slots>"
        )

    # Turns

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        taken = self.effects.copy()
        self.effects.clear()
        return taken

    def look(self, now: float) -> float:
        """Do everything that is due; return when to look again, at the latest."""
        own_tasks, allocator = self.own_tasks, self.allocator
        if own_tasks.recovering:
            own_tasks.recovery_ends(now)
        self.attempts.leases_end(now)
        self.store_replies.become_due(now)
        self.timers.ring(now)
        if self.offers.aside:
            allocator.take_up_offers(now)
        self.matcher.match(now)
        if now >= self.health.unsafe_until:
            self.store_replies.answer_unsafe(now)
        self.store_replies.want_reads(now)
        self.stored_tasks.begin(now)
        self.subscriptions.tell_rosters(now)
        self.subscriptions.tell_of_the_best(now)
        allocator.pass_up()
        without = allocator.refuse_without_workers(now)
        return min(self._next_look(now, self.tree.pass_on(now)), without)

    def _next_look(self, now: float, passing: float) -> float:
        # Tasks that are due while their line has no room need no timer: room comes with an event,
        # and after every event the shell looks.
        later, allocator = self.later, self.allocator
        due = later.first(self.backlog.room)
        at = min(
            passing,
            inf if due is None else due.due,
            later.read_wanted_at(),
            self.matcher.next_at(now),
            self.timers.next_at(),
            self.subscriptions.next_at,
            self.health.unsafe_until,
        )
        leases = self.own_tasks.leases
        if leases:
            at = min(at, next(iter(leases.values())).lease_until)
        if self.offers.aside:
            at = min(at, allocator.offers_taken_up_at(now, tasks_wait=self.backlog.ready > 0))
        if allocator.doubted_until < inf and allocator.lines.slots:
            at = min(at, allocator.doubted_until)
        return max(at, now)

    def set_counts(self, counts: PartitionCounts, now: float) -> None:
        """Take over newer partition counts."""
        self.counts = counts
        self.tree.set_readable(readable=counts.readable(self.key.partition))
        self.share_rate(now)

    def set_controls(self, controls: QueueControls, now: float) -> None:
        """Take over newer controls of the queue. A task that a worker or an offer has been given
        by now runs; tasks that wait at the parent come back."""
        self.controls = controls
        queries = self.settings.queries
        self.settings = effective(self.configured, controls)
        if self.settings.queries != queries:
            self.allocator.limit_to(self.settings.queries)
            self.presence.queries_changed()
        self.limit_history()
        self.stored_history.want_written()
        self.share_rate(now)
        self.matcher.limit_to(self.rate_limit)
        self.tree.limit_to(self.rate_limit)
        was_paused, self.hand_out.is_paused = self.hand_out.is_paused, controls.pause is not None
        if self.hand_out.is_paused and not was_paused:
            self.tree.call_all_back()
        self.matcher.match(now)

    # Workers

    def suspect(self, session: bytes, now: float) -> int | None:
        """Stop using the slots of a worker that does not answer a gateway, until it offers them
        again; return how many offers it had, or None if it is suspected already or not known.

        A worker that lives offers again, and attends again, at once. It is asked to do so at most
        once in `SUSPECT_SECONDS`, however often gateways report it.
        """
        if not self.worker_sightings.suspect(session, now):
            return None
        offers = self.matcher.answer_offers_of(session)
        known = self.presence.workers.get(session)
        if known is not None and known.token is not None:
            self.subscriptions.answer_attend(known, "", now)
        self.presence.suspect(session, now)
        return offers

    def workers_here(self) -> dict[bytes, tuple[str, float]]:
        """Return the names of the workers that attend, offer slots or run tasks, and when they were
        heard of, by session. `worker_sightings` also remembers workers that are gone."""
        attending = self.presence.workers
        sessions = [
            *(one.session for one in self.offers.unanswered()),
            *(one.session for one in self.offers.sets if one.offers),
            *(session_of(task.holder) for task in self.own_tasks.leases.values()),
            *attending,
        ]
        here = {}
        for session in dict.fromkeys(sessions):  # in order, so that simulated runs are repeatable
            name, heard = self.worker_sightings.workers.get(session, ("", -inf))
            attendance = attending.get(session)
            if attendance is not None:
                name, heard = attendance.worker, max(heard, attendance.heard)
            if name:
                here[session] = (name, heard)
        return here

    def announce(self, signature: bytes, now: float) -> None:
        """Note the signature of the handler of a worker that attends."""
        self.signatures.announce(signature, now + self.ledger.wall)
        self.keep_signatures(now)

    def keep_signatures(self, now: float) -> None:
        """Have the signatures written with the next commit, if they have changed or aged."""
        row = self.signatures.due(now + self.ledger.wall)
        if row is not None:
            self.ledger.keep_result(SIGNATURES_ROW, self.signatures.row_seconds, row, now)

    def served_seconds_ago(self, now: float) -> float | None:
        """Return for how many seconds no worker has served the queue: 0 while one does, None if no
        worker is known."""
        if self.presence.count or self.offers.any_free:
            return 0.0
        heard = [now - at for _, at in self.worker_sightings.workers.values()]
        seen = self.signatures.last_seen(now + self.ledger.wall)
        if seen is not None:
            heard.append(now + self.ledger.wall - seen)
        return max(0.0, min(heard)) if heard else None

    # Properties

    @property
    def writable(self) -> bool:
        """Whether new tasks are sent here."""
        return self.counts.writable(self.key.partition)

    @property
    def drained(self) -> bool:
        """Whether the partition is read-only, and all its tasks are over."""
        return not self.writable and not self.own_tasks.open_tasks

    @property
    def waiting(self) -> int:
        """The number of tasks that are not over and not at a worker."""
        return self.own_tasks.open_tasks - len(self.own_tasks.leases)

    @property
    def delayed(self) -> int:
        """The number of tasks that wait until they are due. While tasks that are ready are in the
        store alone, only those in memory are counted."""
        if self.backlog.any_unread:
            return len(self.later)
        own_tasks = self.own_tasks
        return len(self.later) + max(0, own_tasks.open_tasks - len(own_tasks.tasks))

    @property
    def state_name(self) -> Literal["writable", "read-only", "drained"]:
        """The state that operators are shown."""
        if self.writable:
            return "writable"
        return "read-only" if self.own_tasks.open_tasks else "drained"

    @property
    def read_level(self) -> int:
        """The highest sequence number of any task."""
        return self.own_tasks.next_sequence - 1

    @property
    def ack_level(self) -> int:
        """All tasks up to this sequence number are over; 0 if the lowest open one is unknown."""
        own_tasks = self.own_tasks
        if not own_tasks.open_tasks:
            return self.read_level
        lowest = min(own_tasks.tasks, default=own_tasks.next_sequence)
        if own_tasks.open_tasks > len(own_tasks.tasks):
            if self.later.known_until < inf:
                return 0  # delayed tasks may be in the store, with any number
            for line in self.backlog.lines:
                if line.known > line.cursor:
                    lowest = min(lowest, line.cursor + 1)
        return min(lowest, own_tasks.next_sequence) - 1

    def backlog_age(self, now: float) -> float:
        """Return for how many seconds the first task of the backlog could have been run."""
        first = self.backlog.first()
        return max(0.0, now - first.ready) if first is not None else 0.0

    @property
    def unattended(self) -> bool:
        """Whether no worker can have a task of this partition, so that the next owner need not wait
        for claims. While the partition recovers, unknown workers may have some.
        """
        return not (
            self.own_tasks.leases
            or self.own_tasks.recovering
            or self.tree.tasks_away
            or self.attempts.claims
            or self.attempts.told
        )

    @property
    def idle(self) -> bool:
        """Whether the partition can be let go without a loss."""
        return not (
            self.is_used
            or self.tree.offers_away  # the parent may have given one of them a task
            or self.ledger.pending
            or self.ledger.under_way
            or len(self.results.outcomes)
        )

    @property
    def is_used(self) -> bool:
        """Whether the partition has tasks, or callers that wait."""
        return bool(
            self.own_tasks.open_tasks
            or self.backlog.ready
            or self.tree.tasks_away
            or self.offers.slots
            or self.offers.aside
            or self.offers.sets
            or self.allocator.lines.total
            or self.presence.workers
            or self.presence.rosters.held
            or self.results.waiters
            or self.stored_tasks.is_searching
            or self.heartbeats.waiting
        )

    def acknowledged(self) -> list[QueueTask]:
        """Return the tasks in memory that the partition owns and that no producer waits for any
        more; they are not over."""
        return [task for task in self.own_tasks.tasks.values() if task.ticket is None]

    # The end

    def forget(self, now: float) -> None:
        """Forget expired results and workers that are gone."""
        self.results.outcomes.forget_expired(now)
        self.stored_tasks.unread.close()
        self.worker_sightings.forget(now)

    def stop_waiting(self) -> None:
        """Answer all long polls: the node is stopping, and nothing more is given out."""
        self.matcher.stop()
        self.allocator.stop()
        self.subscriptions.stop()
        self.heartbeats.stop()

    def begin_leaving(self, problem: MaitredError) -> None:
        """Hand out nothing more, and answer all long polls so that their callers ask the next owner
        of the partition: callers that cannot be answered without news get the problem. Tasks at the
        parent are called back, and results that come are persisted."""
        self.hand_out.is_leaving = True
        self.matcher.stop()
        self.allocator.answer_without_slots()
        self.subscriptions.stop(problem)
        self.heartbeats.stop()
        self.results.refuse_all(problem)
        self.results.write_all(moving=True)
        self.tree.call_all_back()

    @property
    def is_written(self) -> bool:
        """Whether the store has everything that the next owner needs, except the attempts that
        run."""
        ledger = self.ledger
        return not (ledger.fresh or ledger.held or ledger.pending or ledger.under_way)

    def leave(self) -> tuple[list[Token], list[Ticket]]:
        """Let the partition go; return all requests that wait for an answer. The shell refuses the
        tokens, and answers the tickets with `Ticket.last_word`."""
        waiting = self.offers.unanswered()
        tokens: list[Token] = [offer.token[0] for offer in waiting if offer.shared is None]
        for offer in waiting:
            self.offers.close(offer)  # what the parent gives to it now is returned
        tokens += self.tree.leave()
        tokens += [one.token for one in self.heartbeats.waiting.values()]
        tokens += self.allocator.tokens()
        tokens += self.subscriptions.tokens()
        tokens += self.results.tokens()
        tickets = self._tickets_left()
        searching, ends = self.stored_tasks.leave()
        tokens += searching
        tickets.update(dict.fromkeys(ends))
        for pending in self.ledger.all_pending():
            tickets.update(dict.fromkeys(pending.tickets))
            tokens += [answer.token for answer in pending.answers]
        for quota in self.quotas:
            quota.leave(self.ledger)
        self.ended_tasks.empty_row(-inf)
        if not self.is_written:
            self.ended_tasks.forget_unless(lambda sequence: not self.ledger.is_left(sequence))
        self.backlog.forget()
        self.later.forget()
        for task in self.own_tasks.tasks.values():
            task.ticket = task.visit = None
        return tokens, [ticket for ticket in tickets if not ticket.told]

    def _tickets_left(self) -> dict[Ticket, None]:
        """Return the tickets of producers, with a problem if their tasks may have begun."""
        tasks = self.own_tasks.tasks.values()
        tickets = {task.ticket: None for task in tasks if task.ticket is not None}
        begun = {task.ticket for task in tasks if task.may_have_begun}
        for pending in self.ledger.all_pending():
            for ticket, failed in pending.producers:
                tickets[ticket] = None
                if failed:
                    begun.add(ticket)
                else:
                    ticket.left -= 1
                    ticket.done += 1
        for ticket in tickets:
            if ticket in begun or (ticket.done and ticket.left):
                # A producer that hears that nothing was done adds the tasks again.
                ticket.problem = OutcomeUnknown("Some of the tasks may have been begun.")
        return tickets
