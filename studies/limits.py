"""Pictures of how a worker finds its limit: the real estimator, before a model of a worker.

    python -m studies.limits docs/pictures/capacity.svg

The worker has so many permits, and serves each query for an exponentially distributed time. Senders
keep as many in flight as its limit allows, and hear of a new limit a millisecond later. Nothing
here is told how many permits there are.
"""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from maitred.balancing.workers import KneeProber, KneeSettings, LimitEstimator
from maitred.cli.main import run_command
from maitred.simulation.pictures import COLOURS, picture

if TYPE_CHECKING:
    from collections.abc import Callable

MEAN_SECONDS = 0.04
WAY_SECONDS = 0.001
"""From the sender to the worker, and back."""
STEP_SECONDS = 0.002
"""Between two looks at it."""
POINTS = 500
"""Of a line in a picture."""


class Change(NamedTuple):
    """From some moment on."""

    at: float
    permits: int
    wanted: int
    """What the senders would have in flight if nothing bounded them."""


class Track(NamedTuple):
    """What happened, point by point."""

    seconds: list[float]
    permits: list[int]
    limit: list[int]
    inside: list[int]
    waiting: list[int]


class Behaviour(NamedTuple):
    """One picture."""

    title: str
    slots: int
    seconds: float
    changes: tuple[Change, ...]
    knee: bool = False
    first: int | None = None
    stalled: tuple[float, float] = (0.0, 0.0)
    """From, to: its event loop is 200 ms late."""
    lie: tuple[float, float] = (0.0, 0.0)
    """From, to: handlers that wait say that they are served."""


BEHAVIOURS = (
    Behaviour(
        "a fifth of the capacity, and back",
        650,
        4.0,
        (Change(0.0, 500, 1_000), Change(1.0, 100, 1_000), Change(2.5, 500, 1_000)),
    ),
    Behaviour(
        "first 32 at a time, then as many as it takes",
        650,
        4.0,
        (Change(0.0, 300, 32), Change(1.5, 300, 1_000)),
    ),
    Behaviour(
        "a late event loop (1 to 4 s), and the way back from the floor",
        200,
        6.0,
        (Change(0.0, 100, 400),),
        stalled=(1.0, 4.0),
    ),
    Behaviour(
        "a lie: from 1 to 2.5 s, what waits is said to be served",
        650,
        4.0,
        (Change(0.0, 300, 500),),
        lie=(1.0, 2.5),
    ),
    Behaviour(
        "the knee of a back end that tells nothing: 100 at a time, 50, 100, 20, 100",
        512,
        60.0,
        (
            Change(0.0, 100, 400),
            Change(10.0, 50, 400),
            Change(20.0, 100, 400),
            Change(35.0, 20, 400),
            Change(45.0, 100, 400),
        ),
        knee=True,
    ),
)


def run(behaviour: Behaviour, seed: int = 1) -> Track:
    """One worker, from the beginning to the end."""
    return _Run(behaviour, Random(seed)).track


class _Run:
    """Events: (moment, order, what to do)."""

    def __init__(self, behaviour: Behaviour, random: Random) -> None:
        self._behaviour = behaviour
        self._random = random
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._now = 0.0
        self._permits = self._wanted = 0
        self._serving = self._waiting = self._in_flight = 0
        first = behaviour.first or behaviour.slots
        self._estimator = LimitEstimator(first, behaviour.slots, 0.0)
        self._prober = KneeProber(0.0, KneeSettings(ceiling=behaviour.slots))
        """One of the two is used: the prober for a knee, else the estimator."""
        self._heard = self._limit()
        """What the senders know of the limit."""
        self.track = Track([], [], [], [], [])
        for change in behaviour.changes:
            self._at(change.at, lambda change=change: self._change(change))  # type: ignore[misc]
        self._at(0.0, self._look)
        while self._events and self._now <= behaviour.seconds:
            self._now, _, do = heappop(self._events)
            do()

    def _at(self, moment: float, do: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (moment, self._order, do))

    def _limit(self) -> int:
        return self._prober.limit if self._behaviour.knee else self._estimator.limit(self._now)

    def _change(self, change: Change) -> None:
        self._permits, self._wanted = change.permits, change.wanted
        self._serve()
        self._send()

    def _look(self) -> None:
        start, end = self._behaviour.stalled
        if start <= self._now < end:
            self._estimator.lagged(0.2)
        track, limit = self.track, self._limit()
        track.seconds.append(self._now)
        track.permits.append(self._permits)
        track.limit.append(limit)
        track.inside.append(self._serving + self._waiting)
        track.waiting.append(self._waiting)
        self._tell(limit)
        self._at(self._now + STEP_SECONDS, self._look)

    def _tell(self, limit: int) -> None:
        self._at(self._now + WAY_SECONDS, lambda: self._hear(limit))

    def _hear(self, limit: int) -> None:
        self._heard = limit
        self._send()

    def _send(self) -> None:
        while self._in_flight < min(self._wanted, self._heard):
            self._in_flight += 1
            self._at(self._now + WAY_SECONDS, self._arrive)

    def _arrive(self) -> None:
        self._waiting += 1
        if self._behaviour.knee:
            self._prober.started()
        else:
            self._estimator.claimed(self._in_flight, pressed=self._wanted > self._in_flight)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._serving < self._permits:
            self._waiting -= 1
            self._serving += 1
            self._at(self._now + self._random.expovariate(1 / MEAN_SECONDS), self._end)
        if not self._behaviour.knee:
            self._observe()

    def _observe(self) -> None:
        start, end = self._behaviour.lie
        if start <= self._now < end:
            self._estimator.observe(self._serving + self._waiting, 0, self._now)
        else:
            self._estimator.observe(self._serving, self._waiting, self._now)

    def _end(self) -> None:
        self._serving -= 1
        self._serve()
        if self._behaviour.knee:
            self._prober.ended(self._now)
        else:
            self._estimator.ended()
        self._tell(self._limit())
        self._at(self._now + WAY_SECONDS, self._answered)

    def _answered(self) -> None:
        self._in_flight -= 1
        self._send()


def draw(path: Path, run_of: Callable[[Behaviour], Track] = run) -> None:
    """All of them, in one file."""
    with picture(path, 9, 2.4 * len(BEHAVIOURS)) as figure:
        rows = figure.subplots(len(BEHAVIOURS), 1)
        for axes, behaviour in zip(rows, BEHAVIOURS, strict=True):
            _draw(axes, behaviour, run_of(behaviour))
        rows[0].legend(frameon=False, fontsize=8, ncols=4, loc="upper right")
        rows[-1].set_xlabel("seconds")


def _draw(axes: Any, behaviour: Behaviour, track: Track) -> None:  # noqa: ANN401 - matplotlib's
    every = max(1, len(track.seconds) // POINTS)
    seconds = track.seconds[::every]

    def line(values: list[int], colour: str, width: float, label: str) -> None:
        axes.plot(seconds, values[::every], color=colour, linewidth=width, label=label)

    line(track.permits, "#CCCCCC", 3, "capacity")
    line(track.inside, COLOURS[4], 0.8, "inside")
    line(track.waiting, COLOURS[1], 0.8, "waiting")
    line(track.limit, COLOURS[0], 1.2, "the limit")
    axes.set_title(behaviour.title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def limits(path: Path) -> None:
    """How a worker finds how many queries it can take: draws its limit, as SVG or PNG, to PATH."""
    draw(path)


if __name__ == "__main__":
    run_command(limits, "studies.limits")
