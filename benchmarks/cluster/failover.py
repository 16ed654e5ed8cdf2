"""Three nodes on a PostgreSQL that fails over: `python -m benchmarks.cluster failover`.

The primary of a PostgreSQL with Patroni and two standbys is killed, frozen, cut off and switched
over under load. A probe commits to the other servers all the time, which shows when the new primary
accepts writes; the figure is how much later a node acknowledges a task of a queue that no worker
serves, which it can do only with a commit of its own. In the end every acknowledged task has run.

Frozen and cut off servers are replaced after Patroni's shortest `ttl`, 20 s.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import asyncpg
from tests.cluster.network import DATABASE, network, remove_leftovers
from tests.cluster.rig import Rig
from tests.node.nodes import wait_until

from benchmarks.cluster.patroni import Patroni
from benchmarks.cluster.stage import SETTINGS
from benchmarks.cluster.timeline import quantile
from benchmarks.measuring import Result
from benchmarks.tasks.processes import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cluster.patroni import PatroniServer

SERVED, UNSERVED = 6, 3
"""Queues with a worker, and without one until the end."""
RATE = 60.0
GOAL_SECONDS = 1.0
SETTLE_SECONDS = 3.0
FAILED_OVER_SECONDS = 90.0
DONE_SECONDS = 180.0

KINDS = ("killed", "switched over", "frozen", "cut off")


class Probe:
    """Commits to some servers, again and again, until one of them accepts it."""

    def __init__(self, servers: Sequence[PatroniServer]) -> None:
        self._servers = servers
        self.accepted: float | None = None
        """When the first commit returned."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        tries = [asyncio.create_task(self._try(server)) for server in self._servers]
        await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
        for one in tries:
            one.cancel()

    async def _try(self, server: PatroniServer) -> None:
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                connection = await asyncpg.connect(server.nearby, timeout=1)
                try:
                    await connection.execute("CREATE TABLE IF NOT EXISTS probe (n int)", timeout=2)
                    await connection.execute("INSERT INTO probe VALUES (1)", timeout=2)
                    self.accepted = time.monotonic()
                    return
                finally:
                    connection.terminate()
            await asyncio.sleep(0.02)


class Failover:
    """One rig on one Patroni."""

    def __init__(self, rig: Rig, patroni: Patroni) -> None:
        self._rig = rig
        self._patroni = patroni
        self._faults = 0
        self.late: dict[str, list[float]] = {}
        """Seconds from the new primary's first commit to the first acknowledged task, by kind."""

    def run(self, kind: str) -> None:
        """One failover."""
        rig, patroni = self._rig, self._patroni
        patroni.wait_until_whole()
        primary = patroni.primary()
        assert primary is not None
        rig.nearby = primary.nearby
        rig.wait_for_members(len(rig.nodes))
        time.sleep(SETTLE_SECONDS)
        members = rig.members()
        victims = [node.address for node in rig.nodes]
        rig.book.note("fault", id=self._faults, kind="failover", victims=victims)
        at = time.monotonic()
        undo = self._do(kind, primary)
        probe = Probe([one for one in patroni.servers if one is not primary])
        wait_until(lambda: probe.accepted is not None, "a new primary", FAILED_OVER_SECONDS)
        accepted = probe.accepted
        assert accepted is not None
        wait_until(
            lambda: self._acknowledged_after(accepted) is not None,
            "a task is acknowledged",
            FAILED_OVER_SECONDS,
        )
        acknowledged = self._acknowledged_after(accepted)
        assert acknowledged is not None
        undo()
        rig.nearby = self._nearby_primary()
        rig.book.note("healed", id=self._faults)
        self._faults += 1
        self.late.setdefault(kind, []).append(acknowledged - accepted)
        is_same = {name: one["id"] for name, one in members.items()} == {
            name: one["id"] for name, one in rig.members().items()
        }
        print(
            f"{kind}: the new primary commits after {accepted - at:.2f} s, and a node "
            f"{acknowledged - accepted:.2f} s later; members are "
            f"{'the same' if is_same else 'not the same'}; "
            f"{len(rig.ledger.failed)} failed requests so far",
            flush=True,
        )

    def _nearby_primary(self) -> str:
        wait_until(lambda: self._patroni.primary() is not None, "a primary", FAILED_OVER_SECONDS)
        primary = self._patroni.primary()
        assert primary is not None
        return primary.nearby

    def _acknowledged_after(self, at: float) -> float | None:
        """When a task of an unserved queue, sent after the fault, was acknowledged."""
        unserved = {f"q{number}" for number in range(SERVED, SERVED + UNSERVED)}
        times = [
            entry["at"]
            for entry in self._rig.ledger.entries("acked")
            if entry["q"] in unserved and entry["at"] >= at
        ]
        return min(times, default=None)

    def _do(self, kind: str, primary: PatroniServer) -> Callable[[], None]:
        """Do it, and return how to undo it."""
        if kind == "killed":
            primary.signal_database(signal.SIGKILL)
            return lambda: None
        if kind == "switched over":
            threading.Thread(target=self._patroni.switch_over, daemon=True).start()
            return lambda: None
        if kind == "frozen":
            primary.signal_patroni(signal.SIGSTOP)
            primary.signal_database(signal.SIGSTOP)

            def thaw() -> None:
                primary.signal_database(signal.SIGCONT)
                primary.signal_patroni(signal.SIGCONT)

            return thaw
        network = self._rig.network
        others = [one.host for one in self._patroni.servers if one is not primary]
        others += [node.host for node in self._rig.nodes]
        others += [network.host(DATABASE), self._rig.users]
        for host in others:
            network.cut(primary.host, host)
            network.cut(host, primary.host)

        def heal() -> None:
            for host in others:
                network.heal(primary.host, host)
                network.heal(host, primary.host)

        return heal


