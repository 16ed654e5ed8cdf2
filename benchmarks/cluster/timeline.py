"""What a ledger says of one stretch of time: latencies, errors, and who owned which queue."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.ledger import NAMESPACE, view_of

from maitred.membership.homes import ClusterHomes
from maitred.routing.names import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.cluster.ledger import Entry

JUST_AFTER_SECONDS = 0.05
"""What a worker begins within this time of a kill was handed out before it."""


class Request(NamedTuple):
    """An enqueue or a query, and when it was answered."""

    queue: str
    sent: float
    at: float
    kind: str
    """acked, answered, resulted or failed."""

    @property
    def seconds(self) -> float:
        return self.at - self.sent


@dataclass
class Timeline:
    """The entries of one stretch of time."""

    requests: list[Request] = field(default_factory=list)
    begun: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When a worker began tasks, by queue."""
    views: list[Entry] = field(default_factory=list)
    """The views that shards pushed."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Timeline:
        timeline = cls()
        for entry in entries:
            what = entry["what"]
            if what in ("acked", "answered", "resulted", "failed"):
                timeline.requests.append(Request(entry["q"], entry["sent"], entry["at"], what))
            elif what == "began":
                timeline.begun[entry["task"].split("/")[1]].append(entry["at"])
            elif what == "view":
                timeline.views.append(entry)
        return timeline

    def served_again(self, queues: Iterable[str], at: float) -> list[float]:
        """Seconds from `at` to the first answer to an enqueue that was sent later, by queue;
        infinite for a queue without one."""
        first = dict.fromkeys(queues, float("inf"))
        for request in self.requests:
            if request.kind == "acked" and request.sent >= at and request.queue in first:
                first[request.queue] = min(first[request.queue], request.at - at)
        return list(first.values())

    def resumed(self, queues: Iterable[str], at: float) -> list[float]:
        """Seconds from `at` until a worker begins tasks of the queue again, for queues that always
        have a backlog."""
        found = []
        for queue in queues:
            later = [one for one in self.begun[queue] if one > at + JUST_AFTER_SECONDS]
            found.append(min(later, default=float("inf")) - at)
        return found

    def latencies(self, queues: Iterable[str], start: float, end: float) -> list[float]:
        """Seconds that enqueues took which were sent in this window."""
        chosen = set(queues)
        return [
            request.seconds
            for request in self.requests
            if request.kind == "acked" and request.queue in chosen and start <= request.sent < end
        ]

    def pauses(self, queues: Iterable[str], start: float, end: float) -> list[float]:
        """The longest that an enqueue of this window waited, by queue."""
        return [max(self.latencies((queue,), start, end), default=0.0) for queue in queues]

    def failures(self, start: float, end: float) -> int:
        """Requests that were sent in this window, and failed."""
        return sum(
            request.kind == "failed" and start <= request.sent < end for request in self.requests
        )

    def counted(self, start: float, end: float) -> int:
        """All requests that were sent in this window."""
        return sum(start <= request.sent < end for request in self.requests)

    def spreads(self) -> list[float]:
        """For each version of the view that several shards pushed: seconds from the first shard to
        the last."""
        seen: dict[int, list[float]] = defaultdict(list)
        for entry in self.views:
            if entry["pushed"]:
                seen[entry["version"]].append(entry["at"])
        return [max(times) - min(times) for times in seen.values() if len(times) > 1]


def owners(view: Entry, queues: Sequence[str]) -> dict[str, str]:
    """The address of the node that owns the only partition of each queue."""
    homes = ClusterHomes(view_of(view))
    return {queue: homes.home((NAMESPACE, queue, TASKS, 0), 0.0).member.name for queue in queues}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def longest_gap(times: Sequence[float]) -> float:
    """The longest time between neighbours."""
    return max((later - earlier for earlier, later in pairwise(sorted(times))), default=0.0)
