"""Nothing acknowledged is lost, whoever is killed, whenever.

Shards, whole nodes, supervisors, workers and producers are killed at random moments, and started
again, while tasks are added and run. In the end every task whose producer was told that it is
safe has run to its end. A task may run again if the worker that had it was killed, and only then:
a worker that lives is never given a task that it, or another one that lives, has had before.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.node.nodes import wait_until
from tests.tasks.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.tasks.stage import Child

ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
"""How often each of them is killed, on each store; a shard twice as often."""
SEED = int(os.environ.get("KILL_SEED", "4711"))

WORKERS, SLOTS, PRODUCERS, SHARDS = 2, 8, 2, 2
SETTINGS = """
[queues."*"]
lease_seconds = 6
partitions = 3
[restarts]
give_up_after = 1000
longest_seconds = 0.2
"""


class Rampage:
    """Kills at random, and puts somebody new in the place of each."""

    def __init__(self, stage: Stage, choose: random.Random) -> None:
        self.stage = stage
        self.choose = choose
        self.killed: list[tuple[str, int, float]] = []
        self.dead_workers: set[int] = set()
        self.producers = [stage.start_producer() for _ in range(PRODUCERS)]

    def victims(self) -> list[str]:
        """All kinds of them, in some order."""
        kinds = ["shard", "shard", "node", "supervisor", "worker", "producer"]
        self.choose.shuffle(kinds)
        return kinds

    def strike(self, what: str) -> None:
        getattr(self, f"_{what}")()

    def _shard(self) -> None:
        # The log knows those that were started again, too.
        running = {
            one["shard"]: one["pid"]
            for event in ("shard ready", "shard ready again")
            for one in self.stage.node.events(event)
        }
        pid = self.choose.choice(sorted(running.values()))
        self.killed.append(("shard", pid, time.time()))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _node(self) -> None:
        self.killed.append(("node", self.stage.node.process.pid, time.time()))
        self.stage.kill_node()
        self.stage.start_node(SHARDS)

    def _supervisor(self) -> None:
        """Its shards notice that, and leave in order."""
        self.killed.append(("supervisor", self.stage.node.process.pid, time.time()))
        self.stage.node.process.kill()
        self.stage.node_has_ended()
        self.stage.start_node(SHARDS)

    def _worker(self) -> None:
        worker = self.choose.choice(self.stage.workers)
        self.killed.append(("worker", worker.pid, time.time()))
        self._gone(worker, self.stage.workers)
        self.dead_workers.add(worker.pid)
        self.stage.start_worker("--slots", str(SLOTS), wait=False)

    def _producer(self) -> None:
        producer = self.choose.choice(self.producers)
        self.killed.append(("producer", producer.pid, time.time()))
        self._gone(producer, self.producers)
        self.producers.append(self.stage.start_producer())

    def _gone(self, child: Child, among: list[Child]) -> None:
        child.kill()
        among.remove(child)


def test_nothing_acknowledged_is_lost(tmp_path: Path, store: str | None) -> None:
    choose = random.Random(SEED)
    with Stage(tmp_path, SETTINGS, store=store) as stage:
        stage.start_node(SHARDS)
        for _ in range(WORKERS):
            stage.start_worker("--slots", str(SLOTS))
        rampage = Rampage(stage, choose)
        stage.wait_for_ended(50)
        waited_for = 50
        for _ in range(ROUNDS):
            for what in rampage.victims():
                more = choose.randint(0, 80)
                stage.wait_for_more(more)
                waited_for += more
                rampage.strike(what)
        for producer in rampage.producers:
            producer.output.wait_for("ready")
            assert producer.stop() == 0, producer.errors
        acknowledged = stage.acknowledged()
        # What ran while its producer, or the node, was killed may not have been acknowledged.
        assert len(acknowledged) > waited_for / 2
        try:
            wait_until(lambda: acknowledged <= stage.journal.ended(), "all of it has run")
        except AssertionError:
            lost = acknowledged - stage.journal.ended()
            pytest.fail(f"{len(lost)} are lost:\n{told(stage, rampage, lost)}")
        again = {
            number: pids
            for number, pids in stage.journal.begun_by().items()
            if len([pid for pid in pids if pid not in rampage.dead_workers]) > 1
        }
        # It is not only that the tasks have run: the node knows it, too.
        wait_until(
            lambda: not stage.open_tasks("orders") and not stage.open_tasks("prints"),
            "nothing is left",
        )
        for worker in stage.workers:
            assert worker.stop() == 0, worker.errors
        assert not again, told(stage, rampage, again)
        repeated = stage.journal.repeated()
        print(
            f"{len(acknowledged)} acknowledged, {len(repeated)} run again, killed: "
            f"{[what for what, _, _ in rampage.killed]}"
        )
        # A killed worker had no more than its slots, and what it had ended is told again by nobody.
        assert sum(repeated.values()) - len(repeated) <= len(rampage.dead_workers) * SLOTS * 2


def told(stage: Stage, rampage: Rampage, numbers: Iterable[int]) -> str:
    """All that is known of these tasks, for whoever has to find out what happened."""
    kills = [f"{at:.3f} killed {what} {pid}" for what, pid, at in rampage.killed]
    runs = [
        f"{line.at:.3f} {line.what} {line.number}, attempt {line.attempt}, {line.pid}, {line.task}"
        for line in stage.journal.lines()
        if line.number in numbers
    ]
    logs = [line for worker in stage.workers for line in worker.errors.seen]
    queues = [str(stage.partitions(queue)) for queue in ("orders", "prints")]
    return "\n".join([*sorted(kills + runs), *logs, *stage.node.errors.seen, *queues])
