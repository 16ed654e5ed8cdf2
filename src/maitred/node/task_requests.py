"""What producers and workers ask of a partition, and how it is answered."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from maitred.errors import (
    InternalError,
    MaitredError,
    NotOwner,
    PayloadTooLarge,
    StorageQuotaExceeded,
    StoreFull,
    TaskDamaged,
)
from maitred.matching.attempt_proofs import holder_of
from maitred.matching.effects import FindEnds, decode_ended
from maitred.matching.offers import WaitingOffer
from maitred.matching.records import (
    SEQUENCES_PER_RANGE,
    RowDamagedError,
    Terms,
    decode_record,
)
from maitred.matching.task import READY, QueueTask, Ticket
from maitred.matching.task_intake import revocation_of
from maitred.matching.tree_forwarding import VISIT_SECONDS
from maitred.node.namespace_turns import NamespaceTurns
from maitred.node.partitions import ANSWER_EARLY_SECONDS, Makes
from maitred.node.request_table import RequestTable, name_user, name_worker
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import (
    Add,
    Added,
    AddedEnd,
    Await,
    Finish,
    Finished,
    Forward,
    Forwarded,
    Heartbeat,
    Offer,
    Offered,
    Outcome,
    Revoke,
    Revoked,
)
from maitred.routing.names import check_shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.matching.effects import Ended
    from maitred.matching.records import Later, Segment
    from maitred.matching.stored_ends import EndsSearch
    from maitred.matching.task_intake import Revocation
    from maitred.node.accepted import Accepted
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.partition_driver import Owned
    from maitred.node.partitions import Partitions
    from maitred.protocol.tasks import Counts
    from maitred.store.interface import SegmentRead

ENDED_DEAD: Final = "failed"


ADDED_ENDS_BYTES: Final = 2**16
"""Results, with 64 bytes for each task, that the answer to ADD carries at most. A producer that
does not ask for results does not pay for large ones; AWAIT fetches those that are left out."""

LOOKED_AT_SECONDS: Final = 1.0
"""How long segments are kept that were looked at for one of their tasks."""


class TaskRequests:
    """Serves the requests of producers and workers about tasks."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._store = partitions.store
        self._read = partitions.reads.answer
        self._looking = NamespaceTurns()
        self._looked_at: tuple[Owned, list[SegmentRead]] | None = None
        """The segments that were looked at last. What was crossed out since, the partition knows,
        as long as they are in the store alone."""
        holder = partitions.holder
        self.requests = RequestTable(
            holders={
                Opcode.ADD: holder(self._add, makes=Makes.QUEUES, absent=_not_added),
                Opcode.AWAIT: holder(self._await),
                Opcode.REVOKE: holder(self._revoke),
                Opcode.FINISH: holder(self._finish),
                Opcode.HEARTBEAT: holder(self._heartbeat),
                Opcode.FORWARD: holder(
                    self._forward, makes=Makes.PARTITIONS, absent=_not_forwarded
                ),
                Opcode.OFFER: holder(
                    self._offer, makes=_offer_makes, absent=_nothing_offered, touches=True
                ),
            },
            admissions={
                Opcode.OFFER: _admit_offer,
                Opcode.FINISH: name_worker,
                Opcode.HEARTBEAT: name_worker,
                Opcode.ADD: name_user,
            },
        )
        partitions.on_effect(FindEnds, self._find_ends)

    # Producers

    def _add(self, owned: Owned, message: Add, held: DeferredReply) -> None:
        partition = owned.partition
        newer = self._partitions.newer
        # A producer that does not know the counts yet would add its whole first batch to the root.
        unaware = not message.version and not message.partition and partition.counts.write > 1
        if unaware or not partition.writable:
            held.answer(Added(-1, newer(owned, -1)))
            return
        most = self._shard.limits.payload_bytes
        if max(map(len, message.payloads)) > most:
            raise PayloadTooLarge(
                f"A payload is larger than the {most:,} bytes allowed.",
                remedy="Put it into a store and send a reference, or raise limits.payload_bytes.",
            )

        def settle(owned: Owned, problem: MaitredError | None) -> None:
            if problem is not None:
                held.refuse(problem)
            else:
                held.answer(Added(first, newer(owned, message.version), _added_ends(ends, first)))

        ends: list[tuple[int, Ended]] = []
        try:
            first = partition.intake.add(
                message.payloads,
                token=settle,
                now=self._loop.time(),
                priority=message.priority,
                terms=message.terms,
                delay=message.delay,
                expires=message.expires,
                ends=ends,
            )
        except (StorageQuotaExceeded, StoreFull) as problem:
            self._partitions.stored.refused(owned.key, len(message.payloads), problem)
            raise

    def _await(self, owned: Owned, message: Await, held: DeferredReply) -> None:
        sequence = message.sequence
        if sequence < SEQUENCES_PER_RANGE:
            raise owned.partition.intake.absence(sequence)
        held.on_stop = lambda: owned.partition.results.wait_no_more(sequence, held)
        if not owned.partition.results.wait_for(sequence, held, self._loop.time()):
            self._partitions.answering(held, self._await_stored(owned, sequence, held))

    async def _await_stored(self, owned: Owned, sequence: int, held: DeferredReply) -> None:
        """We know nothing of it; perhaps the store does."""
        partition = owned.partition
        # In this order: it may end in between, and then the second question finds that.
        stored = await self._is_stored(owned, sequence)
        outcome = await self._stored_outcome(owned, sequence)
        unknown = None
        if outcome is None and not stored:
            outcome = await self._dead_outcome(owned, sequence)
            unknown = await self._unknown(owned, sequence)
        self._partitions.check(owned)
        if not held.wanted:
            return  # nobody would ever take them out of the line of those who wait
        if outcome is not None:
            held.answer(outcome)
        elif not partition.results.wait_for(sequence, held, self._loop.time()):
            if unknown is None:
                partition.results.wait_for_stored(sequence, held)
            else:
                self._when_written(owned, sequence, held, unknown)
        self._partitions.touch(owned)

    async def _stored_outcome(self, owned: Owned, sequence: int) -> Outcome | None:
        result = await self._read(self._store.result(owned.key, sequence))
        wall = self._loop.time() + owned.partition.ledger.wall
        if result is not None and result.expires_at > wall:
            try:
                return Outcome(*decode_ended(result.body))
            except RowDamagedError as problem:
                known = await self._read(self._store.damaged_around(owned.key, sequence))
                self._partitions.check(owned)
                if not any(row.kind == "result" for row in known):
                    owned.partition.damaged_rows.set_aside_result(
                        result, str(problem), self._loop.time()
                    )
                    self._partitions.touch(owned)
                raise task_damaged(sequence, "Its result") from None
        return None

    async def _dead_outcome(self, owned: Owned, sequence: int) -> Outcome | None:
        """A dead letter says that its task failed, for as long as it is there."""
        dead = await self._read(self._store.dead_one(owned.key, sequence))
        if dead is None or owned.partition.ledger.is_dead_going(sequence):
            return None
        try:
            record = decode_record(dead.body, sequence)
        except RowDamagedError as problem:
            self._partitions.check(owned)
            owned.partition.damaged_rows.set_aside_dead(dead, str(problem), self._loop.time())
            self._partitions.touch(owned)
            raise task_damaged(sequence, "Its dead letter") from None
        return Outcome("failed", record.attempt, record.failure)

    async def _unknown(self, owned: Owned, sequence: int) -> MaitredError:
        """Say why nothing is known of a task: it may be in a row that was set aside."""
        is_aside = owned.partition.damaged_rows.may_hold(sequence) or any(
            sequence not in row.over
            for row in await self._read(self._store.damaged_around(owned.key, sequence))
        )
        if is_aside:
            return task_damaged(sequence, "The row that it was written in")
        return owned.partition.intake.absence(sequence)

    async def _is_stored(self, owned: Owned, sequence: int) -> bool:
        if await self._segment_with(owned, sequence) is not None:
            return True
        found = await self._read(self._store.later_one(owned.key, sequence))
        return found is not None and not owned.partition.later.is_over(sequence)

    async def _segment_with(self, owned: Owned, sequence: int) -> SegmentRead | None:
        """A segment may be large, and ten thousand may ask for its tasks at once: one at a time, so
        that commits are not kept waiting, and nobody reads what the last one has read. Namespaces
        take turns, so that no other one waits for those ten thousand."""
        async with self._looking.turn(owned.key.namespace):
            if self._looked_at is not None and self._looked_at[0] is owned:
                known = _with_task(owned, self._looked_at[1], sequence)
                if known is not None:
                    return known
            found = await self._read(self._store.segments_around(owned.key, sequence))
            self._looked_at = looked_at = (owned, found)
            self._loop.call_later(LOOKED_AT_SECONDS, self._forget_looked_at, looked_at)
            return _with_task(owned, found, sequence)

    def _forget_looked_at(self, looked_at: tuple[Owned, list[SegmentRead]]) -> None:
        if self._looked_at is looked_at:
            self._looked_at = None

    def _revoke(self, owned: Owned, message: Revoke, held: DeferredReply) -> None:
        sequence = message.sequence
        if sequence < SEQUENCES_PER_RANGE:
            raise owned.partition.intake.absence(sequence)
        state = owned.partition.intake.revoke(sequence, self._loop.time())
        if state is not None:
            self._revoked(owned, sequence, state, held)
        else:
            answer = self._revoke_stored(owned, sequence, held)
            self._partitions.answering(held, answer)

    def _revoked(self, owned: Owned, sequence: int, state: Revocation, held: DeferredReply) -> None:
        if state == "cancelling":
            held.answer(Revoked(state))
        else:
            self._when_written(owned, sequence, held, Revoked(state), state)

    def _when_written(
        self,
        owned: Owned,
        sequence: int,
        held: DeferredReply,
        answer: Revoked | MaitredError,
        state: Revocation = "over",
    ) -> None:
        """Say that a task is over when that is on disk: it stays so through a crash, or nobody is
        told."""

        def settle(_: Owned, problem: MaitredError | None) -> None:
            told = problem or answer
            if isinstance(told, MaitredError):
                held.refuse(told)
            else:
                held.answer(told)

        ticket, now = Ticket(settle, 1), self._loop.time()
        owned.partition.intake.tell_of_revocation(ticket, sequence, state, now)

    async def _revoke_stored(self, owned: Owned, sequence: int, held: DeferredReply) -> None:
        partition = owned.partition
        with looking_up(owned):
            segment, later = await self._look_for(owned, sequence)
            now = self._loop.time()
            state = partition.intake.revoke(sequence, now)  # it may have been read meanwhile
            if state is None and partition.stored_ends.revoke(segment, later, sequence, now):
                state = "cancelled"
            elif state is None:
                state = partition.intake.revoke(sequence, now)
        if state is None:
            outcome = await self._stored_outcome(owned, sequence)
            if outcome is None:
                outcome = await self._dead_outcome(owned, sequence)
            if outcome is None:
                unknown = await self._unknown(owned, sequence)
                self._partitions.check(owned)
                self._when_written(owned, sequence, held, unknown)
                self._partitions.touch(owned)
                return
            self._partitions.check(owned)
            state = revocation_of(outcome.status)
        self._revoked(owned, sequence, state, held)
        self._partitions.touch(owned)

    # Workers

    def _offer(self, owned: Owned, message: Offer, held: DeferredReply) -> None:
        check_shown_name("worker", message.worker)
        partition = owned.partition
        now = self._loop.time()
        patience = message.timeout_milliseconds * 0.001 - ANSWER_EARLY_SECONDS
        until = now + min(partition.settings.offer_seconds, max(patience, 0.0))
        offer = WaitingOffer(
            (held, message.version),
            message.session,
            message.worker,
            message.slots,
            now,
            message.hops,
            address=message.address,
            user=message.user,
        )

        def withdraw() -> None:
            partition.matcher.withdraw(offer, self._loop.time())
            self._partitions.touch(owned)

        held.on_stop = withdraw
        partition.matcher.offer(offer, until, now)
        if partition.matcher.only_reserved(offer) and owned.timer_at <= until:
            self._partitions.touch_lightly(owned)
        else:
            self._partitions.touch(owned)

    def _finish(self, owned: Owned, message: Finish, held: DeferredReply) -> None:
        holder = holder_of(message.session, message.user)

        def settle(_: Owned, problem: MaitredError | None) -> None:
            if problem is not None:
                held.refuse(problem)
            else:
                held.answer(Finished(late, refused))

        ends = [(end.sequence, end.attempt, end.how, end.body, end.proof) for end in message.ends]
        refused, late = owned.partition.stored_ends.finish(ends, settle, self._loop.time(), holder)

    def _find_ends(self, owned: Owned, effect: FindEnds) -> None:
        self._shard.spawn(self._do_find_ends(owned, effect.search))

    async def _do_find_ends(self, owned: Owned, search: EndsSearch) -> None:
        """Look for tasks that are not in memory: after a restart they may be in the store alone."""
        stored_ends = owned.partition.stored_ends
        problem: MaitredError | None = None
        try:
            for told in search.told:
                self._partitions.check(owned)
                if stored_ends.is_missing(told, self._loop.time()):
                    with looking_up(owned):
                        segment, later = await self._look_for(owned, told.end[0])
                        stored_ends.found(told, segment, later, self._loop.time())
        except NotOwner as let_go:
            search.ticket.token(owned, let_go)  # nothing is carried out for it any more
            return
        except MaitredError as found:
            problem = found
        except Exception:
            self._shard.log.exception("ends not looked up")
            problem = InternalError("The node failed at this request.")
        stored_ends.over(search, problem, self._loop.time())
        self._partitions.touch(owned)

    async def _look_for(
        self, owned: Owned, sequence: int
    ) -> tuple[tuple[Segment, frozenset[int]] | None, Later | None]:
        """Return the segment that has the task, with its marks, and the task's own row, if any."""
        found = await self._segment_with(owned, sequence)
        later = await self._read(self._store.later_one(owned.key, sequence))
        self._partitions.check(owned)
        return None if found is None else (found.segment, found.marks), later

    def _heartbeat(self, owned: Owned, message: Heartbeat, held: DeferredReply) -> None:
        check_shown_name("worker", message.worker)
        partition = owned.partition
        now = self._loop.time()
        patience = message.timeout_milliseconds * 0.001 - ANSWER_EARLY_SECONDS
        holder = holder_of(message.session, message.user)
        held.on_stop = lambda: partition.heartbeats.withdraw(holder, held)
        partition.attempts.heartbeat(
            holder, message.worker, message.running, held, now + max(patience, 0.0), now
        )

    # Between shards

    def _forward(self, owned: Owned, message: Forward, held: DeferredReply) -> None:
        partition = owned.partition
        now = self._loop.time()
        terms = Terms(timeout=message.task_timeout)
        since = now - message.waited
        task = QueueTask(message.sequence, message.priority, terms, message.payload, since, READY)
        task.ready = since
        task.origin = message.origin
        task.attempt = message.attempt
        task.visit = (held, message.version)
        if message.expires:
            task.expires = now + message.expires

        def recalled() -> None:
            partition.tree.visit_recalled(task)
            self._partitions.touch(owned)

        held.on_recall = recalled
        held.on_stop = lambda: partition.tree.visit_no_more(task)
        partition.tree.visit(task, now + VISIT_SECONDS, now)


