"""Drops waiting tasks, delayed tasks and dead letters for operators (PURGE).

A request works for about a second, in pieces of a thousand tasks: after each piece the shard serves
other requests and the writer commits, so neither waits for longer than a piece takes. The operator
asks again until everything is done; a purge that is interrupted has dropped what it has told.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.errors import InvalidArgument
from maitred.matching.records import PRIORITIES, RowDamagedError, decode_records
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import Purged, PurgeTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.matching.records import Dead
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.security.audit_log import AuditLog

PIECE: Final = 1_000
"""Tasks that are dropped before other requests are served: some ten milliseconds."""

PIECE_BYTES: Final = 4 * 2**20
"""Bytes of rows that are read for a piece."""

WORK_SECONDS: Final = 1.0
"""How long one request works. Each is a record in the audit log, and a step of the progress."""

WAIT_SECONDS: Final = 0.002
"""Interval at which a purge looks whether the partition has read its next tasks."""

COUNTED_MAX: Final = 1_000_000
"""Delayed tasks that are counted exactly: the store goes through their rows."""


class PurgeRequests:
    """Serves PURGE for the partitions of one shard."""

    def __init__(self, partitions: Partitions, audit: AuditLog | None) -> None:
        self._partitions = partitions
        self._audit = audit
        self._loop = partitions.loop
        self._store = partitions.store
        self.requests = RequestTable(
            holders={Opcode.PURGE: partitions.answerer(self._purge)},
        )

    async def _purge(self, owned: Owned, message: PurgeTasks) -> Purged:
        if message.state == "delayed" and message.older_than:
            raise InvalidArgument("Delayed tasks are purged whatever their age.")
        answer = Purged(0, is_complete=False, until=message.until, cursor=message.cursor)
        if not answer.until:
            answer.until = owned.partition.read_level
        work = self._counting(message) if message.dry_run else self._dropping(message)
        end = self._loop.time() + WORK_SECONDS
        try:
            while not answer.is_complete and self._loop.time() < end:
                await work(owned, message, answer)
                self._partitions.check(owned)
                await asyncio.sleep(0)
        finally:
            if answer.tasks and not message.dry_run:
                self._tell(owned, message, answer.tasks)
        return answer

    def _dropping(self, message: PurgeTasks) -> Work:
        works: dict[str, Work] = {
            "waiting": self._drop_waiting,
            "delayed": self._drop_delayed,
            "dead": self._drop_dead,
        }
        return works[message.state]

    def _counting(self, message: PurgeTasks) -> Work:
        if message.state == "dead":
            return self._count_dead
        return self._count_old if message.older_than else self._count

    # Dropping

    async def _drop_waiting(self, owned: Owned, message: PurgeTasks, answer: Purged) -> None:
        purge, until, age = owned.partition.purge, answer.until, message.older_than
        if purge.must_wait:
            await asyncio.sleep(WAIT_SECONDS)
            return
        async with self._partitions.written(owned) as ticket:
            dropped = purge.drop_waiting(PIECE, until, age, ticket, self._loop.time())
        answer.tasks += dropped
        if not dropped and not purge.must_wait:
            answer.is_complete = purge.is_over(until, age, self._loop.time())

    async def _drop_delayed(self, owned: Owned, _message: PurgeTasks, answer: Purged) -> None:
        purge = owned.partition.purge
        if purge.must_wait:
            await asyncio.sleep(WAIT_SECONDS)
            return
        # Rows are skipped whose tasks are in memory: no more than those, whatever the caller says.
        skipped = min(answer.cursor[1], len(owned.partition.own_tasks.tasks))
        size = PIECE_BYTES * (1 + skipped // PIECE)
        with purge.reading():
            rows = await self._store.later(owned.key, float("inf"), PIECE + skipped, size)
            self._partitions.check(owned)
            async with self._partitions.written(owned) as ticket:
                dropped = purge.drop_delayed(rows, PIECE, ticket, self._loop.time())
        answer.tasks += dropped
        if dropped:
            return
        stored = await self._store.later_count(owned.key, len(rows) + 1)
        answer.is_complete = stored <= len(rows)
        # These are due, and keep their rows until they end: read further.
        answer.cursor = 0, skipped + PIECE

    async def _drop_dead(self, owned: Owned, message: PurgeTasks, answer: Purged) -> None:
        letters = await self._store.dead(owned.key, answer.cursor[1], PIECE, PIECE_BYTES)
        self._partitions.check(owned)
        async with self._partitions.written(owned) as ticket:
            answer.tasks += owned.partition.purge.drop_dead(
                letters, message.older_than, ticket, self._loop.time()
            )
        self._go_on(answer, letters)

    # Counting

    async def _count(self, owned: Owned, message: PurgeTasks, answer: Purged) -> None:
        stored = await self._store.later_count(owned.key, COUNTED_MAX)
        partition = owned.partition
        delayed = partition.purge.delayed(stored)
        is_delayed = message.state == "delayed"
        answer.tasks = delayed if is_delayed else max(partition.waiting - delayed, 0)
        answer.is_complete = True

    async def _count_old(self, owned: Owned, message: PurgeTasks, answer: Purged) -> None:
        priority, after = answer.cursor
        if priority >= PRIORITIES:  # no answer had this cursor
            answer.is_complete = True
            return
        found = await self._store.segments(owned.key, priority, after, PIECE, PIECE_BYTES)
        before = self._partitions.wall_clock() - message.older_than
        purge, backlog = owned.partition.purge, owned.partition.backlog
        for segment, marks in found:
            first = segment.first
            is_unread = backlog.unread(priority, first)
            try:
                records = decode_records(segment)
            except RowDamagedError:
                continue
            answer.tasks += sum(
                record.sequence not in marks
                and record.sequence <= answer.until
                and purge.counts(record, before=before, is_unread=is_unread)
                for record in records
            )
        if found:
            answer.cursor = priority, found[-1].segment.first
        else:
            answer.cursor = priority + 1, 0
            answer.is_complete = priority + 1 == PRIORITIES

    async def _count_dead(self, owned: Owned, message: PurgeTasks, answer: Purged) -> None:
        letters = await self._store.dead(owned.key, answer.cursor[1], PIECE, PIECE_BYTES)
        before = self._partitions.wall_clock() - message.older_than
        age = message.older_than
        answer.tasks += sum(not age or one.died_at <= before for one in letters)
        self._go_on(answer, letters)

    def _go_on(self, answer: Purged, letters: list[Dead]) -> None:
        size = sum(len(one.body) for one in letters)
        answer.is_complete = len(letters) < PIECE and size < PIECE_BYTES
        if letters:
            answer.cursor = 0, letters[-1].sequence

    # The record

    def _tell(self, owned: Owned, message: PurgeTasks, tasks: int) -> None:
        """Record how many tasks were dropped, in the log and in the audit log."""
        namespace, queue, _, partition = owned.key
        details = {
            "partition": partition,
            "tasks": tasks,
            "older_than": message.older_than,
            "reason": message.reason,
        }
        self._partitions.shard.log.info(
            "queue purged",
            namespace=namespace,
            queue=queue,
            state=message.state,
            user=message.user,
            **details,
        )
        if self._audit is not None:
            self._audit.record(
                f"purge {message.state}",
                user=message.user,
                source=message.source,
                target=f"{namespace}/{queue}",
                details=details,
            )


if TYPE_CHECKING:
    Work = Callable[[Owned, PurgeTasks, Purged], Awaitable[None]]
