"""The users of a simulated cluster: producers, and probers that look whether all is well again."""

from __future__ import annotations

import asyncio
from typing import Final

from maitred.errors import MaitredError
from maitred.simulation.scenarios.tasks_people import QUEUE, Person, Producer

PROBES: Final = 12
"""Tasks that a prober adds, one after another, so that they go to all partitions."""
PROBE_SECONDS: Final = 20.0
"""The longest time from the addition of a task until its result is known, when it is calm. A worker
that waits elsewhere offers its slots anew after its offer's time."""


class ClusterProducer(Producer):
    """Adds tasks for as long as the storm lasts. Many of them take so long that others wait, since
    an owner that has nothing to give out can do nothing wrong."""

    tasks = 40
    pause_seconds = 1.5
    quick_probability = 0.6


class Prober(Person):
    """Adds tasks when it is calm, and waits for the result of each."""

    async def main(self) -> None:
        """Add tasks, and raise `Violation` for the first that fails or takes too long."""
        app = self.app()
        await self.connected(app)
        handler = app.handlers[QUEUE]
        for _ in range(PROBES):
            story = self.record.told(retries=0, queue=handler.queue)
            began = asyncio.get_running_loop().time()
            try:
                task = await handler.options(retries=0).enqueue(story.number)
                story.place = (task.partition, task.sequence)
                await task.result(timeout=PROBE_SECONDS)
                story.answers.append("done")
            except MaitredError as problem:
                seconds = asyncio.get_running_loop().time() - began
                raise self.record.violation(
                    story, f"was added when it was calm, and after {seconds:.1f} s: {problem!r}"
                ) from problem
        await self.leave(app)