def run(*, rounds: int, kinds: tuple[str, ...] = ()) -> tuple[list[Result], bool]:
    """All kinds, so often each; the figures, and whether nothing was lost."""
    remove_leftovers()
    place = network()
    folder = Path(tempfile.mkdtemp(prefix="failover-"))
    try:
        with (
            Patroni(place) as patroni,
            Rig(
                folder,
                patroni.store,
                place,
                queues=SERVED + UNSERVED,
                node_settings=SETTINGS.format(partitions=1),
                afresh=True,
            ) as rig,
        ):
            primary = patroni.primary()
            assert primary is not None
            rig.nearby = primary.nearby
            rig.start_nodes(3)
            rig.start_watcher()
            served = [word for number in range(SERVED) for word in ("--queue", f"q{number}")]
            rig.start_worker("--slots", "16", *served)
            producers = [
                rig.start_producer(
                    rate=RATE, kinds={"enqueue": 1, "result": 1}, queues=[0, SERVED]
                ),
                rig.start_producer(
                    rate=RATE, kinds={"enqueue": 1}, queues=[SERVED, SERVED + UNSERVED], seed=2
                ),
            ]
            failover = Failover(rig, patroni)
            for _ in range(rounds):
                for kind in kinds or KINDS:
                    failover.run(kind)
            for producer in producers:
                producer.stop(DONE_SECONDS)
            rig.start_worker("--slots", "32")
            with suppress(AssertionError):
                wait_until(lambda: not rig.ledger.missing(), "all tasks have run", DONE_SECONDS)
            verdict = rig.ledger.verdict()
    finally:
        place.close()
    print(verdict)
    print(*verdict.unexplained, sep="\n")
    if verdict.is_clean:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what was written down: {folder}")
    results = [
        Result(
            f"PostgreSQL {kind}: a task is acknowledged after the new primary's first commit, s",
            quantile(late, 0.99),
            GOAL_SECONDS,
            at_least=False,
            ours=f"median {median(late):.2f} s",
            peer=f"{len(late)} times, the longest counts",
        )
        for kind, late in failover.late.items()
    ]
    return results, verdict.is_clean


def main(*, rounds: int, kinds: tuple[str, ...] = ()) -> int:
    """Print the figures; the exit status."""
    try:
        results, is_clean = run(rounds=rounds, kinds=kinds)
    except Unavailable as reason:
        print(f"NO FAILOVER IS TESTED HERE: {reason}")
        return 2
    print(*results, sep="\n")
    return 0 if is_clean and all(result.met for result in results) else 1
