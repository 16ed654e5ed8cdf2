"""A provider of the contest: work takes a permit, sleeps, and answers.

Sleeps are exponential, rounded up to whole milliseconds. Permits and means change by phase, at
moments of the wall clock that the driver tells; if permits are cut, running work ends as it would
have. Whoever has this in its process sees to the pool: a worker by its slots, the HTTP server by
refusing.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from benchmarks.contest import plan as plans
from benchmarks.contest.plan import Counts, Plan, Told

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.02


class Provider:
    """One of them, in its process."""

    def __init__(
        self,
        folder: Path,
        number: int,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = msgspec.json.decode(plans.plan_file(folder).read_bytes(), type=Plan)
        self.pool = self.plan.pools[number]
        self.serving = 0
        self.waiting = 0
        self.permits, self.average_ms = self.plan.calm[number]
        self._folder = folder
        self._number = number
        self._entered = waiting
        """Entered while something waits for a permit."""
        self._changed = changed
        """Called when there are more or fewer that are served or wait."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._random = Random(f"provider {number} {self.plan.seed}")
        self._loop = asyncio.get_running_loop()
        self._counts = Counts()
        self._all: list[Counts] = []
        self._look()

    @classmethod
    def here(cls, waiting: Callable[[], AbstractContextManager[None]]) -> Provider:
        """As the variables of the process say."""
        return cls(Path(os.environ[plans.FOLDER]), int(os.environ[plans.NUMBER]), waiting)

    async def serve(self) -> int:
        """Do the work; how many milliseconds it was."""
        if self.serving >= self.permits or self._waiters:
            await self._wait()
        else:
            self.serving += 1
        counts = self._counts
        counts.begun += 1
        drawn = math.ceil(-self.average_ms * math.log(1.0 - self._random.random())) or 1
        counts.slept_ms += drawn
        since = self._loop.time()
        self._changed()
        try:
            await asyncio.sleep(drawn / 1e3)
        finally:
            counts.held_seconds += self._loop.time() - since
            self.serving -= 1
            self._hand_out()
            self._changed()
        return drawn

    def refused(self) -> None:
        """The pool was full."""
        self._counts.refused += 1

    async def _wait(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        self.waiting += 1
        counts = self._counts
        counts.waited += 1
        since = self._loop.time()
        self._changed()
        try:
            with self._entered():
                await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it has a permit, and no use for it
                self.serving -= 1
                self._hand_out()
            raise
        finally:
            self.waiting -= 1
            counts.waited_seconds += self._loop.time() - since

    def _hand_out(self) -> None:
        waiters = self._waiters
        while waiters and self.serving < self.permits:
            waiter = waiters.popleft()
            if not waiter.done():
                self.serving += 1
                waiter.set_result(None)

    # Phases

    def _look(self) -> None:
        """Has the beginning been told?"""
        path = plans.begin_file(self._folder)
        if not path.exists():
            self._loop.call_later(LOOK_SECONDS, self._look)
            return
        begin = self._loop.time() + float(path.read_text()) - time.time()
        plan = self.plan
        for at in range(len(plan.phases)):
            self._loop.call_at(begin + at * plan.phase_seconds, self._change, at)
        self._loop.call_at(begin + plan.seconds, self._end)

    def _change(self, at: int) -> None:
        self._counts = Counts()
        self._all.append(self._counts)
        self.permits, self.average_ms = self.plan.phases[at][self._number]
        self._hand_out()

    def _end(self) -> None:
        told = msgspec.json.encode(Told(self._all))
        plans.write(plans.told_file(self._folder, self._number), told)
