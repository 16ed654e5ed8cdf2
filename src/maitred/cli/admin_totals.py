"""A whole queue, summed up from its partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from maitred.cli.admin_ask import Silent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.protocol.tasks import PartitionDescription


class QueueTotals(NamedTuple):
    """What can be added up, of the partitions that answered."""

    backlog: int = 0
    oldest_seconds: float = 0.0
    """The longest that anything has waited, in any partition."""
    running: int = 0
    later: int = 0
    dead: int = 0
    offers: int = 0
    added_per_second: float = 0.0
    finished_per_second: float = 0.0
    workers: int = 0
    unproven: int = 0
    not_kept: int = 0
    """Results kept in memory only, and failures that were cut, since a quota had no room."""
    stored_tasks: int = 0
    """In the store, dead letters included, of all partitions, whoever answered."""
    stored_bytes: int = 0
    stored_tasks_quota: int | None = None
    stored_bytes_quota: int | None = None
    damaged_rows: int = 0
    """Rows that cannot be read and were set aside."""
    damaged_tasks: int = 0
    unreachable: int = 0
    """Partitions that are missing from all this."""


class SeenWorker(NamedTuple):
    """A worker, whatever partitions it was seen at."""

    worker: str
    running: int
    heard_seconds_ago: float | None


def totals(found: Iterable[PartitionDescription | Silent]) -> QueueTotals:
    """Add them up."""
    answered, silent = [], 0
    for one in found:
        if isinstance(one, Silent):
            silent += 1
        else:
            answered.append(one)
    stored = answered[0].queue_stored if answered else None
    return QueueTotals(
        backlog=sum(one.backlog for one in answered),
        oldest_seconds=max((one.backlog_age_seconds for one in answered), default=0.0),
        running=sum(one.running for one in answered),
        later=sum(one.later for one in answered),
        dead=sum(one.dead for one in answered),
        offers=sum(one.offers for one in answered),
        added_per_second=sum(one.added_per_second for one in answered),
        finished_per_second=sum(one.finished_per_second for one in answered),
        workers=len(workers(answered)),
        unproven=sum(one.unproven for one in answered),
        not_kept=sum(one.not_kept for one in answered),
        stored_tasks=stored.tasks if stored else 0,
        stored_bytes=stored.bytes if stored else 0,
        stored_tasks_quota=stored.most_tasks if stored else None,
        stored_bytes_quota=stored.most_bytes if stored else None,
        damaged_rows=sum(one.damaged_rows for one in answered),
        damaged_tasks=sum(one.damaged_tasks for one in answered),
        unreachable=silent,
    )


def workers(found: Iterable[PartitionDescription | Silent]) -> list[SeenWorker]:
    """Each once, the busiest first. Not all of them need to have details."""
    seen: dict[str, SeenWorker] = {}
    for one in found:
        if isinstance(one, Silent):
            continue
        for name in one.workers:
            seen.setdefault(name, SeenWorker(name, 0, None))
        for name, running, ago in one.worker_details:
            before = seen.get(name, SeenWorker(name, 0, None))
            heard = ago if before.heard_seconds_ago is None else min(ago, before.heard_seconds_ago)
            seen[name] = SeenWorker(name, before.running + running, heard)
    return sorted(seen.values(), key=lambda worker: (-worker.running, worker.worker))
