"""The monitoring port of a node, served by its supervisor: health, readiness and metrics.

The supervisor has no traffic of its own, and answers even while a shard hangs or dies and while the
node starts or stops. It gathers the metrics from its shards, each within a limited time, and says
which of them did not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred import __version__
from maitred.membership.view import MemberState
from maitred.metrics import families
from maitred.metrics.exposition import Samples, page
from maitred.monitor.listener import MonitorListener, ProbeVerdict
from maitred.monitor.loop_lag import LoopLag
from maitred.monitor.process_vitals import add_vitals
from maitred.node.held_ports import PORT_MAX
from maitred.node.keeper import ChildState
from maitred.settings import MONITOR_PORT, PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.logs import Logger
    from maitred.membership.view import ClusterView
    from maitred.metrics.exposition import Lines
    from maitred.node.keeper import Keeper
    from maitred.settings import Node

PROBE_SECONDS: Final = 0.8
"""How long a shard may take to answer for /ready: less than the second that Kubernetes waits."""

MEASURE_SECONDS: Final = 5.0
"""How long a shard may take to gather its metrics: half of the time that Prometheus waits by
default. Ten thousand queues take a second on a machine with much else to do."""


class NodeMonitor:
    """Answers for one node."""

    def __init__(
        self,
        settings: Node,
        node: str,
        log: Logger,
        *,
        kept: Callable[[], Sequence[Keeper]],
        shards: Callable[[], Sequence[Keeper]],
        view: Callable[[], ClusterView | None],
    ) -> None:
        """`kept` returns the keepers of all processes, shards first, `shards` those of the shards,
        and `view` what the node knows of its cluster."""
        self._node = node
        self._kept = kept
        self._shards = shards
        self._view = view
        self.phase = "starting"
        """`starting`, `serving` or `stopping`."""
        self._host = settings.monitor.host
        self._lag = LoopLag(asyncio.get_running_loop())
        self._listener = MonitorListener(self, log, open_metrics=settings.monitor.open_metrics)

    @property
    def port(self) -> int:
        """The port that the node listens on for monitoring."""
        return self._listener.port

    async def open(self, port: int) -> None:
        """Listen; raise `CannotStart`."""
        await self._listener.open(self._host, port)

    async def close(self) -> None:
        """Stop listening."""
        self._lag.stop()
        await self._listener.close()

    # Pages

    async def health(self) -> ProbeVerdict:
        """Return that the supervisor is alive. It restarts shards itself, so a shard that died is
        no reason to kill the node."""
        return ProbeVerdict(ok=True, state="alive" if self.phase != "stopping" else "stopping")

    async def ready(self) -> ProbeVerdict:
        """Return whether all shards serve, and the node belongs to its cluster."""
        if self.phase != "serving":
            return ProbeVerdict(ok=False, state=self.phase)
        shards = self._shards()
        answers = await asyncio.gather(
            *(one.measure(PROBE_SECONDS, samples=False) for one in shards)
        )
        return self._verdict(shards, answers)

    async def metrics(self) -> str:
        """Return the metrics of all processes."""
        kept = self._kept()
        shards = self._shards()
        gathered = await asyncio.gather(
            *(one.measure(MEASURE_SECONDS, samples=one in shards) for one in kept)
        )
        samples = Samples()
        verdict = self._verdict(shards, gathered[: len(shards)])
        ready = self.phase == "serving" and verdict.ok
        samples.add(families.NODE_INFO, 1, node=self._node, release=__version__)
        samples.add(families.NODE_READY, int(ready))
        view = self._view()
        if view is not None:
            for state in (MemberState.JOINING, MemberState.ACTIVE, MemberState.DRAINING):
                count = sum(one.state is state for one in view.members)
                samples.add(families.CLUSTER_MEMBERS, count, state=state.name.lower())
        for keeper, lines in zip(kept, gathered, strict=True):
            process = keeper.title.replace(" ", "-")
            samples.add(families.PROCESS_UP, int(lines is not None), process=process)
            samples.add(families.PROCESS_RESTARTS, keeper.place.restarts, process=process)
        add_vitals(samples, "supervisor", self._lag)
        return page(families.NODE, [samples.lines, *(one for one in gathered if one)])

    def _verdict(self, shards: Sequence[Keeper], answers: Sequence[Lines | None]) -> ProbeVerdict:
        problems = []
        for keeper, answer in zip(shards, answers, strict=True):
            if answer is None:
                starts = keeper.state is not ChildState.READY
                what = "is being started" if starts else "does not answer"
                problems.append(f"{keeper.title.capitalize()} {what}.")
        view = self._view()
        if view is not None:
            me = view.member(shards[0].place.member) if shards else None
            if me is None or me.state is not MemberState.ACTIVE:
                state = "not there" if me is None else me.state.name.lower()
                problems.append(f"The node is {state} in its cluster.")
        return ProbeVerdict(not problems, "not ready" if problems else "ready", tuple(problems))


def monitor_port(settings: Node, shards: int) -> int:
    """Return the port for monitoring. Without a setting it is one above the default port of the
    HTTP API, and 0, any free port, where that has no default either."""
    if settings.monitor.port is not None:
        return settings.monitor.port
    wanted = settings.port + max(MONITOR_PORT - PORT, shards + 4)
    return wanted if settings.port and wanted <= PORT_MAX else 0
