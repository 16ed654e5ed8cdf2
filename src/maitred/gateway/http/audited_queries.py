"""Records queries over HTTP in the audit log, as `audit.queries` says.

With `text`, a record has the arguments of a query only if the handlers of its queue have announced
that they hide none; otherwise it has a hash of them, as with `hash`. So the root of the queue is
asked first, once for all queries of the queue that arrive within `GATHER_SECONDS`. The answer is
newer than all of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from maitred.gateway.admin.query_views import announced_signatures
from maitred.protocol.private_data import may_hide
from maitred.security.audit_records import TEXT_LETTERS, query_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from maitred.gateway.gateway import Gateway
    from maitred.security.audit_log import AuditLog

GATHER_SECONDS: Final = 0.1
"""How long queries of a queue are gathered before its root is asked what its handlers hide."""

WAITING_MAX: Final = 1_000
"""Most queries whose texts wait for an answer, each of at most `TEXT_LETTERS`. The others are
recorded at once, with the hash."""


class _Record(NamedTuple):
    """What the audit log is to tell of a query."""

    at: float
    user: str
    source: object
    target: str
    payload: bytes | None
    """The arguments, if they are short: then what is told of them is made when it is known
    whether that is the text or the hash."""
    text: dict[str, str]
    digest: dict[str, str]

    def fields(self, *, hides: bool) -> dict[str, str]:
        """Return what is told of the arguments, which may have hidden ones or not."""
        if self.payload is not None:
            return query_fields("hash" if hides else "text", self.payload)
        return self.digest if hides else self.text


class _Batch:
    """Queries of one queue that are recorded together."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: list[_Record] = []


class AuditedQueries:
    """Records the queries of one listener."""

    def __init__(
        self,
        audit: AuditLog,
        gateway: Gateway,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`spawn` runs a coroutine as a task until it ends or the listener closes."""
        self._audit = audit
        self._gateway = gateway
        self._spawn = spawn
        self._gathering: dict[tuple[str, str], _Batch] = {}
        """By namespace and queue: the batch that the next query of the queue joins."""
        self._waiting: set[_Batch] = set()
        """All batches that are not recorded yet."""
        self._waiting_queries = 0

    def tell(
        self, namespace: str, queue: str, payload: bytes, *, user: str, source: object
    ) -> None:
        """Record a query that has just arrived, now or when its handlers are known."""
        is_text = self._audit.queries == "text" and self._waiting_queries < WAITING_MAX
        is_short = is_text and len(payload) <= TEXT_LETTERS
        record = _Record(
            at=self._gateway.surroundings.wall_clock(),
            user=user,
            source=source,
            target=f"{namespace}/{queue}",
            payload=payload if is_short else None,
            text=query_fields("text", payload) if is_text and not is_short else {},
            digest={} if is_short else query_fields("hash", payload),
        )
        if not is_text:
            self._record(record, hides=True)
            return
        batch = self._gathering.get((namespace, queue))
        if batch is None:
            batch = self._gathering[namespace, queue] = _Batch()
            self._waiting.add(batch)
            self._spawn(self._record_later(namespace, queue, batch))
        batch.records.append(record)
        self._waiting_queries += 1

    def close(self) -> None:
        """Record the queries that wait, with hashes: no answer comes any more."""
        for batch in list(self._waiting):
            self._record_all(batch, hides=True)

    async def _record_later(self, namespace: str, queue: str, batch: _Batch) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        del self._gathering[namespace, queue]
        hides = True
        try:
            hides = may_hide(await announced_signatures(self._gateway, namespace, queue))
        except Exception:
            # A defect must not cost the records, nor the room that they take while they wait.
            self._gateway.log.exception(
                "signatures not read; queries are recorded with hashes",
                namespace=namespace,
                queue=queue,
            )
        self._record_all(batch, hides=hides)

    def _record_all(self, batch: _Batch, *, hides: bool) -> None:
        self._waiting.remove(batch)
        self._waiting_queries -= len(batch.records)
        for one in batch.records:
            self._record(one, hides=hides)

    def _record(self, record: _Record, *, hides: bool) -> None:
        self._audit.record(
            "query",
            user=record.user,
            source=record.source,
            target=record.target,
            kind="query",
            details=record.fields(hides=hides),
            at=record.at,
        )
