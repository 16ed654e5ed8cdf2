"""Everything that is started for the contest, and one run on it."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.contest import busy, rivals
from benchmarks.contest import plan as plans
from benchmarks.contest.load import Answers, Load
from benchmarks.contest.plan import Counts, Plan, Told
from benchmarks.contest.policies import OURS, POLICIES
from benchmarks.queries.http import ready
from benchmarks.queries.running import Node, answered
from benchmarks.tasks.processes import (
    ROOT,
    Command,
    Started,
    Unavailable,
    free_port,
    started,
    wait_for_port,
)

if TYPE_CHECKING:
    from types import TracebackType

    from studies.contest.phases import Ability

    from benchmarks.contest.busy import Spent
    from benchmarks.contest.scale import Scale

BIN = Path(sys.executable).parent
APP = "benchmarks.contest.handlers:app"
UP_WITHIN = 60
LOOK_SECONDS = 0.2
BUSY_SHARE = 0.7
"""A run in which a process needs more of a core is void."""
WAITED_SHARE = 0.05
"""A run in which a process wanted a core for so much of the time and had none was disturbed."""
SETTLE_SECONDS = 0.3
"""From the beginning being told to the load, so that every provider has seen it."""


@dataclass(frozen=True)
class Outcome:
    """One run, in numbers."""

    answers: Answers
    told: list[Told]
    busiest: Spent
    """Of each process: CPU in its busiest phase, and waiting for a CPU in its worst one."""
    refused_by_workers: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.answers.good / self.seconds

    @property
    def void(self) -> str:
        """Why it is void, if it is."""
        over = [f"{name} {cpu:.0%}" for name, (cpu, _) in self.busiest.items() if cpu > BUSY_SHARE]
        return ", ".join(over)

    @property
    def disturbed(self) -> str:
        """Who had to wait for a core."""
        found = [
            f"{name} {late:.0%}" for name, (_, late) in self.busiest.items() if late > WAITED_SHARE
        ]
        return ", ".join(found)

    @property
    def counts(self) -> Counts:
        """Of all providers and phases together."""
        all_ = [counts for told in self.told for counts in told.phases]
        return Counts(
            *(sum(getattr(counts, of) for counts in all_) for of in Counts.__struct_fields__)
        )

    @property
    def attempts(self) -> float:
        """For each answer."""
        counts = self.counts
        ended = self.answers.good + sum(self.answers.failures.values())
        return (counts.begun + counts.refused + self.refused_by_workers) / max(1, ended)


class Stage:
    """The node with its gateway; providers and rivals come and go."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.commands: dict[str, None] = {}
        self._stack = ExitStack()
        self._node: Node | None = None

    def __enter__(self) -> Stage:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _start(
        self, stack: ExitStack, name: str, command: Command, *, number: int = 0, pipes: bool = False
    ) -> Started:
        line = shlex.join(str(word) for word in command)
        self.commands[line.replace(f"{ROOT}/", "").replace(str(self.folder), "$TMP")] = None
        environment = {
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            plans.FOLDER: str(self.folder),
            plans.NUMBER: str(number),
        }
        log = self.folder / f"{name}.log"
        return stack.enter_context(started(command, log, environment, pipes=pipes))

    @property
    def node(self) -> Node:
        """Started on first use, with a queue for each policy."""
        if self._node is None:
            configuration = self.folder / "maitred.toml"
            # A line is as long as the time that it takes, so that is stretched too.
            target = 0.02 * self.scale.stretched
            configuration.write_text(
                "\n".join(
                    f'[queues."default/{policy}".queries]\npolicy = "{policy}"\n'
                    f"shedding.wait_target_seconds = {target}"
                    for policy in POLICIES
                )
            )
            up: Command = [BIN / "maitred", "up", "--json", "--shards", "1", "--port", "0"]
            up += ["--config", configuration, "--data", self.folder / "data"]
            up += ["--log-level", "warning", "--set", "gateway.port=0"]
            told = answered(self._start(self._stack, "node", up, pipes=True), UP_WITHIN)
            http_port = int(told["http"].rpartition(":")[2])
            self._node = Node(
                told["port"], http_port, told["shards"][0]["pid"], told["gateway_pid"]
            )
        return self._node

    # Runs

    def by_policy(self, policy: str, seed: int, *, calm: bool = False) -> Outcome:
        """Our gateway, with that policy."""
        self._plan(seed, calm=calm)
        node = self.node
        pids = {"gateway": node.gateway, "shard": node.shard}
        path = f"/v1/default/queues/{policy}/query"
        # Those who know nothing of measured limits compete where there are none: in the contest.
        limit = "measured" if policy in OURS and not calm else "slots"
        with ExitStack() as stack:
            for number, pool in enumerate(self.scale.pools):
                worker: Command = [BIN / "maitred", "worker", APP, "--slots", str(pool)]
                worker += ["--limit", limit, "--queue", policy, "--log-level", "warning"]
                worker += ["--url", f"maitred://{node.address}", "--name", f"provider-{number}"]
                process = self._start(stack, f"provider-{number}", worker, number=number)
                pids[f"provider {number}"] = process.process.pid
            ready(node.http_port, path, b"[]", "Content-Type: application/json")
            self._wait_for_workers(policy)
            before = self._refused(node.http_port)
            outcome = self._run(f"http://127.0.0.1:{node.http_port}{path}", pids, calm=calm)
            refused = self._refused(node.http_port) - before
        return replace(outcome, refused_by_workers=refused)

    def by_rival(self, rival: str, seed: int, *, calm: bool = False) -> Outcome:
        """One of those outside."""
        self._plan(seed, calm=calm)
        pids = {}
        with ExitStack() as stack:
            servers = []
            for number in range(len(self.scale.pools)):
                server = rivals.Server(free_port(), free_port())
                command: Command = [BIN / "python", "-m", "benchmarks.contest.server"]
                command += [str(server.port), str(server.agent_port)]
                process = self._start(stack, f"provider-{number}", command, number=number)
                wait_for_port(server.port, process)
                pids[f"provider {number}"] = process.process.pid
                servers.append(server)
            port = free_port()
            command, _ = rivals.command(rival, self.scale, port, servers, self.folder)
            process = self._start(stack, rival.replace(" ", "-"), command)
            wait_for_port(port, process)
            ready(port, "/", b"[]")
            for number, pid in enumerate(sorted(process.pids())):
                pids[rival.partition(" ")[0] + (f" {number}" if number else "")] = pid
            return self._run(f"http://127.0.0.1:{port}/", pids, calm=calm)

    def _plan(self, seed: int, *, calm: bool) -> None:
        scale = self.scale
        for path in (plans.begin_file(self.folder), *self._told_files()):
            path.unlink(missing_ok=True)
        phases = (scale.calm,) if calm else scale.phases
        seconds = scale.delay_seconds if calm else scale.phase_seconds
        plan = Plan(seed, scale.pools, _plain(scale.calm), tuple(map(_plain, phases)), seconds)
        plans.write(plans.plan_file(self.folder), msgspec.json.encode(plan))
        self._seconds, self._step = plan.seconds, plan.phase_seconds

    def _told_files(self) -> list[Path]:
        return [plans.told_file(self.folder, number) for number in range(len(self.scale.pools))]

    def _run(self, url: str, pids: dict[str, int], *, calm: bool) -> Outcome:
        scale = self.scale
        warm = max(2.0 * scale.stretched, 1.5) if calm else scale.warm_seconds
        begin = time.time() + SETTLE_SECONDS + warm
        plans.write(plans.begin_file(self.folder), repr(begin).encode())
        time.sleep(SETTLE_SECONDS)
        load = Load(
            self.folder,
            url,
            connections=scale.connections,
            timeout_seconds=scale.timeout_seconds,
            begin=begin,
            lasts=warm + self._seconds + 1,
            seconds=self._seconds,
        )
        try:
            self.commands[shlex.join(load.words).replace(str(self.folder), "$TMP")] = None
            pids = {**pids, "wrk": load.pid}
            busiest = dict.fromkeys(pids, (0.0, 0.0))
            time.sleep(max(0.0, begin - time.time()))
            last, since = busy.spent(pids), time.time()
            for phase in range(math.ceil(self._seconds / self._step)):
                time.sleep(max(0.0, begin + (phase + 1) * self._step - time.time()))
                spent, now = busy.spent(pids), time.time()
                for name, (cpu, late) in busy.shares(last, spent, now - since).items():
                    most = busiest[name]
                    busiest[name] = (max(most[0], cpu), max(most[1], late))
                last, since = spent, now
            answers = load.answers()
        finally:
            load.end()
        told = []
        for path in self._told_files():
            if path.exists():
                told.append(msgspec.json.decode(path.read_bytes(), type=Told))
            else:
                print(f"  {path.name}: this provider was never asked")
        return Outcome(answers, told, busiest, 0, self._seconds)

    def _wait_for_workers(self, policy: str) -> None:
        """All three have to be there before the load comes."""
        until = time.monotonic() + UP_WITHIN
        words = [str(BIN / "maitred"), "admin", "worker", "list", "--json", f"default/{policy}"]
        words += ["--url", f"maitred://{self.node.address}"]
        said = ""
        while time.monotonic() < until:
            listed = subprocess.run(words, capture_output=True, text=True, check=False)
            said = listed.stdout + listed.stderr
            if said.count('"online"') >= len(self.scale.pools):
                return
            time.sleep(LOOK_SECONDS)
        raise Unavailable(f"not all workers came: {said[-300:]}")

    def _refused(self, http_port: int) -> int:
        """How often workers have refused a query of this gateway."""
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=10) as answer:
            said: str = answer.read().decode()
        for line in said.splitlines():
            if line.startswith("maitred_queries_refused_by_workers_total "):
                return int(float(line.split()[1]))
        return 0


def _plain(abilities: tuple[Ability, ...]) -> tuple[tuple[int, float], ...]:
    return tuple((ability.permits, ability.average_ms) for ability in abilities)
