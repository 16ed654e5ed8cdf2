"""Operators' requests about rows that were set aside as damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maitred.errors import InvalidArgument
from maitred.matching.records import RowDamagedError
from maitred.node.request_table import RequestTable
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import DamagedRow, DamagedRows, DamagedRowsFound

if TYPE_CHECKING:
    from maitred.matching.records import Damaged
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions


class DamagedRequests:
    """Lists, shows, brings back and drops the damaged rows of a partition."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._loop = partitions.loop
        self._store = partitions.store
        self.requests = RequestTable(holders={Opcode.DAMAGED: partitions.answerer(self._damaged)})

    async def _damaged(self, owned: Owned, message: DamagedRows) -> DamagedRowsFound:
        if message.body and (message.action != "retry" or len(message.rows) != 1):
            raise InvalidArgument("A mended body is for the retry of one row.")
        if message.action == "list":
            kind, first = message.rows[0] if message.rows else ("", -1)
            rows = await self._store.damaged(owned.key, (first, kind), message.most)
        elif message.action == "show":
            read = [await self._store.damaged_one(owned.key, *one) for one in message.rows]
            rows = [one for one in read if one is not None]
        else:
            rows = await self._act(owned, message)
        total, tasks = await self._store.damaged_count(owned.key)
        if not message.reveal:
            rows = [row._replace(body=b"") for row in rows]
        found = [_for_people(owned.key.partition, row) for row in rows]
        return DamagedRowsFound(found, total, tasks)

    async def _act(self, owned: Owned, message: DamagedRows) -> list[Damaged]:
        """Retry or drop the rows; return them with the reason why one still cannot be read."""
        partition = owned.partition
        found = []
        async with self._partitions.written(owned) as ticket:
            for kind, first in message.rows:
                row = await self._store.damaged_one(owned.key, kind, first)
                self._partitions.check(owned)
                if row is None or partition.ledger.is_damaged_going(kind, first):
                    continue
                now = self._loop.time()
                tasks = row.tasks
                reason = ""
                if message.action == "retry":
                    mended = row._replace(body=message.body or row.body)
                    try:
                        tasks = partition.damaged_rows.bring_back(
                            mended, ticket, now, trusting=message.ignore_checksum
                        )
                    except RowDamagedError as problem:
                        reason = str(problem)
                else:
                    partition.damaged_rows.drop_damaged(kind, first, ticket, now)
                found.append(row._replace(body=b"", tasks=tasks, reason=reason))
                self._partitions.touch(owned)
        return found


def _for_people(partition: int, row: Damaged) -> DamagedRow:
    return DamagedRow(
        partition=partition,
        kind=row.kind,
        first=row.first,
        last=row.last,
        tasks=row.tasks,
        noticed_at=row.noticed_at,
        reason=row.reason,
        body_bytes=row.size,
        body=row.body,
    )
