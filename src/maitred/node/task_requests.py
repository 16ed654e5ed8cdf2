"""Serves the requests of producers, workers and child partitions about tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError, PayloadTooLarge, StorageQuotaExceeded, StoreFull
from maitred.matching.attempt_proofs import holder_of
from maitred.matching.records import Terms
from maitred.matching.slots import WaitingOffer
from maitred.matching.task import READY, QueueTask
from maitred.matching.tree_forwarding import VISIT_SECONDS
from maitred.node.partitions import ANSWER_EARLY_SECONDS
from maitred.node.request_table import RequestTable, name_producer, name_worker
from maitred.node.waiting_requests import Makes
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import (
    Add,
    Added,
    Await,
    Finish,
    Finished,
    Forward,
    Forwarded,
    Heartbeat,
    Offer,
    Offered,
    Revoke,
)
from maitred.routing.names import check_shown_name

if TYPE_CHECKING:
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.request_origin import RequestOrigin
    from maitred.protocol.tasks import Counts

CARRIED_BYTES: Final = 2**16
"""Results of an ADD that its answer carries at most, together; if they are larger, it carries none.
A producer that does not ask for results does not pay for large ones; AWAIT fetches them."""


class TaskRequests:
    """Passes requests about tasks on to the partition, which answers with effects."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
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
                Opcode.ADD: name_producer,
            },
        )

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
                held.answer(Added(first, newer(owned, message.version), _carried(results)))

        results: list[bytes | None] = []
        try:
            first = partition.intake.add(
                message.payloads,
                token=settle,
                now=self._loop.time(),
                priority=message.priority,
                terms=message.terms,
                delay=message.delay,
                expires=message.expires,
                results=results,
                by=message.origin,
                traces=message.traces,
            )
        except (StorageQuotaExceeded, StoreFull) as problem:
            self._partitions.stored.refused(owned.key, len(message.payloads), problem)
            raise

    def _await(self, owned: Owned, message: Await, held: DeferredReply) -> None:
        partition, sequence = owned.partition, message.sequence
        held.on_stop = lambda: partition.results.wait_no_more(sequence, held)
        if not partition.results.wait_for(sequence, held, self._loop.time()):
            partition.stored_tasks.wait_for(sequence, held)

    def _revoke(self, owned: Owned, message: Revoke, held: DeferredReply) -> None:
        owned.partition.stored_tasks.revoke(message.sequence, held, self._loop.time())

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
                held.answer(Finished(late, refused, follows or None))

        ends = [(end.sequence, end.attempt, end.how, end.body, end.proof) for end in message.ends]
        now, stored_tasks = self._loop.time(), owned.partition.stored_tasks
        refused, late, follows = stored_tasks.finish(ends, settle, now, holder)

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
        task = QueueTask(
            message.sequence,
            message.priority,
            terms,
            message.payload,
            since,
            READY,
            ready=since,
            attempt=message.attempt,
            expires=now + message.expires if message.expires else 0.0,
            origin=message.origin,
            visit=(held, message.version),
            trace=message.trace,
        )

        def recalled() -> None:
            partition.tree.visit_recalled(task)
            self._partitions.touch(owned)

        held.on_recall = recalled
        held.on_stop = lambda: partition.tree.visit_no_more(task)
        partition.tree.visit(task, now + VISIT_SECONDS, now)


def _admit_offer(message: Offer, connection: RequestOrigin) -> None:
    message.hops = 0
    name_worker(message, connection)


def _carried(results: list[bytes | None]) -> list[bytes | None] | None:
    """Return the results that the answer to ADD carries: all that there are, or none."""
    if not results or sum([len(result) for result in results if result]) > CARRIED_BYTES:
        return None
    return results


# Answers for a partition that does not exist. A caller that uses the counts of a queue that was
# deleted, or of partitions that were removed, is told the present counts.


def _not_added(_message: Add, counts: Counts | None) -> Added | None:
    return Added(-1, counts) if counts else None


def _offer_makes(message: Offer) -> Makes:
    """Return what an offer creates. One that a child passes on creates no queue: the child's queue
    exists."""
    return Makes.PARTITIONS if message.hops else Makes.QUEUES


def _nothing_offered(_message: Offer, counts: Counts | None) -> Offered | None:
    return Offered([], 0.0, 0, 0.0, counts) if counts else None


def _not_forwarded(_message: Forward, counts: Counts | None) -> Forwarded:
    return Forwarded(b"", "", counts)
