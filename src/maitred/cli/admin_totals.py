"""A queue with its partitions as they were asked, and the sums over them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from maitred.cli.admin_ask import with_suggestion
from maitred.client.answers import ROOT, Answers, described, each
from maitred.errors import UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import PartitionDescription
    from maitred.routing.names import QueueId

_SUMMED = (
    *("backlog", "running", "later", "dead", "offers", "added_per_second", "finished_per_second"),
    *("unproven", "not_kept", "damaged_rows", "damaged_tasks"),
)
"""Totals that are the sums of a partition's fields of the same name."""


class QueueTotals(NamedTuple):
    """The sums over the partitions that answered."""

    backlog: int = 0
    oldest_seconds: float = 0.0
    """The longest that a task has waited, in any partition."""
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
    """In the store, dead letters included, of all partitions, as the root reports it."""
    stored_bytes: int = 0
    stored_tasks_quota: int | None = None
    stored_bytes_quota: int | None = None
    damaged_rows: int = 0
    """Rows that cannot be read and were set aside."""
    damaged_tasks: int = 0
    unreachable: int = 0
    """Partitions that did not answer, and are missing from these sums."""


class SeenWorker(NamedTuple):
    """A worker, with its tasks at all partitions that know it."""

    worker: str
    running: int
    heard_seconds_ago: float | None


class DescribedQueue(NamedTuple):
    """A queue, its root, and the partitions that were asked: all to read, or the root alone."""

    id: QueueId
    root: PartitionDescription
    partitions: Answers[int, PartitionDescription]
    addresses: Mapping[str, str] = MappingProxyType({})
    """The addresses of the nodes that the client knows, by their identities."""

    def totals(self) -> QueueTotals:
        answered = list(self.partitions.found.values())
        sums = {name: sum(getattr(one, name) for one in answered) for name in _SUMMED}
        stored = self.root.queue_stored
        return QueueTotals(
            **sums,
            oldest_seconds=max(one.backlog_age_seconds for one in answered),
            workers=len(self.workers()),
            stored_tasks=stored.tasks,
            stored_bytes=stored.bytes,
            stored_tasks_quota=stored.most_tasks,
            stored_bytes_quota=stored.most_bytes,
            unreachable=len(self.partitions.silent),
        )

    def workers(self) -> list[SeenWorker]:
        """Each worker once, the busiest first; a partition has details of some of its workers."""
        seen: dict[str, SeenWorker] = {}
        for one in self.partitions.found.values():
            for name in one.workers:
                seen.setdefault(name, SeenWorker(name, 0, None))
            for name, running, ago in one.worker_details:
                _, before, heard = seen.get(name, SeenWorker(name, 0, None))
                latest = ago if heard is None else min(ago, heard)
                seen[name] = SeenWorker(name, before + running, latest)
        return sorted(seen.values(), key=lambda worker: (-worker.running, worker.worker))


async def describe_root(client: AsyncClient, queue: QueueId) -> DescribedQueue:
    """Ask the root alone, which has to answer because it knows the partition counts."""
    try:
        root = await described(client, queue, ROOT)
    except UnknownQueue as problem:
        raise await with_suggestion(client, queue, problem) from None
    return DescribedQueue(queue, root, Answers({ROOT: root}, {}), _addresses(client))


async def describe_all(client: AsyncClient, queue: QueueId) -> DescribedQueue:
    """Ask the root, then all other partitions."""
    begun = await describe_root(client, queue)
    others = await each(range(1, begun.root.counts.read), lambda at: described(client, queue, at))
    found = begun.partitions.found | others.found
    await client.members_known()  # the names of the nodes come with the view
    return begun._replace(partitions=Answers(found, others.silent), addresses=_addresses(client))


def _addresses(client: AsyncClient) -> dict[str, str]:
    return {one.node: one.address for one in client.nodes() if one.node is not None}