def _admit_offer(message: Offer, connection: Accepted) -> None:
    message.hops = 0
    name_worker(message, connection)


# What is answered for a partition that does not exist. A caller that goes by counts of a queue that
# was deleted, or of partitions that were removed, hears which counts hold.


def _added_ends(ends: list[tuple[int, Ended]], first: int) -> list[AddedEnd] | None:
    """Return the ends that the answer to ADD carries: as many of them, in the order in which the
    tasks ended, as fit into `ADDED_ENDS_BYTES`."""
    carried = []
    room = ADDED_ENDS_BYTES
    for sequence, ended in ends:
        room -= 64 + len(ended.body)
        if room < 0:
            break
        carried.append(AddedEnd(sequence - first, ended.status, ended.attempts, ended.body))
    return carried or None


def _not_added(_message: Add, counts: Counts | None) -> Added | None:
    return Added(-1, counts) if counts else None


def _offer_makes(message: Offer) -> Makes:
    """One that is passed on to a parent makes no queue: the one where it was made exists."""
    return Makes.PARTITIONS if message.hops else Makes.QUEUES


def _nothing_offered(_message: Offer, counts: Counts | None) -> Offered | None:
    return Offered([], 0.0, 0, 0.0, counts) if counts else None


def _not_forwarded(_message: Forward, counts: Counts | None) -> Forwarded:
    return Forwarded(b"", "", counts)


def _with_task(owned: Owned, found: list[SegmentRead], sequence: int) -> SegmentRead | None:
    for one in found:
        within = one.segment.first <= sequence <= one.segment.last
        if (
            within
            and sequence not in one.marks
            and owned.partition.store_replies.is_in(one.segment, sequence)
        ):
            return one
    return None


@contextmanager
def looking_up(owned: Owned) -> Iterator[None]:
    """While the store is asked for a task, what became of it meanwhile is remembered."""
    later = owned.partition.later
    lookup = later.lookup_begins()
    try:
        yield
    finally:
        later.lookup_ends(lookup)


def task_damaged(sequence: int, what: str) -> TaskDamaged:
    """The task, or its result, cannot be read."""
    return TaskDamaged(
        f"Task {sequence} cannot be told about. {what} is damaged and was set aside.",
        remedy="An operator can look at it with `maitred admin queue damaged`.",
    )
