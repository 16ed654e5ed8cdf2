"""Real shards, gateways and workers: every query has exactly one answer, whatever disconnects.

Each seed draws one of several kinds of trouble, since each kind has another promise to keep:

`calm`       nothing goes wrong, but callers leave, workers are drained, partitions come and go
`order`      one worker with one slot, one partition: first come, first served, at two gateways
`gateways`   gateways die, or their connections are cut
`workers`    workers die, are cut off, or hang
`shards`     shards die, or the node comes back with another number of them
`relayed`    the workers have no address, so the node relays; callers may leave
`storm`      all of this, and the network's faults
`counted`    the calm, and the queue without rows has a limit to what is under way
`recounted`  the same limit, while workers, gateways and shards die, are cut off, or hang

In half of the runs of some of them gateways pick the workers themselves: then queries may
also be refused because no worker has room.

In all of them: each query gets exactly one answer, at its deadline at the latest; no worker runs
more queries than it has slots; only a query that is marked idempotent runs twice; and a query for
which no caller waits is stopped. Once it is calm, every slot is free, and every gateway gets
answers.

The cost of a run is mostly the number of its events. So a stream sends its rows in a few portions,
and gateways ask less, and nothing long, once it is calm: what matters there is that they are
answered at all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from maitred.settings import Forwarding, Limits, Node, QuerySettings, Queue, Scaling
from maitred.simulation.errors import Violation
from maitred.simulation.scenarios.chaos import now_and_then
from maitred.simulation.scenarios.queries_people import (
    NAMESPACE,
    QUOTES,
    GatewayHost,
    QueryWorkerHost,
)
from maitred.simulation.scenarios.queries_record import QueryPromise, QueryRecord
from maitred.simulation.scenarios.record import STAYED_BEHIND, until_nothing
from maitred.simulation.scenarios.simulated_node import SimulatedNode
from maitred.simulation.store import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from maitred.simulation.world import World

STORM_SECONDS: Final = 7.0
GAPS_SECONDS: Final = (0.25, 0.5, 1.5)
"""Mean times between two troubles, one of them for a run. A trouble meets what is under way at
that moment; queries in between two troubles find nothing."""
SETTLING_SECONDS: Final = 6.0
"""From the last trouble on: links that went silent are noticed (after 4 s at the latest), and
queries that were asked before have ended."""
RECOVERY_SECONDS: Final = 60.0
"""After the last query: every slot comes back, and nothing stays behind."""
UNHEARD_SECONDS: Final = 5.0
"""After some trouble: a worker that lives has found its shard again, and that the one that counts,
and has said what it runs. What was let in until then may run besides."""
ANSWERED_SECONDS: Final = 4.0
"""Within this time of calm, once it has settled, every gateway has an answer."""
SHARDS_MAX: Final = 3
DENSITY: Final = 2.0
"""Cuts and half-open links are this many times as probable as drawn: the storm is short."""
NODE_AWAY: Final = ("unavailable", "node-unreachable")
"""Codes that callers are told while the node, or a shard of it, cannot be reached."""
PAST_SECONDS: Final = 300.0
"""The longest that any query takes, and some more."""


@dataclass(frozen=True, slots=True)
class QueryRunKind:
    """Which faults a run of the scenario has."""

    workers: int = 2
    slots: int = 3
    plain: bool = False
    relayed: bool = False
    gateways_die: bool = False
    workers_die: bool = False
    shards_die: bool = False
    network_fails: bool = False
    picks: bool = False
    """Whether gateways may pick the workers themselves."""
    limit: int | None = None
    """The most queries in progress in the queue without rows; None means no limit."""

    def promise(self, policy: str = "idle") -> QueryPromise:
        """Return what this kind of run guarantees."""
        outcomes = set()
        if policy != "idle" or self.limit is not None:
            outcomes |= {"overloaded"}
        if self.gateways_die:  # and their connections to workers are cut
            outcomes |= {"worker-lost", "connection-lost", *NODE_AWAY}
        if not self.plain:  # all workers may be drained at the same time, or run out of time
            outcomes |= {"no-worker", "worker-lost"}
        if self.workers_die or self.network_fails:
            outcomes |= {"worker-lost", "connection-lost", *NODE_AWAY}
        if self.shards_die or self.network_fails:
            outcomes |= {"connection-lost", "draining", "not-owner", "unknown-queue", *NODE_AWAY}
            outcomes |= {"worker-lost", "no-worker", "cut-off", "store-unavailable"}
        if self.relayed:
            outcomes |= {"worker-lost"}
        silent = self.network_fails or self.workers_die or self.gateways_die
        return QueryPromise(
            in_order=self.plain,
            order_slack_seconds=0.05,
            overtakers=4,
            stop_seconds=20.0 if silent else 3.0,  # until a peer notices the silence
            outcomes=frozenset(outcomes),
            limit=self.limit,
            unheard_seconds=UNHEARD_SECONDS,
        )


KINDS: Final[dict[str, QueryRunKind]] = {
    "calm": QueryRunKind(picks=True),
    "order": QueryRunKind(workers=1, slots=1, plain=True),
    "gateways": QueryRunKind(gateways_die=True, picks=True),
    "workers": QueryRunKind(workers_die=True, picks=True),
    "shards": QueryRunKind(shards_die=True, picks=True),
    "relayed": QueryRunKind(relayed=True),
    "storm": QueryRunKind(
        gateways_die=True, workers_die=True, shards_die=True, network_fails=True, picks=True
    ),
    "counted": QueryRunKind(limit=2, picks=True),
    "recounted": QueryRunKind(limit=2, gateways_die=True, workers_die=True, shards_die=True),
}

POLICIES: Final = ("idle", "idle", "adaptive", "two-phase")


class QueriesRun:
    """One run of the scenario of queries."""

    def __init__(self, world: World, kind: QueryRunKind, policy: str | None = None) -> None:
        self.world = world
        self.kind = kind
        self._random = random = world.random("queries")
        if policy is None:
            policy = world.random("policy").choice(POLICIES) if kind.picks else "idle"
        self.policy = policy
        self.record = QueryRecord(kind.promise(policy))
        if kind.network_fails:
            world.network.faults = world.network.faults.denser(DENSITY)
        else:
            world.calm()
        self.node = SimulatedNode(
            world.host("node"),
            node_settings(random, kind, policy),
            self.record.log(),
            shards=random.randint(1, SHARDS_MAX),
            random=random,
            disk=SimulatedDisk(world.random("disk")),
        )
        node, record = self.node.host, self.record
        self.workers = [
            QueryWorkerHost(world.host(f"worker-{number}"), node, record, slots=kind.slots)
            for number in range(kind.workers)
        ]
        self.gateways = [
            GatewayHost(
                world.host(f"gateway-{number}"),
                node,
                record,
                plain=kind.plain,
                hurries=policy != "idle",
            )
            for number in range(2)
        ]

    async def run(self) -> None:
        """Run the scenario from the start to the last check."""
        kind, random = self.kind, self._random
        self.node.start()
        for worker in self.workers:
            worker.listens = not kind.relayed and (not kind.network_fails or random.random() < 0.8)
            if kind.workers_die:
                worker.cut_seconds = random.choice((None, 1.0))
            worker.start()
        await asyncio.sleep(1.0)  # the workers serve the queues, so they exist
        for gateway in self.gateways:
            if kind.gateways_die:
                gateway.cut_seconds = random.choice((None, 0.5))
            gateway.start()
        await self._rage()
        self.world.calm()
        for one in (*self.workers, *self.gateways):
            one.cut_seconds = None
        for gateway in self.gateways:
            gateway.calm_down()
        await asyncio.sleep(SETTLING_SECONDS)
        self.record.served.clear()
        await asyncio.sleep(ANSWERED_SECONDS)
        self.record.check()
        for gateway in self.gateways:
            if not any(name.startswith(gateway.host.name) for name in self.record.served):
                raise Violation(
                    f"It has been calm for a while, and {gateway.host.name} gets no answer."
                )
        async with asyncio.timeout(PAST_SECONDS + RECOVERY_SECONDS):
            for gateway in self.gateways:
                await gateway.ended()
        taken = "No caller asks any more, and slots are taken"
        await until_nothing(self._busy, taken, RECOVERY_SECONDS, every=0.5)
        self._check_stories()
        for worker in self.workers:
            await worker.ended()
        self.record.check()
        await until_nothing(self._held, STAYED_BEHIND, RECOVERY_SECONDS)
        self.node.check_errors()

    # Trouble

    async def _rage(self) -> None:
        random, kind = self._random, self.kind
        actions: list[Callable[[], Awaitable[None]]] = [self._nothing]
        if not kind.plain:
            actions += [self._drain_worker]
        if kind.shards_die:
            actions += [self._kill_shard, self._kill_shard, self._restart]
        if kind.workers_die:
            actions += [self._kill_worker, self._kill_worker, self._hang_worker]
        if kind.gateways_die:
            actions += [self._kill_gateway]

        async def act() -> None:
            self.record.check()
            action = random.choice(actions)
            if action in (self._nothing, self._drain_worker):
                await action()
                return
            self.record.troubled_at = inf  # as long as it lasts
            await action()
            self.record.troubled_at = asyncio.get_running_loop().time()

        await now_and_then(random, random.choice(GAPS_SECONDS), STORM_SECONDS, act)

    async def _nothing(self) -> None:
        """Cause no trouble this time."""

    async def _drain_worker(self) -> None:
        self._random.choice(self.workers).stop()

    async def _kill_worker(self) -> None:
        worker = self._random.choice(self.workers)
        if self._random.random() < 0.5 or not self.kind.network_fails:
            worker.kill()
        else:
            worker.host.crash()

    async def _hang_worker(self) -> None:
        """Cut a worker off from node and gateways for a while; its connections stay open."""
        worker = self._random.choice(self.workers)
        others = [self.node.host, *(gateway.host for gateway in self.gateways)]
        for other in others:
            self.world.network.partition(other, worker.host)
        await asyncio.sleep(self._random.random() * 6.0)
        self.world.network.heal()

    async def _kill_gateway(self) -> None:
        gateway = self._random.choice(self.gateways)
        if self._random.random() < 0.5 or not self.kind.network_fails:
            gateway.kill()
        else:
            gateway.host.crash()

    async def _kill_shard(self) -> None:
        self.node.kill_one(self._random)

    async def _restart(self) -> None:
        random = self._random
        await self.node.restart(random.randint(1, SHARDS_MAX), orderly=random.random() < 0.5)

    # The end

    def _busy(self) -> list[tuple[str, int]]:
        return [
            (one.host.name, one.worker.statistics.busy)
            for one in self.workers
            if one.worker is not None and one.worker.statistics.busy
        ]

    def _check_stories(self) -> None:
        self.record.check()
        for story in self.record.stories:
            if story.outcome is None and story.cancelled_at is None:
                raise self.record.violation(story, "was never answered")
            if any(run.ended_at is None for run in story.runs):
                raise self.record.violation(story, "runs for ever")
        if not self.record.told["done"]:
            raise Violation("Nothing was ever answered.")

    def _held(self) -> list[object]:
        left = self.node.held_by_shards()
        for partitions in self.node.partitions():
            permits = partitions.permits.statistics()
            if any(permits.values()):
                left.append(("permits", permits))
            for owned in partitions.owned.values():
                partition = owned.partition
                held = (
                    partition.offers.slots,
                    partition.tree.offers_away,
                    partition.allocator.lines.slots,
                    len(owned.asked),
                )
                if any(held):
                    left.append((owned.key.partition, held))
        return left


def node_settings(random: Random, kind: QueryRunKind, policy: str = "idle") -> Node:
    """Draw the settings of the node."""
    partitions = 1 if kind.plain else random.choice((1, 1, 2, 5))
    queue = Queue(
        partitions=partitions,
        offer_seconds=5.0,
        queries=QuerySettings(
            no_worker_seconds=random.choice((0.5, 5.0)),
            reservation_seconds=2.0,
            waiting=10_000,
            policy=cast("Any", policy),
        ),
        forwarding=Forwarding(children=random.choice((1, 2, 20))),
        scaling=Scaling(adaptive=False),
    )
    queues = {"*": queue}
    if kind.limit is not None:
        limited = replace(queue.queries, concurrent=kind.limit)
        queues[f"{NAMESPACE}/{QUOTES}"] = replace(queue, queries=limited)
    return Node(
        queues=queues,
        limits=Limits(handshake_seconds=4.0, frame_seconds=6.0, idle_seconds=8.0),
        drain_seconds=2.0,
    )


async def queries_of(kind: str, world: World, policy: str | None = None) -> None:
    """Run the scenario with that kind of trouble and that policy; None draws a policy."""
    await QueriesRun(world, KINDS[kind], policy).run()


async def queries(world: World) -> None:
    """Run the scenario of queries with a random kind of trouble."""
    drawn = world.random("kind").choice([*KINDS, "storm", "storm"])
    await queries_of(drawn, world)
