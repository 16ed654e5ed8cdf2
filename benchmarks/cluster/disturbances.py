"""Kills, freezes, cuts and drains under load, one after another, each with a window before it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.network import DATABASE

from benchmarks.cluster.timeline import Timeline, owners, quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.ledger import Entry
    from tests.cluster.network import Host
    from tests.cluster.rig import Rig, RigNode

SETTLE_SECONDS = 2.0
"""Between the return of a node and the next window."""

GRADUAL = frozenset({"freeze", "cut off"})
"""Disturbances that take a moment to begin, one process or link after the other; they count from
the last one on."""

LATE_SECONDS = 1.0
"""How long after a window its last requests may be answered."""


class Point(NamedTuple):
    """A request, for the picture."""

    at: float
    """Seconds after the disturbance."""
    seconds: float
    kind: str
    """other, affected or failed."""


@dataclass
class Disturbed:
    """What a number of disturbances of one kind did."""

    name: str
    served: list[float] = field(default_factory=list)
    """Seconds until a queue of the node was served again."""
    resumed: list[float] = field(default_factory=list)
    """The same for the old backlog."""
    control: list[float] = field(default_factory=list)
    """The p99 of other nodes' queues in the windows before, in seconds."""
    during: list[float] = field(default_factory=list)
    """The same in the windows with the disturbance."""
    pauses: list[float] = field(default_factory=list)
    """The longest that a request waited, by queue of the node."""
    calm: list[float] = field(default_factory=list)
    """The same in the windows before."""
    returns: list[float] = field(default_factory=list)
    """The same while the node comes back."""
    failures: int = 0
    requests: int = 0
    spreads: list[float] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    """The requests of the first window, for the picture."""
    count: int = 0

    @property
    def others(self) -> float:
        """The p99 of other nodes' queues, times that of the window before; the median."""
        return median(
            during / control for during, control in zip(self.during, self.control, strict=True)
        )


class Disturber:
    """Disturbs one rig under load."""

    def __init__(self, rig: Rig, queues: int, backlog: int) -> None:
        """The first queues have fresh tasks, and the next ones a backlog."""
        self._rig = rig
        self._fresh = [f"q{number}" for number in range(queues)]
        self._old = [f"q{number}" for number in range(queues, queues + backlog)]
        self._taken: list[Entry] = []

    def run(self, name: str, times: int, seconds: float) -> Disturbed:
        """Disturb nodes in turn; each is disturbed, watched for so long, and restored."""
        begin, end = self._ways(name)
        found = Disturbed(name)
        for number in range(times):
            node = self._rig.nodes[number % len(self._rig.nodes)]
            self._settle()
            start = time.monotonic()
            time.sleep(seconds)
            at = time.monotonic()
            begin(node)
            if name in GRADUAL:
                at = time.monotonic()
            left = at + seconds - time.monotonic()
            time.sleep(max(0.0, left))
            until = time.monotonic()
            if name != "drain":
                time.sleep(LATE_SECONDS)
            back = time.monotonic()
            end(node)
            self._rig.wait_for_members(len(self._rig.nodes))
            time.sleep(LATE_SECONDS)
            self._judge(found, node.address, (start, at, until, back))
            self._tell(found, times)
        return found

    def rolling_restart(self) -> Disturbed:
        """Drain all nodes, one after another, each as soon as the last one is back."""
        found = Disturbed("rolling restart")
        self._settle()
        start = time.monotonic()
        for node in self._rig.nodes:
            node.drain()
            node.start()
            self._rig.wait_for_members(len(self._rig.nodes))
        time.sleep(LATE_SECONDS)
        end = time.monotonic()
        self._take()
        timeline = Timeline.of(self._taken)
        found.count = 1
        found.failures = timeline.failures(start, end)
        found.requests = timeline.counted(start, end)
        found.spreads = timeline.spreads()
        return found

    # What is done to a node

    def _ways(self, name: str) -> tuple[Callable[[RigNode], object], Callable[[RigNode], object]]:
        return {
            "kill": (lambda node: node.kill(), lambda node: node.start()),
            "freeze": (lambda node: node.freeze(), lambda node: node.thaw()),
            "cut off": (self._cut, self._heal),
            "drain": (lambda node: node.drain(), lambda node: node.start()),
        }[name]

    def _cut(self, node: RigNode) -> None:
        for host in self._others(node):
            self._rig.network.cut(node.host, host)
            self._rig.network.cut(host, node.host)

    def _heal(self, node: RigNode) -> None:
        for host in self._others(node):
            self._rig.network.heal(node.host, host)
            self._rig.network.heal(host, node.host)

    def _others(self, node: RigNode) -> list[Host]:
        nodes = [other.host for other in self._rig.nodes if other is not node]
        return [*nodes, self._rig.network.host(DATABASE), self._rig.users]

    # What came of it

    def _settle(self) -> None:
        self._rig.wait_for_members(len(self._rig.nodes))
        time.sleep(SETTLE_SECONDS)
        self._take()
        self._taken = []

    def _take(self) -> None:
        self._taken += self._rig.ledger.take()

    def _judge(
        self, found: Disturbed, address: str, times: tuple[float, float, float, float]
    ) -> None:
        start, at, until, back = times
        view = self._rig.ledger.view  # as it was when the windows began
        self._take()
        timeline = Timeline.of(self._taken)
        owner = owners(view, [*self._fresh, *self._old])
        affected = [queue for queue in self._fresh if owner[queue] == address]
        others = [queue for queue in self._fresh if owner[queue] != address]
        old = [queue for queue in self._old if owner[queue] == address]
        found.count += 1
        found.served += timeline.served_again(affected, at)
        found.resumed += timeline.resumed(old, at)
        found.control.append(quantile(timeline.latencies(others, start, at), 0.99))
        found.during.append(quantile(timeline.latencies(others, at, until), 0.99))
        found.pauses += timeline.pauses(affected, at, until)
        found.calm += timeline.pauses(affected, start, at)
        found.returns += timeline.pauses(affected, back, float("inf"))
        found.failures += timeline.failures(at, float("inf"))
        found.requests += timeline.counted(at, float("inf"))
        found.spreads += timeline.spreads()
        if not found.points:
            chosen = set(affected)
            found.points = [
                Point(
                    request.sent - at, request.seconds, _kind(request.kind, request.queue in chosen)
                )
                for request in timeline.requests
                if request.queue in owner
                and request.kind in ("acked", "failed")
                and request.queue not in self._old
            ]

    def _tell(self, found: Disturbed, times: int) -> None:
        print(
            f"{found.name} {found.count} of {times}: served again {_shown(found.served)}; backlog "
            f"{_shown(found.resumed)}; others' p99 {found.during[-1] * 1e3:.1f} ms, before "
            f"{found.control[-1] * 1e3:.1f} ms; longest wait {_shown(found.pauses)}, "
            f"before {_shown(found.calm)}; "
            f"{found.failures} of {found.requests} requests failed so far",
            flush=True,
        )


def _kind(kind: str, is_affected: bool) -> str:
    if kind == "failed":
        return "failed"
    return "affected" if is_affected else "other"


def _shown(values: list[float]) -> str:
    if not values:
        return "-"
    return f"median {median(values):.3f} s, p99 {quantile(values, 0.99):.3f} s"
