"""The metrics of one shard, gathered for the supervisor, which serves them.

A shard with ten thousand queues gathers them in portions, so that no request waits for all of them.
"""

from __future__ import annotations

import asyncio
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from maitred.metrics import families
from maitred.metrics.busiest import REST
from maitred.metrics.exposition import Samples
from maitred.metrics.histogram import WORK_BOUNDS
from maitred.monitor.loop_lag import LoopLag
from maitred.monitor.process_vitals import add_vitals
from maitred.node.queue_gauges import QueueGauges, free_slots

if TYPE_CHECKING:
    from maitred.matching.queue_meters import QueueCounts, QueueName
    from maitred.metrics.exposition import Family, Lines
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.shard import Shard
    from maitred.settings import Monitor
    from maitred.telemetry.tracing import Tracing

PORTION: Final = 256
"""Partitions, and queues, that are looked at in one turn of the loop: a millisecond or two."""


class ShardMetrics:
    """Gathers the metrics of one shard."""

    def __init__(
        self,
        shard: Shard,
        partitions: Partitions,
        settings: Monitor,
        tracing: Tracing | None = None,
    ) -> None:
        self._shard = shard
        self._tracing = tracing
        self._partitions = partitions
        self._settings = settings
        self._lag = LoopLag(shard.loop)
        self._measuring = asyncio.Lock()

    def stop(self) -> None:
        """Stop measuring the loop."""
        self._lag.stop()

    async def measure(self) -> Lines:
        """Return the samples of this shard."""
        async with self._measuring:
            samples = Samples()
            add_vitals(samples, f"shard-{self._shard.number}", self._lag, self._tracing)
            labelled = Samples(shard=self._shard.number)
            self._add_shard(labelled)
            self._add_store(labelled)
            gauges, top = await self._look_at_partitions()
            await self._add_queues(labelled, gauges)
            self._add_partitions(labelled, top)
            return samples.lines | labelled.lines

    def _add_shard(self, samples: Samples) -> None:
        shard = self._shard
        samples.add(families.PARTITIONS, len(self._partitions.owned))
        samples.add(families.CONNECTIONS, shard.client_connections)
        samples.add(families.IN_FLIGHT, shard.in_flight)
        samples.add(families.REQUESTS, shard.requests)
        samples.add(families.FORWARDED, shard.forwarded)
        samples.add(families.SHARED_SLOTS, self._partitions.supplies.free)
        for code, count in sorted(shard.errors.items()):
            samples.add(families.ERRORS, count, code=code)
        for outcome, count in sorted(shard.authenticator.outcomes.items()):
            samples.add(families.LOGINS, count, outcome=outcome)

    def _add_store(self, samples: Samples) -> None:
        writer = self._partitions.writer
        samples.add(families.STORE_FAILING, int(writer.is_failing))
        samples.add(families.COMMITS, writer.commits, outcome="done")
        samples.add(families.COMMITS, writer.failed_commits, outcome="failed")
        samples.histogram(families.COMMIT_SECONDS, writer.commit_seconds)
        samples.histogram(families.COMMIT_ROWS, writer.commit_rows)
        samples.add(families.HISTORY_TASKS, writer.history_tasks, outcome="stored")
        lost = self._partitions.histories.memory.lost
        samples.add(families.HISTORY_TASKS, lost, outcome="lost")
        for kind in ("rows", "tasks"):
            samples.add(families.DAMAGED, self._shard.damaged[kind], kind=kind)

    async def _look_at_partitions(
        self,
    ) -> tuple[dict[QueueName, QueueGauges], list[tuple[float, Owned]]]:
        """Return what each loaded queue has, and the partitions that have most."""
        gauges: dict[QueueName, QueueGauges] = {}
        loop, most = self._shard.loop, self._settings.partitions
        top: list[tuple[float, Owned]] = []
        owned = list(self._partitions.owned.values())
        for start in range(0, len(owned), PORTION):
            now = loop.time()
            for one in owned[start : start + PORTION]:
                queue = (one.key.namespace, one.key.queue)
                gauge = gauges.get(queue)
                if gauge is None:
                    gauge = gauges[queue] = QueueGauges()
                top.append((gauge.add(one, now), one))
            top = nlargest(most, top, key=_first)
            await asyncio.sleep(0)
        return gauges, top

    async def _add_queues(self, samples: Samples, gauges: dict[QueueName, QueueGauges]) -> None:
        meters = self._partitions.meters
        for name, gauge in gauges.items():
            gauge.decide(meters.of(name).service_seconds)
        present = {name: float(one.backlog + one.running) for name, one in gauges.items()}
        named = meters.choose(present, self._settings.queues)
        rest = QueueGauges()
        nothing = QueueGauges()
        names = meters.names()
        for start in range(0, len(names), PORTION):
            for name in names[start : start + PORTION]:
                counts = meters.look(name)
                gauge = gauges.get(name, nothing)
                if counts is None:
                    rest.include(gauge)
                else:
                    _add_queue(samples, name, counts, gauge)
            await asyncio.sleep(0)
        _add_queue(samples, (REST, REST), meters.rest(), rest)
        samples.add(families.QUEUES_NAMED, len(named))
        samples.add(families.QUEUES_SUMMED, max(0, len(names) - len(named)))

    def _add_partitions(self, samples: Samples, top: list[tuple[float, Owned]]) -> None:
        now = self._shard.loop.time()
        for _, owned in top:
            partition = owned.partition
            for family, value in (
                (families.PARTITION_BACKLOG, partition.waiting),
                (families.PARTITION_OLDEST, round(partition.backlog_age(now), 3)),
                (families.PARTITION_RUNNING, len(partition.own_tasks.leases)),
                (families.PARTITION_SLOTS_FREE, free_slots(owned)),
                (
                    families.PARTITION_ADDED,
                    round(partition.intake.added.per_second(now), 3),
                ),
                (
                    families.PARTITION_FINISHED,
                    round(partition.own_tasks.finished.per_second(now), 3),
                ),
            ):
                key = owned.key
                samples.add(
                    family,
                    value,
                    namespace=key.namespace,
                    queue=key.queue,
                    partition=key.partition,
                )


