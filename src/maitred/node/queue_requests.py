"""The requests of operators and roots about queues: description, partition counts, dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maitred.matching.attempt_proofs import session_of
from maitred.matching.records import RowDamagedError, decode_record
from maitred.node.partitions import check_root
from maitred.node.request_table import RequestTable
from maitred.node.task_privacy import ShownValue, TaskArguments
from maitred.node.waiting_requests import Makes
from maitred.protocol.frames import Opcode
from maitred.protocol.private_data import public_failure
from maitred.protocol.tasks import (
    ControlQueue,
    Counts,
    DeadLetter,
    DeadLetters,
    DeadLettersFound,
    Describe,
    EffectiveSetting,
    PartitionDescription,
    QueueControlled,
    QueuesFound,
    Resize,
    Resized,
    Sync,
    Synced,
)
from maitred.routing.counts import PartitionCounts
from maitred.settings import Queue
from maitred.settings.live import SETTABLE, choices, setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.matching.partition import Partition
    from maitred.matching.records import Dead, Record
    from maitred.node.caretaker import Caretaker
    from maitred.node.deferred_reply import DeferredReply
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.signature_requests import SignatureRequests
    from maitred.node.task_privacy import HandlerKnowledge
    from maitred.protocol.tasks import Queues

LETTER_BYTES: Final = 4 * 2**20
"""Bytes of dead letters that a list reads at once."""


class QueueRequests:
    """Serves the requests about queues: describe, list, resize, dead letters."""

    def __init__(
        self, partitions: Partitions, caretaker: Caretaker, signatures: SignatureRequests
    ) -> None:
        self._partitions = partitions
        self._signatures = signatures
        self._caretaker = caretaker
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._store = partitions.store
        self.requests = RequestTable(
            handlers={Opcode.QUEUES: self._queues},
            holders={
                Opcode.DESCRIBE: partitions.answerer(self._describe),
                Opcode.DEAD: partitions.answerer(self._dead),
                Opcode.SYNC: partitions.holder(self._sync, makes=_sync_makes),
                Opcode.RESIZE: partitions.answerer(self._resize, makes=Makes.QUEUES),
                Opcode.CONTROL: partitions.answerer(self._control),
            },
        )

    async def _queues(self, message: Queues) -> QueuesFound:
        within = None if message.within is None else frozenset(message.within)
        found = {
            key[:3]: None
            for key in await self._store.partitions()
            if within is None or key.namespace in within
        }
        namespaces = {namespace for namespace, _, _ in found}
        quotas = {one: self._partitions.loader.quota(one) for one in namespaces}
        return QueuesFound(list(found), quotas)

    async def _describe(self, owned: Owned, _message: Describe) -> PartitionDescription:
        description = self._description(owned, await self._store.dead_count(owned.key))
        description.damaged_rows, description.damaged_tasks = await self._store.damaged_count(
            owned.key
        )
        namespace = owned.key.namespace
        if not owned.key.partition:
            description.namespace_queues = await self._store.queue_count(namespace)
            description.namespace_queues_max = self._partitions.loader.quota(namespace)
            await self._signatures.complete(owned)
            description.served_seconds_ago = owned.partition.served_seconds_ago(self._loop.time())
        return description

    def _description(self, owned: Owned, dead: int) -> PartitionDescription:
        partition = owned.partition
        now = self._loop.time()
        running: dict[bytes, int] = {}
        for task in partition.own_tasks.leases.values():
            session = session_of(task.holder)
            running[session] = running.get(session, 0) + 1
        workers = {
            session: (name, running.get(session, 0), round(now - heard, 1))
            for session, (name, heard) in partition.workers_here().items()
        }
        counts, settings = partition.counts, _effective(partition)
        return PartitionDescription(
            partition=owned.key.partition,
            node=self._shard.description.node,
            shard=self._shard.number,
            state=partition.state_name,
            counts=Counts(counts.read, counts.write, counts.version),
            range_id=partition.ledger.range_id,
            read_level=partition.read_level,
            ack_level=partition.ack_level,
            backlog=partition.waiting,
            backlog_age_seconds=round(partition.backlog_age(now), 3),
            running=len(partition.own_tasks.leases),
            later=len(partition.later),
            dead=dead,
            # One that came from another partition waits there, too, and is counted there.
            # Shared slots are counted at each partition that can draw them.
            offers=partition.offers.free
            - sum(one.slots for one in partition.offers.waiting() if one.hops),
            workers=sorted({name for name, _, _ in workers.values()}),
            added=partition.intake.added.total,
            added_per_second=round(partition.intake.added.per_second(now), 3),
            finished=partition.own_tasks.finished.total,
            finished_per_second=round(partition.own_tasks.finished.per_second(now), 3),
            failed=partition.attempts.failed,
            lost=partition.attempts.lost,
            matched_at_once=partition.intake.matched_at_once,
            never_written=partition.own_tasks.never_written,
            forwarded_tasks=partition.tree.passed_tasks,
            forwarded_offers=partition.tree.passed_offers,
            wait_p50_seconds=partition.waits.quantile(0.5),
            wait_p99_seconds=partition.waits.quantile(0.99),
            rate_limit_per_second=partition.settings.rate_per_second,
            parent=partition.parent,
            worker_details=list(workers.values()),
            queries_waiting=partition.allocator.lines.total,
            allocated=partition.allocator.allocated.total,
            allocated_per_second=round(partition.allocator.allocated.per_second(now), 3),
            unproven=partition.attempts.unproven,
            not_kept=partition.results.not_kept,
            queue_stored=self._partitions.stored.queue_amount(owned.key, partition.settings),
            namespace_stored=self._partitions.stored.namespace_amount(owned.key),
            service_seconds=round(partition.meter.service_seconds, 6),
            controls=partition.controls,
            settings={name: one for name, one in settings.items() if not one.choices},
            word_settings={name: one for name, one in settings.items() if one.choices},
        )

    def _sync(self, owned: Owned, message: Sync, held: DeferredReply) -> None:
        partition = owned.partition
        counts = message.counts
        if counts.version > partition.counts.version:
            newer = PartitionCounts(counts.read, counts.write, counts.version)
            partition.set_counts(newer, self._loop.time())
        if owned.key.partition:
            owned.told_at = self._loop.time()
            self._partitions.learn_controls(owned, message.controls)
        elif message.controls is not None:
            self._caretaker.controls.take_over_later(owned, message.controls)
        held.answer(
            Synced(
                partition.counts.version,
                partition.drained,
                partition.intake.added.per_second(self._loop.time()),
                partition.waiting,
                self._partitions.newer(owned, counts.version),
                self._partitions.newer_controls(owned, message.controls),
            )
        )

    async def _resize(self, owned: Owned, message: Resize) -> Resized:
        check_root(owned)
        counts = await self._caretaker.change(
            owned, message.read, message.write, force=message.force
        )
        return Resized(Counts(counts.read, counts.write, counts.version))

    async def _control(self, owned: Owned, message: ControlQueue) -> QueueControlled:
        check_root(owned)
        return await self._caretaker.controls.control(owned, message)

    # Dead letters

    async def _dead(self, owned: Owned, message: DeadLetters) -> DeadLettersFound:
        handlers = None
        found: list[Dead] = []
        letters: list[DeadLetter] = []
        if message.action == "list":
            count = await self._list_letters(owned, message, letters)
        else:
            if message.action == "show":
                read = [await self._store.dead_one(owned.key, one) for one in message.sequences]
                found = [one for one in read if one is not None]
                handlers = await self._signatures.handlers(owned)
            else:
                found = await self.act_on_letters(owned, message.action, message.sequences)
            count = len(found)
            self._add_letters(owned, found, letters, handlers=handlers, reveal=message.reveal)
        total = await self._store.dead_count(owned.key)
        return DeadLettersFound(letters, total - (count - len(letters)))

    async def _list_letters(
        self, owned: Owned, message: DeadLetters, letters: list[DeadLetter]
    ) -> int:
        """Add the next letters; return how many were read. Their payloads are not answered, so that
        few of them are in memory at a time."""
        after = message.sequences[0] if message.sequences else 0
        count = 0
        while count < message.most:
            left = message.most - count
            found = await self._store.dead(owned.key, after, left, LETTER_BYTES)
            if not found:
                break
            count += len(found)
            after = found[-1].sequence
            self._add_letters(owned, found, letters, handlers=None, reveal=message.reveal)
        return count

    def _add_letters(
        self,
        owned: Owned,
        found: Sequence[Dead],
        letters: list[DeadLetter],
        *,
        handlers: HandlerKnowledge | None,
        reveal: bool,
    ) -> None:
        """Add the letters that can be read, and set the others aside."""
        for one in found:
            try:
                letters.append(letter(owned.key.partition, one, handlers=handlers, reveal=reveal))
            except RowDamagedError as problem:
                self._partitions.check(owned)
                owned.partition.damaged_rows.set_aside_dead(one, str(problem), self._loop.time())
                self._partitions.touch(owned)

    async def act_on_letters(self, owned: Owned, action: str, sequences: list[int]) -> list[Dead]:
        """Retry or drop dead letters, each as soon as it was read: another operator may act on the
        same ones."""
        partition = owned.partition
        found = []
        async with self._partitions.written(owned) as ticket:
            for sequence in sequences:
                one = await self._store.dead_one(owned.key, sequence)
                self._partitions.check(owned)
                if one is None:
                    continue
                now = self._loop.time()
                if action == "retry":
                    try:
                        partition.store_replies.retry_dead(one, ticket, now)
                    except RowDamagedError as problem:
                        partition.damaged_rows.set_aside_dead(one, str(problem), now)
                        continue
                else:
                    partition.ledger.forget_dead(one.sequence, ticket, now)
                self._partitions.touch(owned)
                found.append(one)
        return found


def _sync_makes(message: Sync) -> Makes:
    """Return what SYNC creates: a root names its partitions, and a partition whose caller may make
    queues names its root."""
    return Makes.QUEUES if message.makes or message.partition else Makes.NOTHING


def _effective(partition: Partition) -> dict[str, EffectiveSetting]:
    """Return the settings that can be set live, and where each value comes from."""
    found = {}
    controls = partition.controls.live
    for name in SETTABLE:
        live = controls.get(name)
        value, words = setting(partition.configured, name), choices(name)
        if live is not None:
            found[name] = EffectiveSetting(
                live.value, "live", live.by, live.at, live.reason, choices=words
            )
        elif value == setting(_DEFAULTS, name):
            found[name] = EffectiveSetting(value, "default", choices=words)
        else:
            found[name] = EffectiveSetting(value, "settings", choices=words)
    return found


_DEFAULTS: Final = Queue()


def letter(
    partition: int, dead: Dead, *, handlers: HandlerKnowledge | None, reveal: bool
) -> DeadLetter:
    """Return a dead letter as operators get it; raise `RowDamagedError`. Without `handlers` it has
    no payload."""
    record = decode_record(dead.body, dead.sequence)
    shown = ShownValue(b"")
    if handlers is not None:
        shown = _payload(record, handlers) if reveal else ShownValue(None, "permission")
    return DeadLetter(
        partition=partition,
        sequence=dead.sequence,
        died_at=dead.died_at,
        reason=dead.reason,
        attempts=record.attempt,
        added_at=record.added_at,
        failure=record.failure if reveal else public_failure(record.failure),
        payload=shown.body or b"",
        payload_bytes=len(record.payload),
        withheld=shown.withheld,
    )


def _payload(record: Record, handlers: HandlerKnowledge) -> ShownValue:
    """Return the payload as it is if nothing of it can be hidden."""
    arguments = TaskArguments(record.payload, record.terms.hidden, handlers)
    return arguments.shown() if arguments.hides else ShownValue(record.payload)
