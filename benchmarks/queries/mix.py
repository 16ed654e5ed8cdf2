"""Short and long queries on the same slots: what the paper is about.

95 % of the queries take 1 ms and 5 % take 2 s, on 8 slots of which 70 % are taken. Whoever sends a
query to a worker that is not free makes it wait behind a long one, although others may be free.
Three ways to hand them out, with the same arrivals at the same time, each with eight worker
processes of one slot:

- ours: one queue, a query goes to a worker that is free or waits for the first that is;
- round robin: eight queues with one worker each, the client takes them in turn;
- least active: likewise, the client takes the one in which it has the fewest queries.

So all of them pay for the same road, and only the choice differs. Arrivals are Poisson and do not
wait for answers; a query's time is from when it was due. Beside it is what a world without any
costs would have given with the very same arrivals (`ideal`).
"""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Result
from benchmarks.queries.asking import Client, percentile
from benchmarks.queries.asking import run as run_client
from benchmarks.queries.queues import ANY, NAPS, SLOTS
from benchmarks.queries.running import BIN, Figures, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.tasks.processes import Command

OURS = "maitred"
TURN = "round robin"
LEAST = "least active"
SHORT = 0.001
LONG = 2.0
LONG_SHARE = 0.05
LOAD = 0.7
SECONDS = 75.0
QUICK_SECONDS = 10.0
SEED = 7
TIMEOUT = 120
"""Of a query; a rival's short ones may wait for many seconds."""

CURVE = "short ones: which share is answered within so many ms"
SHARES = [*(n / 100 for n in range(90)), *(n / 1000 for n in range(900, 1000)), 0.9999]

Arrivals = list[tuple[float, float]]
"""When it comes, and how long it takes."""


def arrivals(seconds: float, seed: int = SEED) -> Arrivals:
    chance = random.Random(seed)
    rate = LOAD * SLOTS / ((1 - LONG_SHARE) * SHORT + LONG_SHARE * LONG)
    found: Arrivals = []
    at = chance.expovariate(rate)
    while at < seconds:
        found.append((at, LONG if chance.random() < LONG_SHARE else SHORT))
        at += chance.expovariate(rate)
    return found


# What a world without costs would give


def ideal(due: Arrivals, policy: str) -> list[float]:
    """How long each query takes, from its arrival to its end."""
    free_at = [0.0] * SLOTS
    ends: list[list[float]] = [[] for _ in range(SLOTS)]
    took = []
    for number, (at, service) in enumerate(due):
        if policy == OURS:
            slot = min(range(SLOTS), key=free_at.__getitem__)
        elif policy == TURN:
            slot = number % SLOTS
        else:
            for each in ends:
                while each and each[0] <= at:
                    heapq.heappop(each)
            slot = min(range(SLOTS), key=lambda n: (len(ends[n]), (n - number) % SLOTS))
        end = max(at, free_at[slot]) + service
        free_at[slot] = end
        heapq.heappush(ends[slot], end)
        took.append(end - at)
    return took


# The client


class Mixing(Client):
    """`python -m benchmarks.queries.mix client ADDRESS`."""

    async def open(self, address: str) -> None:
        import maitred
        from benchmarks.queries.peers.maitred import ready

        self._clients = {}
        for policy in (OURS, TURN, LEAST):
            self._clients[policy] = await maitred.connect(f"maitred://{address}")
        for queue in NAPS:
            await ready(self._clients[OURS], queue, 0.0)
        for policy, client in self._clients.items():
            queues = {OURS: [ANY] * SLOTS}.get(policy, [_queue(policy, n) for n in range(SLOTS)])
            await asyncio.gather(*[client.query(queue, 0.01) for queue in queues])

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        due = arrivals(order["seconds"], order["seed"])
        came = await asyncio.gather(*[self._policy(policy, due) for policy in self._clients])
        return dict(zip(self._clients, came, strict=True))

    async def _policy(self, policy: str, due: Arrivals) -> list[float]:
        client = self._clients[policy]
        active = [0] * SLOTS
        took = [0.0] * len(due)
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def ask(number: int, at: float, service: float) -> None:
            if policy == TURN:
                slot = number % SLOTS
            else:
                slot = min(range(SLOTS), key=lambda n: (active[n], (n - number) % SLOTS))
            active[slot] += 1
            queue = ANY if policy == OURS else _queue(policy, slot)
            await client.query(queue, service, timeout=TIMEOUT)
            active[slot] -= 1
            took[number] = loop.time() - started - at

        asked = []
        for number, (at, service) in enumerate(due):
            wait = started + at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            asked.append(asyncio.ensure_future(ask(number, at, service)))
        await asyncio.gather(*asked)
        return took

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


def _queue(policy: str, slot: int) -> str:
    return f"{'turn' if policy == TURN else 'least'}-{slot}"


# The driver


def measure(run: Run) -> None:
    section = run.section
    seconds = QUICK_SECONDS if run.quick else SECONDS
    node = run.node()
    queues = [ANY] * SLOTS + [_queue(policy, n) for policy in (TURN, LEAST) for n in range(SLOTS)]
    command: Command = [BIN / "python", "-m", "benchmarks.queries.pool"]
    run.start("pool", [*command, f"maitred://{node.address}", *queues])
    client = run.client("benchmarks.queries.mix", BIN, node.address)
    due = arrivals(seconds)
    print(f"  {len(due):,} queries in {seconds:g} s, each policy has the same", flush=True)
    took: dict[str, list[float]] = client.tell(within=seconds + TIMEOUT, seconds=seconds, seed=SEED)
    for policy, real in took.items():
        section.medians[policy] = _figures(due, real)
        section.medians[f"{policy}, ideal"] = _figures(due, ideal(due, policy))
    curves = {policy: _short(due, real) for policy, real in took.items()}
    curves |= {f"{policy}, ideal": _short(due, ideal(due, policy)) for policy in took}
    section.rounds[CURVE] = [
        {"share": share} | {of: percentile(short, share) * 1e3 for of, short in curves.items()}
        for share in SHARES
    ]
    ours = section.medians[OURS]["p99 ms"]
    for rival in (TURN, LEAST):
        theirs = section.medians[rival]["p99 ms"]
        section.results.append(
            Result(
                f"1 ms queries among 2 s ones, 70 % load, {rival}'s p99, times ours",
                theirs / ours,
                1,
                at_least=True,
                ours=f"ours {ours:,.0f} ms",
                peer=f"{rival} {theirs:,.0f} ms",
            )
        )


def _short(due: Arrivals, took: Sequence[float]) -> list[float]:
    return sorted(t for (_, service), t in zip(due, took, strict=True) if service == SHORT)


def _figures(due: Arrivals, took: Sequence[float]) -> Figures:
    short = _short(due, took)
    long = sorted(t for (_, service), t in zip(due, took, strict=True) if service == LONG)
    return {
        "short queries": float(len(short)),
        "p50 ms": percentile(short, 0.5) * 1e3,
        "p90 ms": percentile(short, 0.9) * 1e3,
        "p99 ms": percentile(short, 0.99) * 1e3,
        "longest ms": short[-1] * 1e3,
        "waited share": sum(t > 10 * SHORT for t in short) / len(short),
        "long p99 ms": percentile(long, 0.99) * 1e3,
    }


if __name__ == "__main__":
    run_client(Mixing())