def _first(pair: tuple[float, Owned]) -> float:
    return pair[0]


def _add_queue(samples: Samples, name: QueueName, counts: QueueCounts, gauge: QueueGauges) -> None:
    namespace, queue = name

    def add(family: Family, value: float, **more: str) -> None:
        samples.add(family, value, namespace=namespace, queue=queue, **more)

    add(families.BACKLOG, gauge.backlog)
    add(families.DELAYED, gauge.delayed)
    add(families.OLDEST, round(gauge.oldest, 3))
    add(families.RUNNING, gauge.running)
    add(families.SLOTS_FREE, gauge.free)
    add(families.QUERIES_WAITING, gauge.queries)
    add(families.SLOTS_WANTED, round(gauge.wanted, 6))
    counters = {one: int(value) for one, value in counts.counters.items()}
    add(families.ADDED, counters["added"])
    for status, count in counts.ends.items():
        add(families.ENDED, int(count), status=status)
    for cause in ("failed", "timed_out", "lost"):
        add(families.ATTEMPTS_FAILED, counters[cause], cause=cause.replace("_", "-"))
    add(families.RETRIES, counters["retried"])
    add(families.DEAD_LETTERS, counters["dead"])
    add(families.RETURNED, counters["returned"])
    add(families.FORWARDS, counters["forwarded_tasks"], what="task")
    add(families.FORWARDS, counters["forwarded_offers"], what="offer")
    add(families.OFFERS, counters["offers"])
    add(families.ALLOCATED, counters["allocated"])
    for family, buckets, seconds in (
        (families.WAIT_SECONDS, counts.wait_counts, counts.wait_seconds),
        (families.RUN_SECONDS, counts.run_counts, counts.run_seconds),
    ):
        samples.buckets(
            family, WORK_BOUNDS, map(int, buckets), seconds, namespace=namespace, queue=queue
        )
