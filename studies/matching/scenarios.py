"""The scenarios of Cadence's simulation, zonal isolation aside, and those of the sweep.

What Cadence says of them: the default has 4 hosts, 4 partitions to read and write, 80 tasks a
second, 3,000 tasks, 8 pollers and 1 ms of work, and its loads differ by name. The numbers of the
other loads are ours, chosen for the same shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed

from maitred.settings import Forwarding, Scaling
from studies.matching.settings import MatchingModel

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and what is special about it."""

    sentence: str
    model: MatchingModel


ADAPTIVE = Scaling(
    adaptive=True,
    tasks_per_second=20.0,
    up_after_seconds=3.0,
    down_after_seconds=6.0,
    look_seconds=1.0,
    partitions_max=8,
)
"""The defaults of production, but twenty times as fast, for runs of half a minute."""

FASTER = changed(ADAPTIVE, tasks_per_second=400.0, up_after_seconds=1.0, look_seconds=0.5)
"""For a run of four seconds."""

CADENCE = Forwarding(
    children=20,
    offers=1,
    tasks=1,
    tasks_per_second=10.0,
    task_wait_seconds=0.01,
    offer_wait_seconds=0.01,
)
"""Cadence's defaults, on our partitions."""

_DEFAULT = MatchingModel()
_THROUGHPUT = replace(_DEFAULT, rate_per_second=1_500.0, tasks=6_000)
_BURST = replace(_DEFAULT, phases=((0.1, 1.0), (0.8, 75.0), (0.1, 1.0)))
_FLUCTUATING = replace(
    _DEFAULT, phases=((0.1, 1.0), (0.3, 4.0), (0.1, 1.0), (0.35, 8.0), (0.15, 0.25))
)
_PUBLISHED = replace(_DEFAULT, tasks=1_500)
_BACKLOG = replace(_DEFAULT, backlog=(0, 0, 0, 1_000), work_seconds=0.01)


def _adaptive(model: MatchingModel, scaling: Scaling = ADAPTIVE) -> MatchingModel:
    return replace(model, read=1, write=1, scaling=scaling)


def _waits(task: float, offer: float) -> MatchingModel:
    forwarding = Forwarding(task_wait_seconds=task, offer_wait_seconds=offer)
    return replace(_DEFAULT, forwarding=forwarding)


SCENARIOS: Mapping[str, Scenario] = {
    "default": Scenario("80 tasks a second, random selection", _DEFAULT),
    "default-adaptive": Scenario("the same, from 1 partition on", _adaptive(_DEFAULT)),
    "throughput": Scenario("1,500 tasks a second", _THROUGHPUT),
    "throughput-adaptive": Scenario(
        "the same, from 1 partition on", _adaptive(_THROUGHPUT, FASTER)
    ),
    "burst": Scenario("80 a second, and 2,400 tasks at 6,000 a second", _BURST),
    "burst-adaptive": Scenario("the same, from 1 partition on", _adaptive(_BURST)),
    "fluctuating": Scenario("20 to 640 tasks a second", _FLUCTUATING),
    "fluctuating-adaptive": Scenario("the same, from 1 partition on", _adaptive(_FLUCTUATING)),
    "more-read-partitions": Scenario("4 to read, 2 to write", replace(_DEFAULT, write=2)),
    "no-forwarding": Scenario("no tree", replace(_DEFAULT, forwards=False)),
    "wait-for-both": Scenario("10 ms for a task and for an offer", _waits(0.01, 0.01)),
    "no-wait-for-add": Scenario("0 for a task, 10 ms for an offer", _waits(0.0, 0.01)),
    "no-wait-for-poll": Scenario("10 ms for a task, 0 for an offer", _waits(0.01, 0.0)),
    "no-wait-for-both": Scenario("0 for a task and for an offer", _waits(0.0, 0.0)),
    "round-robin": Scenario("round robin", replace(_DEFAULT, algorithm="round-robin")),
    "weighted": Scenario("weighted, our default", replace(_DEFAULT, algorithm="weighted")),
    "with-backlog": Scenario("1,000 tasks wait in one partition, 10 ms of work", _BACKLOG),
    "weighted-with-backlog": Scenario(
        "the same, weighted", replace(_BACKLOG, algorithm="weighted")
    ),
    "cadence-limits": Scenario("its limits and waits", replace(_DEFAULT, forwarding=CADENCE)),
    "published-2-2": Scenario(
        "1,500 tasks, 2 to read, 2 to write", replace(_PUBLISHED, read=2, write=2)
    ),
    "published-4-2": Scenario(
        "1,500 tasks, 4 to read, 2 to write", replace(_PUBLISHED, read=4, write=2)
    ),
    "published-2-2-weighted": Scenario(
        "the same, weighted", replace(_PUBLISHED, read=2, write=2, algorithm="weighted")
    ),
    "published-4-2-weighted": Scenario(
        "the same, weighted", replace(_PUBLISHED, read=4, write=2, algorithm="weighted")
    ),
    "tree-of-depth-2": Scenario(
        "13 partitions, 3 children each, weighted",
        replace(
            _DEFAULT,
            read=13,
            write=13,
            algorithm="weighted",
            forwarding=changed(_DEFAULT.forwarding, children=3),
        ),
    ),
    "tree-of-depth-3": Scenario(
        "15 partitions, 2 children each, weighted",
        replace(
            _DEFAULT,
            read=15,
            write=15,
            algorithm="weighted",
            forwarding=changed(_DEFAULT.forwarding, children=2),
        ),
    ),
}

SWEPT: Mapping[str, MatchingModel] = {
    "stable": replace(_DEFAULT, tasks=600),
    "more-read": replace(_DEFAULT, tasks=600, write=2, algorithm="weighted"),
    "throughput": replace(_THROUGHPUT, tasks=1_500),
    "few-pollers": replace(
        _DEFAULT,
        tasks=400,
        read=8,
        write=8,
        pollers=4,
        rate_per_second=40.0,
        work_seconds=0.05,
        work="exponential",
        algorithm="weighted",
    ),
    "backlog": replace(_BACKLOG, tasks=200),
    "burst": replace(_BURST, tasks=1_200, algorithm="weighted"),
    "wide": replace(
        _DEFAULT,
        tasks=1_000,
        read=16,
        write=2,
        pollers=64,
        rate_per_second=2_000.0,
        work_seconds=0.02,
        algorithm="weighted",
    ),
}
"""The loads under which the sweep varies the defaults."""

OFFERS = (1, 4, 16)
TASKS = (1, 4, 16, 64)
RATES_PER_SECOND = (10.0, 100.0, 1_000.0)
WAITS_SECONDS = (0.0, 0.001, 0.005, 0.01, 0.05)
CHILDREN = (2, 4, 20)
THRESHOLDS = (10.0, 30.0, 100.0)
BACKLOGS = (30, 100, 300)
BUSY = replace(_DEFAULT, tasks=3_000, rate_per_second=6_000.0, pollers=32, algorithm="weighted")
"""Healthy partitions that take in so much that their rates alone weigh something."""
