"""Quotas of stored tasks and bytes: of a queue, of a namespace, and of the disk that all share.

The store keeps the sums of every queue, loaded or not, and each shard reads them once a second.
Between two reads, a shard adds what it writes and what it has taken in and not written yet. So
after a restart the sums are right with the first read, and no request waits for another shard. A
quota can be exceeded by at most what the *other* shards take in between two reads. Room that
becomes free is seen with the next read.

A new task is checked with a few comparisons of integers. Between reads the estimate only grows:
tasks that end before they are written are not subtracted. Before a task is refused, the estimate is
therefore computed again from what the partitions really hold.

Only new tasks are refused. Retries and dead letters of acknowledged tasks are written in any case,
and count. Tasks for which a worker waits are admitted too, since most of them are never written;
but beyond `OVERDRAFT` these are refused as well, or a producer with a worker of its own could fill
the disk with tasks that fail at once. For the same reason a result that would exceed the overdraft
stays in memory only, and a failure is cut.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import StorageQuotaExceeded, StoreFull
from maitred.matching.records import StoredUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maitred.errors import MaitredError
    from maitred.matching.ledger import Ledger
    from maitred.matching.records import PartitionKey
    from maitred.settings import Namespace, Queue

LOOK_SECONDS: Final = 1.0
"""How often a shard reads the sums of the store."""

OVERDRAFT: Final = 0.1
"""Share of a quota by which it may be exceeded by tasks for which a worker waits, results and
failures."""

OVERDRAFT_LEAST: Final = StoredUse(1_000, 16 * 2**20)
"""The least overdraft, for small quotas."""

SPARE: Final = 0.5
"""Share of a quota, and of the room on the disk, up to which histories of tasks that are over are
stored: the rest is for tasks."""

RECOUNT_SECONDS: Final = 0.01
"""The least time between two recounts of a quota, so that a flood of refused tasks stays cheap."""

NOTHING: Final = StoredUse()


class Quota:
    """The quota of one queue, one namespace or the disk, and what this shard knows of its use."""

    __slots__ = (
        "_begun",
        "_ledgers",
        "_mark",
        "_recounted_at",
        "_refusal",
        "_written",
        "bytes",
        "hard_bytes",
        "hard_tasks",
        "most_bytes",
        "most_tasks",
        "refused",
        "stored",
        "tasks",
    )

    def __init__(
        self,
        most_tasks: float,
        most_bytes: float,
        stored: StoredUse,
        refusal: Callable[[Quota], MaitredError],
    ) -> None:
        self._refusal = refusal
        self.most_tasks = self.hard_tasks = self.most_bytes = self.hard_bytes = inf
        self.limit(
            most_tasks,
            most_bytes,
            most_tasks + max(most_tasks * OVERDRAFT, OVERDRAFT_LEAST.tasks),
            most_bytes + max(most_bytes * OVERDRAFT, OVERDRAFT_LEAST.bytes),
        )
        self.stored = stored
        """What the store held at the last read."""
        self.tasks, self.bytes = stored
        """The present estimate; never less than what this shard has stored itself."""
        self.refused = 0
        """Tasks that were refused."""
        self._written = NOTHING
        """What this shard has written since its start; of tasks, less those that were deleted."""
        self._begun = NOTHING
        """`_written` when the present read began."""
        self._mark = NOTHING
        """`_written` when the last read began: `stored` includes all of that."""
        self._ledgers: set[Ledger] = set()
        """Ledgers of all partitions of this shard that the quota counts."""
        self._recounted_at = -inf

    def limit(
        self, most_tasks: float, most_bytes: float, hard_tasks: float, hard_bytes: float
    ) -> None:
        """Set the limits, and the hard limits that apply to tasks for which a worker waits."""
        self.most_tasks, self.most_bytes = most_tasks, most_bytes
        self.hard_tasks, self.hard_bytes = hard_tasks, hard_bytes

    # Partitions

    def join(self, ledger: Ledger) -> None:
        """Count what the partition of this ledger has not written yet."""
        self._ledgers.add(ledger)

    def leave(self, ledger: Ledger) -> None:
        """Stop counting a partition that is let go."""
        self._ledgers.discard(ledger)

    @property
    def deserted(self) -> bool:
        """Whether the quota counts no partition of this shard."""
        return not self._ledgers

    def wrote(self, written: StoredUse) -> None:
        """Add what a partition has written."""
        self._written = self._written.plus(written)

    # New tasks

    def refusal(self, tasks: int, size: int, now: float, *, at_once: bool) -> MaitredError | None:
        """Return why so many tasks with so many bytes are refused, or None if they are not.

        `at_once` says that workers wait for all of them.
        """
        self._recount_if_due(now)
        most_tasks, most_bytes = (
            (self.hard_tasks, self.hard_bytes) if at_once else (self.most_tasks, self.most_bytes)
        )
        if self.tasks + tasks <= most_tasks and self.bytes + size <= most_bytes:
            return None
        self.refused += tasks
        return self._refusal(self)

    def has_room(self, size: int, now: float) -> bool:
        """Return whether a result or a failure of so many bytes may be stored."""
        if self.bytes + size <= self.hard_bytes:
            return True
        self._recount_if_due(now)
        return self.bytes + size <= self.hard_bytes

    def has_spare(self, size: int, now: float) -> bool:
        """Return whether so many bytes that no task needs may be stored."""
        if self.bytes + size <= self.most_bytes * SPARE:
            return True
        self._recount_if_due(now)
        return self.bytes + size <= self.most_bytes * SPARE

    def _recount_if_due(self, now: float) -> None:
        if now - self._recounted_at >= RECOUNT_SECONDS:
            self._recounted_at = now
            self.recount()

    # Looks

    def look_begins(self) -> None:
        """Note that a read begins; what is written from now on may or may not be in its answer."""
        self._begun = self._written

    def look_ended(self, stored: StoredUse) -> None:
        """Take over the sums of the store."""
        self.stored = stored
        self._mark = self._begun
        self.recount()

    def recount(self) -> None:
        """Compute the estimate: what the store held, was written since, and is to be written."""
        tasks = self.stored.tasks + self._written.tasks - self._mark.tasks
        size = self.stored.bytes + self._written.bytes - self._mark.bytes
        for ledger in self._ledgers:
            unwritten = ledger.unwritten()
            tasks += unwritten.tasks
            size += unwritten.bytes
        # A read may not include rows that were deleted by a commit which is counted already.
        self.tasks, self.bytes = max(0, tasks), max(0, size)


class Quotas:
    """All quotas of one shard."""

    def __init__(self, namespaces: Mapping[str, Namespace], free_disk_bytes: int) -> None:
        self._namespace_settings = namespaces
        self._free_disk_bytes = free_disk_bytes
        self._queues: dict[tuple[str, str], Quota] = {}
        self._namespaces: dict[str, Quota] = {}
        self._disk = Quota(inf, inf, NOTHING, self._disk_full)
        """Unlimited until the store says how much room the disk has."""
        self._stored: Mapping[tuple[str, str], StoredUse] = {}
        self._stored_namespaces: dict[str, StoredUse] = {}

    def of(self, key: PartitionKey, settings: Queue) -> tuple[Quota, ...]:
        """Return the quotas that count a partition, without those that have no limit."""
        name = key.namespace, key.queue
        found = [self._disk]
        if settings.stored_tasks is not None or settings.stored_bytes is not None:
            if name not in self._queues:
                self._queues[name] = Quota(
                    *_most(settings.stored_tasks, settings.stored_bytes),
                    self._stored.get(name, NOTHING),
                    _exceeded(f"Queue {key.namespace}/{key.queue}", "queues"),
                )
            found.append(self._queues[name])
        limits = self.namespace_settings(key.namespace)
        if limits.stored_tasks is not None or limits.stored_bytes is not None:
            if key.namespace not in self._namespaces:
                self._namespaces[key.namespace] = Quota(
                    *_most(limits.stored_tasks, limits.stored_bytes),
                    self._stored_namespaces.get(key.namespace, NOTHING),
                    _exceeded(f"Namespace {key.namespace}", "namespaces"),
                )
            found.append(self._namespaces[key.namespace])
        return tuple(found)

    def namespace_settings(self, namespace: str) -> Namespace:
        """Return the settings of `namespace`, else of `*`, else the defaults."""
        from maitred.settings import Namespace as Defaults

        found = self._namespace_settings
        return found.get(namespace) or found.get("*") or Defaults()

    def queue_use(self, namespace: str, queue: str) -> StoredUse:
        """Return what a queue held in the store at the last read."""
        return self._stored.get((namespace, queue), NOTHING)

    def namespace_use(self, namespace: str) -> StoredUse:
        """Return what a namespace held in the store at the last read."""
        return self._stored_namespaces.get(namespace, NOTHING)

    def look_begins(self) -> None:
        """Note that a read of all sums begins."""
        for quota in self._all():
            quota.look_begins()

    def look_ended(
        self, queues: Mapping[tuple[str, str], StoredUse], free_bytes: int | None
    ) -> None:
        """Take over what each queue holds, and the free bytes of the disk, if the store knows."""
        self._stored = queues
        self._stored_namespaces = {}
        for (namespace, _), use in queues.items():
            before = self._stored_namespaces.get(namespace, NOTHING)
            self._stored_namespaces[namespace] = before.plus(use)
        self._queues = {name: one for name, one in self._queues.items() if not one.deserted}
        self._namespaces = {name: one for name, one in self._namespaces.items() if not one.deserted}
        for name, quota in self._queues.items():
            quota.look_ended(queues.get(name, NOTHING))
        for namespace, quota in self._namespaces.items():
            quota.look_ended(self._stored_namespaces.get(namespace, NOTHING))
        least = self._free_disk_bytes
        room = free_bytes - least if free_bytes is not None and least else inf
        self._disk.limit(inf, max(0, room), inf, max(0, room + least / 2))
        self._disk.look_ended(NOTHING)

    def _all(self) -> list[Quota]:
        return [self._disk, *self._queues.values(), *self._namespaces.values()]

    def _disk_full(self, _quota: Quota) -> MaitredError:
        return StoreFull(
            f"The disk of the store has less than {size_text(self._free_disk_bytes)} left. Nothing "
            "was done.",
            remedy="Make room on the disk, or lower limits.free_disk_bytes; the node takes tasks "
            "again by itself.",
        )


def _most(tasks: int | None, size: int | None) -> tuple[float, float]:
    return inf if tasks is None else tasks, inf if size is None else size


def _exceeded(what: str, group: str) -> Callable[[Quota], MaitredError]:
    def problem(quota: Quota) -> MaitredError:
        return StorageQuotaExceeded(
            f"{what} holds {quota.tasks:,} tasks and {size_text(quota.bytes)}, with dead letters "
            f"and results; its quota is {_quota_text(quota)}. Nothing was done.",
            remedy="Have workers finish tasks, drop dead letters, keep results for a shorter time, "
            f"or raise stored_tasks or stored_bytes of it in the node's setting {group}.",
            retry_after=LOOK_SECONDS,
        )

    return problem


def _quota_text(quota: Quota) -> str:
    parts = []
    if quota.most_tasks < inf:
        parts.append(f"{quota.most_tasks:,} tasks")
    if quota.most_bytes < inf:
        parts.append(size_text(quota.most_bytes))
    return " and ".join(parts)


def size_text(size: float) -> str:
    """Format a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
